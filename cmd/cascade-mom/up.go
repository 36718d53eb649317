//go:build linux

package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"filippo.io/age"
	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	automationv1 "github.com/fluxcd/image-automation-controller/api/v1"
	reflectorv1 "github.com/fluxcd/image-reflector-controller/api/v1"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	"github.com/fluxcd/pkg/ssa/utils"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/spf13/cobra"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/installation"
	"github.com/cascade-gitops/cascade/cmd/cascade/layout"
	"github.com/cascade-gitops/cascade/cmd/cascade/login"
	"github.com/cascade-gitops/cascade/cmd/cascade/statestore"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/mom"
	"github.com/cascade-gitops/cascade/mom/payload"
	"github.com/cascade-gitops/cascade/mom/provider"
	"github.com/cascade-gitops/cascade/state"
	"github.com/cascade-gitops/cascade/state/archive"
	"github.com/cascade-gitops/cascade/state/key"
	"github.com/cascade-gitops/cascade/state/store"
)

// up is one call of the verb.
type up struct {
	place *place

	url, branch, path                         string
	interval                                  time.Duration
	username, caFile, keyFile, knownHostsFile string
	passwordStdin                             bool
	apply, agentArgs                          []string
	image, firstSync                          string
	moved                                     bool

	state, version, holder string
	stateCredentials       string
	recipients             []string
	identityFile           string
	keep                   int

	until  string
	lasts  time.Duration
	in     io.Reader
	out    io.Writer
	errOut io.Writer
}

// untilReady is the one value of --until.
const untilReady = "ready"

func newUp(p *place) *cobra.Command {
	u := &up{place: p}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring a management cluster up from a repository, and run it until it is stopped",
		Long: "Bring a management cluster up from a repository, and run it until it is stopped: by cascade mom down,\n" +
			"by Ctrl-C, when it may go (--until ready), or after a time (--for). It then saves its state, where\n" +
			"--state says, and deletes nothing: the clusters that it made go on by themselves.\n\n" +
			"With a state that was saved, here or on another machine, it goes on from there: clusters that exist\n" +
			"are adopted. One management cluster at a time has a state; a second one says who has it.\n\n" +
			"Without a state, a cluster that Git declares may run already, made by a management cluster that was\n" +
			"lost: such clusters are held. --first-sync=create says that there never was one.",
		Example: "  GIT_PASSWORD=... cascade mom up --repo https://example.com/masters --username ann --path mom --first-sync create \\\n" +
			"    --state s3://fleet/mom --identity key.txt --until ready",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			u.in, u.out, u.errOut = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
			keepAwake()
			return u.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&u.url, "repo", "", "URL of the repository that declares the masters, https:// or ssh://")
	f.StringVar(&u.branch, "branch", "main", "branch of the repository")
	f.StringVar(&u.path, "path", "", "directory of the repository that declares this tier")
	f.BoolVar(&u.moved, "moved", false, "the tier was declared elsewhere before: at another --repo, --branch or --path, which are refused without this")
	f.DurationVar(&u.interval, "interval", time.Minute, "pause between two looks at the repository")
	f.StringVar(&u.username, "username", "", "name for HTTPS; the password, or a token, is in GIT_PASSWORD")
	f.BoolVar(&u.passwordStdin, "password-stdin", false, "read the password from the standard input instead")
	f.StringVar(&u.caFile, "ca-file", "", "authorities of the server for HTTPS, in PEM")
	f.StringVar(&u.keyFile, "private-key-file", "", "private key for SSH; its passphrase is in GIT_KEY_PASSPHRASE")
	f.StringVar(&u.knownHostsFile, "known-hosts-file", "", "keys of the server for SSH; without it, the key is read once, printed and used")
	f.StringArrayVar(&u.apply, "apply", nil, "file of manifests that are applied before the agent starts, such as Secrets that Git does not have; may be given several times")
	f.StringVar(&u.firstSync, "first-sync", "adopt", "adopt, or create for a tier that never had a Cluster")
	f.StringVar(&u.image, "image", "", "image of the agents that masters get; without it, CASCADE_IMAGE or the one of this release")
	f.StringArrayVar(&u.agentArgs, "agent-arg", nil, "argument of the agent; may be given several times")
	f.StringVar(&u.state, "state", "", "where the state is kept: a directory, s3://, azblob://, gs:// or git+https://; without it, in the folder only")
	f.StringVar(&u.stateCredentials, "state-credentials", "", statestore.CredentialsMean+", and for a state in Git on the server of --repo the login of that")
	f.StringArrayVar(&u.recipients, "recipient", nil, "public key of age or SSH, or key of a KMS, for whom the state is encrypted; without it, the keys of --identity; may be given several times")
	f.StringVar(&u.identityFile, "identity", "", "file with the private key of age or SSH that opens the state")
	f.StringVar(&u.version, "version", "", "version of the state to restore instead of the newest; what it does not have is held")
	f.StringVar(&u.holder, "holder", "", "who has the state, for others who want it; without it, user and machine")
	f.IntVar(&u.keep, "keep", 100, "how many versions of the state are kept")
	f.StringVar(&u.until, "until", "", "ready: stop when all that Git declares is ready; to be stopped before is an error")
	f.DurationVar(&u.lasts, "for", 0, "stop after this time from the call on; with --until ready, that is an error if it is not ready by then")
	_ = cmd.MarkFlagRequired("repo") // it is a flag of the command
	return cmd
}

func (u *up) run(ctx context.Context) error {
	folder, err := u.place.folder()
	if err != nil {
		return err
	}
	if err := u.check(); err != nil {
		return err
	}
	o := mom.Options{
		Folder: folder, Name: u.place.name, FirstSync: u.firstSync, Moved: u.moved, Scheme: newScheme(),
		UntilReady: u.until == untilReady, For: u.lasts, Environment: environment(os.Environ()), Say: u.say, Now: time.Now, Rand: rand.Float64,
		Show: func(text string) { fmt.Fprint(u.out, text) },
	}
	if o.Repository, err = u.repository(); err != nil {
		return err
	}
	image, err := u.imageOf()
	if err != nil {
		return err
	}
	o.AgentArgs = append([]string{"--agent-image=" + image}, u.agentArgs...)
	if o.Agent, err = agentObjects(image); err != nil {
		return err
	}
	for _, file := range u.apply {
		text, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("cannot read --apply: %w", err)
		}
		objects, err := utils.ReadObjects(strings.NewReader(string(text)))
		if err != nil {
			return fmt.Errorf("cannot parse --apply %s: %w", file, err)
		}
		o.Objects = append(o.Objects, objects...)
	}
	if u.state != "" {
		if o.State, err = u.stateOf(ctx, o.Repository.Login); err != nil {
			return err
		}
		defer func() { _ = o.State.Store.Close() }() // what was to be written, is
	}
	if o.Programs, o.Providers, err = unpack(ctx); err != nil {
		return err
	}
	return u.bringUp(ctx, o)
}

// bringUp says at the end that it did as asked. It did so, too, if nobody is there to read that.
func (u *up) bringUp(ctx context.Context, o mom.Options) error {
	if err := mom.Up(ctx, o); err != nil {
		return err
	}
	fmt.Fprintln(u.out, "✔ stopped; nothing was deleted")
	return nil
}

// keepAwake has a terminal not stop this process. Its programs would go on, as they are in
// groups of their own, while nobody renews the lock: another one would take the state, and
// both would write. Nor does whoever reads its output end it, who ends before it has saved: with
// the terminal, or by the Ctrl-C that is for both.
func keepAwake() {
	signal.Ignore(syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGPIPE)
}

func (u *up) say(format string, args ...any) {
	fmt.Fprintf(u.errOut, "► "+format+"\n", args...)
}

func (u *up) check() error {
	switch {
	case u.firstSync != "adopt" && u.firstSync != "create":
		return fmt.Errorf("cannot use --first-sync %q: use adopt or create", u.firstSync)
	case u.until != "" && u.until != untilReady:
		return fmt.Errorf("cannot use --until %q: use ready", u.until)
	case u.lasts < 0:
		return fmt.Errorf("cannot use --for %s: it must be a time to come", u.lasts)
	case u.branch == "":
		return errors.New("cannot use --branch \"\": name a branch")
	case u.interval <= 0:
		return fmt.Errorf("cannot use --interval %s: it must be longer", u.interval)
	case u.keep < 1:
		return fmt.Errorf("cannot use --keep %d: keep one version at least", u.keep)
	case u.state == "" && (u.version != "" || u.identityFile != "" || len(u.recipients) > 0 || u.stateCredentials != ""):
		return errors.New("cannot use --version, --identity, --recipient or --state-credentials without --state")
	case u.state != "" && u.identityFile == "":
		return errors.New("cannot keep a state without --identity: nobody could go on from it; age-keygen -o key.txt makes one")
	}
	return nil
}

// repository is what declares the tier, and how to log in there.
func (u *up) repository() (mom.Repository, error) {
	r := mom.Repository{URL: u.url, Branch: u.branch, Interval: u.interval}
	var err error
	if r.Path, err = layout.Clean(u.path); err != nil {
		return r, err
	}
	given := login.Given{Username: u.username, Password: os.Getenv("GIT_PASSWORD"), Passphrase: os.Getenv("GIT_KEY_PASSPHRASE")}
	for _, file := range []struct {
		name string
		into *[]byte
	}{{u.caFile, &given.CA}, {u.keyFile, &given.PrivateKey}, {u.knownHostsFile, &given.KnownHosts}} {
		if file.name == "" {
			continue
		}
		if *file.into, err = os.ReadFile(file.name); err != nil {
			return r, fmt.Errorf("cannot read the login: %w", err)
		}
	}
	if u.passwordStdin {
		line, err := bufio.NewReader(u.in).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return r, fmt.Errorf("cannot read the password: %w", err)
		}
		if given.Password = strings.TrimRight(line, "\r\n"); given.Password == "" {
			return r, errors.New("cannot read the password: the standard input is empty")
		}
	}
	l, err := login.New(u.url, given, nil, login.ScanHost)
	if err != nil {
		return r, err
	}
	if l.Made != "" {
		return r, errors.New("cannot log in to the repository: say --private-key-file; a key that is made here would be known to nobody")
	}
	if l.Pinned != "" {
		u.say("the server shows the key %s, and is known by it in this run", l.Pinned)
	}
	r.Login = l.Data
	return r, nil
}

// published is where the image of each release is.
const published = "ghcr.io/cascade-gitops/cascade"

func (u *up) imageOf() (string, error) {
	if image := cmp.Or(u.image, os.Getenv("CASCADE_IMAGE")); image != "" {
		return image, nil
	}
	if !installation.OfRelease(version()) {
		return "", fmt.Errorf("cannot tell which image masters get: this program is of no release (%s); say --image", version())
	}
	return published + ":" + version(), nil
}

// agentObjects are those of an agent, without its Deployment: it is a process here.
func agentObjects(image string) ([][]*unstructured.Unstructured, error) {
	crds, err := deploy.CRDs()
	if err != nil {
		return nil, err
	}
	options := deploy.Options{}
	options.Image = image
	rights, _, err := deploy.Agent(options)
	if err != nil {
		return nil, err
	}
	return [][]*unstructured.Unstructured{crds, rights}, nil
}

// stateOf opens the place of the state, and the keys for it. login is that of the repository.
func (u *up) stateOf(ctx context.Context, login map[string][]byte) (*mom.State, error) {
	file, err := os.ReadFile(u.identityFile)
	if err != nil {
		return nil, fmt.Errorf("cannot read --identity: %w", err)
	}
	identities, err := key.Identities(ctx, file)
	if err != nil {
		return nil, fmt.Errorf("cannot use --identity: %w", err)
	}
	recipients, err := key.Recipients(ctx, u.recipients...)
	if err != nil {
		return nil, err
	}
	if len(recipients) == 0 {
		if recipients = recipientsOf(identities); len(recipients) == 0 {
			return nil, errors.New("cannot tell for whom the state is to be encrypted: say --recipient")
		}
	}
	at, err := store.Parse(u.state)
	if err != nil {
		return nil, err
	}
	kept, err := statestore.Place{
		Address: u.state, Credentials: u.stateCredentials, Flag: "--state-credentials", Repository: u.url, Login: login,
	}.Open(ctx, time.Now)
	if err != nil {
		return nil, err
	}
	return &mom.State{
		Address: at.String(), Store: kept, Version: u.version, Holder: cmp.Or(u.holder, holder()), Keep: u.keep,
		Seal: func(s *archive.Snapshot) ([]byte, error) { return archive.Seal(s, recipients...) },
		Open: func(b []byte) (*archive.Snapshot, error) { return archive.Open(b, identities...) },
		Take: func(ctx context.Context, c client.Client) (*archive.Snapshot, error) {
			return state.Take(ctx, c, state.TakeOptions{Program: version(), Now: time.Now})
		},
		Restore: func(ctx context.Context, c client.Client, s, newest *archive.Snapshot) error {
			report, err := state.Restore(ctx, c, s, state.Options{Newer: newest, Inside: state.Inside})
			for _, step := range report.Steps {
				if step.Reason == state.ReasonMovedAway || step.Reason == state.ReasonNotAsked {
					u.say("%s: %s", step.Object, step.Why)
				}
			}
			return err
		},
	}, nil
}

// recipientsOf are the public halves of keys, of those that have one here.
func recipientsOf(identities []age.Identity) []age.Recipient {
	var recipients []age.Recipient
	for _, identity := range identities {
		switch id := identity.(type) {
		case *age.X25519Identity:
			recipients = append(recipients, id.Recipient())
		case *age.HybridIdentity:
			recipients = append(recipients, id.Recipient())
		}
	}
	return recipients
}

// holder says who has a state.
func holder() string {
	machine, err := os.Hostname()
	if err != nil {
		machine = "unknown"
	}
	return fmt.Sprintf("%s@%s (process %d)", cmp.Or(os.Getenv("USER"), fmt.Sprintf("uid %d", os.Getuid())), machine, os.Getpid())
}

// unpack unpacks the programs of this build, and reads how they are run.
func unpack(ctx context.Context) (programs string, providers []*provider.Provider, err error) {
	carried, err := payload.Embedded()
	if err != nil {
		return "", nil, err
	}
	manifests, err := carried.Manifests()
	if err != nil {
		return "", nil, err
	}
	for _, name := range carried.Index.Providers {
		p, err := provider.Read(manifests, name)
		if err != nil {
			return "", nil, err
		}
		if !carried.Has(p.Program) {
			return "", nil, fmt.Errorf("cannot run provider %s: this build lacks its program %s", name, p.Program)
		}
		providers = append(providers, p)
	}
	dir, err := cache()
	if err != nil {
		return "", nil, err
	}
	programs, err = carried.Unpack(ctx, dir)
	debug.FreeOSMemory() // unpacking takes most of what this process ever needs
	return programs, providers, err
}

// environment is that of all programs: the user's, by which providers log in to clouds,
// without what is of this command alone.
func environment(own []string) []string {
	return slices.DeleteFunc(slices.Clone(own), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return slices.Contains([]string{"GIT_PASSWORD", "GIT_KEY_PASSPHRASE", "KUBECONFIG", "POD_NAME", "POD_NAMESPACE"}, name)
	})
}

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, v1alpha1.AddToScheme,
		sourcev1.AddToScheme, kustomizev1.AddToScheme, helmv2.AddToScheme, notificationv1.AddToScheme, reflectorv1.AddToScheme, automationv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err) // the types of this program are in conflict: no run of it could be right
		}
	}
	return scheme
}
