package release

import (
	"context"
	"fmt"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/polling"
	"github.com/fluxcd/cli-utils/pkg/kstatus/polling/clusterreader"
	"github.com/fluxcd/cli-utils/pkg/kstatus/polling/engine"
	"github.com/fluxcd/cli-utils/pkg/kstatus/polling/event"
	kstatusreaders "github.com/fluxcd/cli-utils/pkg/kstatus/polling/statusreaders"
	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/cli-utils/pkg/object"
	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/runtime/statusreaders"
	"github.com/fluxcd/pkg/ssa"
	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"helm.sh/helm/v4/pkg/kube"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/syncer/park"
)

// Numbers of waiting.
const (
	// waitPoll is the pause between two looks at what is waited for. After patience what
	// is not ready may never be, and patientPoll is the pause: many releases that wait for
	// their time-outs must not keep the API server busy.
	waitPoll    = 2 * time.Second
	patience    = 30 * time.Second
	patientPoll = 10 * time.Second
)

// readers make a kstatus reader for a mapper of kinds.
type readers []func(meta.RESTMapper) engine.StatusReader

// waitStrategy for an action, one that disables waiting or not.
func waitStrategy(obj *v2.HelmRelease, disabled, helm3 bool) kube.WaitStrategy {
	name := obj.GetWaitStrategy()
	switch {
	case disabled:
		return kube.HookOnlyStrategy
	case name == v2.WaitStrategyPoller:
		return kube.StatusWatcherStrategy // ours takes that one's place
	case name != "":
		return kube.WaitStrategy(name)
	case helm3:
		return kube.LegacyStrategy
	}
	return kube.StatusWatcherStrategy
}

// waiter waits as Flux does, by polling kstatus. It ends with its context.
type waiter struct {
	ctx     context.Context
	cluster client.Client
	readers readers
	// spared are objects that were to be deleted and stay. The waiter does not wait
	// for their end.
	spared *verdicts
	// hooksOnly: the waiter waits for hooks only.
	hooksOnly bool
}

var _ kube.Waiter = (*waiter)(nil)

// WatchUntilReady implements kube.Waiter, for hooks: Jobs and Pods have to end,
// everything else is ready at once. A hook that failed may still succeed, so
// that the waiter does not give up early.
func (w *waiter) WatchUntilReady(list kube.ResourceList, timeout time.Duration) error {
	return w.wait(list, timeout, false, statusreaders.NewCustomJobStatusReader, newPodReader, newReadyReader)
}

// Wait implements kube.Waiter.
func (w *waiter) Wait(list kube.ResourceList, timeout time.Duration) error {
	if w.hooksOnly {
		return nil
	}
	return w.wait(list, timeout, true)
}

// WaitWithJobs implements kube.Waiter.
func (w *waiter) WaitWithJobs(list kube.ResourceList, timeout time.Duration) error {
	if w.hooksOnly {
		return nil
	}
	return w.wait(list, timeout, true, statusreaders.NewCustomJobStatusReader)
}

func (w *waiter) wait(list kube.ResourceList, timeout time.Duration, failFast bool, more ...func(meta.RESTMapper) engine.StatusReader) (err error) {
	defer recovered(&err)
	var set object.ObjMetadataSet
	var jobs []*unstructured.Unstructured
	for _, info := range list {
		gk := info.Object.GetObjectKind().GroupVersionKind().GroupKind()
		switch gk {
		case schema.GroupKind{Group: "apps", Kind: "Deployment"}, schema.GroupKind{Group: "batch", Kind: "Job"}:
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(info.Object)
			if err != nil {
				return err
			}
			if paused, _, _ := unstructured.NestedBool(content, "spec", "paused"); paused && gk.Kind == "Deployment" {
				continue // it would never get ready
			}
			if gk.Kind == "Job" {
				jobs = append(jobs, &unstructured.Unstructured{Object: content})
			}
		}
		m, err := object.RuntimeToObjMeta(info.Object)
		if err != nil {
			return err
		}
		set = append(set, m)
	}
	mapper := w.cluster.RESTMapper()
	var custom []engine.StatusReader
	for _, r := range append(append(readers(nil), w.readers...), more...) {
		custom = append(custom, r(mapper))
	}
	plain := kstatusreaders.NewGenericStatusReader(mapper, status.Compute)
	custom = append(custom, workloadReader{plain, kstatusreaders.NewDefaultStatusReader(mapper)}, plain)
	for i := range custom {
		custom[i] = recoveringReader{custom[i]}
	}
	poller := polling.NewStatusPoller(w.cluster, mapper, polling.Options{
		CustomStatusReaders:  custom,
		ClusterReaderFactory: engine.ClusterReaderFactoryFunc(clusterreader.NewDirectClusterReader),
	})
	phase := func(timeout, poll time.Duration) error {
		return ssa.NewResourceManager(w.cluster, poller, ssa.Owner{}).WaitForSetWithContext(w.ctx, set, ssa.WaitOptions{
			Interval: poll, Timeout: timeout, FailFast: failFast, JobsWithTTL: ssautil.ExtractJobsWithTTL(jobs),
		})
	}
	return park.Wait(w.ctx, func() error {
		begin := time.Now()
		err := phase(min(timeout, patience), waitPoll)
		if took := time.Since(begin); err != nil && took >= patience && took < timeout && w.ctx.Err() == nil {
			return phase(timeout-took, patientPoll)
		}
		return err
	})
}

// workloadReader reads workloads by themselves. kstatus computes what they are from their
// own status; the library would list their ReplicaSets and Pods besides, each time. Of a
// StatefulSet or ReplicaSet in progress the Pods tell whether it has failed, as it has no
// deadline of its own: of these pods lists them.
type workloadReader struct {
	engine.StatusReader
	pods engine.StatusReader
}

// ReadStatus implements engine.StatusReader.
func (w workloadReader) ReadStatus(ctx context.Context, r engine.ClusterReader, id object.ObjMetadata) (*event.ResourceStatus, error) {
	own, err := w.StatusReader.ReadStatus(ctx, r, id)
	if err != nil || own.Status != status.InProgressStatus || own.Resource == nil || id.GroupKind.Kind == "Deployment" {
		return own, err
	}
	return w.pods.ReadStatusForObject(ctx, r, own.Resource)
}

// Supports implements engine.StatusReader.
func (workloadReader) Supports(gk schema.GroupKind) bool {
	return gk.Group == "apps" && (gk.Kind == "Deployment" || gk.Kind == "ReplicaSet" || gk.Kind == "StatefulSet")
}

// recoveringReader does not know the status of an object over which a reader panics: it is
// called in a goroutine of the library, and API servers answer what they like.
type recoveringReader struct{ engine.StatusReader }

// ReadStatus implements engine.StatusReader.
func (r recoveringReader) ReadStatus(ctx context.Context, from engine.ClusterReader, id object.ObjMetadata) (s *event.ResourceStatus, err error) {
	defer func() {
		if p := recover(); p != nil {
			s, err = &event.ResourceStatus{Identifier: id, Status: status.UnknownStatus, Error: fmt.Errorf("cannot compute status: %v", p)}, nil
		}
	}()
	return r.StatusReader.ReadStatus(ctx, from, id)
}

// WaitForDelete implements kube.Waiter.
func (w *waiter) WaitForDelete(list kube.ResourceList, timeout time.Duration) error {
	if w.hooksOnly {
		return nil
	}
	return park.Wait(w.ctx, func() error { return w.waitForDelete(list, timeout) })
}

func (w *waiter) waitForDelete(list kube.ResourceList, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(w.ctx, timeout)
	defer cancel()
	for _, info := range list {
		if w.spared.has(entryOf(info)) {
			continue
		}
		gone := func(ctx context.Context) (bool, error) {
			o := &metav1.PartialObjectMetadata{}
			o.SetGroupVersionKind(info.Mapping.GroupVersionKind)
			err := w.cluster.Get(ctx, client.ObjectKey{Namespace: info.Namespace, Name: info.Name}, o)
			if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
				return true, nil
			}
			return false, err
		}
		if err := wait.PollUntilContextCancel(ctx, waitPoll, true, gone); err != nil {
			return fmt.Errorf("%s termination timeout: %w", entryOf(info), err)
		}
	}
	return nil
}

// parked is a waiter of Helm's own, which waits without a worker. Helm calls it in a
// goroutine of its own, and it trusts what API servers answer.
type parked struct {
	kube.Waiter
	ctx context.Context
}

func (p parked) Wait(list kube.ResourceList, timeout time.Duration) (err error) {
	defer recovered(&err)
	return park.Wait(p.ctx, func() error { return p.Waiter.Wait(list, timeout) })
}

func (p parked) WaitWithJobs(list kube.ResourceList, timeout time.Duration) (err error) {
	defer recovered(&err)
	return park.Wait(p.ctx, func() error { return p.Waiter.WaitWithJobs(list, timeout) })
}

func (p parked) WaitForDelete(list kube.ResourceList, timeout time.Duration) (err error) {
	defer recovered(&err)
	return park.Wait(p.ctx, func() error { return p.Waiter.WaitForDelete(list, timeout) })
}

func (p parked) WatchUntilReady(list kube.ResourceList, timeout time.Duration) (err error) {
	defer recovered(&err)
	return park.Wait(p.ctx, func() error { return p.Waiter.WatchUntilReady(list, timeout) })
}

// newReadyReader reads every object as ready.
func newReadyReader(mapper meta.RESTMapper) engine.StatusReader {
	return kstatusreaders.NewGenericStatusReader(mapper, func(*unstructured.Unstructured) (*status.Result, error) {
		return &status.Result{Status: status.CurrentStatus, Message: "Resource is current"}, nil
	})
}

// podReader reads a Pod as ready when it has succeeded, as Helm does for hooks.
type podReader struct{ engine.StatusReader }

func newPodReader(mapper meta.RESTMapper) engine.StatusReader {
	return podReader{kstatusreaders.NewGenericStatusReader(mapper, podStatus)}
}

// Supports implements engine.StatusReader.
func (podReader) Supports(gk schema.GroupKind) bool {
	return gk == corev1.SchemeGroupVersion.WithKind("Pod").GroupKind()
}

func (p podReader) ReadStatus(ctx context.Context, r engine.ClusterReader, id object.ObjMetadata) (*event.ResourceStatus, error) {
	return p.StatusReader.ReadStatus(ctx, r, id)
}

func podStatus(u *unstructured.Unstructured) (*status.Result, error) {
	phase, _, _ := unstructured.NestedString(u.Object, "status", "phase")
	condition := func(kind status.ConditionType, reason, message string) []status.Condition {
		return []status.Condition{{Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message}}
	}
	switch corev1.PodPhase(phase) {
	case corev1.PodSucceeded:
		message := fmt.Sprintf("pod %s succeeded", u.GetName())
		return &status.Result{Status: status.CurrentStatus, Message: message, Conditions: condition(status.ConditionStalled, "", message)}, nil
	case corev1.PodFailed:
		message := fmt.Sprintf("pod %s failed", u.GetName())
		return &status.Result{Status: status.FailedStatus, Message: message, Conditions: condition(status.ConditionStalled, "PodFailed", message)}, nil
	}
	const message = "Pod in progress"
	return &status.Result{Status: status.InProgressStatus, Message: message, Conditions: condition(status.ConditionReconciling, "PodInProgress", message)}, nil
}
