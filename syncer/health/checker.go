package health

import (
	"context"
	"errors"
	"fmt"

	"github.com/fluxcd/cli-utils/pkg/kstatus/polling/engine"
	"github.com/fluxcd/cli-utils/pkg/kstatus/polling/event"
	kstatusreaders "github.com/fluxcd/cli-utils/pkg/kstatus/polling/statusreaders"
	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/statusreaders"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/expression"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// ReasonInvalidExpression of the condition of an object whose expressions
// cannot be used. Only a change of the object helps.
const ReasonInvalidExpression = meta.InvalidCELExpressionReason

// Result of one object.
type Result struct {
	Entry inventory.Entry
	// Status is kstatus's word: Current, InProgress, Failed, Terminating,
	// NotFound or Unknown.
	Status status.Status
	// Message explains Status to people. It may be empty.
	Message string
	// Err is why Status is Unknown.
	Err error
	// Vanishes: the object is a Job that the cluster removes after it
	// finished, so NotFound means done.
	Vanishes bool
}

// Current: the object is as it should be, or it is a Job that vanished after it
// finished.
func (r Result) Current() bool {
	return r.Status == status.CurrentStatus || r.Status == status.NotFoundStatus && r.Vanishes
}

// Missing is the result of an object that cannot be read. NotFound becomes a
// status; any other error makes it Unknown.
func Missing(e inventory.Entry, err error) Result {
	if err == nil || apierrors.IsNotFound(err) {
		return Result{Entry: e, Status: status.NotFoundStatus, Message: "Resource not found"}
	}
	return Result{Entry: e, Status: status.UnknownStatus, Err: err}
}

// Checker computes the health of objects of one Kustomization. It is immutable
// and safe for concurrent use.
type Checker struct {
	readers []engine.StatusReader
}

// New compiles the expressions of spec.healthCheckExprs, which workers evaluate;
// without expressions they may be nil. An error is about the expressions and final:
// reason ReasonInvalidExpression.
func New(exprs []kustomize.CustomHealthCheck, workers worker.Runner) (*Checker, error) {
	// The order is Flux's: expressions decide about every kind but Job.
	readers := []engine.StatusReader{statusreaders.NewCustomJobStatusReader(podKinds{})}
	if len(exprs) > 0 {
		byExpression, err := expression.NewReader(exprs, workers)
		if err != nil {
			return nil, err
		}
		readers = append(readers, byExpression(podKinds{}))
	}
	rest := kstatusreaders.NewGenericStatusReader(podKinds{}, status.Compute)
	sets := kstatusreaders.NewReplicaSetStatusReader(podKinds{}, rest)
	return &Checker{readers: append(readers,
		kstatusreaders.NewDeploymentResourceReader(podKinds{}, sets),
		kstatusreaders.NewStatefulSetResourceReader(podKinds{}, rest),
		sets, rest,
	)}, nil
}

// Status computes the health of an object. pods are those that Pods selects;
// others are ignored. Without them a StatefulSet whose pods fail is InProgress. kstatus
// trusts what API servers answer, and panics over what none of Kubernetes would.
func (c *Checker) Status(ctx context.Context, u *unstructured.Unstructured, pods []*unstructured.Unstructured) (r Result) {
	r = Result{Entry: inventory.Of(u), Vanishes: Vanishes(u)}
	defer func() {
		if p := recover(); p != nil {
			r.Status, r.Err = status.UnknownStatus, fmt.Errorf("cannot compute status: %v", p)
		}
	}()
	gk := u.GroupVersionKind().GroupKind()
	for _, reader := range c.readers {
		if !reader.Supports(gk) {
			continue
		}
		rs, err := reader.ReadStatusForObject(ctx, listed(pods), u)
		if err == nil && rs == nil {
			err = errors.New("no status was computed")
		}
		if err != nil {
			rs = &event.ResourceStatus{Status: status.UnknownStatus, Error: err}
		}
		r.Status, r.Message, r.Err = rs.Status, rs.Message, rs.Error
		return r
	}
	// The last reader takes every kind.
	return Result{Entry: r.Entry, Status: status.UnknownStatus, Err: fmt.Errorf("cannot tell the status of kind %s", gk.Kind)}
}

// Vanishes reports whether an object is a Job that is removed after it
// finished.
func Vanishes(u *unstructured.Unstructured) bool {
	if u.GroupVersionKind().GroupKind() != (schema.GroupKind{Group: "batch", Kind: "Job"}) {
		return false
	}
	_, set, err := unstructured.NestedFieldNoCopy(u.Object, "spec", "ttlSecondsAfterFinished")
	return err == nil && set
}

// Pods selects the pods, in the object's namespace, that tell whether an object
// in progress has failed. It is nil for most kinds: kstatus looks at the pods
// of StatefulSets and ReplicaSets only.
func Pods(u *unstructured.Unstructured) labels.Selector {
	switch u.GroupVersionKind().GroupKind() {
	case schema.GroupKind{Group: "apps", Kind: "StatefulSet"}, schema.GroupKind{Group: "apps", Kind: "ReplicaSet"}:
	default:
		return nil
	}
	selector, ok, err := unstructured.NestedMap(u.Object, "spec", "selector")
	if err != nil || !ok {
		return nil
	}
	s, err := selectorOf(selector)
	if err != nil || s.Empty() {
		return nil
	}
	return s
}

func selectorOf(written map[string]any) (labels.Selector, error) {
	var s metav1.LabelSelector
	if err := convert(written, &s); err != nil {
		return nil, err
	}
	return metav1.LabelSelectorAsSelector(&s)
}

var (
	replicaSetKind = schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "ReplicaSet"}
	podKind        = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
)

// listed serves kstatus with objects that the caller read.
type listed []*unstructured.Unstructured

func (l listed) Get(context.Context, client.ObjectKey, *unstructured.Unstructured) error {
	return errors.New("cannot read objects while computing a status")
}

func (l listed) ListNamespaceScoped(_ context.Context, list *unstructured.UnstructuredList, namespace string, selector labels.Selector) error {
	want := list.GroupVersionKind().GroupKind()
	for _, u := range l {
		if u.GroupVersionKind().GroupKind() == want && u.GetNamespace() == namespace && selector.Matches(labels.Set(u.GetLabels())) {
			list.Items = append(list.Items, *u)
		}
	}
	return nil
}

func (l listed) ListClusterScoped(context.Context, *unstructured.UnstructuredList, labels.Selector) error {
	return errors.New("cannot list objects while computing a status")
}

func (l listed) Sync(context.Context) error { return nil }

// podKinds is the RESTMapper that kstatus asks for the kinds it lists: a
// Deployment's ReplicaSets, which change nothing about its own status, and
// Pods.
type podKinds struct{ apimeta.RESTMapper }

func (podKinds) RESTMapping(gk schema.GroupKind, _ ...string) (*apimeta.RESTMapping, error) {
	for _, kind := range []schema.GroupVersionKind{replicaSetKind, podKind} {
		if gk == kind.GroupKind() {
			return &apimeta.RESTMapping{GroupVersionKind: kind, Scope: apimeta.RESTScopeNamespace}, nil
		}
	}
	return nil, &apimeta.NoKindMatchError{GroupKind: gk}
}
