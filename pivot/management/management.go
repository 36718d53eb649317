// Package management runs the pivots that Layers declare: spec.management says which tier has
// the objects of Cluster API of the clusters that a Layer selects.
//
// The tier of the Layer drives both directions, with the kubeconfig that it has of the
// child: it has a connection, and the child has none to it. What a Layer does not say is left
// alone. A pivot runs in pieces: where it would wait, the reconcile ends and comes again.
//
// Invariants: a pivot begins only for a Child that is connected and seeded, whose Cluster is
// where it is not to be, and about which all Layers that say something say the same, and not while
// the Child is suspended. What is under way is brought to its end whatever is declared by then, and only then turned round.
//
// Failure model: what keeps a pivot from going on is told in condition Management of the
// Child, with the reason, and is tried again. When this tier is gone, the child's agent ends
// what had been switched (pivot.Keeper).
package management

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/pivot"
	"github.com/cascade-gitops/cascade/remote"
	"github.com/cascade-gitops/cascade/syncer/answer"
	"github.com/cascade-gitops/cascade/syncer/clusters"
	"github.com/cascade-gitops/cascade/syncer/stall"
)

// Pauses between two looks.
const (
	// runPause is the pause while a pivot is under way.
	runPause = time.Second
	// retryPause is the pause after what kept one from going on.
	retryPause = 30 * time.Second
	// pieceMost bounds one reconcile. What is left is done by the next one.
	pieceMost = 2 * time.Minute
	// askTimeout bounds the questions of what this agent may do.
	askTimeout = 15 * time.Second
	// concurrent is how many Children are moved at the same time.
	concurrent = 4
)

// Reconciler of Children whose management a Layer declares.
type Reconciler struct {
	// Client reads from the cache, and writes the status of Children.
	Client client.Client
	// Clusters tell who applied a Cluster; with nil, Layers select Children by their own labels.
	Clusters *clusters.Watch
	// Side is this tier; its client reads from the API server.
	Side pivot.Side
	// Allowed and Addresses are what kubeconfigs may have, and lead to.
	Allowed   capibridge.Allowed
	Addresses answer.Addresses
	// Selects passes the Children of this agent.
	Selects func(client.Object) bool
	// Elsewhere reports whether another tier manages a Cluster. It calls the API server.
	Elsewhere func(ctx context.Context, name types.NamespacedName) (bool, error)
	Events    record.EventRecorder
	// Holder names this process, and no other one ever; Program is its version.
	Holder, Program string
	Now             func() time.Time

	mu sync.Mutex
	// running are the pivots of this process, which know since when a source rests.
	running map[types.NamespacedName]*running
	// returns is held by the one piece that brings a Cluster back: it has in memory what the child has,
	// up to a bound that is no bound for several. Nobody waits for it, and whoever has it knows that the
	// child answers.
	returns sync.Mutex
}

// running is a pivot that this process drives in pieces.
type running struct {
	pivot *pivot.Pivot
	// waits is what it waits for, kubeconfig the version of the Secret it was made with.
	waits, kubeconfig string
	to                v1alpha1.Management
}

// errPiece ends a piece of a pivot where it would wait.
var errPiece = errors.New("it goes on in a moment")

// errNotListed: the Clusters of the tier are not known yet, by which some Layers select.
var errNotListed = errors.New("the Clusters are not listed yet")

// SetupWithManager starts the controller.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager, stalls *stall.Watchdog) error {
	children := func(ctx context.Context, o client.Object) []reconcile.Request {
		list := &v1alpha1.ChildList{}
		if err := r.Client.List(ctx, list, client.InNamespace(o.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
			log.FromContext(ctx).Error(err, "cannot list Children", "namespace", o.GetNamespace())
			return nil
		}
		requests := make([]reconcile.Request, 0, len(list.Items))
		for i := range list.Items {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
		return requests
	}
	err := ctrl.NewControllerManagedBy(mgr).Named("management").
		For(&v1alpha1.Child{}, builder.WithPredicates(predicate.NewPredicateFuncs(r.Selects), changed())).
		Watches(&v1alpha1.Layer{}, handler.EnqueueRequestsFromMapFunc(children), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrent}).
		Complete(stalls.Guard("Child", func() client.Object { return &v1alpha1.Child{} }, r))
	if err != nil {
		return fmt.Errorf("cannot set up the controller of management: %w", err)
	}
	return nil
}

// changed passes what a decision depends on: reports and layers change all the time.
func changed() predicate.Predicate {
	of := func(o client.Object) (is [3]bool) {
		if child, _ := o.(*v1alpha1.Child); child != nil {
			// By the last one a Cluster comes and goes that a person moves.
			for i, kind := range []string{v1alpha1.ConnectedCondition, v1alpha1.SeededCondition, v1alpha1.ManagedElsewhereCondition} {
				is[i] = meta.IsStatusConditionTrue(child.Status.Conditions, kind)
			}
		}
		return is
	}
	return predicate.Or(predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}, predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool { return of(e.ObjectOld) != of(e.ObjectNew) },
	})
}

// Facts are what a decision is made of.
type Facts struct {
	// Declared by the Layers that select the Child and say something.
	Declared []v1alpha1.Management
	// Unclear is why nobody can tell whether a Layer that says something, and that the Child has, selects it.
	Unclear error
	// Elsewhere: the Cluster is managed by the child.
	Elsewhere bool
	// Seeded: the Child is connected, and has its layers.
	Seeded bool
	// Running is where a pivot that is under way brings the Cluster; empty if there is none. One that
	// another process ended a moment ago may be taken for that.
	Running v1alpha1.Management
	// Receipt is the journal that this tier has as the target of what is under way; its ID is empty if
	// it has none. The child has the one to go on with.
	Receipt pivot.Journal
	// Returning: this tier began to bring the Cluster back. Such a pivot leaves its first trace in the
	// child, and a process that begins knows of it by the status: what the child says does not begin one.
	Returning bool
	// Unread is why the journals of the tier could not be read, of which one may be about the
	// Cluster.
	Unread error
}

// Decision says what is to be done.
type Decision struct {
	// To is where the Cluster is to be brought; empty leaves it.
	To v1alpha1.Management
	// UnderWay: only what is under way is brought there.
	UnderWay bool
	// Reason and Message for the condition; no reason, no condition. Status is True where
	// the Cluster is as declared.
	Status  metav1.ConditionStatus
	Reason  string
	Message string
}

// Decide what becomes of the Cluster of a Child.
func Decide(f Facts) Decision {
	if f.Unread != nil {
		return Decision{Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPivotFailed, Message: f.Unread.Error()}
	}
	if f.Unclear != nil {
		return Decision{To: f.Running, UnderWay: true, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPivotBlocked, Message: f.Unclear.Error()}
	}
	wanted := v1alpha1.Management("")
	for _, d := range f.Declared {
		if wanted != "" && d != wanted {
			return Decision{To: f.Running, UnderWay: true, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPivotBlocked, Message: "Layers that select the cluster declare both self and parent: change one of them"}
		}
		wanted = d
	}
	if f.Running != "" {
		return Decision{To: f.Running, UnderWay: f.Running != wanted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPivotRunning, Message: "the Cluster is on its way"}
	}
	if f.Elsewhere && f.Returning && wanted != v1alpha1.ManagementParent {
		return Decision{
			To: v1alpha1.ManagementParent, UnderWay: true, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPivotRunning,
			Message: "the Cluster was on its way back, which is not declared any more: what was begun is brought to its end",
		}
	}
	switch {
	case wanted == "" && !f.Elsewhere:
		return Decision{}
	case wanted == v1alpha1.ManagementParent && !f.Elsewhere, wanted == "" && f.Elsewhere, wanted == v1alpha1.ManagementSelf && f.Elsewhere:
		return at(f.Elsewhere)
	case !f.Seeded:
		return Decision{Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPivotWaiting, Message: "the Cluster is moved when the child is connected and has its layers"}
	}
	return Decision{To: wanted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPivotRunning, Message: "the Cluster is on its way"}
}

// at says where a Cluster is that is not on its way.
func at(elsewhere bool) Decision {
	if elsewhere {
		return Decision{Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonManagedElsewhere, Message: "the objects of the Cluster were moved to another management cluster, the cluster itself or another one"}
	}
	return Decision{Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonManagedHere, Message: "this tier has the objects of the Cluster"}
}

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	child := &v1alpha1.Child{}
	if err := r.Client.Get(ctx, req.NamespacedName, child); err != nil {
		r.forget(req.NamespacedName)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if child.Spec.ClusterRef == nil {
		return ctrl.Result{}, nil
	}
	if child.Status.Identity == nil && child.Status.MovingTo == v1alpha1.ManagementParent {
		// Its Cluster came, and whose the journals are is not known until the cluster was met again.
		return ctrl.Result{RequeueAfter: retryPause}, nil
	}
	f, err := r.facts(ctx, child)
	if errors.Is(err, errNotListed) {
		return ctrl.Result{RequeueAfter: runPause}, nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	d := Decide(f)
	stands := child.Spec.Suspend && child.Status.MovingTo == "" // what was said before it was suspended
	if f.Unread != nil && stands {
		return ctrl.Result{RequeueAfter: retryPause}, nil // nothing would take back that they could not be read
	}
	if f.Unread != nil {
		return ctrl.Result{RequeueAfter: retryPause}, r.tell(ctx, child, d)
	}
	if d.To == "" {
		r.forget(req.NamespacedName)
		if stands {
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, r.tell(ctx, child, d)
	}
	if f.Running == "" {
		if not, err := r.mayMove(ctx, child.Namespace, d.To); err != nil || not != "" {
			d.To, d.Reason, d.Message = "", v1alpha1.ReasonPivotBlocked, not
			if err != nil {
				d.Reason, d.Message = v1alpha1.ReasonPivotFailed, err.Error()
			}
			return ctrl.Result{RequeueAfter: retryPause}, r.tell(ctx, child, d)
		}
	}
	return r.run(ctx, child, d, f)
}

// mayMove says why this agent may not move Clusters of a namespace; empty if it may. It is
// asked before anything is begun: an agent that may write its journal and nothing else would
// leave a Cluster half way, and a tier without a record would not know where it went.
func (r *Reconciler) mayMove(ctx context.Context, namespace string, to v1alpha1.Management) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	for _, of := range []struct{ group, resource string }{{clusterapi.Group, "clusters"}, {"", "secrets"}, {"", "configmaps"}} {
		for _, verb := range []string{"create", "update", "delete"} {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Group: of.group, Resource: of.resource, Verb: verb},
			}}
			if err := r.Side.Client.Create(ctx, review); err != nil {
				return "", fmt.Errorf("cannot ask what this agent may do: %w", err)
			}
			if !review.Status.Allowed {
				return fmt.Sprintf("this agent may not %s %s in namespace %s, as under a lockdown: nothing was changed; use cascade pivot", verb, of.resource, namespace), nil
			}
		}
	}
	if to == v1alpha1.ManagementParent {
		return "", nil
	}
	record := types.NamespacedName{Namespace: r.Side.Namespace, Name: v1alpha1.FirstSyncConfigMap}
	err := r.Side.Client.Get(ctx, record, &corev1.ConfigMap{})
	if apierrors.IsNotFound(err) {
		return fmt.Sprintf("this tier keeps no record of its Clusters, ConfigMap %s, and would lose the Child with the Cluster: nothing was changed; have its agent reconcile Kustomizations or HelmReleases as well", record), nil
	}
	if err != nil {
		return "", fmt.Errorf("cannot read the record of the first sync, ConfigMap %s: %w", record, err)
	}
	return "", nil
}

func (r *Reconciler) facts(ctx context.Context, child *v1alpha1.Child) (Facts, error) {
	var f Facts
	layers := &v1alpha1.LayerList{}
	if err := r.Client.List(ctx, layers, client.InNamespace(child.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return f, fmt.Errorf("cannot list Layers: %w", err)
	}
	says := slices.DeleteFunc(layers.Items, func(l v1alpha1.Layer) bool {
		return l.Spec.Management == "" || !l.DeletionTimestamp.IsZero() || l.Spec.Suspend
	})
	selectors := make([]*metav1.LabelSelector, 0, len(says))
	for i := range says {
		selectors = append(selectors, &says[i].Spec.ClusterSelector)
	}
	// A Layer that goes by who applied a Cluster is pushed by the labels of that, and says by them whose it is to be.
	labels, ok := remote.LabelsOf(child, r.Clusters, selectors...)
	if !ok {
		return f, errNotListed
	}
	for i := range says {
		if !remote.Concerns(&says[i], child, labels) {
			continue
		}
		f.Declared = append(f.Declared, says[i].Spec.Management)
		if _, err := remote.Selects(&says[i], labels); err != nil {
			f.Unclear = err
		}
	}
	if child.Spec.Suspend {
		// As nothing were declared: no pivot is begun, and a Cluster that is on its way, and paused for that, does not stay so.
		f.Declared, f.Unclear = nil, nil
	}
	told := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ManagementCondition)
	returns := r.runs(client.ObjectKeyFromObject(child), v1alpha1.ManagementParent)
	if len(f.Declared) == 0 && told == nil && child.Status.MovingTo == "" && !returns && !meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.ManagedElsewhereCondition) {
		return f, nil // nobody asks, nobody did, and its Cluster is here: no call is made
	}
	name := clusterOf(child)
	var err error
	if f.Elsewhere, err = r.Elsewhere(ctx, name); err != nil {
		return f, err
	}
	f.Returning = isReturning(child, told)
	f.Seeded = meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.ConnectedCondition) && meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.SeededCondition)
	var journals map[pivot.Role][]pivot.Journal
	if journals, f.Unread = pivot.Journals(ctx, r.Side.Client, r.Side.Namespace); f.Unread != nil {
		return f, nil
	}
	for role, list := range journals {
		for _, j := range list {
			if j.Step.Over() || !j.Concerns(name) || len(j.Clusters) != 1 || child.Status.Identity == nil {
				continue
			}
			switch uid := child.Status.Identity.KubeSystemUID; {
			case role == pivot.Source && j.To.UID == uid:
				f.Running = v1alpha1.ManagementSelf
			case role == pivot.Target && j.From.UID == uid:
				f.Running, f.Receipt = v1alpha1.ManagementParent, j
			}
		}
	}
	if f.Running == "" && returns {
		// A pivot back leaves its first trace in the child. That of one to the child is here.
		f.Running = v1alpha1.ManagementParent
	}
	return f, nil
}

// runs reports whether this process drives a pivot of a Child to one of both sides.
func (r *Reconciler) runs(key types.NamespacedName, to v1alpha1.Management) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	is := r.running[key]
	return is != nil && is.to == to
}

func clusterOf(child *v1alpha1.Child) types.NamespacedName {
	return types.NamespacedName{Namespace: child.Namespace, Name: child.Spec.ClusterRef.Name}
}

// run does a piece of a pivot.
func (r *Reconciler) run(ctx context.Context, child *v1alpha1.Child, d Decision, f Facts) (ctrl.Result, error) {
	piece, cancel := context.WithTimeout(ctx, pieceMost) // what became of it is told after that as well
	defer cancel()
	key := client.ObjectKeyFromObject(child)
	is, err := r.pivotOf(piece, child, d.To)
	if err != nil {
		d.Reason, d.Message = v1alpha1.ReasonPivotFailed, err.Error()
		return ctrl.Result{RequeueAfter: retryPause}, r.tell(ctx, child, d)
	}
	if d.To == v1alpha1.ManagementParent {
		if !r.returns.TryLock() {
			return ctrl.Result{RequeueAfter: runPause}, r.tellWaits(ctx, child, d)
		}
		defer r.returns.Unlock()
	}
	is.waits, is.pivot.UnderWay = "", d.UnderWay
	j, err := is.pivot.Run(piece)
	var blocked *pivot.BlockedError
	switch {
	case errors.Is(err, pivot.ErrIdle):
		// It is over, by whomever: what is declared decides anew.
		r.forget(key)
		switch {
		case f.Receipt.ID == "":
			return ctrl.Result{RequeueAfter: runPause}, r.tell(ctx, child, at(f.Elsewhere))
		case f.Receipt.Step.Revocable():
			d.Reason = v1alpha1.ReasonPivotBlocked
			d.Message = fmt.Sprintf("the child has lost its journal of pivot %s, which brought the Cluster here, and nobody can go on with it: "+
				"do as docs/pivot.md says where the source is lost before switch", f.Receipt.ID)
		default:
			d.Message = fmt.Sprintf("the child has lost its journal of pivot %s, which is past switch: this tier's agent ends it", f.Receipt.ID)
		}
		return ctrl.Result{RequeueAfter: retryPause}, r.tell(ctx, child, d)
	case err == nil:
		r.forget(key)
		if j.Step == pivot.Done {
			d = at(d.To == v1alpha1.ManagementSelf)
			r.Events.Eventf(child, corev1.EventTypeNormal, d.Reason, "pivot %s is done: %s", j.ID, d.Message)
			return ctrl.Result{}, r.tell(ctx, child, d)
		}
		return ctrl.Result{RequeueAfter: retryPause}, nil // turned back by a person
	case errors.Is(err, errPiece):
		d.Message = fmt.Sprintf("pivot %s to %s is at step %s and waits for %s", j.ID, d.To, j.Step, is.waits)
		return ctrl.Result{RequeueAfter: runPause}, r.tell(ctx, child, d)
	case errors.As(err, &blocked):
		d.Reason, d.Message = v1alpha1.ReasonPivotBlocked, err.Error()
	default:
		d.Reason, d.Message = v1alpha1.ReasonPivotFailed, err.Error()
	}
	r.forgetIdle(key, j)
	return ctrl.Result{RequeueAfter: retryPause}, r.tell(ctx, child, d)
}

// tellWaits says that a Cluster waits until a piece of another one is done, if the condition says still
// that it is as declared. What it says of a pivot holds until the next piece.
func (r *Reconciler) tellWaits(ctx context.Context, child *v1alpha1.Child, d Decision) error {
	told := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ManagementCondition)
	if told != nil && told.Status == d.Status {
		return nil
	}
	d.Message = "the Cluster waits for its turn: one at a time is brought back"
	return r.tell(ctx, child, d)
}

// forgetIdle forgets a pivot that has not begun, or was turned back: what is declared by then
// decides anew.
func (r *Reconciler) forgetIdle(key types.NamespacedName, j pivot.Journal) {
	if j.Step == "" || j.Step.Over() {
		r.forget(key)
	}
}

func (r *Reconciler) forget(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, key)
}

// pivotOf is the pivot of a Child to one of both sides. A child that is to give its Cluster back was asked
// who it is: one that does not answer keeps nobody else waiting for a turn.
func (r *Reconciler) pivotOf(ctx context.Context, child *v1alpha1.Child, to v1alpha1.Management) (*running, error) {
	key, name := client.ObjectKeyFromObject(child), clusterOf(child)
	secret := &corev1.Secret{}
	at := types.NamespacedName{Namespace: name.Namespace, Name: clusterapi.KubeconfigSecret(name.Name)}
	if err := r.Side.Client.Get(ctx, at, secret); err != nil {
		return nil, fmt.Errorf("cannot read the kubeconfig, Secret %s: %w", at, err)
	}
	r.mu.Lock()
	is := r.running[key]
	r.mu.Unlock()
	version := string(secret.UID) + secret.ResourceVersion
	if is != nil && is.to == to && is.kubeconfig == version {
		if to == v1alpha1.ManagementParent {
			return is, identify(ctx, is.pivot.Source, pivot.Source, child)
		}
		return is, nil
	}
	config, err := r.Allowed.Kubeconfig(secret.Data[clusterapi.KubeconfigKey])
	if err != nil {
		return nil, fmt.Errorf("cannot use the kubeconfig, Secret %s: %w", at, err)
	}
	if err := r.Addresses.Guard(config); err != nil {
		return nil, fmt.Errorf("cannot use the kubeconfig, Secret %s: %w", at, err)
	}
	config.QPS, config.UserAgent = -1, "cascade-parent/"+r.Program
	c, err := client.New(config, client.Options{Scheme: r.Client.Scheme()})
	if err != nil {
		return nil, fmt.Errorf("cannot connect to the child: %w", err)
	}
	is = &running{kubeconfig: version, to: to}
	there, role := pivot.Side{Name: "the child", Client: c, Kubeconfig: at}, pivot.Target
	if to == v1alpha1.ManagementParent {
		role = pivot.Source
	}
	if err := identify(ctx, there, role, child); err != nil {
		return nil, err
	}
	if there.Namespace, err = agentOf(ctx, c, role, name); err != nil {
		return nil, err
	}
	is.pivot = &pivot.Pivot{
		Source: r.Side, Target: there, Clusters: []types.NamespacedName{name}, Keep: true, Own: true, Holder: r.Holder, Program: r.Program, Now: r.Now,
		Rest: pivot.DefaultRest, Wait: func(context.Context, time.Duration) error { return errPiece },
		Tell: func(e pivot.Event) {
			if e.Waits != "" {
				is.waits = e.Waits
			}
		},
	}
	if role == pivot.Source {
		is.pivot.Source, is.pivot.Target, is.pivot.Keep = there, r.Side, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running == nil {
		r.running = map[types.NamespacedName]*running{}
	}
	r.running[key] = is
	return is, nil
}

// agentOf is the namespace of the child's agent, which has its journals and its record: elsewhere, nobody would end the
// pivot when this tier is gone, or learn who has the Cluster. It is the usual one where an agent is there, or no
// Deployment anywhere.
func agentOf(ctx context.Context, there client.Reader, role pivot.Role, cluster types.NamespacedName) (string, error) {
	agents, err := pivot.Agents(ctx, there)
	if err != nil || len(agents) == 0 || slices.Contains(agents, v1alpha1.AgentNamespace) {
		return v1alpha1.AgentNamespace, err
	}
	// What is under way goes on where it has its journal: there may be another agent since it began. An earlier version
	// began the way back in the usual namespace whoever was where.
	places := agents
	if role == pivot.Source {
		places = append(slices.Clone(agents), v1alpha1.AgentNamespace)
	}
	for _, namespace := range places {
		journals, err := pivot.Journals(ctx, there, namespace)
		if err != nil {
			return "", err
		}
		if slices.ContainsFunc(journals[role], func(j pivot.Journal) bool { return !j.Step.Over() && j.Concerns(cluster) }) {
			return namespace, nil
		}
	}
	if len(agents) > 1 {
		return "", fmt.Errorf("cannot tell which agent of the child is to have the Cluster: there is one in namespace %s; say which to cascade pivot, with --to-agent-namespace", strings.Join(agents, " and "))
	}
	return agents[0], nil
}

// identify fails unless the child, as one side of a pivot, is the recorded cluster.
func identify(ctx context.Context, there pivot.Side, role pivot.Role, child *v1alpha1.Child) error {
	tier, err := pivot.Identify(ctx, there, role)
	if err != nil {
		return err
	}
	if id := child.Status.Identity; id == nil || tier.UID != id.KubeSystemUID {
		return errors.New("cannot move the Cluster: the kubeconfig leads to another cluster than the one that is recorded")
	}
	return nil
}

// isReturning reports whether this tier began to take the management of a Cluster back. Versions
// before status.movingTo, and definitions without it, have the condition alone, which says of a
// Cluster that is elsewhere that something was under way.
func isReturning(child *v1alpha1.Child, told *metav1.Condition) bool {
	if child.Status.MovingTo != "" || told == nil || told.Status != metav1.ConditionFalse {
		return child.Status.MovingTo == v1alpha1.ManagementParent
	}
	switch told.Reason {
	case v1alpha1.ReasonPivotRunning, v1alpha1.ReasonPivotFailed, v1alpha1.ReasonPivotBlocked:
		return true
	}
	return false
}

// mostMessage bounds the message of a condition.
const mostMessage = 2000

// tell writes the condition, if it changed. Who else writes the status in between wins, and
// this is told again.
func (r *Reconciler) tell(ctx context.Context, child *v1alpha1.Child, d Decision) error {
	is := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ManagementCondition)
	before := child.DeepCopy()
	switch {
	case d.To != "":
		child.Status.MovingTo = d.To
	case d.Status != metav1.ConditionFalse:
		child.Status.MovingTo = ""
	}
	if d.Reason == "" {
		if is == nil && child.Status.MovingTo == before.Status.MovingTo {
			return nil
		}
		meta.RemoveStatusCondition(&child.Status.Conditions, v1alpha1.ManagementCondition)
	} else {
		message := d.Message
		if len(message) > mostMessage {
			message = message[:mostMessage]
		}
		if is != nil && is.Status == d.Status && is.Reason == d.Reason && is.Message == message && child.Status.MovingTo == before.Status.MovingTo {
			return nil
		}
		if d.Reason == v1alpha1.ReasonPivotBlocked && (is == nil || is.Reason != d.Reason) {
			r.Events.Eventf(child, corev1.EventTypeWarning, d.Reason, "%s", message)
		}
		meta.SetStatusCondition(&child.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ManagementCondition, Status: d.Status, Reason: d.Reason, Message: message, ObservedGeneration: child.Generation,
		})
	}
	err := r.Client.Status().Patch(ctx, child, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner("cascade"))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("cannot write status of Child %s: %w", client.ObjectKeyFromObject(child), err)
	}
	return nil
}
