package children

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// skew is a fleet of two versions: a child whose agent is that of the previous release, and
// one whose agent is of this version, below a parent that is the one and then the other.
type skew struct {
	*upgrade
	// change counts what is committed.
	change int
}

// TestSkew shows the table of docs/install.md#versions-beside-each-other: parents and agents that are one release apart
// keep syncing and reporting, and layers change what they bring.
func TestSkew(t *testing.T) {
	scenario.Alongside(t)
	s := startSkew(t)
	steps(t,
		step{"ParentBefore", s.works},
		step{"ParentUpgraded", func(t *testing.T) { s.parent(t, "") }},
		step{"ParentAfter", s.works},
		step{"ParentTakenBack", func(t *testing.T) { s.parent(t, s.earlier.Dir+"/cascade") }},
		step{"ParentBeforeAgain", s.works},
	)
}

func startSkew(t *testing.T) *skew {
	t.Helper()
	s := &skew{upgrade: &upgrade{earlier: scenario.Earlier(t, scenario.BeforeValues)}}
	h := openHub(t, "--observe-interval", observeInterval.String())
	h.program = s.earlier.Dir + "/cascade"
	h.install(t, s.earlier.CRDs, "v1beta2")
	h.startAgent(t)
	sync := fmt.Sprintf(armed, h.Git.HTTPURL("skew"))
	s.fleet = h.fleet(t, "skew", map[string]string{"own/note.yaml": noteNamed("own", "version", "0"), "older/sync.yaml": sync, "newer/sync.yaml": sync})
	username, password := h.Git.Login()
	s.define(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: for-child}, stringData: {username: %q, password: %q}}", username, password))
	s.older, s.newer = h.plane(t, "older", "--audit-reads", "--token-cache=0s"), h.plane(t, "newer", "--audit-reads", "--token-cache=0s")
	// The pods of a node run the program that its directories have first, whatever the parent
	// says of their image.
	if err := s.older.StartNode(t.Context(), s.earlier.Dir); err != nil {
		t.Fatal(err)
	}
	if err := s.newer.StartNode(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, p := range s.pair() {
		s.layer(t, name, name, "agent: {args: [--observe-interval=1s]}", "credentials: [{name: git-auth, secretRef: {name: for-child}}]", "wait: true")
		s.declare(t, name)
		s.fleet.report(t, name, initialized)
		s.handOver(t, name, p.issue(t).kubeconfig)
		s.ready(t, name, "")
	}
	s.synced(t, "0")
	return s
}

func (s *skew) pair() map[string]*plane { return map[string]*plane{"older": s.older, "newer": s.newer} }

// parent has the hub's agent be that of a program, as an upgrade or its reversal does: with its
// definitions, and with what it makes the agents of its children of.
func (s *skew) parent(t *testing.T, program string) {
	s.agent.Kill()
	crds, err := deploy.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	if program != "" {
		crds = scenario.Earlier(t, scenario.BeforeValues).CRDs // those of the start are as they were applied
	}
	for _, crd := range crds {
		s.apply(t, crd)
	}
	before := map[string]int64{}
	for name, p := range s.pair() {
		before[name] = p.deployed(t)
	}
	s.program = program
	s.startAgent(t)
	for name, p := range s.pair() {
		asked := s.request(t, layerNamed(s.fleet, name))
		scenario.Eventually(t, scenario.BringUp, "the layer is in "+name+" as this parent has it", func(ctx context.Context) error {
			child, err := s.child(ctx, name)
			if err != nil {
				return err
			}
			if l := child.Status.Layers[0]; !l.Ready || l.LastHandledReconcileAt != asked {
				return fmt.Errorf("the layer says %t, %s: %s, and handled %s", l.Ready, l.Reason, l.Message, l.LastHandledReconcileAt)
			}
			return nil
		})
		s.ready(t, name, "")
		if p.deployed(t) == before[name] {
			t.Errorf("the Deployment in %s is that of the parent before", name)
		}
	}
}

// deployed is the generation of the agent's Deployment in a child.
func (p *plane) deployed(t *testing.T) int64 {
	t.Helper()
	d := &appsv1.Deployment{}
	if err := p.client.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.AgentName}, d); err != nil {
		t.Fatal(err)
	}
	return d.Generation
}

// works: the agents sync a commit to what they pull, and report it; a layer brings an object,
// and takes the one of the change before away.
func (s *skew) works(t *testing.T) {
	s.change++
	now := strconv.Itoa(s.change)
	files := map[string]string{"own/note.yaml": noteNamed("own", "version", now)}
	for name := range s.pair() {
		files[name+"/note.yaml"] = noteNamed("pushed-"+now, "version", now)
	}
	sha := s.commit(t, files)
	for name, p := range s.pair() {
		p.has(t, "pushed-"+now, "version", now)
		s.ready(t, name, sha)
		s.fetchBelow(t, p)
		s.runs(t, p)
	}
	s.synced(t, now)
	for _, p := range s.pair() {
		scenario.Eventually(t, scenario.Converge, "the note before is gone from "+p.Name, func(ctx context.Context) error {
			if _, err := p.value(ctx, "pushed-"+strconv.Itoa(s.change-1), ""); !apierrors.IsNotFound(err) {
				return fmt.Errorf("it is there: %v", err)
			}
			return nil
		})
	}
}

// runs: the agent of a child is of the version that it is meant to be.
func (s *skew) runs(t *testing.T, p *plane) {
	t.Helper()
	program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.Agent()))
	if err != nil {
		t.Fatalf("cannot find the agent of %s: %v", p.Name, err)
	}
	if (filepath.Dir(program) == s.earlier.Dir) != (p == s.older) {
		t.Errorf("the agent of %s is %s", p.Name, program)
	}
}
