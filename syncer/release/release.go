package release

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/go-logr/logr"
	"helm.sh/helm/v4/pkg/kube"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/expression"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
	"github.com/cascade-gitops/cascade/syncer/memo"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// fieldManager of the objects of releases.
const fieldManager = "helm-controller"

// asManager makes Helm write with the field manager of Flux. Helm takes it from
// a variable of its package.
var asManager = sync.OnceFunc(func() { kube.ManagedFieldsManager = fieldManager })

// Releases brings releases to what HelmReleases declare. It remembers what it
// verified. It is safe for concurrent use; fields are set before the first call.
type Releases struct {
	// Events records what happens, with the metadata that Flux sets.
	Events record.EventRecorder
	Now    func() time.Time
	// OverrideManagers are field managers whose fields are taken over before drift
	// is looked for (--override-manager).
	OverrideManagers []string
	// Workers render charts, post-render, and evaluate expressions, with Tasks.
	Workers worker.Runner
	// Gates of Flux of that name.
	UseHelm3Defaults, DefaultToRetryOnFailure, AllowDNSLookups bool

	// Memory bounds what revisions and rendered charts take. It may be nil.
	Memory *Memory
	// Memo watches the objects of releases in our own cluster, by the labels of
	// HelmReleases. Nil: each look for drift compares every object.
	Memo *memo.Memo
	// Sweep is the time after which all objects are compared whatever the memo says,
	// Random spreads it: it returns numbers from 0 to 1 and is safe for concurrent use.
	Sweep  time.Duration
	Random func() float64

	sessions    sessions
	mu          sync.Mutex // guards what follows
	known       map[types.UID]known
	driftStates map[types.UID]driftState
	needed      map[types.UID]need
}

// Request is one HelmRelease, whose sources are ready.
type Request struct {
	// Object's status is changed in place.
	Object *v2.HelmRelease
	// Chart to install. Uninstall does not need it.
	Chart Chart
	// OCIDigest of the artifact, if the chart came as one.
	OCIDigest string
	// Values of the release, composed of all their sources. They are not changed.
	Values map[string]any
	// Memory is what the values take; nil if that is not counted.
	Memory *Share
	// Cluster to act on, as the user to act as. Local: it is our own.
	Cluster *apply.Cluster
	Local   bool
	// Save writes the status down, ahead of an action and after it. SaveLast writes it when the call
	// was cancelled: another process may have the tier by then, whose status it leaves alone.
	Save, SaveLast func(context.Context) error
	// Redact takes secrets out of a text that the chart may have put its values
	// into. It may be nil. What the stored revision was made with that is uninstalled, or
	// gone back to, is taken out besides.
	Redact func(string) string
	// Log may be the zero value.
	Log logr.Logger
	// FirstSync is what is known of the Clusters of the cluster to act on. It may
	// be nil.
	FirstSync firstsync.Keeper
	// Claimed tells which objects other owners answer for; nil knows of none.
	Claimed apply.Claims
	// HandOver is the record of the objects that the last call kept for others, nil if
	// it kept none.
	HandOver *v1alpha1.HandOver
	// Keep is told what goes later without a person, with its Cluster or after another one,
	// whenever that was judged; nil if nothing does. It may be nil itself.
	Keep func(*v1alpha1.HeldKept)
	// Unserved: Declares tells what a release would have also where the cluster does not serve all kinds of it. A
	// chart may define them itself.
	Unserved bool
}

// Outcome is when to look at a HelmRelease again.
type Outcome struct {
	// Again: at once.
	Again bool
	// After is a pause that was asked for; 0 means the interval.
	After time.Duration
	// Stalled: only a change of the object, or a request, can help.
	Stalled bool
	// Held: a person has to decide about a deletion.
	Held bool
	// Refused: the release would have a Cluster take a step of Kubernetes' version that is
	// refused, and is as it was. What the cluster runs may change without an event.
	Refused bool
	// Creation names the Clusters that the release would create although they may
	// exist already. While there are any, the release is not installed. It is nil
	// if there are none.
	Creation *inventory.Creation
	// HandOver is the record of the objects that are kept for others, nil if there are
	// none.
	HandOver *v1alpha1.HandOver
}

// Sync brings the release to what the object declares, as far as one call can. An
// error means that it is to be tried again soon; Ready says why. The object's
// status has to be written afterwards in any case.
func (r *Releases) Sync(ctx context.Context, req Request) (out Outcome, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("release panicked: %v", p)
			req.Log.Error(err, "cannot sync release", "stack", string(debug.Stack()))
			conditions.MarkFalse(req.Object, meta.ReadyCondition, "ReconcileError", "%s", err)
		}
	}()
	obj := req.Object
	byExpression, err := expression.NewReader(obj.Spec.HealthCheckExprs, r.workers(obj))
	if err != nil {
		r.refuse(obj, meta.InvalidCELExpressionReason, err)
		return Outcome{Stalled: true}, nil
	}
	var custom readers
	if len(obj.Spec.HealthCheckExprs) > 0 {
		custom = readers{byExpression}
	}
	n, err := r.begin(req, custom)
	if err != nil {
		conditions.MarkFalse(obj, meta.ReadyCondition, "RESTClientError", "%s", err)
		return Outcome{}, err
	}
	defer n.giveBack()
	return n.reconcile(ctx)
}

// workers are those that work for a HelmRelease.
func (r *Releases) workers(obj *v2.HelmRelease) worker.Runner {
	return worker.For(r.Workers, "HelmRelease/"+obj.Namespace+"/"+obj.Name)
}

// refuse records that the object cannot be used as it is.
func (r *Releases) refuse(obj *v2.HelmRelease, reason string, err error) {
	message := "Reconciliation failed terminally due to configuration error: " + err.Error()
	isNew := conditions.GetMessage(obj, meta.StalledCondition) != message
	conditions.MarkFalse(obj, meta.ReadyCondition, reason, "%s", message)
	conditions.MarkStalled(obj, reason, "%s", message)
	obj.Status.ObservedGeneration = obj.Generation
	if isNew {
		r.Events.Eventf(obj, corev1.EventTypeWarning, reason, "%s", err)
	}
}

// Forget drops what is remembered of a HelmRelease that is gone.
func (r *Releases) Forget(name types.NamespacedName, uid types.UID) {
	r.Memo.Forget(name)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, uid)
	delete(r.driftStates, uid)
	delete(r.needed, uid)
}

// errNoLatest: there is no release that could be acted on.
var errNoLatest = errors.New("no latest release")

// errMismatch: Helm acted on another release than the one that is recorded.
var errMismatch = errors.New("release mismatch")
