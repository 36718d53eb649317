package firstsync

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
)

// load reads the record, or creates it.
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
	if t.Create && cm.Data[stateKey] != v1alpha1.FirstSyncSettled {
		return t.settle(ctx, "it was installed with --first-sync=create")
	}
	return nil
}

// begin creates the record of a tier that has none.
func (t *Tier) begin(ctx context.Context) (*corev1.ConfigMap, error) {
	state, why, err := t.origin(ctx)
	if err != nil {
		return nil, err
	}
	cm := NewRecord(t.Namespace, why)
	cm.Data[stateKey] = state
	if err := t.Client.Create(ctx, cm, client.FieldOwner(fieldManager)); err != nil {
		return nil, fmt.Errorf("cannot create ConfigMap %s: %w", cm.Name, err)
	}
	log.FromContext(ctx).Info("the record of the first sync was made", "state", state, "why", why)
	return cm, nil
}

const fieldManager = "cascade"

// origin decides the first state of a tier that has no record.
func (t *Tier) origin(ctx context.Context) (state, why string, err error) {
	if t.Create {
		return v1alpha1.FirstSyncSettled, "it was installed with --first-sync=create", nil
	}
	owners, err := t.owners(ctx, t.Reader)
	if err != nil {
		return "", "", err
	}
	for _, o := range owners {
		if len(inventory.ClustersAmong(o.Inventory)) > 0 {
			return v1alpha1.FirstSyncSettled, fmt.Sprintf("%s had Clusters on record already", o.Entry), nil
		}
	}
	children := &v1alpha1.ChildList{}
	if err := t.Reader.List(ctx, children); err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
		return "", "", fmt.Errorf("cannot list Children: %w", err)
	}
	for _, c := range children.Items {
		if c.Spec.ClusterRef != nil && c.Status.Identity != nil {
			return v1alpha1.FirstSyncSettled, fmt.Sprintf("Child %s/%s was connected already", c.Namespace, c.Name), nil
		}
	}
	return v1alpha1.FirstSyncAdopt, "nothing was on record", nil
}

// take makes a record that was read or written the present one.
func (t *Tier) take(cm *corev1.ConfigMap) {
	settled, clusters := recordOf(cm)
	t.mu.Lock()
	defer t.mu.Unlock()
	news := settled && !t.settled
	var changed []types.NamespacedName
	for name, s := range clusters {
		if t.standing(name) != s { // what we wrote ourselves is no news
			changed = append(changed, name)
		}
	}
	t.settled, t.clusters, t.lost = settled, clusters, false
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

func (t *Tier) onRecord(o any) {
	if cm, ok := o.(*corev1.ConfigMap); ok && cm.Name == v1alpha1.FirstSyncConfigMap {
		t.take(cm)
	}
}

// onRecordGone is called when the record was deleted. It is created again, from what
// exists.
func (t *Tier) onRecordGone(any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lost = true
	t.poke()
}

// flush writes what is pending.
func (t *Tier) flush(ctx context.Context) error {
	t.mu.Lock()
	lost := t.lost
	t.mu.Unlock()
	if lost {
		if err := t.load(ctx); err != nil {
			return err
		}
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

func (t *Tier) patch(ctx context.Context, patch []byte) error {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: t.Namespace, Name: v1alpha1.FirstSyncConfigMap}}
	if err := t.Client.Patch(ctx, cm, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldManager)); err != nil {
		if apierrors.IsNotFound(err) {
			t.onRecordGone(nil)
		}
		return fmt.Errorf("cannot write ConfigMap %s: %w", cm.Name, err)
	}
	t.take(cm)
	return nil
}

// settle ends the first sync: from now on Clusters are created without approval.
func (t *Tier) settle(ctx context.Context, why string) error {
	cm := &corev1.ConfigMap{}
	if err := t.Reader.Get(ctx, types.NamespacedName{Namespace: t.Namespace, Name: v1alpha1.FirstSyncConfigMap}, cm); err != nil {
		return fmt.Errorf("cannot read ConfigMap %s: %w", v1alpha1.FirstSyncConfigMap, err)
	}
	patch, err := SettlementPatch(cm, why)
	if err != nil {
		return err
	}
	if err := t.patch(ctx, patch); err != nil {
		return err
	}
	log.FromContext(ctx).Info("the first sync is over, Clusters are created without asking", "why", why)
	return nil
}
