package main

import (
	"context"
	"fmt"
	"io/fs"
	"strings"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/spf13/cobra"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/checkout"
	"github.com/cascade-gitops/cascade/cmd/cascade/layout"
	"github.com/cascade-gitops/cascade/cmd/cascade/login"
	"github.com/cascade-gitops/cascade/cmd/cascade/migration"
)

// migrate is one call of one of the verbs.
type migrate struct {
	bootstrap
	sync, record string
	// committed: the change of the repository came by a pull request.
	committed, exportDiff bool
	leave                 migration.Leave

	secret        client.ObjectKey
	provider      string
	git           *sourcev1.GitRepository
	kustomization *kustomizev1.Kustomization
}

func (c *cli) newMigrate() *cobra.Command {
	cmd := &cobra.Command{Use: "migrate", Short: "Move this cluster from Flux's controllers to an agent, or back"}
	cmd.AddCommand(c.newMigrateFromFlux(), c.newMigrateToFlux())
	return cmd
}

func (c *cli) newMigrateFromFlux() *cobra.Command {
	values, m := &valueFlags{}, &migrate{bootstrap: bootstrap{install: install{cli: c}}}
	cmd := &cobra.Command{
		Use:   "from-flux",
		Short: "Move this cluster from Flux's controllers to an agent; says what will happen, and with --yes does it",
		Long: "Move this cluster from Flux's controllers to an agent. Without --yes it says what will happen, and\n" +
			"changes nothing. The repository that Flux syncs gets a commit that adds the agent and scales\n" +
			"source-, kustomize- and helm-controller and source-watcher to zero; they end, the agent starts and\n" +
			"goes on where they were. No object is deleted, and each is compared by its UID in the end. What the\n" +
			"agent does not serve, notifications and images among it, stays Flux's. A call that was ended is finished by\n" +
			"the same one. Where commits come by pull requests, --export-diff prints the change, and\n" +
			"--yes --committed goes on when it is merged.",
		Example: "  cascade migrate from-flux\n  cascade migrate from-flux --export-diff | git apply\n  cascade migrate from-flux --yes",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if m.options, err = values.options(cmd.Flags(), c.streams.In); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), m.timeout)
			defer cancel()
			return m.fromFlux(ctx)
		},
	}
	values.bind(cmd.Flags())
	m.bind(cmd, c)
	cmd.Flags().BoolVar(&m.exportDiff, "export-diff", false, "print the change of the repository as a unified diff, and change nothing")
	cmd.Flags().BoolVar(&m.committed, "committed", false, "the change of the repository is merged: push nothing")
	cmd.Flags().BoolVar(&m.downgrade, "allow-downgrade", false, "install an earlier version than the one that is there")
	return cmd
}

func (m *migrate) bind(cmd *cobra.Command, c *cli) {
	m.login.bind(cmd.Flags())
	f := cmd.Flags()
	f.StringVar(&m.sync, "sync", "flux-system/flux-system", "Kustomization that syncs the repository of Flux's controllers")
	f.StringVar(&m.record, "record", "", "file for the UIDs of all objects; if it is there, it is compared with")
	f.BoolVar(&m.yes, "yes", false, "do it")
	f.DurationVar(&m.timeout, "timeout", 15*time.Minute, "how long it may take")
	c.flags.AddFlags(f)
}

// readSync reads what syncs the repository.
func (m *migrate) readSync(ctx context.Context, c client.Client) error {
	namespace, name, ok := strings.Cut(m.sync, "/")
	if !ok {
		return fmt.Errorf("cannot use --sync %q: write NAMESPACE/NAME", m.sync)
	}
	m.kustomization, m.git = &kustomizev1.Kustomization{}, &sourcev1.GitRepository{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, m.kustomization); err != nil {
		return fmt.Errorf("cannot read Kustomization %s, which syncs what Flux's bootstrap made: %w; name another one with --sync", m.sync, err)
	}
	ref := m.kustomization.Spec.SourceRef
	if ref.Kind != sourcev1.GitRepositoryKind {
		return fmt.Errorf("cannot migrate: Kustomization %s is synced from a %s, and a commit can be made in a Git repository only", m.sync, ref.Kind)
	}
	key := inNamespace(ref.Namespace, namespace, ref.Name)
	if err := c.Get(ctx, key, m.git); err != nil {
		return fmt.Errorf("cannot read GitRepository %s: %w", key, err)
	}
	m.url, m.provider = m.git.Spec.URL, m.git.Spec.Provider
	if err := arrives(key, m.git.Spec.Reference); err != nil {
		return fmt.Errorf("cannot migrate: %w", err)
	}
	m.branch, _ = branchOf(m.git.Spec.Reference)
	if m.git.Spec.SecretRef != nil {
		m.secret = client.ObjectKey{Namespace: key.Namespace, Name: m.git.Spec.SecretRef.Name}
	}
	var err error
	m.path, err = layout.Clean(m.kustomization.Spec.Path)
	m.namespace, m.secretName = m.cli.namespace(), layout.Name
	m.options.Namespace = m.namespace
	return err
}

// logInAs logs in as the Secret of the sync does, or as the flags say.
func (m *migrate) logInAs(ctx context.Context, c client.Client) (*login.Login, error) {
	var has map[string][]byte
	var err error
	if m.secret.Name != "" {
		if has, err = loginSecret(ctx, c, m.secret); err != nil {
			return nil, err
		}
	}
	if !m.login.some() {
		if m.provider != "" && m.provider != "generic" {
			return nil, fmt.Errorf("cannot log in as the agent does, by provider %s; use --username and GIT_PASSWORD, or --export-diff elsewhere", m.provider)
		}
		return login.InUse(m.url, has)
	}
	given, err := m.login.given(m.streams.In)
	if err != nil {
		return nil, err
	}
	return login.New(m.url, given, has, login.ScanHost)
}

// operator reads what an operator declares, if one does.
func (m *migrate) operator(ctx context.Context, c client.Client, facts migration.Facts) error {
	if facts.Instance == "" {
		return nil
	}
	crds := &apiextensionsv1.CustomResourceDefinitionList{}
	if err := c.List(ctx, crds); err != nil {
		return fmt.Errorf("cannot list definitions: %w", err)
	}
	m.operated = &layout.Flux{Namespace: facts.Namespace}
	for i := range crds.Items {
		if v1alpha1.IsFluxGroup(crds.Items[i].Spec.Group) {
			m.operated.Definitions = append(m.operated.Definitions, crds.Items[i].Name)
		}
	}
	for _, o := range facts.Others {
		m.operated.Others = append(m.operated.Others, o.Name)
	}
	var err error
	if m.operated.GitRepository, err = asUnstructured(m.git, sourcev1.GroupVersion.WithKind(sourcev1.GitRepositoryKind)); err != nil {
		return err
	}
	m.operated.Kustomization, err = asUnstructured(m.kustomization, kustomizev1.GroupVersion.WithKind(kustomizev1.KustomizationKind))
	m.operated.Secret = m.secret.Name
	return err
}

func asUnstructured(o client.Object, gvk schema.GroupVersionKind) (*unstructured.Unstructured, error) {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, fmt.Errorf("cannot convert %s: %w", gvk.Kind, err)
	}
	u := &unstructured.Unstructured{Object: object}
	u.SetGroupVersionKind(gvk)
	return u, nil
}

// tell says a plan, and is an error if it must not be done.
func (m *migrate) tell(p migration.Plan) error {
	if p.Refused != "" {
		return fmt.Errorf("cannot migrate: %s", p.Refused)
	}
	for _, text := range p.Says {
		fmt.Fprintf(m.streams.ErrOut, "  %s\n", text)
	}
	for _, text := range p.Warns {
		fmt.Fprintf(m.streams.ErrOut, "  ! %s\n", text)
	}
	return nil
}

// recorded takes the UIDs of all objects, or reads those that an earlier call took.
func (m *migrate) recorded(ctx context.Context, c client.Client, except map[string]bool) (migration.Record, error) {
	if m.record != "" {
		r, err := migration.Load(m.record)
		if err != nil || r != nil {
			return r, err
		}
	}
	r, err := migration.Take(ctx, c, func(kind schema.GroupKind, key client.ObjectKey) bool { return except[kind.String()+" "+key.String()] })
	if err != nil {
		return nil, err
	}
	m.say("recorded the UIDs of %d objects", len(r))
	if m.record != "" {
		return r, r.Save(m.record)
	}
	return r, nil
}

// verify compares all objects with the record.
func (m *migrate) verify(ctx context.Context, c client.Client, r migration.Record) error {
	changed, err := r.Changed(ctx, c)
	if err != nil {
		return err
	}
	for _, text := range changed {
		fmt.Fprintf(m.streams.Out, "! %s\n", text)
	}
	fmt.Fprintf(m.streams.Out, "✔ %d of %d objects are the ones that they were\n", len(r)-len(changed), len(r))
	if len(changed) > 0 {
		return fmt.Errorf("cannot say that nothing changed: %d objects are gone or others; what Git does not declare any more goes with the first sync", len(changed))
	}
	return nil
}

// push commits a change of the repository, if there is one.
func (m *migrate) push(ctx context.Context, remote checkout.Remote, message string, decide func(fs.FS) (layout.Changes, error)) (*checkout.Tree, error) {
	tree, pushed, err := checkout.Change(ctx, remote, m.login.author, m.now, func(files fs.FS) (checkout.Decision, error) {
		changes, err := decide(files)
		return checkout.Decision{Changes: changes, Message: message}, err
	})
	if err != nil {
		return nil, err
	}
	if pushed {
		m.say("pushed commit %s", tree.Head())
	} else {
		m.say("the repository declares it already, at commit %s", tree.Head())
	}
	return tree, nil
}
