package pivot

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge/graph"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
)

// facts reads what the present step has to know.
func (p *Pivot) facts(ctx context.Context, rounds int) (Facts, error) {
	f := Facts{Rounds: rounds, Ours: p.ours(), Held: map[types.NamespacedName]bool{}, Away: map[types.NamespacedName]bool{}}
	objects := p.journal.Objects
	if p.journal.Step.Revocable() {
		g, err := p.graph(ctx)
		if err != nil {
			return f, err
		}
		f.Source, f.Resting = g, p.restful(g)
		objects = recorded(p.journal, g)
	} else {
		var err error
		if f.Left, err = readAll(ctx, p.Source, p.most(p.Source), objects); err != nil {
			return f, err
		}
	}
	if p.journal.Step != Freeze {
		var err error
		if f.Copies, err = readAll(ctx, p.Target, p.most(p.Target), objects); err != nil {
			return f, err
		}
	}
	if p.journal.Step == Copy || p.journal.Step == Verify {
		var err error
		if f.Namespaces, err = namespacesOf(ctx, p.Target, objects); err != nil {
			return f, err
		}
		if f.Foreign, err = p.foreign(ctx, objects); err != nil {
			return f, err
		}
	}
	return f, p.records(ctx, &f)
}

// records reads what both sides have on record.
func (p *Pivot) records(ctx context.Context, f *Facts) error {
	here, recorded, err := recordOf(ctx, p.Source)
	if err != nil {
		return err
	}
	there, _, err := recordOf(ctx, p.Target)
	if err != nil {
		return err
	}
	f.Recorded, f.Here, f.There = recorded, here, there
	for _, name := range p.journal.names() {
		f.Held[name] = firstsync.ManagedBy(here, name) == p.journal.ID
		f.Away[name] = firstsync.ManagedBy(there, name) != ""
	}
	j, err := p.receipt(ctx)
	if err == nil && j.ID == p.journal.ID {
		f.Receipt = j.Step
	}
	return err
}

// receipt is the journal that the target has of these Clusters, of this pivot or a former one; its ID is empty if there is none.
func (p *Pivot) receipt(ctx context.Context) (Journal, error) {
	cm := &corev1.ConfigMap{}
	err := get(ctx, p.Target.Client, types.NamespacedName{Namespace: p.Target.Namespace, Name: p.journal.nameOf(Target)}, cm)
	if apierrors.IsNotFound(err) {
		return Journal{}, nil
	}
	if err != nil {
		return Journal{}, fmt.Errorf("cannot read the journal in %s: %w", p.Target.Name, err)
	}
	return decode(cm)
}

// recordOf reads the record of a tier's first sync; it is empty where there is none.
func recordOf(ctx context.Context, s Side) (cm *corev1.ConfigMap, ok bool, err error) {
	cm = &corev1.ConfigMap{}
	err = get(ctx, s.Client, types.NamespacedName{Namespace: s.Namespace, Name: v1alpha1.FirstSyncConfigMap}, cm)
	if apierrors.IsNotFound(err) {
		return &corev1.ConfigMap{}, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("cannot read the record of the first sync in %s: %w", s.Name, err)
	}
	return cm, true, nil
}

// mostHeld is how many bytes the objects of a stranger may take in the memory of who acts in the
// name of others, who are all in the same memory.
const mostHeld = 384 << 20

// ours reports whether the source is the tier of who acts in the name of others: the target is reached by the kubeconfig of
// a Cluster then.
func (p *Pivot) ours() bool { return p.Own && p.Target.Kubeconfig.Name != "" }

// most is how many bytes the objects of a side may take in memory; 0 is no bound. Whoever acts in
// the name of others acts in his own tier, which is trusted and as large as it is, and reaches the
// other side, which may be a stranger's, by a kubeconfig of its Cluster.
func (p *Pivot) most(s Side) int64 {
	if p.Own && s.Kubeconfig.Name != "" {
		return mostHeld
	}
	return 0
}

// graph reads what belongs to the Clusters. All namespaces are read: which of it other
// Clusters need is to be seen.
func (p *Pivot) graph(ctx context.Context) (*graph.Graph, error) {
	if p.kinds == nil {
		kinds, err := graph.Served(ctx, p.Source.Client)
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", p.Source.Name, err)
		}
		p.kinds = kinds
	}
	g, err := graph.Read(ctx, p.Source.Client, p.kinds, p.most(p.Source), p.Clusters...)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", p.Source.Name, err)
	}
	return g, nil
}

// few is how many objects of one kind and namespace are read one by one; fewData of Secrets and
// ConfigMaps, of which a list brings those of others as well, with what is in them.
const (
	few     = 3
	fewData = 20
)

// readAll reads the objects of a side that have the names of some. It fails rather than to hold more
// than about most bytes; 0 is no bound.
func readAll(ctx context.Context, s Side, most int64, objects []Object) (map[key]*unstructured.Unstructured, error) {
	type place struct {
		kind      schema.GroupVersionKind
		namespace string
	}
	wanted, places := map[key]bool{}, map[place][]Object{}
	var order []place
	for _, o := range objects {
		if wanted[o.key()] {
			continue
		}
		wanted[o.key()] = true
		at := place{o.GroupVersionKind(), o.Namespace}
		if places[at] == nil {
			order = append(order, at)
		}
		places[at] = append(places[at], o)
	}
	out, reading := map[key]*unstructured.Unstructured{}, graph.Reading{Client: s.Client, Most: most}
	hold := func(u *unstructured.Unstructured) error {
		k := keyOf(u)
		if !wanted[k] || out[k] != nil {
			return nil
		}
		out[k] = u
		return reading.Hold(u)
	}
	for _, at := range order {
		alone := few
		if at.kind.Group == "" {
			alone = fewData
		}
		if len(places[at]) > alone {
			if err := reading.Each(ctx, at.kind, at.namespace, hold); err != nil {
				return nil, fmt.Errorf("cannot read %s: %w", s.Name, err)
			}
			continue
		}
		for _, o := range places[at] {
			u := &unstructured.Unstructured{}
			u.SetGroupVersionKind(at.kind)
			err := get(ctx, s.Client, o.key().name, u)
			if apierrors.IsNotFound(err) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("cannot read %s in %s: %w", o, s.Name, err)
			}
			if err := hold(u); err != nil {
				return nil, fmt.Errorf("cannot read %s: %w", s.Name, err)
			}
		}
	}
	return out, nil
}

// namespacesOf are the namespaces of objects that a side has.
func namespacesOf(ctx context.Context, s Side, objects []Object) (map[string]bool, error) {
	out := map[string]bool{}
	asked := map[string]bool{"": true}
	for _, o := range objects {
		if asked[o.Namespace] {
			continue
		}
		asked[o.Namespace] = true
		err := get(ctx, s.Client, types.NamespacedName{Name: o.Namespace}, &corev1.Namespace{})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("cannot read namespace %s in %s: %w", o.Namespace, s.Name, err)
		}
		out[o.Namespace] = err == nil
	}
	return out, nil
}

// checkFacts reads what is looked at before anything is changed.
func (p *Pivot) checkFacts(ctx context.Context) (CheckFacts, error) {
	g, err := p.graph(ctx)
	if err != nil {
		return CheckFacts{}, err
	}
	f := CheckFacts{Journal: p.journal, Source: g, Ours: p.ours(), Providers: map[string]bool{}}
	if f.Journal.Step == "" || f.Journal.Step.Over() {
		f.Journal.Clusters = clustersOf(g, p.Clusters)
	}
	objects := recorded(f.Journal, g)
	if f.Unserved, err = p.unserved(ctx, objects); err != nil {
		return f, err
	}
	served := slices.DeleteFunc(slices.Clone(objects), func(o Object) bool { return slices.Contains(f.Unserved, o.GroupVersionKind()) })
	if f.Foreign, err = p.foreign(ctx, served); err != nil {
		return f, err
	}
	if f.Copies, err = readAll(ctx, p.Target, p.most(p.Target), served); err != nil {
		return f, err
	}
	if err := p.providers(ctx, objects, f.Providers); err != nil {
		return f, err
	}
	for _, s := range []Side{p.Source, p.Target} {
		journals, err := Journals(ctx, s.Client, s.Namespace)
		if err != nil {
			return f, fmt.Errorf("cannot look for other pivots in %s: %w", s.Name, err)
		}
		for _, list := range journals {
			for _, j := range list {
				if !j.Step.Over() {
					f.Others = append(f.Others, j)
				}
			}
		}
	}
	_, f.Recorded, err = recordOf(ctx, p.Source)
	return f, err
}

// unserved are the kinds of objects that the target does not serve in their version.
func (p *Pivot) unserved(ctx context.Context, objects []Object) ([]schema.GroupVersionKind, error) {
	var missing []schema.GroupVersionKind
	asked := map[schema.GroupVersionKind]bool{}
	for _, o := range objects {
		kind := o.GroupVersionKind()
		if asked[kind] {
			continue
		}
		asked[kind] = true
		l := &metav1.PartialObjectMetadataList{}
		l.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		call, cancel := context.WithTimeout(ctx, callTimeout)
		err := p.Target.Client.List(call, l, client.Limit(1))
		cancel()
		switch {
		case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
			missing = append(missing, kind)
		case err != nil:
			return nil, fmt.Errorf("cannot ask %s for %s: %w", p.Target.Name, kind.Kind, err)
		}
	}
	return missing, nil
}

// foreign are the kinds of objects that the target does not have from Cluster API or a provider.
// Which kinds are moved, the source says by the labels of its definitions, and a cluster that is
// given back may be anybody's: it is not the one to say what it creates in the target.
func (p *Pivot) foreign(ctx context.Context, objects []Object) ([]schema.GroupKind, error) {
	if p.theirs == nil {
		kinds, err := graph.Served(ctx, p.Target.Client)
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", p.Target.Name, err)
		}
		p.theirs = kinds
	}
	var out []schema.GroupKind
	for _, o := range objects {
		if kind := o.key().kind; kind.Group != "" && !p.theirs.Has(kind) && !slices.Contains(out, kind) {
			out = append(out, kind)
		}
	}
	if len(out) > 0 {
		p.theirs = nil // somebody may install them
	}
	return out, nil
}

// providers finds out whose kinds the objects are, by the labels of their definitions in the
// source, and whether the target has a controller of each that is ready.
func (p *Pivot) providers(ctx context.Context, objects []Object, out map[string]bool) error {
	for _, o := range objects {
		for _, kind := range p.kinds {
			if kind.Provider != "" && kind.Group == o.Group && kind.Kind == o.Kind {
				out[kind.Provider] = false
			}
		}
	}
	if len(out) == 0 {
		return nil
	}
	deployments := &appsv1.DeploymentList{}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := p.Target.Client.List(call, deployments, client.HasLabels{clusterapi.ProviderLabel}); err != nil {
		return fmt.Errorf("cannot list Deployments in %s: %w", p.Target.Name, err)
	}
	for _, d := range deployments.Items {
		provider := d.Labels[clusterapi.ProviderLabel]
		if _, asked := out[provider]; asked && d.Status.AvailableReplicas > 0 {
			out[provider] = true
		}
	}
	return nil
}
