//go:build linux

package mom

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/mom/provider"
	"github.com/cascade-gitops/cascade/state/archive"
	"github.com/cascade-gitops/cascade/state/store"
)

// Names of programs of a payload.
const (
	PlaneProgram = "controlplane"
	AgentProgram = "cascade"
)

// Repository is what declares the tier.
type Repository struct {
	URL, Branch, Path string
	// Interval between two looks at the branch.
	Interval time.Duration
	// Login is the data of a Secret for it, empty for none.
	Login map[string][]byte
}

// tier is what the repository declares.
func (r Repository) tier() Tier { return tierAt(r.URL, r.Branch, r.Path) }

// State is where the state is kept, and how.
type State struct {
	// Address without any login.
	Address string
	Store   store.Store
	// Seal and Open encrypt and decrypt.
	Seal func(*archive.Snapshot) ([]byte, error)
	Open func([]byte) (*archive.Snapshot, error)
	// Take reads the state of a cluster.
	Take func(context.Context, client.Client) (*archive.Snapshot, error)
	// Restore writes a state into a cluster that has none of it. newest is nil if there is none
	// that was saved later.
	Restore func(ctx context.Context, c client.Client, s, newest *archive.Snapshot) error
	// Version to restore instead of the newest.
	Version string
	// Holder is who takes the lock, for people.
	Holder string
	// Keep is how many versions are kept.
	Keep int
}

// Options of Up.
type Options struct {
	Folder Folder
	// Name of the context in the kubeconfig.
	Name string
	// Programs is the directory of the programs, Providers what is run of them.
	Programs  string
	Providers []*provider.Provider
	// Agent are the objects of an agent, definitions first, without its Deployment.
	Agent [][]*unstructured.Unstructured
	// AgentArgs are arguments of the agent besides those that it needs here.
	AgentArgs []string
	// FirstSync is --first-sync of the agent of a tier that has nothing on record.
	FirstSync string
	Scheme    *runtime.Scheme

	Repository Repository
	// Moved: the tier was declared elsewhere before, in another repository, branch or path.
	Moved bool
	// Objects are applied before the agent is started: Secrets that Git does not have.
	Objects []*unstructured.Unstructured
	// State is nil where none is kept.
	State *State

	// UntilReady ends it when the tier may go; For ends it after a time from the call on, zero for never.
	UntilReady bool
	For        time.Duration

	// Environment of all programs.
	Environment []string
	// Say tells a person how far it is, Show prints what is asked for.
	Say  func(format string, args ...any)
	Show func(text string)
	Now  func() time.Time
	Rand func() float64
}
