package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// getter lists one kind.
type getter struct {
	name    string
	single  string
	aliases []string
	list    func() client.ObjectList
	header  []string
	row     func(client.Object) []string
	// conditions is nil for a kind that does not say how it is.
	conditions func(client.Object) []metav1.Condition
	// wideHeader and wide are the columns of -o wide.
	wideHeader []string
	wide       func(client.Object) []string
	// suspend is where spec.suspend of an object is.
	suspend func(client.Object) *bool
	// source: the kind is one of the sources; image: one of image updates.
	source, image bool
}

// sourceGetter lists one kind of source.
func sourceGetter(name, single string, list func() client.ObjectList, suspend func(client.Object) *bool, origin func(client.Object) string, aliases ...string) getter {
	return getter{
		name: name, single: single, list: list, aliases: aliases, header: []string{"REVISION", "SUSPENDED"}, source: true,
		suspend: suspend, wideHeader: []string{"ORIGIN"}, wide: func(o client.Object) []string { return []string{origin(o)} },
		conditions: conditionsOf,
		row: func(o client.Object) []string {
			revision := ""
			if a := o.(sourcev1.Source).GetArtifact(); a != nil {
				revision = a.Revision
			}
			return []string{shortRevision(revision), truth(*suspend(o))}
		},
	}
}

type conditioned interface{ GetConditions() []metav1.Condition }

// getters are all kinds, in the order in which `get all` has them.
func getters() []getter {
	return slices.Concat(sourceGetters(), artifactGetters(), applyingGetters(), imageGetters(), notificationGetters())
}

func sourceGetters() []getter {
	return []getter{
		sourceGetter("gitrepositories", "gitrepository", func() client.ObjectList { return &sourcev1.GitRepositoryList{} },
			func(o client.Object) *bool { return &o.(*sourcev1.GitRepository).Spec.Suspend },
			func(o client.Object) string { return source.PublicURL(o.(*sourcev1.GitRepository).Spec.URL) }, "gitrepo", "git"),
		sourceGetter("ocirepositories", "ocirepository", func() client.ObjectList { return &sourcev1.OCIRepositoryList{} },
			func(o client.Object) *bool { return &o.(*sourcev1.OCIRepository).Spec.Suspend },
			func(o client.Object) string { return source.PublicURL(o.(*sourcev1.OCIRepository).Spec.URL) }, "ocirepo", "oci"),
		sourceGetter("buckets", "bucket", func() client.ObjectList { return &sourcev1.BucketList{} },
			func(o client.Object) *bool { return &o.(*sourcev1.Bucket).Spec.Suspend },
			func(o client.Object) string {
				b := o.(*sourcev1.Bucket)
				return b.Spec.Endpoint + "/" + b.Spec.BucketName
			}),
		sourceGetter("helmrepositories", "helmrepository", func() client.ObjectList { return &sourcev1.HelmRepositoryList{} },
			func(o client.Object) *bool { return &o.(*sourcev1.HelmRepository).Spec.Suspend },
			func(o client.Object) string { return source.PublicURL(o.(*sourcev1.HelmRepository).Spec.URL) }, "helmrepo"),
		sourceGetter("helmcharts", "helmchart", func() client.ObjectList { return &sourcev1.HelmChartList{} },
			func(o client.Object) *bool { return &o.(*sourcev1.HelmChart).Spec.Suspend },
			func(o client.Object) string {
				c := o.(*sourcev1.HelmChart)
				return c.Spec.SourceRef.Kind + "/" + c.Spec.SourceRef.Name + " " + c.Spec.Chart
			}, "hc", "chart"),
	}
}

// applyingGetters list what applies, here and in children.
func applyingGetters() []getter {
	return []getter{
		{
			name: "kustomizations", single: "kustomization", aliases: []string{"ks"},
			list:       func() client.ObjectList { return &kustomizev1.KustomizationList{} },
			header:     []string{"REVISION", "SUSPENDED"},
			conditions: func(o client.Object) []metav1.Condition { return o.(*kustomizev1.Kustomization).Status.Conditions },
			row: func(o client.Object) []string {
				k := o.(*kustomizev1.Kustomization)
				return []string{shortRevision(k.Status.LastAppliedRevision), truth(k.Spec.Suspend)}
			},
			suspend:    func(o client.Object) *bool { return &o.(*kustomizev1.Kustomization).Spec.Suspend },
			wideHeader: []string{"SOURCE", "PATH"},
			wide: func(o client.Object) []string {
				k := o.(*kustomizev1.Kustomization)
				ref := k.Spec.SourceRef
				return []string{ref.Kind + "/" + inNamespace(ref.Namespace, k.Namespace, ref.Name).String(), k.Spec.Path}
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
			suspend:    func(o client.Object) *bool { return &o.(*helmv2.HelmRelease).Spec.Suspend },
			wideHeader: []string{"CHART", "RELEASE"},
			wide: func(o client.Object) []string {
				h := o.(*helmv2.HelmRelease)
				chart := ""
				if last := h.Status.History.Latest(); last != nil {
					chart = last.ChartName
				} else if h.Spec.Chart != nil {
					chart = h.Spec.Chart.Spec.Chart
				} else if ref := h.Spec.ChartRef; ref != nil {
					chart = ref.Kind + "/" + ref.Name
				}
				return []string{chart, h.GetReleaseNamespace() + "/" + h.GetReleaseName()}
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
			suspend:    func(o client.Object) *bool { return &o.(*v1alpha1.Layer).Spec.Suspend },
			wideHeader: []string{"UPDATING", "FAILED", "UNREACHABLE", "WAITING", "SOURCE"},
			wide: func(o client.Object) []string {
				l, source := o.(*v1alpha1.Layer), ""
				if ref := l.Spec.SourceRef; ref != nil {
					source = ref.Kind + "/" + inNamespace(ref.Namespace, l.Namespace, ref.Name).String()
				}
				n := l.Status.Children
				return []string{fmt.Sprint(n.Updating), fmt.Sprint(n.Failed), fmt.Sprint(n.Unreachable), fmt.Sprint(n.Waiting), source}
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
			suspend:    func(o client.Object) *bool { return &o.(*v1alpha1.Child).Spec.Suspend },
			wideHeader: []string{"OWNER", "PROVIDER", "REGION", "VERSION", "AGENT"},
			wide: func(o client.Object) []string {
				c, agent := o.(*v1alpha1.Child), ""
				if c.Status.Report != nil {
					agent = c.Status.Report.Agent
				}
				return []string{c.Labels[v1alpha1.OwnerLabel], c.Status.Provider, c.Status.Region, c.Status.Version, agent}
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
			suspend:    func(o client.Object) *bool { return &o.(*v1alpha1.Rollout).Spec.Suspend },
			wideHeader: []string{"RUN", "WAVE"},
			wide: func(o client.Object) []string {
				run := o.(*v1alpha1.Rollout).Status.Run
				if run == nil {
					return []string{"", ""}
				}
				wave := ""
				if i := int(run.Wave); i < len(run.Terms.Waves) {
					wave = run.Terms.Waves[i].Name
				}
				return []string{fmt.Sprint(run.Number), wave}
			},
		}, {
			name: "credentials", single: "credential", aliases: []string{"cred"},
			list:       func() client.ObjectList { return &v1alpha1.CredentialList{} },
			header:     []string{"SECRET", "RENEWED", "EXPIRES"},
			conditions: func(o client.Object) []metav1.Condition { return o.(*v1alpha1.Credential).Status.Conditions },
			row: func(o client.Object) []string {
				c := o.(*v1alpha1.Credential)
				return []string{c.SecretName(), moment(c.Status.LastRenewal), moment(c.Status.ExpiresAt)}
			},
			suspend:    func(o client.Object) *bool { return &o.(*v1alpha1.Credential).Spec.Suspend },
			wideHeader: []string{"FROM", "RENEWS", "FAILURES", "UNREVOKED"},
			wide: func(o client.Object) []string {
				c := o.(*v1alpha1.Credential)
				return []string{credentialOrigin(&c.Spec), moment(c.Status.RenewAt), fmt.Sprint(c.Status.Failures), fmt.Sprint(c.Status.Unrevoked)}
			},
		}, {
			name: "statebackups", single: "statebackup",
			list:       func() client.ObjectList { return &v1alpha1.StateBackupList{} },
			header:     []string{"VERSION", "OBJECTS", "SUSPENDED"},
			conditions: func(o client.Object) []metav1.Condition { return o.(*v1alpha1.StateBackup).Status.Conditions },
			row: func(o client.Object) []string {
				b := o.(*v1alpha1.StateBackup)
				return []string{b.Status.LastVersion, fmt.Sprint(b.Status.Objects), truth(b.Spec.Suspend)}
			},
			suspend:    func(o client.Object) *bool { return &o.(*v1alpha1.StateBackup).Spec.Suspend },
			wideHeader: []string{"DESTINATION", "VERSIONS"},
			wide: func(o client.Object) []string {
				b := o.(*v1alpha1.StateBackup)
				return []string{b.Spec.Destination.URL, fmt.Sprint(b.Status.Versions)}
			},
		}}
}

// credentialOrigin is where a Credential comes from.
func credentialOrigin(spec *v1alpha1.CredentialSpec) string {
	switch {
	case spec.Vault != nil:
		return spec.Vault.Address + "/v1/" + spec.Vault.Request.Path
	case spec.ServiceAccountToken != nil:
		return "ServiceAccount/" + spec.ServiceAccountToken.ServiceAccountName
	case spec.File != nil:
		return "file " + spec.File.Path
	}
	return ""
}

func truth(b bool) string {
	if b {
		return "True"
	}
	return "False"
}

// getOptions say which objects are listed, and how they are printed.
type getOptions struct {
	namespace, name  string
	selector, status string
	noHeader, watch  bool
	print            *genericclioptions.PrintFlags
}

func (o *getOptions) output() string { return *o.print.OutputFormat }

// narrows reports whether a selector may leave nothing, which is an answer then.
func (o *getOptions) narrows() bool { return o.selector != "" || o.status != "" }

func newGetOptions() *getOptions {
	return &getOptions{print: genericclioptions.NewPrintFlags("").WithTypeSetter(newScheme())}
}

func (c *cli) newGet() *cobra.Command {
	var all bool
	o := newGetOptions()
	cmd := &cobra.Command{
		Use:   "get <all|sources|images|kind> [name]",
		Short: "List objects and whether they are ready",
		Long: "List objects and whether they are ready, of one kind, of all sources, of all kinds of image updates, or of\n" +
			"all kinds. With --watch it goes on to print what changes. An object whose Ready condition is missing counts as not ready.\n" +
			"Several objects are a List in JSON and YAML, one that is named is itself. Without any object it ends\n" +
			"with 1, unless a selector left none; of several kinds also if one cannot be read, after it printed the others.",
		Example: "  cascade get all -A\n" +
			"  cascade get kustomizations apps -n cascade-system -o yaml\n" +
			"  cascade get all -A --status-selector ready=false\n" +
			"  cascade get children -A -l cascade.dev/owner=retail -o wide --watch",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: c.completeKindAndName(listable),
		RunE: func(cmd *cobra.Command, args []string) error {
			chosen, err := choose(args[0])
			if err != nil {
				return err
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			if o.namespace = c.namespace(); all {
				o.namespace = ""
			}
			if len(args) > 1 {
				o.name = args[1]
			}
			return c.get(cmd.Context(), cl, chosen, o)
		},
	}
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "list the objects of all namespaces")
	cmd.Flags().BoolVar(&o.noHeader, "no-header", false, "leave out the header")
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "go on to print objects of one kind as they change")
	cmd.Flags().StringVarP(&o.selector, "selector", "l", "", "only objects with these labels: key=value,key!=value")
	cmd.Flags().StringVar(&o.status, "status-selector", "", "only objects with this status of a condition: ready=false, ready!=true")
	o.print.AddFlags(cmd)
	cmd.Flags().Lookup("output").Usage = "wide, name, json, yaml, jsonpath=..., jsonpath-file=..., go-template=... or go-template-file=... instead of a table"
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

// listable are the words for what can be listed.
func listable() []string { return append([]string{"all", "sources", "images"}, kinds()...) }

// kinds are the words for each kind.
func kinds() []string {
	var words []string
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
	if name == "images" || name == "image" {
		return imageGetters(), nil
	}
	if g, ok := kindOf(name); ok {
		return []getter{g}, nil
	}
	return nil, fmt.Errorf("cannot list %q: use %s", name, strings.Join(listable(), ", "))
}

// kindOf is the kind that a word names, in any case.
func kindOf(word string) (getter, bool) {
	word = strings.ToLower(word)
	for _, g := range getters() {
		if word == g.name || word == g.single || slices.Contains(g.aliases, word) {
			return g, true
		}
	}
	return getter{}, false
}

// object is an empty object of the kind.
func (g getter) object() client.Object {
	s, err := newSubject(g.single, client.ObjectKey{})
	if err != nil {
		return nil
	}
	return s.object
}

// listing is what a list is narrowed to by the API server, and by the status here.
type listing struct {
	options []client.ListOption
	status  statusSelector
}

func (o *getOptions) listing() (listing, error) {
	l := listing{options: []client.ListOption{client.InNamespace(o.namespace)}}
	if o.name != "" {
		l.options = append(l.options, client.MatchingFields{"metadata.name": o.name})
	}
	if o.selector != "" {
		selector, err := labels.Parse(o.selector)
		if err != nil {
			return l, fmt.Errorf("cannot read --selector: %w", err)
		}
		l.options = append(l.options, client.MatchingLabelsSelector{Selector: selector})
	}
	var err error
	l.status, err = parseStatusSelector(o.status)
	return l, err
}

// statusSelector passes objects with, or without, a status of a condition.
type statusSelector struct {
	condition, status string
	not               bool
}

func parseStatusSelector(text string) (statusSelector, error) {
	if text == "" {
		return statusSelector{}, nil
	}
	name, value, found := strings.Cut(text, "=")
	s := statusSelector{condition: strings.TrimSuffix(name, "!"), status: strings.TrimPrefix(value, "="), not: strings.HasSuffix(name, "!")}
	switch strings.ToLower(s.status) {
	case "true", "false", "unknown":
	default:
		found = false
	}
	if !found || s.condition == "" {
		return s, fmt.Errorf("cannot read --status-selector %q: use a condition and true, false or unknown, as in ready=false or ready!=true", text)
	}
	return s, nil
}

func (s statusSelector) passes(conditions []metav1.Condition) bool {
	if s.condition == "" {
		return true
	}
	// What is not reconciled yet is shown as not ready; other conditions are absent.
	is := ""
	if strings.EqualFold(s.condition, v1alpha1.ReadyCondition) {
		is = string(metav1.ConditionFalse)
	}
	for _, c := range conditions {
		if strings.EqualFold(c.Type, s.condition) {
			is = string(c.Status)
		}
	}
	return strings.EqualFold(is, s.status) != s.not
}

// passes reports whether an object has the status that is asked for. One that does not say
// how it is has none.
func (g getter) passes(s statusSelector, o client.Object) bool {
	if g.conditions == nil {
		return s.condition == ""
	}
	return s.passes(g.conditions(o))
}

func (c *cli) get(ctx context.Context, cl client.WithWatch, chosen []getter, o *getOptions) error {
	l, err := o.listing()
	if err != nil {
		return err
	}
	printer, err := o.printer()
	if err != nil {
		return err
	}
	if o.watch {
		if len(chosen) > 1 {
			return fmt.Errorf("cannot watch several kinds: use one of %s", strings.Join(kinds(), ", "))
		}
		return c.watchKind(ctx, cl, chosen[0], o, l, printer)
	}
	var found []client.Object
	first, unread := true, false
	for _, g := range chosen {
		objects, err := listObjects(ctx, cl, g, l)
		// What the server refuses of one kind says nothing of the others.
		if len(chosen) > 1 && errors.As(err, new(apierrors.APIStatus)) && !apierrors.IsUnauthorized(err) {
			fmt.Fprintf(c.streams.ErrOut, "✗ %s\n", err)
			unread = true
			continue
		}
		if err != nil {
			return err
		}
		found = append(found, objects...)
		if printer != nil || len(objects) == 0 {
			continue
		}
		if !first {
			fmt.Fprintln(c.streams.Out)
		}
		first = false
		columns := columnsOf(g, o, len(chosen) > 1)
		if err := table(c.streams.Out, columns.header(o.noHeader), columns.rows(objects, c.now())); err != nil {
			return err
		}
	}
	if len(found) == 0 && !o.narrows() && !unread {
		return fmt.Errorf("found nothing in %s", o.where())
	}
	switch {
	case printer == nil:
		if len(found) == 0 && !unread {
			fmt.Fprintf(c.streams.ErrOut, "► nothing in %s is so\n", o.where())
		}
	case o.name != "" && len(found) == 1 && len(chosen) == 1:
		err = c.print(printer, found[0])
	default:
		err = c.printAll(printer, *o.print.OutputFormat, found)
	}
	if err == nil && unread {
		err = errNotReady
	}
	return err
}

func (o *getOptions) where() string {
	if o.namespace == "" {
		return "any namespace"
	}
	return "namespace " + o.namespace
}

// printer is nil for a table.
func (o *getOptions) printer() (printers.ResourcePrinter, error) {
	if output := o.output(); output == "" || output == "wide" {
		return nil, nil
	}
	printer, err := o.print.ToPrinter()
	if err != nil {
		return nil, fmt.Errorf("cannot print as %q: use wide, name, json, yaml, jsonpath=... or go-template=...: %w", o.output(), err)
	}
	return printer, nil
}

func (c *cli) print(printer printers.ResourcePrinter, o runtime.Object) error {
	if err := printer.PrintObj(o, c.streams.Out); err != nil {
		return fmt.Errorf("cannot print: %w", err)
	}
	return nil
}

// printAll prints objects as one List; names are one for each.
func (c *cli) printAll(printer printers.ResourcePrinter, output string, objects []client.Object) error {
	if output != "name" {
		return c.print(printer, listOf(objects))
	}
	for _, o := range objects {
		if err := c.print(printer, o); err != nil {
			return err
		}
	}
	return nil
}

// listOf is a List of objects of any kinds, as kubectl prints several.
func listOf(objects []client.Object) *corev1.List {
	list := &corev1.List{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}, Items: []runtime.RawExtension{}}
	for _, o := range objects {
		list.Items = append(list.Items, runtime.RawExtension{Object: o})
	}
	return list
}

func listObjects(ctx context.Context, cl client.Client, g getter, l listing) ([]client.Object, error) {
	objects, _, err := listWithVersion(ctx, cl, g, l)
	return objects, err
}

// listWithVersion returns the objects, and the version of the list that a watch goes on from.
func listWithVersion(ctx context.Context, cl client.Client, g getter, l listing) ([]client.Object, string, error) {
	list := g.list()
	if err := cl.List(ctx, list, l.options...); err != nil {
		// A tier without the kind has none of its objects.
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return nil, "", nil
		}
		return nil, "", fmt.Errorf("cannot list %s: %w", g.name, err)
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return nil, "", fmt.Errorf("cannot read list of %s: %w", g.name, err)
	}
	objects := make([]client.Object, 0, len(items))
	for _, item := range items {
		o, err := named(cl, item)
		if err != nil {
			return nil, "", fmt.Errorf("cannot read list of %s: %w", g.name, err)
		}
		if g.passes(l.status, o) {
			objects = append(objects, o)
		}
	}
	return objects, list.GetResourceVersion(), nil
}

// named makes an object say what it is: those of a list do not, and people apply what we
// print.
func named(cl client.Client, item runtime.Object) (client.Object, error) {
	gvk, err := cl.GroupVersionKindFor(item)
	if err != nil {
		return nil, err
	}
	item.GetObjectKind().SetGroupVersionKind(gvk)
	return item.(client.Object), nil
}

// columnSet are the columns of a table of one kind.
type columnSet struct {
	of                            getter
	withNamespace, withKind, wide bool
}

func columnsOf(g getter, o *getOptions, withKind bool) columnSet {
	return columnSet{of: g, withNamespace: o.namespace == "", withKind: withKind, wide: o.output() == "wide"}
}

// header is nil if it is left out.
func (s columnSet) header(leftOut bool) []string {
	if leftOut {
		return nil
	}
	var header []string
	if s.withNamespace {
		header = append(header, "NAMESPACE")
	}
	header = append(append(header, "NAME"), s.of.header...)
	if s.of.conditions != nil {
		header = append(header, "READY")
	}
	if s.wide {
		header = append(append(header, s.of.wideHeader...), "AGE")
	}
	if s.of.conditions != nil {
		header = append(header, "MESSAGE")
	}
	return header
}

func (s columnSet) rows(objects []client.Object, now time.Time) [][]string {
	rows := make([][]string, 0, len(objects))
	for _, o := range objects {
		var row []string
		if s.withNamespace {
			row = append(row, o.GetNamespace())
		}
		name := o.GetName()
		if s.withKind {
			name = s.of.single + "/" + name
		}
		row = append(append(row, name), s.of.row(o)...)
		ready, message := s.of.readiness(o)
		if s.of.conditions != nil {
			row = append(row, ready)
		}
		if s.wide {
			for _, cell := range s.of.wide(o) {
				row = append(row, orDash(cell))
			}
			row = append(row, age(o.GetCreationTimestamp(), now))
		}
		if s.of.conditions != nil {
			row = append(row, oneLine(shortRevision(message)))
		}
		rows = append(rows, row)
	}
	return rows
}

// readiness is what an object says of being ready.
func (g getter) readiness(o client.Object) (ready, message string) {
	if g.conditions == nil {
		return "", ""
	}
	if c := meta.FindStatusCondition(g.conditions(o), v1alpha1.ReadyCondition); c != nil {
		return string(c.Status), c.Message
	}
	return "False", "waiting to be reconciled"
}

// moment is a time as it stands in an object, so that tables of two moments have the same
// text of what did not change.
func moment(t *metav1.Time) string {
	if t == nil || t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}
