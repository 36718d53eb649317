package remote

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/providers"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// When a child is reconciled again without an event.
const (
	// progressPause is the pause while a push makes progress.
	progressPause = time.Second
	// movingPause is the pause while tiers below the child are not ready: what
	// they report comes up tier by tier.
	movingPause = 3 * time.Second
	// waitPause is the pause while something else has to happen first. An event should
	// come before it ends.
	waitPause = 10 * time.Second
	// stalePause is the pause until the cache has our own last write.
	stalePause = 20 * time.Millisecond
	// sourceWait is how long after a start a layer that is in place may stay ready
	// without its source.
	sourceWait = 45 * time.Second
	// createdHolds is how long the cache may take to show a Child that we created.
	createdHolds = 2 * time.Second
)

// statusManager is the field manager of the status of our own kinds.
const statusManager = "cascade"

// layerCRD is the name of the definition of Layers.
const layerCRD = "layers.cascade.dev"

// periodic is the priority of a reconcile that no event called for. New children
// and children with an event come first.
const periodic = handler.LowPriority

// Children reconciles Child objects, one cluster in each reconcile. At rest a
// reconcile sends nothing to the API server of this tier. A probe, which runs off
// the workers of the queue, sends one request to the child.
type Children struct {
	// Client reads from the cache and writes. Cache has what is watched of Clusters
	// and of their Secrets.
	Client client.Client
	Cache  client.Reader
	// Cluster reads from the API server of this tier.
	Cluster     *apply.Cluster
	Snapshots   *source.Snapshots
	Connections *Connections
	Events      record.EventRecorder
	Metrics     *Metrics
	Now         func() time.Time
	// Rand returns numbers in [0, 1), which spread what would happen at once.
	Rand func() float64
	// AgentImage is installed in children whose layer names none.
	AgentImage string
	// Providers renders spec.providers; the layers of all children share it.
	Providers *providers.Library
	// Workers render the paths of layers, with the tasks of package render.
	Workers worker.Runner
	// ObserveInterval is the time between two probes of a child.
	ObserveInterval time.Duration

	// Allowed is what kubeconfigs may have besides an address and credentials.
	Allowed capibridge.Allowed
	// Bridge reads the objects of infrastructure providers.
	Bridge *capibridge.Providers

	gates      capibridge.Gates
	clusters   clusters
	references referenceCache
	contents   contents
	manifest   manifest

	mu    sync.Mutex
	notes map[types.NamespacedName]*notes
}

// notes are what is known of a child besides its status, in memory only. Without
// them the agent renders layers and compares their digests, which writes nothing
// either.
type notes struct {
	// began is when these notes began: with the process, or with the child.
	began time.Time
	// created is when we created the Child, if we did that.
	created time.Time
	// written is the version of our last write of the Child.
	written string
	layers  map[string]*layerNotes
	// facts are what the provider's objects said of the Cluster in the state described,
	// and since is when they were read.
	described string
	since     time.Time
	facts     capibridge.Facts
}

// layerNotes are about one layer on one child.
type layerNotes struct {
	// inputs identify what the layer was rendered from when it was found to be in
	// place, and requested is the reconcile request that was handled by then.
	inputs    string
	requested string
	// due is when the layer is compared with the child again.
	due time.Time
	// progress of a push that is not complete, and what the last complete push sent.
	progress progress
	sent     apply.Sent
}

// notesOf returns what is known of a child. Only the child's reconciles use it.
func (r *Children) notesOf(key types.NamespacedName) *notes {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.notes == nil {
		r.notes = map[types.NamespacedName]*notes{}
	}
	n := r.notes[key]
	if n == nil {
		n = &notes{began: r.Now(), layers: map[string]*layerNotes{}}
		r.notes[key] = n
	}
	return n
}

func (n *notes) of(layer string) *layerNotes {
	if n.layers[layer] == nil {
		n.layers[layer] = &layerNotes{}
	}
	return n.layers[layer]
}

// Reconcile implements reconcile.Reconciler for one child.
func (r *Children) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	child := &v1alpha1.Child{}
	err := r.Client.Get(ctx, req.NamespacedName, child)
	if apierrors.IsNotFound(err) {
		if r.isNew(req.NamespacedName) {
			return ctrl.Result{RequeueAfter: stalePause}, nil
		}
		r.forget(req.NamespacedName)
		return r.discover(ctx, req.NamespacedName)
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("cannot read Child %s: %w", req.NamespacedName, err)
	}
	if !child.DeletionTimestamp.IsZero() {
		r.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	notes := r.notesOf(req.NamespacedName)
	if isBefore(child, notes.written) {
		// The inventories must be the ones that we wrote last.
		return ctrl.Result{RequeueAfter: stalePause}, nil
	}
	current := &run{Children: r, child: child, recorded: child.DeepCopy(), notes: notes}
	result, err := current.reconcile(ctx)
	if current.gone {
		r.forget(req.NamespacedName)
		return ctrl.Result{}, err
	}
	if !current.asking {
		child.Status.ObservedGeneration = child.Generation
		child.Status.LastHandledReconcileAt = child.Annotations[fluxmeta.ReconcileRequestAnnotation]
	}
	if rerr := current.writeStatus(ctx); rerr != nil {
		return ctrl.Result{}, errors.Join(err, rerr)
	}
	r.Metrics.observe(child)
	return result, err
}

// isBefore reports whether an object was read before a write that the API server
// answered with version.
func isBefore(o client.Object, version string) bool {
	if version == "" || version == o.GetResourceVersion() {
		return false
	}
	c, err := resourceversion.CompareResourceVersion(o.GetResourceVersion(), version)
	return err != nil || c < 0
}

func (r *Children) forget(key types.NamespacedName) {
	r.Connections.Forget(key)
	r.Metrics.forget(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.notes, key)
}

// discover creates the Child of a Cluster that has none.
func (r *Children) discover(ctx context.Context, key types.NamespacedName) (ctrl.Result, error) {
	u, err := r.cluster(ctx, key)
	if errors.Is(err, errNoClusterAPI) {
		return ctrl.Result{}, nil // a Child that was made by hand is gone
	}
	if err != nil || u == nil || u.GetDeletionTimestamp() != nil {
		return ctrl.Result{}, err
	}
	child := &v1alpha1.Child{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, Labels: childLabels(u.GetLabels())},
		Spec:       v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: key.Name}},
	}
	if err := r.Client.Create(ctx, child, client.FieldOwner(statusManager)); err != nil && !apierrors.IsAlreadyExists(err) {
		return ctrl.Result{}, fmt.Errorf("cannot create Child %s: %w", key, err)
	}
	r.notesOf(key).created = r.Now()
	return ctrl.Result{}, nil
}

// isNew reports whether a Child was created a moment ago, so that the cache may not
// have it yet.
func (r *Children) isNew(key types.NamespacedName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.notes[key]
	return n != nil && r.Now().Sub(n.created) < createdHolds
}

// childLabels are a Cluster's labels without the labels that name the owner of the
// Cluster: a Child has no owner.
func childLabels(of map[string]string) map[string]string {
	out := make(map[string]string, len(of))
	for k, v := range of {
		domain, _, _ := strings.Cut(k, "/")
		if domain != v1alpha1.LayerLabelGroup && !strings.HasSuffix(domain, ".toolkit.fluxcd.io") {
			out[k] = v
		}
	}
	return out
}

// errNoClusterAPI: the kind Cluster is not served, which says nothing about
// whether a Cluster exists.
var errNoClusterAPI = errors.New("kind Cluster is not served: Cluster API is not installed in this tier")

// cluster reads a Cluster; nil means confirmed absent.
func (r *Children) cluster(ctx context.Context, key types.NamespacedName) (*unstructured.Unstructured, error) {
	gvk, ok := r.clusters.watched()
	if !ok {
		return nil, errNoClusterAPI
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	err := r.Cache.Get(ctx, key, u)
	if err == nil || !apierrors.IsNotFound(err) {
		return u, err
	}
	// A cache may lag, or have lost its watch. Only the API server confirms an absence.
	err = r.Cluster.Get(ctx, key, u)
	switch {
	case apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		return nil, nil
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
		return nil, errNoClusterAPI
	case err != nil:
		return nil, fmt.Errorf("cannot read Cluster %s: %w", key, err)
	}
	return u, nil
}

// clusters tells of which version Clusters are watched, if they are.
type clusters struct {
	mu  sync.Mutex
	gvk schema.GroupVersionKind
}

func (c *clusters) watch(gvk schema.GroupVersionKind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gvk = gvk
}

func (c *clusters) watched() (gvk schema.GroupVersionKind, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gvk, !c.gvk.Empty()
}

// run is one reconcile of one child.
type run struct {
	*Children
	child *v1alpha1.Child
	// recorded is the Child as the API server has it.
	recorded *v1alpha1.Child
	notes    *notes
	// object is the Cluster, nil for a child that has none.
	object *unstructured.Unstructured
	// gone: the Child was deleted. asking: the run only started a probe; the next run
	// handles what a person may have requested.
	gone, asking bool
}

// writeStatus writes the status if it changed.
func (r *run) writeStatus(ctx context.Context) error {
	if equality.Semantic.DeepEqual(r.recorded.Status, r.child.Status) {
		return nil
	}
	// The response is decoded into the copy: the run goes on with its own.
	after := r.child.DeepCopy()
	err := r.Client.Status().Patch(ctx, after, client.MergeFrom(r.recorded), client.FieldOwner(statusManager))
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot write status of Child %s/%s: %w", r.child.Namespace, r.child.Name, err)
	}
	r.child.ResourceVersion = after.ResourceVersion
	r.notes.written = after.ResourceVersion
	r.recorded = r.child.DeepCopy()
	return nil
}

func (r *run) key() types.NamespacedName { return client.ObjectKeyFromObject(r.child) }

func (r *run) condition(kind string, status metav1.ConditionStatus, reason, format string, args ...any) {
	meta.SetStatusCondition(&r.child.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: short(fmt.Sprintf(format, args...)), ObservedGeneration: r.child.Generation,
	})
}

// notConnected sets the conditions that say why the child is not connected. The
// rest of the status stays.
func (r *run) notConnected(status metav1.ConditionStatus, reason, format string, args ...any) {
	r.condition(v1alpha1.ConnectedCondition, status, reason, format, args...)
	r.condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, reason, format, args...)
	if !meta.IsStatusConditionTrue(r.child.Status.Conditions, v1alpha1.SeededCondition) {
		r.condition(v1alpha1.SeededCondition, metav1.ConditionFalse, reason, format, args...)
	}
}

func (r *run) reconcile(ctx context.Context) (ctrl.Result, error) {
	cluster, ok, result, err := r.facts(ctx)
	if !ok {
		return result, err
	}
	selected, err := r.selected(ctx, cluster)
	if err != nil {
		return ctrl.Result{}, err
	}
	if len(selected) == 0 && len(r.child.Status.Layers) == 0 {
		r.notConnected(metav1.ConditionUnknown, v1alpha1.ReasonNoLayer, "no Layer of namespace %s selects this cluster", r.child.Namespace)
		return ctrl.Result{}, nil
	}
	facts, err := r.describe(ctx, cluster)
	if err != nil {
		return ctrl.Result{}, err
	}
	cluster = facts.Into(cluster)
	base := r.gates.Gate(cluster, capibridge.WhenControlPlaneInitialized)
	if !base.Open && base.Reason != v1alpha1.ReasonPaused {
		message := base.Message
		if _, detail := cluster.State(facts); detail != "" {
			message += ": " + detail
		}
		r.notConnected(metav1.ConditionFalse, base.Reason, "%s", message)
		return ctrl.Result{RequeueAfter: r.jittered(waitPause)}, nil
	}
	l := r.Connections.link(r.key())
	// What is on its way ends when the child is forgotten.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.life, cancel)()
	q, found, ok, result, err := r.connect(ctx, l, cluster, selected)
	if !ok {
		return result, err
	}
	r.seedAll(ctx, l, q, cluster, selected)
	if l.life.Err() != nil {
		return ctrl.Result{}, nil // forgotten meanwhile: what failed did so for that
	}
	r.observe(found, selected)
	if err := r.publish(ctx); err != nil {
		return ctrl.Result{}, err
	}
	return r.next(), nil
}

// facts gathers what Cluster API says. ok is false if the run ends here.
func (r *run) facts(ctx context.Context) (cluster capibridge.Cluster, ok bool, result ctrl.Result, err error) {
	if r.child.Spec.ClusterRef == nil {
		return capibridge.Cluster{
			Namespace: r.child.Namespace, Name: r.child.Name, Labels: r.child.Labels, Annotations: r.child.Annotations,
			InfrastructureProvisioned: true, ControlPlaneInitialized: true,
		}, true, result, nil
	}
	key := types.NamespacedName{Namespace: r.child.Namespace, Name: r.child.Spec.ClusterRef.Name}
	u, err := r.cluster(ctx, key)
	if errors.Is(err, errNoClusterAPI) {
		r.notConnected(metav1.ConditionUnknown, v1alpha1.ReasonClusterNotReady, "%s", err)
		return cluster, false, ctrl.Result{RequeueAfter: r.jittered(waitPause)}, nil
	}
	if err != nil {
		return cluster, false, result, err
	}
	if u == nil || u.GetDeletionTimestamp() != nil {
		// The Child is deleted without any contact: Cluster API takes the cluster down.
		r.gone = true
		r.Connections.Forget(r.key())
		err := r.Client.Delete(ctx, r.child, client.Preconditions{UID: &r.child.UID})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return cluster, false, result, fmt.Errorf("cannot delete Child %s of a Cluster that goes: %w", r.key(), err)
		}
		return cluster, false, result, nil
	}
	r.object = u
	cluster = capibridge.FromObject(u)
	if id := r.child.Status.Identity; id != nil && id.ClusterUID != "" && id.ClusterUID != cluster.UID {
		// Re-created under the same name: another cluster, in which nothing is in place.
		r.Children.forget(r.key())
		r.notes = r.notesOf(r.key())
		r.child.Status = v1alpha1.ChildStatus{}
		if err := r.writeStatus(ctx); err != nil {
			return cluster, false, result, err
		}
		r.Events.Eventf(r.child, corev1.EventTypeNormal, "ClusterRecreated", "Cluster was re-created, it is seeded afresh")
	}
	if labels := childLabels(cluster.Labels); !maps.Equal(r.child.Labels, labels) {
		before := r.child.DeepCopy()
		after := r.child.DeepCopy()
		after.Labels = labels
		if err := r.Client.Patch(ctx, after, client.MergeFrom(before), client.FieldOwner(statusManager)); err != nil {
			return cluster, false, result, client.IgnoreNotFound(err)
		}
		r.child.Labels = labels
	}
	return cluster, true, result, nil
}

// describeAgain is how long facts of a provider hold without a change of the
// Cluster. The state shows on the Cluster, and account and region do not change.
const describeAgain = time.Hour

// describe returns what the provider's objects say about the Cluster. It reads them
// when the Cluster has changed: Cluster API changes the Cluster with every change of
// theirs that matters here.
func (r *run) describe(ctx context.Context, cluster capibridge.Cluster) (capibridge.Facts, error) {
	if r.object == nil {
		return capibridge.Facts{}, nil
	}
	n := r.notes
	// Other writes to a Cluster, such as our own condition, do not count.
	state := fmt.Sprint(r.object.GetGeneration(), cluster.InfrastructureProvisioned, cluster.ControlPlaneInitialized,
		cluster.Available, cluster.RollingOut, cluster.Remediating, cluster.RemoteConnection, cluster.Failure)
	if n.described == state && r.Now().Sub(n.since) < describeAgain {
		return n.facts, nil
	}
	found, err := r.Bridge.Describe(ctx, r.Cluster, cluster)
	if err != nil && n.described == "" {
		// Without the facts the layers would be rendered with other variables.
		return found, fmt.Errorf("cannot describe Cluster %s: %w", r.key(), err)
	}
	if err == nil {
		n.described, n.since, n.facts = state, r.Now(), found
	}
	return n.facts, nil
}

// selected returns the layers that select the child, those that others depend
// on first.
func (r *run) selected(ctx context.Context, cluster capibridge.Cluster) ([]*v1alpha1.Layer, error) {
	list := &v1alpha1.LayerList{}
	if err := r.Client.List(ctx, list, client.InNamespace(r.child.Namespace)); err != nil {
		return nil, fmt.Errorf("cannot list Layers: %w", err)
	}
	var layers []*v1alpha1.Layer
	for i := range list.Items {
		layer := &list.Items[i]
		if layer.DeletionTimestamp.IsZero() && Selects(layer, cluster.Labels) {
			layers = append(layers, layer)
		}
	}
	return inOrder(layers), nil
}

// Selects reports whether a layer selects a cluster with these labels. An empty
// selector selects nothing: a forgotten selector must not select the whole fleet.
func Selects(layer *v1alpha1.Layer, of map[string]string) bool {
	s := layer.Spec.ClusterSelector
	if len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0 {
		return false
	}
	selector, err := metav1.LabelSelectorAsSelector(&s)
	return err == nil && selector.Matches(labels.Set(of))
}

// inOrder sorts layers by name, and by dependsOn before that. Layers of a cycle
// come last; their dependencies will be found not ready.
func inOrder(layers []*v1alpha1.Layer) []*v1alpha1.Layer {
	slices.SortFunc(layers, func(a, b *v1alpha1.Layer) int { return strings.Compare(a.Name, b.Name) })
	var out []*v1alpha1.Layer
	placed := map[string]bool{}
	for len(out) < len(layers) {
		before := len(out)
		for _, l := range layers {
			if placed[l.Name] {
				continue
			}
			open := slices.ContainsFunc(l.Spec.DependsOn, func(d v1alpha1.LayerReference) bool {
				return !placed[d.Name] && slices.ContainsFunc(layers, func(o *v1alpha1.Layer) bool { return o.Name == d.Name })
			})
			if !open {
				out = append(out, l)
				placed[l.Name] = true
			}
		}
		if len(out) == before {
			for _, l := range layers {
				if !placed[l.Name] {
					out = append(out, l)
					placed[l.Name] = true
				}
			}
		}
	}
	return out
}

// connect asks the child who it is and what its agent says, and makes sure that
// it is the recorded cluster. ok is false if the run ends here; otherwise the run
// goes on with the result of the probe.
func (r *run) connect(ctx context.Context, l *link, cluster capibridge.Cluster, selected []*v1alpha1.Layer) (q probeRequest, a *probeResult, ok bool, result ctrl.Result, err error) {
	ref := r.kubeconfigRef(cluster)
	source, err := r.kubeconfigSource(ctx, ref)
	if err != nil {
		return q, nil, false, result, err
	}
	id := r.child.Status.Identity
	ready := meta.IsStatusConditionTrue(r.child.Status.Conditions, v1alpha1.ReadyCondition)
	q = probeRequest{
		source: source, agent: slices.ContainsFunc(selected, hasAgent), urgent: !ready,
		read: func(ctx context.Context) (*rest.Config, error) { return r.kubeconfig(ctx, ref, cluster) },
	}
	if id != nil {
		q.recorded = id.KubeSystemUID
	}
	a, wait := l.ask(q)
	if a == nil {
		r.asking = true
		return q, nil, false, ctrl.Result{RequeueAfter: wait}, nil
	}
	if a.err != nil {
		r.asking = a.passing
		if !a.passing {
			r.notConnected(metav1.ConditionFalse, reasonOf(a.err), "%s", a.err)
		}
		return q, nil, false, ctrl.Result{RequeueAfter: max(l.notBefore.Sub(r.Now()), 100*time.Millisecond)}, nil
	}
	if id != nil && id.KubeSystemUID != a.identity {
		r.identityChanged(a.identity)
		return q, nil, false, ctrl.Result{RequeueAfter: r.jittered(waitPause)}, nil
	}
	if id == nil {
		if err := r.meet(ctx, l, cluster, a.identity); err != nil {
			return q, nil, false, result, err
		}
		q.recorded = a.identity
	}
	r.child.Status.Version = a.version
	r.condition(v1alpha1.ConnectedCondition, metav1.ConditionTrue, v1alpha1.ReasonSucceeded, "API server answers, its identity is the recorded one")
	return q, a, true, result, nil
}

func hasAgent(layer *v1alpha1.Layer) bool { return layer.Spec.Agent != nil }

func (r *run) identityChanged(uid string) {
	r.notConnected(metav1.ConditionFalse, v1alpha1.ReasonIdentityChanged,
		"the API server belongs to another cluster: kube-system has UID %s, recorded is %s; nothing is written to it. If this is intended, delete this Child to have the cluster seeded afresh",
		uid, r.child.Status.Identity.KubeSystemUID)
}

// meet sets the identity of a new child, which is recorded before the first write
// to the child.
func (r *run) meet(ctx context.Context, l *link, cluster capibridge.Cluster, uid string) error {
	id := &v1alpha1.ChildIdentity{ClusterUID: cluster.UID, KubeSystemUID: uid}
	records, err := l.layerRecords(ctx)
	if err != nil {
		return err
	}
	for _, found := range records {
		if found.ClusterUID != "" && found.ClusterUID != cluster.UID {
			id.SeededAs = found.ClusterUID
		}
	}
	r.child.Status.Identity = id
	return nil
}

// kubeconfigRef says where the kubeconfig is.
func (r *run) kubeconfigRef(cluster capibridge.Cluster) v1alpha1.SecretKeyReference {
	if own := r.child.Spec.KubeConfig; own != nil {
		ref := own.SecretRef
		if ref.Key == "" {
			ref.Key = clusterapi.KubeconfigKey
		}
		return ref
	}
	if from := r.notes.facts.Kubeconfig; from.Secret != "" {
		return v1alpha1.SecretKeyReference{Name: from.Secret, Key: from.Key}
	}
	return v1alpha1.SecretKeyReference{Name: clusterapi.KubeconfigSecret(cluster.Name), Key: clusterapi.KubeconfigKey}
}

// kubeconfigSource identifies the kubeconfig that there is now. Secrets of
// Cluster API are watched; others are looked at.
func (r *run) kubeconfigSource(ctx context.Context, ref v1alpha1.SecretKeyReference) (string, error) {
	secret := &metav1.PartialObjectMetadata{}
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	name := types.NamespacedName{Namespace: r.child.Namespace, Name: ref.Name}
	err := error(apierrors.NewNotFound(corev1.Resource("secrets"), ref.Name))
	if r.child.Spec.ClusterRef != nil {
		err = r.Cache.Get(ctx, name, secret)
	}
	if apierrors.IsNotFound(err) {
		err = r.Cluster.Get(ctx, name, secret)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("cannot read Secret %s: %w", name, err)
	}
	return fmt.Sprintf("%s/%s %s %s", ref.Name, ref.Key, secret.UID, secret.ResourceVersion), nil
}

// kubeconfig reads the kubeconfig from the API server.
func (r *run) kubeconfig(ctx context.Context, ref v1alpha1.SecretKeyReference, cluster capibridge.Cluster) (*rest.Config, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	secret := &corev1.Secret{}
	missing := func(format string, args ...any) error {
		return because(v1alpha1.ReasonKubeconfigMissing, fmt.Errorf(format, args...))
	}
	if err := r.Cluster.Get(ctx, types.NamespacedName{Namespace: r.child.Namespace, Name: ref.Name}, secret); err != nil {
		return nil, missing("cannot read Secret %s: %w", ref.Name, err)
	}
	if r.child.Spec.ClusterRef != nil && !capibridge.BelongsTo(secret, cluster) {
		return nil, missing("cannot use Secret %s: it does not belong to Cluster %s, it has neither the label %s nor an owner", ref.Name, cluster.Name, clusterapi.ClusterNameLabel)
	}
	if len(secret.Data[ref.Key]) == 0 {
		return nil, missing("cannot use Secret %s: it has no key %s", ref.Name, ref.Key)
	}
	config, err := r.Allowed.Kubeconfig(secret.Data[ref.Key])
	if err != nil {
		return nil, because(v1alpha1.ReasonKubeconfigRefused, err)
	}
	return config, nil
}

// seedAll pushes each selected layer into the child and releases the layers that no
// longer select it. A layer that fails does not stop the layers that do not depend
// on it.
func (r *run) seedAll(ctx context.Context, l *link, q probeRequest, cluster capibridge.Cluster, selected []*v1alpha1.Layer) {
	vars := cluster.Variables(r.child.Status.Version)
	if id := r.child.Status.Identity; id.SeededAs != "" {
		vars["cluster_uid"] = id.SeededAs
	}
	l.kinds.Doubt()
	push := &push{run: r, link: l, request: q, cluster: cluster, vars: vars}
	agents := 0
	var credentials []v1alpha1.ChildCredential
	for _, layer := range selected {
		if layer.Spec.Suspend {
			continue
		}
		if layer.Spec.Agent != nil {
			agents++
		}
		entry := r.entry(layer.Name)
		delivered, err := push.layer(ctx, layer, entry, agents)
		recordOutcome(entry, err, metav1.NewTime(r.Now()))
		credentials = append(credentials, delivered...)
	}
	r.hold(credentials)
	if !cluster.Paused {
		push.release(ctx, selected)
	}
	r.summarizeLayers(selected)
}

// hold records the credentials that were delivered to the child.
func (r *run) hold(credentials []v1alpha1.ChildCredential) {
	slices.SortFunc(credentials, func(a, b v1alpha1.ChildCredential) int { return strings.Compare(a.Name, b.Name) })
	r.child.Status.Credentials = slices.CompactFunc(credentials, func(a, b v1alpha1.ChildCredential) bool { return a.Name == b.Name })
}

func (r *run) entry(name string) *v1alpha1.ChildLayer {
	layers := &r.child.Status.Layers
	for i := range *layers {
		if (*layers)[i].Name == name {
			return &(*layers)[i]
		}
	}
	*layers = append(*layers, v1alpha1.ChildLayer{Name: name, Reason: v1alpha1.ReasonProgressing, Since: metav1.NewTime(r.Now())})
	return &(*layers)[len(*layers)-1]
}

// push is the part of a run that writes to the child.
type push struct {
	*run
	link    *link
	request probeRequest
	cluster capibridge.Cluster
	vars    map[string]string
	// verified: the identity of the child was read during this run.
	verified bool
}

// layer pushes one layer into the child.
func (p *push) layer(ctx context.Context, layer *v1alpha1.Layer, entry *v1alpha1.ChildLayer, agents int) ([]v1alpha1.ChildCredential, error) {
	if verdict := p.gates.Gate(p.cluster, layer.Spec.ReadyWhen); !verdict.Open {
		return nil, because(verdict.Reason, errors.New(verdict.Message))
	}
	if layer.Spec.Agent != nil && agents > 1 {
		return nil, because(v1alpha1.ReasonInvalidSpec, errors.New("another layer already installs the agent in this child; remove spec.agent from one of them"))
	}
	for _, d := range layer.Spec.DependsOn {
		i := slices.IndexFunc(p.child.Status.Layers, func(e v1alpha1.ChildLayer) bool { return e.Name == d.Name })
		if i < 0 || !p.child.Status.Layers[i].Ready {
			return nil, because(v1alpha1.ReasonDependencyNotReady, fmt.Errorf("layer %s is not ready on this child", d.Name))
		}
	}
	s := &seeding{push: p, layer: layer, vars: maps.Clone(p.vars), notes: p.notes.of(layer.Name)}
	if err := p.gather(ctx, s); err != nil {
		if entry.Ready && reasonOf(err) == v1alpha1.ReasonSourceNotReady && p.Now().Sub(p.notes.began) < sourceWait {
			// A process that has just started has fetched nothing yet. The layer is in place
			// all the same.
			return p.child.Status.Credentials, nil
		}
		return nil, err
	}
	delivered := s.delivered()
	err := s.bring(ctx, entry)
	// Twice: repairing the token may show that the rights are missing, and the other
	// way round.
	for range 2 {
		switch {
		case apierrors.IsUnauthorized(err):
			// The token was revoked, or it expired during the push. The kubeconfig gives a
			// new one, so the status does not mention it.
			p.link.drop()
			p.verified = false
		case apierrors.IsForbidden(err) && p.link.rights != nil:
			// Somebody took away what the parent was granted.
			p.link.rights = nil
		default:
			return delivered, err
		}
		err = s.bring(ctx, entry)
	}
	return delivered, err
}

// ensure makes sure, before anything is written, that the child is the recorded
// cluster, and that the parent has the rights for the push.
func (p *push) ensure(ctx context.Context, role string, rules []rbacv1.PolicyRule) error {
	if err := p.recognize(ctx); err != nil {
		return err
	}
	if err := p.link.grant(ctx, p.request, role, rules); err != nil {
		return because(v1alpha1.ReasonSeedFailed, err)
	}
	return nil
}

// recognize makes sure, once in a run, that the child is the recorded cluster.
func (p *push) recognize(ctx context.Context) error {
	if !p.verified {
		if p.link.caller() == nil {
			if err := p.link.reread(ctx, p.request); err != nil {
				return err
			}
		}
		err := p.link.verify(ctx)
		if apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) {
			p.link.drop()
			p.link.rights = nil
			if err = p.link.reread(ctx, p.request); err == nil {
				err = p.link.verify(ctx)
			}
		}
		if err != nil {
			return because(v1alpha1.ReasonUnreachable, err)
		}
		if recorded := p.child.Status.Identity.KubeSystemUID; p.link.identity != recorded {
			p.identityChanged(p.link.identity)
			return because(v1alpha1.ReasonIdentityChanged, fmt.Errorf("another cluster answers: kube-system has UID %s, recorded is %s", p.link.identity, recorded))
		}
		p.verified = true
	}
	return nil
}

// recordOutcome writes the outcome of a push into the layer's entry.
func recordOutcome(entry *v1alpha1.ChildLayer, err error, now metav1.Time) {
	ready, reason, message := err == nil, v1alpha1.ReasonSucceeded, ""
	if err != nil {
		reason, message = reasonOf(err), short(err.Error())
	}
	if entry.Ready != ready || entry.Reason != reason {
		entry.Since = now
	}
	entry.Ready, entry.Reason, entry.Message = ready, reason, message
	if reason != v1alpha1.ReasonPruneBlocked && reason != v1alpha1.ReasonCreateHeld {
		entry.Held = nil
	}
}

func reasonOf(err error) string {
	var r *reasoned
	if errors.As(err, &r) {
		return r.reason
	}
	return v1alpha1.ReasonSeedFailed
}

// release handles layers that are recorded in the child but no longer select it.
// The deletion policy that such a layer had last says whether its objects are
// deleted.
func (p *push) release(ctx context.Context, selected []*v1alpha1.Layer) {
	var keep []v1alpha1.ChildLayer
	for _, entry := range p.child.Status.Layers {
		if slices.ContainsFunc(selected, func(s *v1alpha1.Layer) bool { return s.Name == entry.Name }) {
			keep = append(keep, entry)
			continue
		}
		done, err := false, p.unselected(ctx, p.cluster, entry.Name)
		if err == nil {
			done, err = p.remove(ctx, &entry)
		}
		if done {
			delete(p.notes.layers, entry.Name)
			continue
		}
		recordOutcome(&entry, err, metav1.NewTime(p.Now()))
		keep = append(keep, entry)
	}
	p.child.Status.Layers = keep
}

// unselected is an error unless the API server itself says that a layer is gone
// or does not select the cluster: a cache that lags must not delete anything.
func (r *run) unselected(ctx context.Context, cluster capibridge.Cluster, name string) error {
	layer := &v1alpha1.Layer{}
	err := r.Cluster.Get(ctx, types.NamespacedName{Namespace: r.child.Namespace, Name: name}, layer)
	switch {
	case apierrors.IsNotFound(err):
		return r.layersStand(ctx)
	case err != nil:
		return because(v1alpha1.ReasonProgressing, fmt.Errorf("cannot read Layer %s to tell whether it still selects this cluster: %w", name, err))
	case layer.DeletionTimestamp.IsZero() && Selects(layer, cluster.Labels):
		return because(v1alpha1.ReasonProgressing, fmt.Errorf("layer %s selects this cluster again", name))
	}
	return nil
}

// layersStand is an error while the kind Layer itself is missing or being deleted.
// Deleting the definition deletes all Layers, and nobody meant to delete what they
// applied.
func (r *run) layersStand(ctx context.Context) error {
	crd := &metav1.PartialObjectMetadata{}
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	if err := r.Cluster.Get(ctx, types.NamespacedName{Name: layerCRD}, crd); err != nil {
		return because(v1alpha1.ReasonProgressing, fmt.Errorf("cannot tell whether the kind Layer is being removed: %w", err))
	}
	if !crd.DeletionTimestamp.IsZero() {
		return because(v1alpha1.ReasonProgressing, errors.New("the kind Layer is being removed; what layers applied stays"))
	}
	return nil
}

// remove deletes what a layer applied, if its deletion policy says so, and then the
// rights that the parent had for the layer.
func (p *push) remove(ctx context.Context, entry *v1alpha1.ChildLayer) (done bool, err error) {
	role := layerRole(p.child.Namespace, entry.Name)
	if entry.DeletionPolicy == v1alpha1.DeletionDelete && len(entry.Inventory) > 0 {
		owned, err := entriesOf(entry.Inventory)
		if err != nil {
			return false, err
		}
		if err := p.ensure(ctx, baseRole, baseRights()); err != nil {
			return false, err
		}
		// To see what a Namespace holds, and which kinds are gone, takes more rights than
		// the layer has.
		cluster, err := p.link.administrator(ctx, p.request)
		if err != nil {
			return false, err
		}
		res, err := apply.New(cluster, ownerOf(p.child.Namespace, entry.Name), nil, p.Now).Remove(ctx, owned, apply.Options{
			Target: p.child.Status.Identity.KubeSystemUID, LowerTier: true, Approved: p.child.Annotations[v1alpha1.ApprovePruneAnnotation],
			Undecided: undecided(entry),
		})
		entry.Inventory = refsOf(res.Inventory)
		switch {
		case err != nil:
			return false, because(v1alpha1.ReasonPruneFailed, err)
		case res.Plan.Blocked():
			entry.Held = &v1alpha1.Held{Prune: res.Plan.Hold()}
			return false, because(v1alpha1.ReasonPruneBlocked, errors.New(res.Plan.Message(p.named())))
		case len(res.Inventory) > 0:
			return false, because(v1alpha1.ReasonProgressing, fmt.Errorf("waiting for %d objects to be deleted", len(res.Inventory)))
		}
	}
	if err := p.ensure(ctx, baseRole, baseRights()); err != nil {
		return false, err
	}
	if err := p.link.revoke(ctx, p.request, role); err != nil {
		return false, because(v1alpha1.ReasonSeedFailed, err)
	}
	return true, nil
}

// undecided reports whether the last prune plan of a layer was held for approval.
func undecided(entry *v1alpha1.ChildLayer) bool {
	var hold *v1alpha1.HeldPrune
	if entry.Held != nil {
		hold = entry.Held.Prune
	}
	return inventory.Undecided(entry.Reason == v1alpha1.ReasonPruneBlocked, hold)
}

// named is how the command line names the child.
func (r *run) named() string {
	return fmt.Sprintf("%s -n %s --kind Child", r.child.Name, r.child.Namespace)
}

// publish writes a condition on the Cluster that says whether the child is seeded.
// A Cluster can name that condition as one of its availability gates.
func (r *run) publish(ctx context.Context) error {
	seeded := meta.FindStatusCondition(r.child.Status.Conditions, v1alpha1.SeededCondition)
	if r.object == nil || seeded == nil {
		return nil
	}
	path := []string{"status", "conditions"}
	if gvk := r.object.GroupVersionKind(); gvk.Version == "v1beta1" {
		path = []string{"status", "v1beta2", "conditions"}
	}
	list, _, _ := unstructured.NestedSlice(r.object.Object, path...)
	since := seeded.LastTransitionTime.UTC().Format(time.RFC3339)
	for _, item := range list {
		c, _ := item.(map[string]any)
		if c["type"] != v1alpha1.ClusterSeededCondition {
			continue
		}
		if c["status"] == string(seeded.Status) {
			if c["reason"] == seeded.Reason && c["message"] == seeded.Message {
				return nil
			}
			since, _ = c["lastTransitionTime"].(string)
		}
	}
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(r.object.GroupVersionKind())
	u.SetNamespace(r.object.GetNamespace())
	u.SetName(r.object.GetName())
	u.SetUID(r.object.GetUID())
	condition := map[string]any{
		"type": v1alpha1.ClusterSeededCondition, "status": string(seeded.Status), "reason": seeded.Reason, "message": seeded.Message, "lastTransitionTime": since,
	}
	if err := unstructured.SetNestedSlice(u.Object, []any{condition}, path...); err != nil {
		return fmt.Errorf("cannot set condition of Cluster %s: %w", r.key(), err)
	}
	err := r.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.ForceOwnership, client.FieldOwner(statusManager))
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("cannot publish condition %s on Cluster %s: %w", v1alpha1.ClusterSeededCondition, r.key(), err)
	}
	return nil
}

func (r *run) summarizeLayers(selected []*v1alpha1.Layer) {
	for _, layer := range selected {
		if layer.Spec.Suspend {
			continue
		}
		entry := r.entry(layer.Name)
		if !entry.Ready {
			r.condition(v1alpha1.SeededCondition, metav1.ConditionFalse, entry.Reason, "layer %s: %s", entry.Name, entry.Message)
			return
		}
	}
	if len(selected) == 0 {
		r.condition(v1alpha1.SeededCondition, metav1.ConditionFalse, v1alpha1.ReasonNoLayer, "no Layer of namespace %s selects this cluster", r.child.Namespace)
		return
	}
	r.condition(v1alpha1.SeededCondition, metav1.ConditionTrue, v1alpha1.ReasonSucceeded, "all %d layers are in place", len(selected))
}

// observe sets Ready from the layers and from the report of the child's agent.
func (r *run) observe(found *probeResult, selected []*v1alpha1.Layer) {
	seeded := meta.FindStatusCondition(r.child.Status.Conditions, v1alpha1.SeededCondition)
	connected := meta.FindStatusCondition(r.child.Status.Conditions, v1alpha1.ConnectedCondition)
	withAgent := slices.ContainsFunc(selected, hasAgent)
	r.child.Status.Report = nil
	if withAgent {
		r.child.Status.Report = found.agent.report
	}
	r.warn()
	switch report := r.child.Status.Report; {
	case connected.Status != metav1.ConditionTrue: // the push found another cluster
	case seeded.Status != metav1.ConditionTrue:
		r.condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, seeded.Reason, "%s", seeded.Message)
	case withAgent && found.agent.err != nil:
		r.condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, reasonOf(found.agent.err), "%s", found.agent.err)
	case withAgent && report == nil:
		r.condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonAgentNotReady, "the agent has not been asked yet")
	case withAgent && !report.Ready:
		r.condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, report.Reason, "%s", report.Message)
	default:
		r.condition(v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReasonSucceeded, "connected, seeded and in sync")
	}
}

// grew is when a push last made progress, or since if that was later.
func (n *notes) grew(since time.Time) time.Time {
	if n == nil {
		return since
	}
	for _, layer := range n.layers {
		if layer.progress.grew.After(since) {
			since = layer.progress.grew
		}
	}
	return since
}

// next says when to reconcile again.
func (r *run) next() ctrl.Result {
	c := meta.FindStatusCondition(r.child.Status.Conditions, v1alpha1.ReadyCondition)
	switch {
	case c.Status == metav1.ConditionTrue && r.movingBelow():
		return ctrl.Result{RequeueAfter: r.jittered(min(movingPause, r.ObserveInterval))}
	case c.Status == metav1.ConditionTrue:
		return ctrl.Result{RequeueAfter: r.jittered(r.ObserveInterval), Priority: new(periodic)}
	case c.Reason == v1alpha1.ReasonPruneBlocked, c.Reason == v1alpha1.ReasonPaused, c.Reason == v1alpha1.ReasonNoLayer, c.Reason == v1alpha1.ReasonInvalidSpec:
		return ctrl.Result{RequeueAfter: r.jittered(r.ObserveInterval)}
	case r.Now().Sub(r.notes.grew(c.LastTransitionTime.Time)) > time.Minute:
		// Not ready for a while: it will not change within a second.
		return ctrl.Result{RequeueAfter: r.jittered(min(waitPause, r.ObserveInterval))}
	}
	return ctrl.Result{RequeueAfter: progressPause}
}

// movingBelow reports whether the child reports tiers below it that are not ready,
// so that its report is about to change.
func (r *run) movingBelow() bool {
	report := r.child.Status.Report
	return report != nil && report.Children != nil && report.Children.Ready < report.Children.Total
}

// jittered spreads children that would be reconciled at the same time.
func (r *run) jittered(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.2*r.Rand()))
}

// short bounds a message for a condition.
func short(s string) string { return cut(s, 2000) }

// cut bounds a text at a whole letter. The API server replaces half a letter, and
// then the text would differ from ours in every comparison.
func cut(s string, most int) string {
	if len(s) > most {
		return strings.ToValidUTF8(s[:most-3], "") + "..."
	}
	return s
}
