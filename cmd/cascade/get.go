package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// getter lists one kind.
type getter struct {
	name       string
	single     string
	aliases    []string
	list       func() client.ObjectList
	header     []string
	row        func(client.Object) []string
	conditions func(client.Object) []metav1.Condition
	// source: the kind is one of the sources.
	source bool
}

// sourceGetter lists one kind of source.
func sourceGetter(name, single string, list func() client.ObjectList, suspended func(client.Object) bool, aliases ...string) getter {
	return getter{
		name: name, single: single, list: list, aliases: aliases, header: []string{"REVISION", "SUSPENDED"}, source: true,
		conditions: func(o client.Object) []metav1.Condition { return o.(conditioned).GetConditions() },
		row: func(o client.Object) []string {
			revision := ""
			if a := o.(sourcev1.Source).GetArtifact(); a != nil {
				revision = a.Revision
			}
			return []string{shortRevision(revision), truth(suspended(o))}
		},
	}
}

type conditioned interface{ GetConditions() []metav1.Condition }

func getters() []getter {
	return []getter{
		sourceGetter("gitrepositories", "gitrepository", func() client.ObjectList { return &sourcev1.GitRepositoryList{} },
			func(o client.Object) bool { return o.(*sourcev1.GitRepository).Spec.Suspend }, "gitrepo", "git"),
		sourceGetter("ocirepositories", "ocirepository", func() client.ObjectList { return &sourcev1.OCIRepositoryList{} },
			func(o client.Object) bool { return o.(*sourcev1.OCIRepository).Spec.Suspend }, "ocirepo", "oci"),
		sourceGetter("buckets", "bucket", func() client.ObjectList { return &sourcev1.BucketList{} },
			func(o client.Object) bool { return o.(*sourcev1.Bucket).Spec.Suspend }),
		sourceGetter("helmrepositories", "helmrepository", func() client.ObjectList { return &sourcev1.HelmRepositoryList{} },
			func(o client.Object) bool { return o.(*sourcev1.HelmRepository).Spec.Suspend }, "helmrepo"),
		sourceGetter("helmcharts", "helmchart", func() client.ObjectList { return &sourcev1.HelmChartList{} },
			func(o client.Object) bool { return o.(*sourcev1.HelmChart).Spec.Suspend }, "hc", "chart"),
		{
			name: "kustomizations", single: "kustomization", aliases: []string{"ks"},
			list:       func() client.ObjectList { return &kustomizev1.KustomizationList{} },
			header:     []string{"REVISION", "SUSPENDED"},
			conditions: func(o client.Object) []metav1.Condition { return o.(*kustomizev1.Kustomization).Status.Conditions },
			row: func(o client.Object) []string {
				k := o.(*kustomizev1.Kustomization)
				return []string{shortRevision(k.Status.LastAppliedRevision), truth(k.Spec.Suspend)}
			},
		}, {
			name: "helmreleases", single: "helmrelease", aliases: []string{"hr"},
			list:       func() client.ObjectList { return &helmv2.HelmReleaseList{} },
			header:     []string{"REVISION", "SUSPENDED"},
			conditions: func(o client.Object) []metav1.Condition { return o.(*helmv2.HelmRelease).Status.Conditions },
			row: func(o client.Object) []string {
				h := o.(*helmv2.HelmRelease)
				revision := h.Status.LastAttemptedRevision
				if last := h.Status.History.Latest(); last != nil {
					revision = last.ChartVersion
				}
				return []string{revision, truth(h.Spec.Suspend)}
			},
		}, {
			name: "layers", single: "layer",
			list:       func() client.ObjectList { return &v1alpha1.LayerList{} },
			header:     []string{"REVISION", "CHILDREN"},
			conditions: func(o client.Object) []metav1.Condition { return o.(*v1alpha1.Layer).Status.Conditions },
			row: func(o client.Object) []string {
				l := o.(*v1alpha1.Layer)
				return []string{shortRevision(l.Status.Revision), fmt.Sprintf("%d/%d", l.Status.Children.Current, l.Status.Children.Total)}
			},
		}, {
			name: "children", single: "child",
			list:       func() client.ObjectList { return &v1alpha1.ChildList{} },
			header:     []string{"REVISION", "CONNECTED"},
			conditions: func(o client.Object) []metav1.Condition { return o.(*v1alpha1.Child).Status.Conditions },
			row: func(o client.Object) []string {
				c := o.(*v1alpha1.Child)
				revision := ""
				if c.Status.Report != nil {
					revision = c.Status.Report.Revision
				}
				connected := "Unknown"
				if cond := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConnectedCondition); cond != nil {
					connected = string(cond.Status)
				}
				return []string{shortRevision(revision), connected}
			},
		}, {
			name: "rollouts", single: "rollout",
			list:       func() client.ObjectList { return &v1alpha1.RolloutList{} },
			header:     []string{"REVISION", "PHASE", "CLUSTERS", "SUSPENDED"},
			conditions: func(o client.Object) []metav1.Condition { return o.(*v1alpha1.Rollout).Status.Conditions },
			row: func(o client.Object) []string {
				r := o.(*v1alpha1.Rollout)
				revision, phase := "", ""
				if run := r.Status.Run; run != nil {
					revision, phase = run.Revision, string(run.Phase)
				}
				return []string{shortRevision(revision), phase, fmt.Sprintf("%d/%d", r.Status.Clusters.Updated, r.Status.Clusters.Total), truth(r.Spec.Suspend)}
			},
		}}
}

func truth(b bool) string {
	if b {
		return "True"
	}
	return "False"
}

func (c *cli) newGet() *cobra.Command {
	var all, noHeader bool
	var output string
	cmd := &cobra.Command{
		Use:   "get [all|sources|kustomizations|helmreleases|layers|children|rollouts] [name]",
		Short: "List objects and whether they are ready",
		Example: "  cascade get all -A\n" +
			"  cascade get kustomizations apps -n cascade-system -o yaml",
		Args: cobra.RangeArgs(1, 2),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return listable(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			chosen, err := choose(args[0])
			if err != nil {
				return err
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			namespace, name := c.namespace(), ""
			if all {
				namespace = ""
			}
			if len(args) > 1 {
				name = args[1]
			}
			return c.get(cmd.Context(), cl, chosen, namespace, name, output, noHeader)
		},
	}
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "list the objects of all namespaces")
	cmd.Flags().BoolVar(&noHeader, "no-header", false, "leave out the header")
	cmd.Flags().StringVarP(&output, "output", "o", "", "json or yaml instead of a table")
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

// listable are the words for what can be listed.
func listable() []string {
	words := []string{"all", "sources"}
	for _, g := range getters() {
		words = append(words, g.name)
	}
	return words
}

func choose(name string) ([]getter, error) {
	if name == "all" {
		return getters(), nil
	}
	if name == "sources" || name == "source" {
		return slices.DeleteFunc(getters(), func(g getter) bool { return !g.source }), nil
	}
	for _, g := range getters() {
		if name == g.name || name == g.single {
			return []getter{g}, nil
		}
		for _, a := range g.aliases {
			if name == a {
				return []getter{g}, nil
			}
		}
	}
	return nil, fmt.Errorf("cannot list %q: use %s", name, strings.Join(listable(), ", "))
}

func (c *cli) get(ctx context.Context, cl client.Client, chosen []getter, namespace, name, output string, noHeader bool) error {
	var found []client.Object
	first := true
	for _, g := range chosen {
		objects, err := listObjects(ctx, cl, g, namespace, name)
		if err != nil {
			return err
		}
		found = append(found, objects...)
		if output != "" || len(objects) == 0 {
			continue
		}
		if !first {
			fmt.Fprintln(c.streams.Out)
		}
		first = false
		if err := c.printTable(g, objects, namespace == "", len(chosen) > 1, noHeader); err != nil {
			return err
		}
	}
	if len(found) == 0 {
		where := "namespace " + namespace
		if namespace == "" {
			where = "any namespace"
		}
		return fmt.Errorf("found nothing in %s", where)
	}
	return c.printObjects(found, output)
}

func listObjects(ctx context.Context, cl client.Client, g getter, namespace, name string) ([]client.Object, error) {
	list := g.list()
	options := []client.ListOption{client.InNamespace(namespace)}
	if name != "" {
		options = append(options, client.MatchingFields{"metadata.name": name})
	}
	if err := cl.List(ctx, list, options...); err != nil {
		// A tier without the kind has none of its objects.
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("cannot list %s: %w", g.name, err)
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return nil, fmt.Errorf("cannot read list of %s: %w", g.name, err)
	}
	objects := make([]client.Object, 0, len(items))
	for _, item := range items {
		// The items of a list do not say what they are; people apply what we print.
		gvk, err := cl.GroupVersionKindFor(item)
		if err != nil {
			return nil, fmt.Errorf("cannot read list of %s: %w", g.name, err)
		}
		item.GetObjectKind().SetGroupVersionKind(gvk)
		objects = append(objects, item.(client.Object))
	}
	return objects, nil
}

func (c *cli) printTable(g getter, objects []client.Object, withNamespace, withKind, noHeader bool) error {
	header := append([]string{"NAME"}, g.header...)
	header = append(header, "READY", "MESSAGE")
	if withNamespace {
		header = append([]string{"NAMESPACE"}, header...)
	}
	if noHeader {
		header = nil
	}
	rows := make([][]string, 0, len(objects))
	for _, o := range objects {
		ready, message := "False", "waiting to be reconciled"
		if cond := meta.FindStatusCondition(g.conditions(o), v1alpha1.ReadyCondition); cond != nil {
			ready, message = string(cond.Status), cond.Message
		}
		name := o.GetName()
		if withKind {
			name = g.single + "/" + name
		}
		row := append([]string{name}, g.row(o)...)
		row = append(row, ready, oneLine(shortRevision(message)))
		if withNamespace {
			row = append([]string{o.GetNamespace()}, row...)
		}
		rows = append(rows, row)
	}
	return table(c.streams.Out, header, rows)
}

func (c *cli) printObjects(objects []client.Object, output string) error {
	switch output {
	case "":
		return nil
	case "yaml":
		for _, o := range objects {
			if _, err := fmt.Fprintln(c.streams.Out, "---"); err != nil {
				return err
			}
			if err := printAs(c.streams.Out, output, o); err != nil {
				return err
			}
		}
		return nil
	}
	return printAs(c.streams.Out, output, objects)
}
