package node

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes"
)

const (
	callTimeout = 10 * time.Second // of one call to the API server
	// coalesce is how long a change waits for those that come with it: a process that starts and gets ready at once is one
	// write, not two.
	coalesce = 20 * time.Millisecond
)

// report writes the status whenever it is not what the API server has, until the context ends.
func (p *pod) report(ctx context.Context) {
	pause := 100 * time.Millisecond
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.changed:
		}
		if !sleep(ctx, coalesce) {
			return
		}
		err := p.writeStatus(ctx)
		if err == nil {
			pause = 100 * time.Millisecond
			continue
		}
		if ctx.Err() != nil {
			return
		}
		p.host.Log.Warn("cannot report pod status, trying again", "pod", p.namespace+"/"+p.name, "error", err)
		if !sleep(ctx, pause) {
			return
		}
		pause = min(2*pause, 5*time.Second)
		p.touch()
	}
}

// writeStatus brings the status of the object up to date. That the object is gone is no error.
func (p *pod) writeStatus(ctx context.Context) error {
	p.mu.Lock()
	object := p.seen
	status := statusOf(object, p.facts, time.Now())
	p.mu.Unlock()
	patch, err := statusPatch(object, status)
	if err != nil || patch == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	written, err := p.host.client.CoreV1().Pods(p.namespace).Patch(ctx, p.name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // a conflict is another UID: ours is the only precondition
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot write status of pod %s/%s: %w", p.namespace, p.name, err)
	}
	p.observe(written)
	return nil
}

// statusPatch is the patch that makes the status of the object the given one, or nil if it is already.
func statusPatch(object *corev1.Pod, status corev1.PodStatus) ([]byte, error) {
	before, err := json.Marshal(corev1.Pod{Status: object.Status})
	if err != nil {
		return nil, fmt.Errorf("cannot encode status: %w", err)
	}
	after, err := json.Marshal(corev1.Pod{Status: status})
	if err != nil {
		return nil, fmt.Errorf("cannot encode status: %w", err)
	}
	// Equal in what is written, that is with times cut to seconds.
	if string(before) == string(after) {
		return nil, nil
	}
	// The UID is a precondition, so that a status never lands on a later pod of the same name.
	after, err = json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: object.UID}, Status: status})
	if err != nil {
		return nil, fmt.Errorf("cannot encode status: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("cannot make status patch: %w", err)
	}
	return patch, nil
}

// finish says how the pod ended and removes its object, if it is being deleted. It tries until it succeeds or the node ends.
func (p *pod) finish() {
	p.update(func(f *podFacts) { f.ended = f.refusal == "" })
	pause := 100 * time.Millisecond
	for p.attached.Err() == nil {
		err := p.writeStatus(p.attached)
		if object := p.object(); err == nil && object.DeletionTimestamp != nil {
			err = removeObject(p.attached, p.host.client, object)
		}
		if err == nil {
			return
		}
		p.host.Log.Warn("cannot finish pod, trying again", "pod", p.namespace+"/"+p.name, "error", err)
		if !sleep(p.attached, pause) {
			return
		}
		pause = min(2*pause, 5*time.Second)
	}
}

// removeObject removes the object of a pod whose processes have ended. That it is gone, or another one, is no error.
func removeObject(ctx context.Context, client kubernetes.Interface, object *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := client.CoreV1().Pods(object.Namespace).Delete(ctx, object.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64),
		Preconditions:      metav1.NewUIDPreconditions(string(object.UID)),
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("cannot remove pod %s/%s: %w", object.Namespace, object.Name, err)
	}
	return nil
}
