package pivot

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/capibridge/graph"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
)

// do does one action. Each write carries the version or the UID of what was read, so that
// nothing is overwritten that somebody else changed.
func (p *Pivot) do(ctx context.Context, a Action) error {
	switch a.Verb {
	case Hold:
		return record(ctx, p.Source, a, func(cm *corev1.ConfigMap) { firstsync.ManageElsewhere(cm, p.journal.ID, a.Clusters...) })
	case Unhold:
		return record(ctx, p.Source, a, func(cm *corev1.ConfigMap) { firstsync.Release(cm, p.journal.ID, a.Clusters...) })
	case Take:
		return record(ctx, p.Target, a, func(cm *corev1.ConfigMap) { firstsync.ManageHere(cm, a.Clusters...) })
	case Pause:
		u, err := paused(p.journal, a.Live)
		if err != nil {
			return err
		}
		return update(ctx, p.Source.Client, u)
	case Resume, Leave:
		return update(ctx, p.Source.Client, a.Body.DeepCopy())
	case Settle:
		return update(ctx, p.Target.Client, a.Body.DeepCopy())
	case Namespace:
		err := create(ctx, p.Target.Client, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: a.Name}})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	case Note:
		return p.note(ctx, a.Step)
	case Forget:
		return p.forget(ctx)
	case Make:
		u := a.Body.DeepCopy()
		if err := graph.Rebase(u, p.journal.copies()); err != nil {
			return err
		}
		if err := create(ctx, p.Target.Client, u); err != nil {
			return err
		}
		p.copied(a.Object.UID, u.GetUID(), true)
		return nil
	case Mend:
		return p.mend(ctx, a)
	case Use:
		p.copied(a.Object.UID, a.Live.GetUID(), false)
		return nil
	case Remove:
		return remove(ctx, p.Source.Client, a.Live)
	case Discard:
		return remove(ctx, p.Target.Client, a.Live)
	}
	return fmt.Errorf("there is no verb %q", a.Verb)
}

// copied notes the UID that an object has in the target. It is written down with the
// journal; until then the annotations of the copy tell.
func (p *Pivot) copied(uid, there types.UID, made bool) {
	i := slices.IndexFunc(p.journal.Objects, func(o Object) bool { return o.UID == uid })
	if i >= 0 {
		p.journal.Objects[i].Copy, p.journal.Objects[i].Made = there, made
	}
}

// mend makes an object of the target what it is to be.
func (p *Pivot) mend(ctx context.Context, a Action) error {
	u := a.Body.DeepCopy()
	if u.GetResourceVersion() == "" {
		if err := graph.Rebase(u, p.journal.copies()); err != nil {
			return err
		}
		u.SetUID(a.Live.GetUID())
		u.SetResourceVersion(a.Live.GetResourceVersion())
		if status, ok := a.Live.Object["status"]; ok {
			u.Object["status"] = status // without a subresource it would be lost
		}
	}
	return update(ctx, p.Target.Client, u)
}

// remove deletes one object for which there is another one by now, or that was one for
// another one. Finalizers go first, so that no controller takes down what the object
// stands for.
func remove(ctx context.Context, c client.Client, live *unstructured.Unstructured) error {
	u := live.DeepCopy()
	_, marked := u.GetAnnotations()[clusterapi.DeleteForMoveAnnotation]
	if len(u.GetFinalizers()) > 0 || !marked {
		u.SetFinalizers(nil)
		annotations := u.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[clusterapi.DeleteForMoveAnnotation] = ""
		u.SetAnnotations(annotations)
		err := update(ctx, c, u)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	if u.GetDeletionTimestamp() != nil {
		return nil // it goes without its finalizers
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	uid := live.GetUID()
	err := c.Delete(ctx, u, client.Preconditions{UID: &uid}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	return client.IgnoreNotFound(err)
}

// record changes the record of a tier's first sync as it was read.
func record(ctx context.Context, s Side, a Action, change func(*corev1.ConfigMap)) error {
	cm := a.Record.DeepCopy()
	change(cm)
	return update(ctx, s.Client, cm)
}

// note writes the target's journal.
func (p *Pivot) note(ctx context.Context, s Step) error {
	j := p.journal
	j.Step, j.Until = s, p.Now()
	if s.Over() {
		j.Objects = nil
	}
	cm, err := j.encode(p.Target.Namespace, Target)
	if err != nil {
		return err
	}
	there := &corev1.ConfigMap{}
	err = get(ctx, p.Target.Client, client.ObjectKeyFromObject(cm), there)
	if apierrors.IsNotFound(err) {
		err := create(ctx, p.Target.Client, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: p.Target.Namespace}})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		return create(ctx, p.Target.Client, cm)
	}
	if err != nil {
		return err
	}
	is, err := decode(there)
	if err != nil {
		return err
	}
	if is.ID != j.ID && !is.Step.Over() {
		return &BlockedError{Step: p.journal.Step, Problems: []Problem{problem(ReasonPivotConflict, "the target has the journal of pivot %s, which is at step %s", is.ID, is.Step)}}
	}
	cm.UID, cm.ResourceVersion = there.UID, there.ResourceVersion
	return update(ctx, p.Target.Client, cm)
}

// forget deletes the target's journal of a pivot that came to nothing.
func (p *Pivot) forget(ctx context.Context) error {
	cm := &corev1.ConfigMap{}
	err := get(ctx, p.Target.Client, types.NamespacedName{Namespace: p.Target.Namespace, Name: p.journal.nameOf(Target)}, cm)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if j, err := decode(cm); err != nil || j.ID != p.journal.ID {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return client.IgnoreNotFound(p.Target.Client.Delete(ctx, cm, client.Preconditions{UID: &cm.UID}))
}
