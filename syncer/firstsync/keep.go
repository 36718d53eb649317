package firstsync

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/clusters"
)

// load reads the record, or creates it. A record that exists wins over everything else.
func (t *Tier) load(ctx context.Context) error {
	cm := &corev1.ConfigMap{}
	err := t.Reader.Get(ctx, types.NamespacedName{Namespace: t.Namespace, Name: v1alpha1.FirstSyncConfigMap}, cm)
	if apierrors.IsNotFound(err) {
		if cm, err = t.begin(ctx); err != nil {
			return err
		}
	}
	if err != nil {
		return fmt.Errorf("cannot read ConfigMap %s: %w", v1alpha1.FirstSyncConfigMap, err)
	}
	t.take(cm)
	if r := recordOf(cm); r.settled() && r.since == "" {
		// An earlier version or a person settled it. Parents of new clusters ask since when.
		return t.settle(ctx, r.why)
	}
	return nil
}

// begin creates the record of a tier that has none.
func (t *Tier) begin(ctx context.Context) (*corev1.ConfigMap, error) {
	r, err := t.origin(ctx)
	if err != nil {
		return nil, err
	}
	if err := t.away(ctx, &r); err != nil {
		return nil, err
	}
	return t.create(ctx, r)
}

// away adds to a first record what those in other namespaces say, as that of an agent which was there before: which Clusters
// another tier manages, whose Children stay for that, and which went while they were moved or paused. All of these may run
// elsewhere, whatever the tier begins with, so that none is built here. One that is here is this tier's.
func (t *Tier) away(ctx context.Context, r *record) error {
	others, err := Other{Reader: t.Reader}.records(ctx)
	if err != nil {
		return err
	}
	r.clusters, r.elsewhere = map[types.NamespacedName]inventory.Standing{}, map[types.NamespacedName]string{}
	for _, other := range others {
		for name, standing := range other.standings() {
			if strict(standing) > 0 {
				r.clusters[name] = inventory.LastPaused
			}
		}
		maps.Copy(r.elsewhere, other.elsewhere)
	}
	if len(r.elsewhere) == 0 {
		return nil
	}
	gvk, err := clusters.Served(ctx, t.Reader)
	if err != nil {
		return err
	}
	for name := range r.elsewhere {
		here, err := t.here(ctx, gvk, name)
		if err != nil {
			return err
		}
		if here {
			delete(r.elsewhere, name)
		} else {
			r.clusters[name] = inventory.LastMoving // for versions that know no pivots, as ManageElsewhere
		}
	}
	return nil
}

// here reports whether a Cluster exists, by the version in which Clusters are served; it is empty if they are not.
func (t *Tier) here(ctx context.Context, gvk schema.GroupVersionKind, name types.NamespacedName) (bool, error) {
	if gvk.Empty() {
		return false, nil
	}
	u := &metav1.PartialObjectMetadata{}
	u.SetGroupVersionKind(gvk)
	err := t.Reader.Get(ctx, name, u)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot read Cluster %s: %w", name, err)
	}
	return true, nil
}

func (t *Tier) create(ctx context.Context, r record) (*corev1.ConfigMap, error) {
	cm := r.configMap(t.Namespace)
	if err := t.Client.Create(ctx, cm, client.FieldOwner(fieldManager)); err != nil {
		return nil, fmt.Errorf("cannot create ConfigMap %s: %w", cm.Name, err)
	}
	log.FromContext(ctx).Info("the record of the first sync was made", "state", r.state, "why", r.why)
	return cm, nil
}

const fieldManager = "cascade"

// origin is the first record of a tier. What shows a past wins over the arguments of the
// agent, which stay in its Deployment for ever: a record that is gone while its tier is
// not was deleted, with what it said of Clusters that were moved away.
func (t *Tier) origin(ctx context.Context) (record, error) {
	if !t.Create {
		return record{state: v1alpha1.FirstSyncOpen, why: "nothing was on record"}, nil
	}
	past, err := t.past(ctx)
	if err != nil {
		return record{}, err
	}
	if past != "" {
		return record{state: v1alpha1.FirstSyncOpen, why: "the record was missing, and --first-sync=create does not count: " + past}, nil
	}
	return record{
		state: v1alpha1.FirstSyncSettled, why: "it was installed with --first-sync=create", since: t.Now().UTC().Format(time.RFC3339),
	}, nil
}

// past tells what shows that the tier had Clusters before; empty if nothing does.
func (t *Tier) past(ctx context.Context) (string, error) {
	owners, err := t.owners(ctx, t.Reader)
	if err != nil {
		return "", err
	}
	for _, o := range owners {
		if len(inventory.ClustersAmong(o.Inventory)) > 0 {
			return fmt.Sprintf("%s had Clusters on record", o.Entry), nil
		}
	}
	children := &v1alpha1.ChildList{}
	if err := t.Reader.List(ctx, children); err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("cannot list Children: %w", err)
	}
	for _, c := range children.Items {
		if c.Spec.ClusterRef != nil && c.Status.Identity != nil {
			return fmt.Sprintf("Child %s/%s was connected", c.Namespace, c.Name), nil
		}
	}
	seeds := &corev1.ConfigMapList{}
	if err := t.Reader.List(ctx, seeds, client.InNamespace(t.Namespace), client.HasLabels{v1alpha1.FirstSeedLabel}, client.Limit(1)); err != nil {
		return "", fmt.Errorf("cannot list ConfigMaps: %w", err)
	}
	if len(seeds.Items) > 0 {
		return fmt.Sprintf("ConfigMap %s/%s is of a cluster that was seeded", t.Namespace, seeds.Items[0].Name), nil
	}
	return t.anyCluster(ctx)
}

// anyCluster names a Cluster that exists, empty if none does.
func (t *Tier) anyCluster(ctx context.Context) (string, error) {
	gvk, err := clusters.Served(ctx, t.Reader)
	if err != nil || gvk.Empty() {
		return "", err
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(gvk)
	if err := t.Reader.List(ctx, list, client.Limit(1)); err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("cannot list Clusters: %w", err)
	}
	if len(list.Items) > 0 {
		return fmt.Sprintf("Cluster %s/%s exists", list.Items[0].Namespace, list.Items[0].Name), nil
	}
	return "", nil
}

// take makes a record that was read or written the present one.
func (t *Tier) take(cm *corev1.ConfigMap) {
	r := recordOf(cm)
	t.mu.Lock()
	defer t.mu.Unlock()
	news := r.settled() && !t.record.settled()
	first := t.record.state == ""
	var changed []types.NamespacedName
	for name, s := range r.clusters {
		if t.standing(name) != s { // what we wrote ourselves is no news
			changed = append(changed, name)
		}
	}
	if !first { // an earlier process told of what there was before
		t.tellApproved(cm, r, changed)
	}
	// A Cluster comes here, or goes elsewhere: who declares it looks again.
	for name := range r.elsewhere {
		if t.record.elsewhere[name] == "" {
			changed = append(changed, name)
		}
	}
	var back []types.NamespacedName
	for name := range t.record.elsewhere {
		if r.elsewhere[name] == "" {
			back = append(back, name)
		}
	}
	changed = append(changed, back...)
	t.record, t.lost = r, false
	t.noteElsewhere(back)
	switch {
	case news:
		// From now on the state in which a Cluster is deleted is recorded.
		for name, mark := range t.seen {
			t.mark(name, mark, false)
		}
		t.tell()
	case len(changed) > 0:
		t.tell(changed...)
	}
}

// noteElsewhere has the mark of each Cluster that another tier manages say that it is being moved,
// for versions of the agent that read nothing else: a pivot of an earlier version left it out, or what
// was pending here took its place. Those that are back are noted as they are. It is called with the lock.
func (t *Tier) noteElsewhere(back []types.NamespacedName) {
	for name := range t.record.elsewhere {
		if delete(t.pending, name); t.record.clusters[name] != inventory.LastMoving {
			t.pending[name] = inventory.LastMoving
			t.poke()
		}
	}
	for _, name := range back {
		delete(t.pending, name)
		if mark, ok := t.seen[name]; ok && t.record.settled() {
			t.mark(name, mark, false)
		}
	}
}

// reasonCreateApproved is the reason of the event that tells of an approval.
const reasonCreateApproved = "CreateApproved"

// tellApproved tells who approved the creation of Clusters. It is called with the lock.
func (t *Tier) tellApproved(cm *corev1.ConfigMap, r record, changed []types.NamespacedName) {
	if t.Events == nil {
		return
	}
	slices.SortFunc(changed, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	by := cmp.Or(cm.Annotations[v1alpha1.ApprovedByAnnotation], "somebody")
	for _, name := range changed {
		if r.clusters[name] == inventory.Approved {
			t.Events.Eventf(cm, corev1.EventTypeNormal, reasonCreateApproved, "%s approved the creation of Cluster %s", by, name)
		}
	}
}

// onRecord takes what the watch shows. An event of before our last write would bring back
// what that replaced: a hold that a person ended, or a mark that is gone.
func (t *Tier) onRecord(o any) {
	cm, ok := o.(*corev1.ConfigMap)
	if !ok || cm.Name != v1alpha1.FirstSyncConfigMap {
		return
	}
	t.mu.Lock()
	if t.written != "" {
		if c, err := resourceversion.CompareResourceVersion(cm.ResourceVersion, t.written); err == nil && c < 0 {
			t.mu.Unlock()
			return
		}
		// From here on a version that goes back is that of a backup.
		t.written = ""
	}
	t.mu.Unlock()
	t.take(cm)
}

// wrote makes the record that we wrote the present one.
func (t *Tier) wrote(cm *corev1.ConfigMap) {
	t.mu.Lock()
	t.written = cm.ResourceVersion
	t.mu.Unlock()
	t.take(cm)
}

// onRecordGone is called when the record was deleted. It is created again, as this
// process knows it.
func (t *Tier) onRecordGone(any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lost, t.written = true, ""
	t.poke()
}

// flush writes what is pending.
func (t *Tier) flush(ctx context.Context) error {
	if err := t.replace(ctx); err != nil {
		return err
	}
	t.mu.Lock()
	data := map[string]*string{}
	written := map[types.NamespacedName]inventory.Standing{}
	for name, s := range t.pending {
		written[name] = s
		if data[KeyOf(name)] = nil; s != "" {
			data[KeyOf(name)] = new(string(s))
		}
	}
	t.mu.Unlock()
	if len(data) == 0 {
		return nil
	}
	patch, err := patchOf(data)
	if err != nil {
		return err
	}
	if err := t.patch(ctx, patch); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, s := range written {
		if t.pending[name] == s {
			delete(t.pending, name)
		}
	}
	return nil
}

// replace creates a record that was deleted while this process ran, with what it knows: the
// state, and the marks of Clusters. One that somebody created meanwhile wins.
func (t *Tier) replace(ctx context.Context) error {
	t.mu.Lock()
	lost, known := t.lost, t.record
	t.mu.Unlock()
	if !lost {
		return nil
	}
	cm, err := t.create(ctx, known)
	if apierrors.IsAlreadyExists(err) {
		return t.load(ctx)
	}
	if err != nil {
		return err
	}
	t.wrote(cm)
	return nil
}

func (t *Tier) patch(ctx context.Context, patch []byte) error {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: t.Namespace, Name: v1alpha1.FirstSyncConfigMap}}
	if err := t.Client.Patch(ctx, cm, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldManager)); err != nil {
		if apierrors.IsNotFound(err) {
			t.onRecordGone(nil)
		}
		return fmt.Errorf("cannot write ConfigMap %s: %w", cm.Name, err)
	}
	t.wrote(cm)
	return nil
}

// settle ends the first sync: from now on Clusters are created without approval.
func (t *Tier) settle(ctx context.Context, why string) error {
	cm := &corev1.ConfigMap{}
	if err := t.Reader.Get(ctx, types.NamespacedName{Namespace: t.Namespace, Name: v1alpha1.FirstSyncConfigMap}, cm); err != nil {
		return fmt.Errorf("cannot read ConfigMap %s: %w", v1alpha1.FirstSyncConfigMap, err)
	}
	patch, err := SettlementPatch(cm, why, t.Now())
	if err != nil {
		return err
	}
	if err := t.patch(ctx, patch); err != nil {
		return err
	}
	log.FromContext(ctx).Info("the first sync is over, Clusters are created without asking", "why", why)
	return nil
}
