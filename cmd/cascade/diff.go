package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote"
)

func (c *cli) newDiff() *cobra.Command {
	var p planned
	cmd := &cobra.Command{
		Use:   "diff <kustomization|layer|child> <name>",
		Short: "Show what a commit would change by one Kustomization or Layer, or in one child",
		Long: "Show what a commit would change by one Kustomization or Layer, or in one child. It is what cascade plan says of\n" +
			"the whole tier, narrowed down, and rendered as the agent renders: the commit is one of a clone, or one\n" +
			"that the repository has already, in full. It writes nothing to any cluster. Of fields only the paths\n" +
			"are shown, never values.\n\n" +
			"It ends with 0 if nothing would change, with 2 if something would, and with 1 if that is not known.",
		Example: "  cascade diff kustomization apps --path .\n" +
			"  cascade diff layer tenants -n fleet --path ../fleet --revision feature\n" +
			"  cascade diff child shop -n fleet --source fleet",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: c.completeKindAndName(func() []string { return []string{"kustomization", "layer", "child"} }),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), p.timeout)
			defer cancel()
			return c.diff(ctx, args[0], args[1], p)
		},
	}
	p.bind(cmd)
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

func (c *cli) diff(ctx context.Context, kind, name string, p planned) error {
	g, known := kindOf(kind)
	if known && g.single == "helmrelease" {
		return fmt.Errorf("cannot diff HelmRelease %s: only the agent renders charts; "+
			"cascade diff kustomization shows how a commit changes the HelmRelease itself", name)
	}
	if !known || g.single != "kustomization" && g.single != "layer" && g.single != "child" {
		return fmt.Errorf("cannot diff kind %q: use kustomization, layer or child", kind)
	}
	cluster, err := c.connect()
	if err != nil {
		return err
	}
	key := client.ObjectKey{Namespace: c.namespace(), Name: name}
	owner, child, err := diffOf(ctx, cluster, g.single, key, &p)
	if err != nil {
		return err
	}
	p.child = child
	r, err := c.planFor(ctx, cluster, p)
	if err != nil {
		return err
	}
	return c.conclude(r.Only(owner, child), p.output)
}

// diffOf says to what a plan is narrowed, and chooses its source: that of a Kustomization or Layer is its own, and that of
// a child, if no flag says it, the one of its Layers.
func diffOf(ctx context.Context, cl client.Client, kind string, key client.ObjectKey, p *planned) (owner, child string, err error) {
	var ref *sourceRef
	switch kind {
	case "kustomization":
		k := &kustomizev1.Kustomization{}
		if err := cl.Get(ctx, key, k); err != nil {
			return "", "", fmt.Errorf("cannot read Kustomization %s: %w", key, err)
		}
		owner = "Kustomization/" + key.String()
		ref = &sourceRef{k.Spec.SourceRef.Kind, inNamespace(k.Spec.SourceRef.Namespace, key.Namespace, k.Spec.SourceRef.Name)}
	case "layer":
		l := &v1alpha1.Layer{}
		if err := cl.Get(ctx, key, l); err != nil {
			return "", "", fmt.Errorf("cannot read Layer %s: %w", key, err)
		}
		if l.Spec.SourceRef == nil {
			return "", "", fmt.Errorf("cannot diff Layer %s: it has no source, so that no commit changes what it brings", key)
		}
		owner = "Layer/" + key.String()
		ref = &sourceRef{l.Spec.SourceRef.Kind, inNamespace(l.Spec.SourceRef.Namespace, key.Namespace, l.Spec.SourceRef.Name)}
	default:
		c := &v1alpha1.Child{}
		if err := cl.Get(ctx, key, c); err != nil {
			return "", "", fmt.Errorf("cannot read Child %s: %w", key, err)
		}
		if p.source == "" {
			err = sourceOfChild(ctx, cl, c, p)
		}
		return "", key.String(), err
	}
	if ref.kind != sourcev1.GitRepositoryKind {
		return "", "", fmt.Errorf("cannot diff %s: its source is %s %s, and a commit is of a GitRepository", owner, ref.kind, ref.key)
	}
	if p.source != "" && p.source != ref.key.Name && p.source != ref.key.String() {
		return "", "", fmt.Errorf("cannot diff %s by commits of GitRepository %s: it is made of GitRepository %s; leave --source out", owner, p.source, ref.key)
	}
	p.source, p.sourceNamespace = ref.key.Name, ref.key.Namespace
	return owner, "", nil
}

// sourceOfChild chooses the GitRepository that the Layers of a child are made of. Which of several a commit is of nobody
// can tell by the commit.
func sourceOfChild(ctx context.Context, cl client.Client, child *v1alpha1.Child, p *planned) error {
	layers := &v1alpha1.LayerList{}
	if err := cl.List(ctx, layers, client.InNamespace(child.Namespace)); err != nil {
		return fmt.Errorf("cannot list Layers: %w", err)
	}
	var of []client.ObjectKey
	for i := range layers.Items {
		l := &layers.Items[i]
		ref := l.Spec.SourceRef
		if ref == nil || ref.Kind != sourcev1.GitRepositoryKind || !remote.Concerns(l, child, child.Labels) {
			continue
		}
		if key := inNamespace(ref.Namespace, l.Namespace, ref.Name); !slices.Contains(of, key) {
			of = append(of, key)
		}
	}
	switch len(of) {
	case 0: // a Layer that the commit brings may be
	case 1:
		p.source, p.sourceNamespace = of[0].Name, of[0].Namespace
	default:
		var names []string
		for _, key := range of {
			names = append(names, key.String())
		}
		return fmt.Errorf("cannot diff Child %s/%s: its Layers are made of several GitRepositories; choose that of the commit with --source: %s", child.Namespace, child.Name, strings.Join(names, ", "))
	}
	return nil
}

// bind adds the flags of what is compared.
func (p *planned) bind(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.source, "source", "", "the GitRepository, as name or namespace/name; not needed if what is asked about has one only, or the namespace")
	cmd.Flags().StringVar(&p.path, "path", ".", "directory of a clone of the repository. Commits that it lacks are fetched from there")
	cmd.Flags().StringVar(&p.revision, "revision", "HEAD", "commit, branch or tag in the clone; without a clone, a commit of the repository in full")
	cmd.Flags().StringVarP(&p.output, "output", "o", "", "json, yaml or markdown instead of text")
	cmd.Flags().BoolVar(&p.lenient, "lenient-substitution", false, "as the agent's flag: a variable that is not set is empty, and no error")
	cmd.Flags().DurationVar(&p.timeout, "timeout", 5*time.Minute, "how long it may take")
}
