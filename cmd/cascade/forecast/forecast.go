package forecast

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/cmd/cascade/difference"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/target"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// Cluster is the tier.
type Cluster interface {
	client.Client
	capibridge.Reader
}

// Options of Of.
type Options struct {
	// Source is the GitRepository.
	Source client.ObjectKey
	// Commit that it would be at, in full.
	Commit string
	// Child, as <namespace>/<name>, is the only one that the report is about; empty: it is about the whole tier.
	Child string
	// Clone has commits; those that it lacks are fetched from the repository. nil has none.
	Clone *source.Clone
	// Mirrors fetch, with Logins.
	Mirrors *source.Mirrors
	Logins  *source.Logins
	// Workers run kustomize.
	Workers worker.Runner
	// Lenient as the agent's --lenient-substitution.
	Lenient bool
}

// forecast is one report in the making.
type forecast struct {
	Options
	cluster    Cluster
	repository *sourcev1.GitRepository
	snapshots  map[string]fetched
	next       *source.Snapshot
	report     *difference.Report
	// tier is what is declared in this tier.
	tier *tier
	// used: something that the report is about is made of the source.
	used bool
	// templates of layers.
	templates map[string]built
}

// fetched is a snapshot, or why there is none.
type fetched struct {
	snapshot *source.Snapshot
	err      error
}

// Of reports what the commit would change.
func Of(ctx context.Context, cluster Cluster, o Options) (*difference.Report, error) {
	f := &forecast{Options: o, cluster: cluster, snapshots: map[string]fetched{}, templates: map[string]built{}, repository: &sourcev1.GitRepository{}}
	if err := cluster.Get(ctx, o.Source, f.repository); err != nil {
		return nil, fmt.Errorf("cannot read GitRepository %s: %w", o.Source, err)
	}
	if len(f.repository.Spec.Include) > 0 {
		return nil, fmt.Errorf("cannot plan for GitRepository %s: it has spec.include, and a commit does not say at which commits the included repositories are", o.Source)
	}
	var err error
	if f.next, err = f.at(ctx, o.Commit); err != nil {
		return nil, err
	}
	f.report = &difference.Report{Schema: difference.Schema, Source: o.Source.String(), Commit: o.Commit, Owners: []difference.Owner{}}
	if f.tier, err = f.load(ctx); err != nil {
		return nil, err
	}
	if err := f.settle(ctx); err != nil {
		return nil, err
	}
	f.kustomizations(ctx)
	f.layers(ctx)
	f.gaps(ctx, f.tier.releases)
	switch {
	case f.used || len(f.report.Problems) > 0:
	case o.Child != "":
		return nil, fmt.Errorf("cannot plan for Child %s: no Layer in it is made of GitRepository %s, so that nothing was compared", o.Child, o.Source)
	default:
		return nil, fmt.Errorf("cannot plan: nothing in this tier is made of GitRepository %s, so that nothing was compared", o.Source)
	}
	slices.SortFunc(f.report.Owners, func(a, b difference.Owner) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	slices.SortStableFunc(f.report.Problems, func(a, b difference.Problem) int {
		return cmp.Or(strings.Compare(a.Owner, b.Owner), strings.Compare(a.Cluster, b.Cluster))
	})
	f.report.Sum()
	return f.report, nil
}

// use notes that something is made of the source. For a report about one Child only what gets into children counts.
func (f *forecast) use(inChildren bool) { f.used = f.used || inChildren || f.Child == "" }

// at is the content of the source at a commit.
func (f *forecast) at(ctx context.Context, commit string) (*source.Snapshot, error) {
	got, ok := f.snapshots[commit]
	if !ok {
		got.snapshot, got.err = f.fetch(ctx, commit)
		f.snapshots[commit] = got
	}
	return got.snapshot, got.err
}

func (f *forecast) problem(owner, cluster string, err error) {
	f.report.Problems = append(f.report.Problems, difference.Problem{Owner: owner, Cluster: cluster, Message: err.Error()})
}

func (f *forecast) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(f.report.Notes, text) {
		f.report.Notes = append(f.report.Notes, text)
	}
}

// tier is what is in the tier now: what syncs it, and what it knows of the clusters below.
type tier struct {
	kustomizations map[client.ObjectKey]*declaredBy
	layers         map[client.ObjectKey]*layer
	rollouts       []v1alpha1.Rollout
	// nextRollouts are those after the commit.
	nextRollouts []v1alpha1.Rollout
	children     []v1alpha1.Child
	// home identifies the tier's own cluster, if a Kustomization has another one, or it by
	// its kubeconfig, on record. Empty is not known.
	home     string
	releases []helmv2.HelmRelease
	// before and after are what all Kustomizations of the source declare.
	before, after map[difference.Identity]*unstructured.Unstructured
	// installed is what would go with each HelmRelease, along with each Kustomization as
	// well. going are objects that the commit
	// deletes.
	installed, along map[difference.Identity]difference.Along

	going map[difference.Identity]bool
}

// declaredBy is a Kustomization before and after the commit; nil where there is none.
type declaredBy struct {
	now, next     *kustomizev1.Kustomization
	before, after []*unstructured.Unstructured
	// unknown is why before is missing, failed why after is.
	unknown, failed error
}

// layer is one before and after the commit; nil where there is none.
type layer struct{ now, next *v1alpha1.Layer }

// load reads what is in the tier. A kind that it lacks has no objects.
func (f *forecast) load(ctx context.Context) (*tier, error) {
	t := &tier{kustomizations: map[client.ObjectKey]*declaredBy{}, layers: map[client.ObjectKey]*layer{}, installed: map[difference.Identity]difference.Along{}}
	kustomizations, layers, rollouts, children := &kustomizev1.KustomizationList{}, &v1alpha1.LayerList{}, &v1alpha1.RolloutList{}, &v1alpha1.ChildList{}
	releases := &helmv2.HelmReleaseList{}
	for kind, list := range map[string]client.ObjectList{
		"Kustomizations": kustomizations, "HelmReleases": releases, "Layers": layers, "Rollouts": rollouts, "Children": children,
	} {
		if err := f.cluster.List(ctx, list); err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("cannot list %s: %w", kind, err)
		}
	}
	for i := range kustomizations.Items {
		k := &kustomizations.Items[i]
		t.kustomizations[client.ObjectKeyFromObject(k)] = &declaredBy{now: k, next: k}
	}
	if slices.ContainsFunc(kustomizations.Items, func(k kustomizev1.Kustomization) bool { return k.Annotations[target.Annotation] != "" }) {
		var err error
		if t.home, err = f.home(ctx); err != nil {
			return nil, err
		}
	}
	for i := range layers.Items {
		l := &layers.Items[i]
		t.layers[client.ObjectKeyFromObject(l)] = &layer{l, l}
	}
	for i := range releases.Items {
		r := &releases.Items[i]
		id := difference.Identity{Group: helmv2.GroupVersion.Group, Kind: helmv2.HelmReleaseKind, Namespace: r.Namespace, Name: r.Name}
		t.installed[id] = installed(r)
	}
	t.rollouts, t.nextRollouts, t.children, t.releases = rollouts.Items, rollouts.Items, children.Items, releases.Items
	return t, nil
}

// home identifies the tier's own cluster. Empty: whoever plans may not read it.
func (f *forecast) home(ctx context.Context) (string, error) {
	namespace := &corev1.Namespace{}
	err := f.cluster.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, namespace)
	if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("cannot read Namespace %s: %w", metav1.NamespaceSystem, err)
	}
	return string(namespace.UID), nil
}

// installed is what a HelmRelease installed, as far as it says so.
func installed(r *helmv2.HelmRelease) difference.Along {
	var a difference.Along
	if r.Status.Inventory == nil {
		return a
	}
	for _, i := range r.Status.Inventory.Entries {
		e, err := inventory.Parse(i.ID, i.Version)
		if a.Objects++; err == nil && inventory.Protected(e, inventory.Live{}, false) {
			a.Protected = append(a.Protected, e.String())
		}
	}
	return a
}

// ofKustomization reports whether a Kustomization is made of the source.
func (f *forecast) ofKustomization(k *kustomizev1.Kustomization) bool {
	if k == nil {
		return false
	}
	ref := k.Spec.SourceRef
	return f.is(ref.Kind, cmp.Or(ref.Namespace, k.Namespace), ref.Name)
}

// ofLayer reports whether a Layer is.
func (f *forecast) ofLayer(l *v1alpha1.Layer) bool {
	if l == nil || l.Spec.SourceRef == nil {
		return false
	}
	ref := l.Spec.SourceRef
	return f.is(ref.Kind, cmp.Or(ref.Namespace, l.Namespace), ref.Name)
}

func (f *forecast) is(kind, namespace, name string) bool {
	return kind == sourcev1.GitRepositoryKind && namespace == f.Source.Namespace && name == f.Source.Name
}

// errOtherSource: an owner had another source before the commit, or will have one.
var errOtherSource = errors.New("the commit gives it another source; what the other source declares is not known here")

// errOtherCluster: a Kustomization applied to another cluster before the commit.
var errOtherCluster = errors.New("the commit gives it another spec.kubeConfig; what it applied goes from the one cluster if it prunes, and comes to the other")
