package main

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"net/url"
	"slices"
	"strings"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/ssa/utils"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/agent"
	"github.com/cascade-gitops/cascade/cmd/cascade/checkout"
	"github.com/cascade-gitops/cascade/cmd/cascade/installation"
	"github.com/cascade-gitops/cascade/cmd/cascade/layout"
	"github.com/cascade-gitops/cascade/cmd/cascade/login"
	"github.com/cascade-gitops/cascade/cmd/cascade/migration"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// bootstrap is one call of the verb.
type bootstrap struct {
	install
	login             loginFlags
	url, branch, path string
	// pushBranch takes the commits where a person merges them; empty: branch does.
	pushBranch string
	interval   time.Duration
	yes, move  bool

	namespace string
	// secretName is that of the login.
	secretName string
	// waits: what that Secret has is the login that was decided on, and nothing syncs with it yet.
	waits bool
	found *installation.Found
	// operated is Flux whose controllers an operator declares.
	operated *layout.Flux
	// deployed are Flux's controllers in the cluster.
	deployed migration.Deployed
	// readyNodes are counted where they decide about the network.
	readyNodes int
	// handsOver: what was decided brings all of a lockdown, and leaves the agent administrator.
	// That ends by a commit of its own, once the rest is there: handedOver.
	handsOver, handedOver bool
}

func (c *cli) newBootstrap() *cobra.Command {
	cmd := &cobra.Command{Use: "bootstrap", Short: "Make this cluster a tier that is declared, with its agent, in a repository"}
	cmd.AddCommand(c.newBootstrapGit())
	return cmd
}

func (c *cli) newBootstrapGit() *cobra.Command {
	values, b := &valueFlags{}, &bootstrap{install: install{cli: c}}
	cmd := &cobra.Command{
		Use:   "git",
		Short: "Make this cluster a tier that is declared, with its agent, in a Git repository",
		Long: "Make this cluster a tier that is declared, with its agent, in a Git repository. The agent's manifests\n" +
			"and what syncs them are committed below --path, the agent is installed, and from then on it keeps\n" +
			"itself as the repository says. The same command again upgrades, or changes what the agent is told:\n" +
			"what it decides is in the repository, and without a change there is no commit. Values are said\n" +
			"again each time, as for `cascade install`; patches of cascade-system/kustomization.yaml stay.\n\n" +
			"Where the branch is protected, --push-branch has each commit go to another one, and the call ends with it:\n" +
			"merge that, and say the same again. A tier that syncs another repository, branch or path stays as it is,\n" +
			"unless --move says that it is to go on from here.\n\n" +
			"In a repository that `flux bootstrap` made, the agent takes the place of Flux's controllers. While these\n" +
			"work in the cluster, use `cascade migrate from-flux`.",
		Example: "  GIT_PASSWORD=... cascade bootstrap git --url https://example.com/fleet --username ann --path tiers/mom\n" +
			"  cascade bootstrap git --url ssh://git@example.com/fleet --path tiers/mom",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if b.options, err = values.options(cmd.Flags(), c.streams.In); err != nil {
				return err
			}
			if c.flags.Namespace != nil && *c.flags.Namespace != "" {
				b.options.Namespace = *c.flags.Namespace
			}
			return b.run(cmd.Context())
		},
	}
	values.bind(cmd.Flags())
	b.login.bind(cmd.Flags())
	f := cmd.Flags()
	f.StringVar(&b.url, "url", "", "URL of the repository, https:// or ssh://")
	f.StringVar(&b.branch, "branch", "main", "branch of the repository, which the tier follows")
	f.StringVar(&b.pushBranch, "push-branch", "", "new branch for a commit, for a person to merge; without it, commits go to the branch that the tier follows")
	f.StringVar(&b.path, "path", "", "directory of the repository that declares this tier")
	f.DurationVar(&b.interval, "interval", 10*time.Minute, "pause between two looks at the whole tier; at the repository, the agent looks each minute")
	f.BoolVar(&b.downgrade, "allow-downgrade", false, "install an earlier version than the one that is there")
	f.BoolVar(&b.move, "move", false, "have a tier that syncs another repository, branch or path go on from this one")
	f.BoolVar(&b.yes, "yes", false, "do not ask whether the key was added to the repository")
	f.DurationVar(&b.timeout, "timeout", 10*time.Minute, "how long to wait until the tier syncs itself")
	_ = cmd.MarkFlagRequired("url") // it is a flag of the command
	c.flags.AddFlags(f)
	return cmd
}

func (b *bootstrap) run(ctx context.Context) error {
	var err error
	if b.path, err = layout.Clean(b.path); err != nil {
		return err
	}
	if _, err := login.Parse(b.url); err != nil {
		return err
	}
	b.namespace = cmp.Or(b.options.Namespace, v1alpha1.AgentNamespace)
	cluster, err := b.connect()
	if err != nil {
		return err
	}
	defer cluster.Close()
	l, err := b.prepare(ctx, cluster)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	if synced, err := b.sync(ctx, cluster, l); err != nil || !synced || !b.handsOver {
		return err
	}
	b.say("the tier applies as its account; now the agent's own rights go")
	b.handedOver = true
	_, err = b.sync(ctx, cluster, l)
	return err
}

// sync makes a commit, and waits until the tier has it, unless a person is to merge it first.
func (b *bootstrap) sync(ctx context.Context, cluster *apply.Cluster, l *login.Login) (synced bool, err error) {
	tree, flux, pushed, err := b.commit(ctx, cluster, l)
	if err != nil {
		return false, err
	}
	defer tree.Close()
	if pushed && b.pushBranch != "" && b.pushBranch != b.branch {
		fmt.Fprintf(b.streams.Out, "✔ branch %s has the commit: merge it into %s, and run the same command again\n", b.pushBranch, b.branch)
		return false, nil
	}
	return true, b.start(ctx, cluster, tree, flux)
}

// prepare looks at the cluster and logs in. A person who is asked may take longer than what
// comes after it.
func (b *bootstrap) prepare(ctx context.Context, cluster client.Client) (*login.Login, error) {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	if err := b.look(ctx, cluster); err != nil {
		return nil, err
	}
	if err := b.staysHere(ctx, cluster); err != nil {
		return nil, err
	}
	lease, err := installation.FluxHolder(ctx, cluster, b.now())
	if err != nil {
		return nil, err
	}
	if lease != "" {
		return nil, fmt.Errorf("cannot bootstrap: Flux works in this cluster and holds Lease %s; use cascade migrate from-flux", lease)
	}
	return b.logIn(ctx, cluster)
}

// look looks at what is in the cluster.
func (b *bootstrap) look(ctx context.Context, cluster client.Client) error {
	var err error
	if b.found, err = b.admit(ctx, cluster, b.namespace, "declare an agent"); err != nil {
		return err
	}
	if b.deployed, err = migration.ReadDeployed(ctx, cluster); err != nil {
		return err
	}
	if b.options.HostNetwork == nil && b.found == nil {
		b.readyNodes, err = installation.ReadyNodes(ctx, cluster)
	}
	return err
}

// declaredAt is where a tier is declared.
type declaredAt struct{ url, branch, path string }

func (f declaredAt) String() string {
	text := "path " + f.path
	if f.branch != "" {
		text += ", branch " + f.branch
	}
	if f.url != "" {
		text += ", of " + withoutLogin(f.url)
	}
	return text
}

// staysHere refuses the cluster of another tier. A context that is the wrong one would have it
// get all that is declared for this one, and lose what is its own.
func (b *bootstrap) staysHere(ctx context.Context, c client.Client) error {
	to := declaredAt{url: b.url, branch: b.branch, path: b.path}
	if err := b.stays(ctx, c, b.tierKey(), to); err != nil || b.found == nil {
		return err
	}
	namespace, name, _ := strings.Cut(b.found.Kustomization, "/")
	if name == "" {
		return nil
	}
	return b.stays(ctx, c, client.ObjectKey{Namespace: namespace, Name: name}, to)
}

// stays refuses to go on if a Kustomization is there and syncs something else, unless a person
// says that the tier is to move. What is not known of its source counts as the same.
func (b *bootstrap) stays(ctx context.Context, c client.Client, key client.ObjectKey, to declaredAt) error {
	if b.move {
		return nil
	}
	k, git := &kustomizev1.Kustomization{}, &sourcev1.GitRepository{}
	if err := c.Get(ctx, key, k); apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("cannot read Kustomization %s: %w", key, err)
	}
	is := declaredAt{path: k.Spec.Path}
	if clean, err := layout.Clean(k.Spec.Path); err == nil {
		is.path = clean
	}
	if ref := k.Spec.SourceRef; ref.Kind == sourcev1.GitRepositoryKind {
		source := inNamespace(ref.Namespace, key.Namespace, ref.Name)
		if err := c.Get(ctx, source, git); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("cannot read GitRepository %s: %w", source, err)
		}
		if git.Name != "" {
			if err := arrives(source, git.Spec.Reference); err != nil {
				return fmt.Errorf("cannot bootstrap: %w", err)
			}
			is.url = git.Spec.URL
			is.branch, _ = branchOf(git.Spec.Reference)
		}
	}
	if is.path == to.path && (is.branch == "" || is.branch == to.branch) && (is.url == "" || layout.SamePlace(is.url, to.url)) {
		return nil
	}
	return fmt.Errorf("cannot bootstrap: Kustomization %s of this cluster syncs %s, and would sync %s from now on; use the context of that tier, or say --move if this one is to move there", key, is, to)
}

// tierKey names the two objects that sync the tier.
func (b *bootstrap) tierKey() client.ObjectKey {
	return client.ObjectKey{Namespace: b.namespace, Name: layout.Name}
}

// secretKey names the Secret of the login from this commit on.
func (b *bootstrap) secretKey() client.ObjectKey {
	return client.ObjectKey{Namespace: b.namespace, Name: b.secretName}
}

// fluxSecret is where flux bootstrap keeps its login.
func fluxSecret() client.ObjectKey {
	return client.ObjectKey{Namespace: "flux-system", Name: "flux-system"}
}

// otherSecret is that of a login that takes the place of the one in Secret cascade-system, and
// the other way round. A GitRepository so gets a URL and the login for it by one write, whoever
// applies the commit: a tier has a login that works at each moment.
const otherSecret = layout.Name + "-key"

// urlAnnotation on the Secret of a login says which repository it is for.
const urlAnnotation = v1alpha1.InstallLabelGroup + "/url"

// heldLogin is a login that the cluster has, and the URL of the repository that it is for, empty
// where a person kept it and nothing says so.
type heldLogin struct {
	key  client.ObjectKey
	url  string
	data map[string][]byte
}

// hasLogin decides on the Secret that the commit names, and reads the login that is there for
// the URL. It is shown unless the tier syncs this very repository with it, or a person kept it.
func (b *bootstrap) hasLogin(ctx context.Context, c client.Client) (has map[string][]byte, shown bool, err error) {
	b.secretName, b.waits = layout.Name, false
	live, err := b.liveLogin(ctx, c)
	if err != nil {
		return nil, false, err
	}
	var held []heldLogin
	keys := []client.ObjectKey{b.secretKey(), fluxSecret()}
	if live != nil {
		used := sameRepository(live.url, b.url) && login.For(b.url, live.data)
		if live.key.Namespace == b.namespace && used == (live.key.Name == otherSecret) {
			b.secretName = otherSecret
		}
		if used {
			return live.data, false, nil
		}
		held, keys = []heldLogin{*live}, []client.ObjectKey{b.secretKey()}
	}
	for _, key := range keys {
		secret := &corev1.Secret{}
		if err := c.Get(ctx, key, secret); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return nil, false, fmt.Errorf("cannot read Secret %s: %w", key, err)
		}
		// What nothing is known of is a key for this repository, unless the tier has a login.
		if repository := secret.Annotations[urlAnnotation]; repository != "" || live == nil && strings.HasPrefix(b.url, "ssh://") {
			held = append(held, heldLogin{key: key, url: repository, data: secret.Data})
		}
	}
	found := nearest(b.url, held)
	b.waits = found.url != "" && found.key == b.secretKey()
	return found.data, found.url != "", nil
}

// nearest is the login that is most likely to be one for a URL, with what may be used of it. Of
// two that are as near the first counts.
func nearest(address string, held []heldLogin) heldLogin {
	for _, same := range []func(a, b string) bool{sameRepository, sameServer} {
		for _, h := range held {
			if same(h.url, address) && login.For(address, h.data) {
				return h
			}
		}
	}
	for _, h := range held {
		if h.url != "" {
			h.data = login.Elsewhere(address, h.data)
		}
		if len(h.data) > 0 {
			return h
		}
	}
	return heldLogin{}
}

// liveLogin reads the login that a tier syncs with; nil if there is none.
func (b *bootstrap) liveLogin(ctx context.Context, c client.Client) (*heldLogin, error) {
	for _, key := range []client.ObjectKey{b.tierKey(), fluxSecret()} {
		git := &sourcev1.GitRepository{}
		if err := c.Get(ctx, key, git); apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("cannot read GitRepository %s: %w", key, err)
		}
		if git.Spec.SecretRef == nil {
			continue
		}
		secret := client.ObjectKey{Namespace: key.Namespace, Name: git.Spec.SecretRef.Name}
		if has, err := loginSecret(ctx, c, secret); err != nil || has != nil {
			return &heldLogin{key: secret, url: git.Spec.URL, data: has}, err
		}
	}
	return nil, nil
}

// sameServer reports whether a login may be offered for b that is for a.
func sameServer(a, b string) bool {
	x, errX := url.Parse(a)
	y, errY := url.Parse(b)
	return errX == nil && errY == nil && x.Scheme == y.Scheme && x.Host == y.Host
}

// sameRepository reports whether a login that is for a is one for b. A deploy key, or a token of
// one repository, is none for another one of its server.
func sameRepository(a, b string) bool {
	plain := func(s string) string { return strings.TrimSuffix(strings.TrimRight(s, "/"), ".git") }
	return plain(a) == plain(b)
}

// logIn decides on the login. A key that is made is kept before it is shown: who ends the
// command between the two would have to add another one. Any other login is kept once it was
// good for a clone.
func (b *bootstrap) logIn(ctx context.Context, c client.Client) (*login.Login, error) {
	given, err := b.login.given(b.streams.In)
	if err != nil {
		return nil, err
	}
	has, shown, err := b.hasLogin(ctx, c)
	if err != nil {
		return nil, err
	}
	l, err := login.New(b.url, given, has, login.ScanHost)
	if err != nil {
		return nil, err
	}
	if l.Pinned != "" {
		b.say("the server shows the key %s, and is known by it from now on", l.Pinned)
	}
	if l.Public() == "" || given.PrivateKey != nil || l.Made == "" && !shown {
		return l, nil
	}
	if b.waits = b.waits || l.Made != ""; b.waits {
		if err := keepLogin(ctx, c, b.secretKey(), b.url, l.Data); err != nil {
			return nil, err
		}
	}
	fmt.Fprintf(b.streams.Out, "%s\n", l.Public())
	if l.Made == "" {
		return l, nil // who calls again has added it, or sees what it is that the server refuses
	}
	return l, b.consent(ctx, "Add this key to the repository, with the right to write. Is it there?", b.yes)
}

// keep keeps the login for the agent, before the commit that names it. That of Flux stays as it is.
func (b *bootstrap) keep(ctx context.Context, c client.Client, flux *layout.Flux, l *login.Login) error {
	switch {
	case len(l.Data) == 0 || flux != nil && flux.Secret == "":
		return nil
	case flux == nil:
		return keepLogin(ctx, c, b.secretKey(), b.url, l.Data)
	}
	key := client.ObjectKey{Namespace: flux.GitRepository.GetNamespace(), Name: flux.Secret}
	has, err := loginSecret(ctx, c, key)
	if err != nil {
		return err
	}
	data := l.Data
	if has != nil {
		if !b.login.some() {
			return nil
		}
		if address, _, _ := unstructured.NestedString(flux.GitRepository.Object, "spec", "url"); !login.SameServer(address, b.url) {
			fmt.Fprintf(b.streams.ErrOut, "► Secret %s stays as it is: it is for %s\n", key, address)
			return nil
		}
		data = login.Replaced(has, l.Data)
	}
	if err := keepLogin(ctx, c, key, b.url, data); err != nil {
		return err
	}
	if !b.waits {
		return nil // a tier syncs with what has the name, or did before
	}
	waiting := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: b.secretName}}
	if err := c.Delete(ctx, waiting); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("cannot delete Secret %s, of which %s has a copy: %w", b.secretKey(), key, err)
	}
	return nil
}

// commit brings the repository to what declares the tier.
func (b *bootstrap) commit(ctx context.Context, c client.Client, l *login.Login) (_ *checkout.Tree, _ *layout.Flux, pushed bool, _ error) {
	remote, err := remoteOf(b.url, b.branch, l)
	if err != nil {
		return nil, nil, false, err
	}
	remote.PushBranch = b.pushBranch
	b.say("cloning %s, branch %s", b.url, b.branch)
	var flux *layout.Flux
	tree, pushed, err := checkout.Change(ctx, remote, b.login.author, b.now, func(files fs.FS) (checkout.Decision, error) {
		var changes layout.Changes
		var err error
		if flux, changes, err = b.decide(files, len(l.Data) > 0); err != nil {
			return checkout.Decision{}, err
		}
		if flux != nil {
			at, err := declaredByFlux(flux, files)
			if err != nil {
				return checkout.Decision{}, err
			}
			if at.branch != b.branch {
				return checkout.Decision{}, fmt.Errorf("cannot bootstrap: %s of the repository follows branch %s, so that a commit would not arrive from branch %s; say --branch %s, or change it there",
					inventory.Of(flux.GitRepository), at.branch, b.branch, at.branch)
			}
			if err := b.stays(ctx, c, client.ObjectKeyFromObject(flux.Kustomization), at); err != nil {
				return checkout.Decision{}, err
			}
		}
		if err := b.keep(ctx, c, flux, l); err != nil {
			return checkout.Decision{}, err
		}
		for _, name := range changes.Names() {
			b.say("writing %s", name)
		}
		return checkout.Decision{Changes: changes, Message: fmt.Sprintf("Cascade %s in %s", version(), b.path)}, nil
	})
	switch {
	case err != nil:
		return nil, nil, false, err
	case pushed:
		b.say("pushed commit %s", tree.Head())
	default:
		b.say("the repository declares it already, at commit %s", tree.Head())
	}
	return tree, flux, pushed, nil
}

// declaredByFlux is what Flux's files have a tier sync, with the patches beside them.
func declaredByFlux(flux *layout.Flux, files fs.FS) (declaredAt, error) {
	built, err := flux.Build(files)
	if err != nil {
		return declaredAt{}, err
	}
	git, k := &sourcev1.GitRepository{}, &kustomizev1.Kustomization{}
	for object, of := range map[client.Object]*unstructured.Unstructured{git: flux.GitRepository, k: flux.Kustomization} {
		i := slices.IndexFunc(built, func(u *unstructured.Unstructured) bool { return inventory.Of(u) == inventory.Of(of) })
		if i < 0 {
			return declaredAt{}, fmt.Errorf("cannot find %s in what %s of the repository makes: a kustomization there leaves it out or gives it another name", inventory.Of(of), flux.Dir)
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(built[i].Object, object); err != nil {
			return declaredAt{}, fmt.Errorf("cannot read %s of the repository: %w", inventory.Of(of), err)
		}
	}
	if err := arrives(client.ObjectKeyFromObject(git), git.Spec.Reference); err != nil {
		return declaredAt{}, fmt.Errorf("cannot bootstrap: %w", err)
	}
	at := declaredAt{url: git.Spec.URL, path: k.Spec.Path}
	at.branch, _ = branchOf(git.Spec.Reference)
	if clean, err := layout.Clean(at.path); err == nil {
		at.path = clean
	}
	return at, nil
}

// decide decides about the files, and what is left open of the values: what was decided once
// is in the repository, and stays.
func (b *bootstrap) decide(files fs.FS, secret bool) (*layout.Flux, layout.Changes, error) {
	flux, err := layout.FindFlux(files, b.path)
	if err != nil {
		return nil, nil, err
	}
	if flux == nil {
		flux = b.operated
	}
	declared, err := layout.Objects(files, b.path)
	if err != nil {
		return nil, nil, err
	}
	o := b.options
	if o.HostNetwork == nil {
		onHost, why := installation.HostNetwork(onHostIn(declared), b.found, b.readyNodes)
		if len(declared) > 0 {
			why = "as the repository says"
		}
		o.HostNetwork = &onHost
		b.say("the agent is on %s: %s", networkName(onHost), why)
	}
	account := v1alpha1.SyncAccount
	if flux != nil {
		carried, err := b.carries(flux, files)
		if err != nil {
			return nil, nil, err
		}
		o.Args = slices.Concat(carried, o.Args)
		o.EventsAddress = cmp.Or(o.EventsAddress, flux.EventsAddress())
		if flux.Namespace != agent.FluxNamespace {
			o.Args = slices.Concat([]string{"--flux-namespace=" + flux.Namespace}, o.Args) // what a person says comes last, and counts
		}
		account, _, _ = unstructured.NestedString(flux.Kustomization.Object, "spec", "serviceAccountName")
		if o.Lockdown != nil && account == "" {
			return nil, nil, fmt.Errorf("cannot use --lockdown: Kustomization %s of the repository names no serviceAccountName, and the agent has no rights of its own then", flux.Kustomization.GetName())
		}
	}
	if o.Lockdown != nil && len(o.Lockdown.Impersonates) > 0 {
		lockdown := *o.Lockdown
		lockdown.Impersonates = append(slices.Clone(lockdown.Impersonates), account)
		o.Lockdown = &lockdown
	}
	i := install{cli: b.cli, options: o}
	steps, err := i.steps()
	if err != nil {
		return nil, nil, err
	}
	markVersion(steps[len(steps)-1])
	objects := slices.Concat(steps...)
	if b.handsOver = o.Lockdown != nil && !b.handedOver && b.found != nil && b.found.Ready && len(administrators(declared)) > 0; b.handsOver {
		_ = unstructured.SetNestedSlice(administrator(objects).Object, administrators(declared), "subjects")
	}
	if flux != nil {
		changes, err := flux.Take(files, b.path, objects)
		return flux, changes, err
	}
	s := layout.Sync{Namespace: b.namespace, URL: b.url, Branch: b.branch, Path: b.path, Interval: b.interval, Account: o.Lockdown != nil}
	if secret {
		s.Secret = b.secretName
	}
	changes, err := layout.Tier(files, objects, s)
	return nil, changes, err
}

// carries is what the agent is told because Flux's controllers are: those that are in the cluster, or
// else those that the repository makes.
func (b *bootstrap) carries(flux *layout.Flux, files fs.FS) ([]string, error) {
	deployed := b.deployed.In(flux.Namespace)
	if !deployed.Any() && flux.Dir != "" {
		built, err := flux.Build(files)
		if err != nil {
			return nil, err
		}
		if deployed, err = migration.DeployedBy(built); err != nil {
			return nil, err
		}
		deployed = deployed.In(flux.Namespace)
	}
	o := b.options
	is := migration.Agent{Namespace: b.namespace, Said: migration.FlagNames(o.Args), Annotations: o.ServiceAccountAnnotations, Follows: agent.Follows}
	if o.Lockdown != nil {
		is.Said = append(is.Said, "no-cross-namespace-refs", "default-service-account")
	}
	if o.EventsAddress != "" {
		is.Said = append(is.Said, "events-addr")
	}
	for _, e := range o.Env {
		is.Env = append(is.Env, e.Name)
	}
	c := migration.Carry(deployed, is)
	if c.Refused != "" {
		return nil, fmt.Errorf("cannot tell the agent what Flux's controllers are told: %s", c.Refused)
	}
	if len(c.Args) > 0 {
		b.say("the agent is told what Flux's controllers are told: %s", strings.Join(c.Args, " "))
	}
	for _, text := range c.Warns {
		b.say("! %s", text)
	}
	return c.Args, nil
}

// administrator is the binding by which an agent has all rights; nil if there is none.
func administrator(objects []*unstructured.Unstructured) *unstructured.Unstructured {
	for _, u := range objects {
		if u.GetKind() == "ClusterRoleBinding" && u.GetName() == v1alpha1.AgentName {
			return u
		}
	}
	return nil
}

// administrators are who has all rights by that. An agent that applied what takes them away
// could not apply what comes after it, the right to act as an account among it.
func administrators(objects []*unstructured.Unstructured) []any {
	binding := administrator(objects)
	if binding == nil {
		return nil
	}
	subjects, _, _ := unstructured.NestedSlice(binding.Object, "subjects")
	return subjects
}

// onHostIn tells whether an agent's Deployment is on the host's network; nil if there is none.
func onHostIn(objects []*unstructured.Unstructured) *bool {
	for _, u := range objects {
		if u.GetKind() == "Deployment" && u.GetName() == v1alpha1.AgentName {
			on, _, _ := unstructured.NestedBool(u.Object, "spec", "template", "spec", "hostNetwork")
			return &on
		}
	}
	return nil
}

func networkName(onHost bool) string {
	if onHost {
		return "the host's network"
	}
	return "the network of pods"
}

// markVersion writes on the Deployment which version it is of.
func markVersion(workload []*unstructured.Unstructured) {
	for _, u := range workload {
		if u.GetKind() == "Deployment" {
			utils.SetCommonMetadata([]*unstructured.Unstructured{u}, nil, map[string]string{installation.VersionAnnotation: version()})
		}
	}
}
