package remote

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/remote/providers"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// When a child is visited again without an event.
const (
	// progressPause is the pause while something is on its way.
	progressPause = time.Second
	// movingPause is the pause while tiers below the child are not ready: what
	// they report comes up tier by tier.
	movingPause = 3 * time.Second
	// waitPause is the pause while something else has to happen first, of which
	// an event should tell.
	waitPause = 10 * time.Second
)

// statusManager is the field manager of the status of our own kinds.
const statusManager = "cascade"

// Children reconciles Child objects: one visit to one cluster each time.
type Children struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Cluster reads from the API server of this tier.
	Cluster     *apply.Cluster
	Snapshots   *source.Snapshots
	Connections *Connections
	Events      record.EventRecorder
	Metrics     *Metrics
	Now         func() time.Time
	// AgentImage is installed in children whose layer names none.
	AgentImage string
	// Providers makes what layers say in spec.providers; the layers of all
	// children share it.
	Providers *providers.Library
	// ObserveInterval is the time between two readings of a report.
	ObserveInterval time.Duration

	mu     sync.Mutex
	seeded map[types.NamespacedName]map[string]seededInputs
}

// seededInputs is what a layer was made of when it was found to be in place.
// It is kept in memory only: without it the layer is rendered and its digest
// compared, which writes nothing either.
type seededInputs struct {
	inputs    string
	requested string
}

// Reconcile visits one child.
func (r *Children) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	child := &v1alpha1.Child{}
	// From the API server: the inventories must be the ones we wrote last.
	err := r.Cluster.Get(ctx, req.NamespacedName, child)
	if apierrors.IsNotFound(err) {
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
	v := &visit{Children: r, child: child, recorded: child.DeepCopy()}
	result, err := v.run(ctx)
	if v.gone {
		r.forget(req.NamespacedName)
		return ctrl.Result{}, err
	}
	child.Status.ObservedGeneration = child.Generation
	child.Status.LastHandledReconcileAt = child.Annotations[fluxmeta.ReconcileRequestAnnotation]
	if rerr := v.record(ctx); rerr != nil {
		return ctrl.Result{}, errors.Join(err, rerr)
	}
	r.Metrics.observe(child)
	return result, err
}

func (r *Children) forget(key types.NamespacedName) {
	r.Connections.Forget(key)
	r.Metrics.forget(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.seeded, key)
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
	return ctrl.Result{}, nil
}

// childLabels are a Cluster's labels without those that say to whom the Cluster
// belongs: a Child belongs to nobody.
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

// cluster reads a Cluster from the API server; nil means confirmed absent.
func (r *Children) cluster(ctx context.Context, key types.NamespacedName) (*unstructured.Unstructured, error) {
	mapping, err := r.Cluster.RESTMapper().RESTMapping(capibridge.ClusterKind)
	if meta.IsNoMatchError(err) {
		return nil, errNoClusterAPI
	}
	if err != nil {
		return nil, fmt.Errorf("cannot look up kind Cluster: %w", err)
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(mapping.GroupVersionKind)
	err = r.Cluster.Get(ctx, key, u)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case meta.IsNoMatchError(err):
		return nil, errNoClusterAPI
	case err != nil:
		return nil, fmt.Errorf("cannot read Cluster %s: %w", key, err)
	}
	return u, nil
}

// visit is one reconcile of one child.
type visit struct {
	*Children
	child *v1alpha1.Child
	// recorded is the Child as the API server has it.
	recorded *v1alpha1.Child
	// gone: the Child was deleted.
	gone bool
}

// record writes the status if it changed.
func (v *visit) record(ctx context.Context) error {
	if equality.Semantic.DeepEqual(v.recorded.Status, v.child.Status) {
		return nil
	}
	// The answer is decoded into the copy: the visit goes on with its own.
	after := v.child.DeepCopy()
	err := v.Client.Status().Patch(ctx, after, client.MergeFrom(v.recorded), client.FieldOwner(statusManager))
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot write status of Child %s/%s: %w", v.child.Namespace, v.child.Name, err)
	}
	v.recorded = v.child.DeepCopy()
	return nil
}

func (v *visit) key() types.NamespacedName { return client.ObjectKeyFromObject(v.child) }

func (v *visit) condition(kind string, status metav1.ConditionStatus, reason, format string, args ...any) {
	meta.SetStatusCondition(&v.child.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: short(fmt.Sprintf(format, args...)), ObservedGeneration: v.child.Generation,
	})
}

// notConnected says why the child is not spoken to. What is known of it stays.
func (v *visit) notConnected(status metav1.ConditionStatus, reason, format string, args ...any) {
	v.condition(v1alpha1.ConnectedCondition, status, reason, format, args...)
	v.condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, reason, format, args...)
	if !meta.IsStatusConditionTrue(v.child.Status.Conditions, v1alpha1.SeededCondition) {
		v.condition(v1alpha1.SeededCondition, metav1.ConditionFalse, reason, format, args...)
	}
}

func (v *visit) run(ctx context.Context) (ctrl.Result, error) {
	cluster, ok, result, err := v.facts(ctx)
	if !ok {
		return result, err
	}
	selected, err := v.selected(ctx, cluster)
	if err != nil {
		return ctrl.Result{}, err
	}
	if len(selected) == 0 && len(v.child.Status.Layers) == 0 {
		v.notConnected(metav1.ConditionUnknown, v1alpha1.ReasonNoLayer, "no Layer of namespace %s selects this cluster", v.child.Namespace)
		return ctrl.Result{}, nil
	}
	base := capibridge.Gate(cluster, capibridge.WhenControlPlaneInitialized)
	if !base.Open && base.Reason != v1alpha1.ReasonPaused {
		v.notConnected(metav1.ConditionFalse, base.Reason, "%s", base.Message)
		return ctrl.Result{RequeueAfter: v.jittered(waitPause)}, nil
	}
	link, ok, result, err := v.dial(ctx, cluster)
	if !ok {
		return result, err
	}
	v.seedAll(ctx, link, cluster, selected)
	v.observe(ctx, link, selected)
	return v.next(), nil
}

// facts gathers what Cluster API says. ok is false if the visit ends here.
func (v *visit) facts(ctx context.Context) (cluster capibridge.Cluster, ok bool, result ctrl.Result, err error) {
	if v.child.Spec.ClusterRef == nil {
		return capibridge.Cluster{
			Namespace: v.child.Namespace, Name: v.child.Name, Labels: v.child.Labels, Annotations: v.child.Annotations,
			InfrastructureProvisioned: true, ControlPlaneInitialized: true,
		}, true, result, nil
	}
	key := types.NamespacedName{Namespace: v.child.Namespace, Name: v.child.Spec.ClusterRef.Name}
	u, err := v.cluster(ctx, key)
	if errors.Is(err, errNoClusterAPI) {
		v.notConnected(metav1.ConditionUnknown, v1alpha1.ReasonClusterNotReady, "%s", err)
		return cluster, false, ctrl.Result{RequeueAfter: v.jittered(waitPause)}, nil
	}
	if err != nil {
		return cluster, false, result, err
	}
	if u == nil {
		// Confirmed absent. The records go without any contact: there is nothing
		// left to contact.
		v.gone = true
		err := v.Client.Delete(ctx, v.child, client.Preconditions{UID: &v.child.UID})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return cluster, false, result, fmt.Errorf("cannot delete Child %s of a Cluster that is gone: %w", v.key(), err)
		}
		return cluster, false, result, nil
	}
	cluster = capibridge.FromObject(u)
	if id := v.child.Status.Identity; id != nil && id.ClusterUID != "" && id.ClusterUID != cluster.UID {
		// Re-created under the same name: another cluster, which has nothing yet.
		v.Children.forget(v.key())
		v.child.Status = v1alpha1.ChildStatus{}
		if err := v.record(ctx); err != nil {
			return cluster, false, result, err
		}
		v.Events.Eventf(v.child, corev1.EventTypeNormal, "ClusterRecreated", "Cluster was re-created, it is seeded afresh")
	}
	if cluster.Deleting {
		v.Children.forget(v.key())
		v.child.Status.Layers, v.child.Status.Report, v.child.Status.Credentials = nil, nil, nil
		meta.RemoveStatusCondition(&v.child.Status.Conditions, v1alpha1.SeededCondition)
		v.notConnected(metav1.ConditionFalse, v1alpha1.ReasonClusterDeleting, "Cluster is being deleted")
		return cluster, false, ctrl.Result{RequeueAfter: v.jittered(waitPause)}, nil
	}
	if labels := childLabels(cluster.Labels); !maps.Equal(v.child.Labels, labels) {
		before := v.child.DeepCopy()
		after := v.child.DeepCopy()
		after.Labels = labels
		if err := v.Client.Patch(ctx, after, client.MergeFrom(before), client.FieldOwner(statusManager)); err != nil {
			return cluster, false, result, client.IgnoreNotFound(err)
		}
		v.child.Labels = labels
	}
	return cluster, true, result, nil
}

// selected returns the layers that select the child, those that others depend
// on first.
func (v *visit) selected(ctx context.Context, cluster capibridge.Cluster) ([]*v1alpha1.Layer, error) {
	list := &v1alpha1.LayerList{}
	if err := v.Client.List(ctx, list, client.InNamespace(v.child.Namespace)); err != nil {
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
// selector selects nothing: everything would be too much to say by omission.
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

// dial connects to the child and makes sure that it is the one it was.
func (v *visit) dial(ctx context.Context, cluster capibridge.Cluster) (l *link, ok bool, result ctrl.Result, err error) {
	kubeconfig, err := v.kubeconfig(ctx, cluster)
	if err != nil {
		v.notConnected(metav1.ConditionFalse, v1alpha1.ReasonKubeconfigMissing, "%s", err)
		return nil, false, ctrl.Result{RequeueAfter: v.jittered(waitPause)}, nil
	}
	l = v.Connections.link(v.key())
	if err := l.use(kubeconfig); err != nil {
		v.notConnected(metav1.ConditionFalse, v1alpha1.ReasonKubeconfigRefused, "%s", err)
		return nil, false, ctrl.Result{RequeueAfter: v.jittered(waitPause)}, nil
	}
	uid, err := l.identify(ctx)
	if err != nil {
		if !errors.Is(err, errBackingOff) {
			v.notConnected(metav1.ConditionFalse, v1alpha1.ReasonUnreachable, "%s", err)
		}
		return nil, false, ctrl.Result{RequeueAfter: max(l.notBefore.Sub(v.Now()), 100*time.Millisecond)}, nil
	}
	id := v.child.Status.Identity
	if id != nil && id.KubeSystemUID != uid {
		v.notConnected(metav1.ConditionFalse, v1alpha1.ReasonIdentityChanged,
			"the API server belongs to another cluster: kube-system has UID %s, recorded is %s; nothing is written to it. If this is intended, delete this Child to have the cluster seeded afresh", uid, id.KubeSystemUID)
		return nil, false, ctrl.Result{RequeueAfter: v.jittered(waitPause)}, nil
	}
	if id == nil {
		v.child.Status.Identity = &v1alpha1.ChildIdentity{ClusterUID: cluster.UID, KubeSystemUID: uid}
		// Durable before the first write to the child.
		if err := v.record(ctx); err != nil {
			return nil, false, result, err
		}
	}
	if l.version == "" {
		if l.version, err = l.cluster().Version(ctx); err != nil {
			l.failed()
			v.notConnected(metav1.ConditionFalse, v1alpha1.ReasonUnreachable, "%s", err)
			return nil, false, ctrl.Result{RequeueAfter: progressPause}, nil
		}
	}
	v.child.Status.Version = l.version
	v.condition(v1alpha1.ConnectedCondition, metav1.ConditionTrue, v1alpha1.ReasonSucceeded, "API server answers, its identity is the recorded one")
	return l, true, result, nil
}

func (v *visit) kubeconfig(ctx context.Context, cluster capibridge.Cluster) ([]byte, error) {
	name, key := capibridge.KubeconfigSecret(cluster.Name), capibridge.KubeconfigKey
	if ref := v.child.Spec.KubeConfig; ref != nil {
		name = ref.SecretRef.Name
		if ref.SecretRef.Key != "" {
			key = ref.SecretRef.Key
		}
	}
	secret := &corev1.Secret{}
	if err := v.Cluster.Get(ctx, types.NamespacedName{Namespace: v.child.Namespace, Name: name}, secret); err != nil {
		return nil, fmt.Errorf("cannot read Secret %s: %w", name, err)
	}
	if v.child.Spec.ClusterRef != nil && !capibridge.BelongsTo(secret, cluster) {
		return nil, fmt.Errorf("cannot use Secret %s: it does not belong to Cluster %s, it has neither the label %s nor an owner", name, cluster.Name, capibridge.ClusterNameLabel)
	}
	if len(secret.Data[key]) == 0 {
		return nil, fmt.Errorf("cannot use Secret %s: it has no key %s", name, key)
	}
	return secret.Data[key], nil
}

// seedAll brings each selected layer into the child and answers for those that
// no longer select it. A layer that fails does not stop those that do not
// depend on it.
func (v *visit) seedAll(ctx context.Context, l *link, cluster capibridge.Cluster, selected []*v1alpha1.Layer) {
	vars := cluster.Variables(l.version)
	agents := 0
	var credentials []v1alpha1.ChildCredential
	for _, layer := range selected {
		if layer.Spec.Suspend {
			continue
		}
		if layer.Spec.Agent != nil {
			agents++
		}
		entry := v.entry(layer.Name)
		err := v.seedOne(ctx, l, cluster, layer, entry, vars, agents)
		settle(entry, err, metav1.NewTime(v.Now()))
		for _, c := range layer.Spec.Credentials {
			credentials = append(credentials, v1alpha1.ChildCredential{Name: c.Name})
		}
	}
	slices.SortFunc(credentials, func(a, b v1alpha1.ChildCredential) int { return strings.Compare(a.Name, b.Name) })
	v.child.Status.Credentials = slices.CompactFunc(credentials, func(a, b v1alpha1.ChildCredential) bool { return a.Name == b.Name })
	if !cluster.Paused {
		v.release(ctx, l, cluster, selected)
	}
	v.summarizeLayers(selected)
}

func (v *visit) entry(name string) *v1alpha1.ChildLayer {
	layers := &v.child.Status.Layers
	for i := range *layers {
		if (*layers)[i].Name == name {
			return &(*layers)[i]
		}
	}
	*layers = append(*layers, v1alpha1.ChildLayer{Name: name, Reason: v1alpha1.ReasonProgressing, Since: metav1.NewTime(v.Now())})
	return &(*layers)[len(*layers)-1]
}

func (v *visit) seedOne(ctx context.Context, l *link, cluster capibridge.Cluster, layer *v1alpha1.Layer, entry *v1alpha1.ChildLayer, vars map[string]string, agents int) error {
	if verdict := capibridge.Gate(cluster, layer.Spec.ReadyWhen); !verdict.Open {
		return because(verdict.Reason, errors.New(verdict.Message))
	}
	if layer.Spec.Agent != nil && agents > 1 {
		return because(v1alpha1.ReasonInvalidSpec, errors.New("another layer already installs the agent in this child; remove spec.agent from one of them"))
	}
	for _, d := range layer.Spec.DependsOn {
		i := slices.IndexFunc(v.child.Status.Layers, func(e v1alpha1.ChildLayer) bool { return e.Name == d.Name })
		if i < 0 || !v.child.Status.Layers[i].Ready {
			return because(v1alpha1.ReasonDependencyNotReady, fmt.Errorf("layer %s is not ready on this child", d.Name))
		}
	}
	s := &seeding{
		layer: layer, child: v.child, link: l, vars: maps.Clone(vars), image: v.AgentImage, now: v.Now,
		components: components{library: v.Providers}, record: v.record,
	}
	if err := v.gather(ctx, s); err != nil {
		return err
	}
	inputs := s.inputs()
	known := v.known(layer.Name)
	if known.inputs == inputs && s.fresh(*entry) && (entry.Ready || entry.Reason == v1alpha1.ReasonPruneBlocked) {
		if s.snapshot != nil {
			entry.Revision = s.snapshot.Revision // of another commit with the same content
		}
		if entry.Ready {
			return nil
		}
		return because(entry.Reason, errors.New(entry.Message))
	}
	if err := l.mint(ctx); err != nil {
		return because(v1alpha1.ReasonSeedFailed, err)
	}
	ctx, cancel := context.WithTimeout(ctx, layer.Spec.Timeout.Duration)
	defer cancel()
	verify := (known.inputs != "" && known.requested != s.requested()) || entry.Reason == v1alpha1.ReasonPruneBlocked
	err := s.seed(ctx, entry, vars, verify)
	if err == nil || reasonOf(err) == v1alpha1.ReasonPruneBlocked {
		v.know(layer.Name, seededInputs{inputs: inputs, requested: s.requested()})
	}
	return err
}

func (v *visit) known(layer string) seededInputs {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.seeded[v.key()][layer]
}

func (v *visit) know(layer string, in seededInputs) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.seeded == nil {
		v.seeded = map[types.NamespacedName]map[string]seededInputs{}
	}
	if v.seeded[v.key()] == nil {
		v.seeded[v.key()] = map[string]seededInputs{}
	}
	v.seeded[v.key()][layer] = in
}

// settle writes the outcome into the layer's record.
func settle(entry *v1alpha1.ChildLayer, err error, now metav1.Time) {
	ready, reason, message := err == nil, v1alpha1.ReasonSucceeded, ""
	if err != nil {
		reason, message = reasonOf(err), short(err.Error())
	}
	if entry.Ready != ready || entry.Reason != reason {
		entry.Since = now
	}
	entry.Ready, entry.Reason, entry.Message = ready, reason, message
}

func reasonOf(err error) string {
	var r *reasoned
	if errors.As(err, &r) {
		return r.reason
	}
	return v1alpha1.ReasonSeedFailed
}

// release answers for layers that are recorded in the child but no longer
// select it. Whether what they applied goes was said by the layer while it
// still did.
func (v *visit) release(ctx context.Context, l *link, cluster capibridge.Cluster, selected []*v1alpha1.Layer) {
	var keep []v1alpha1.ChildLayer
	for _, entry := range v.child.Status.Layers {
		if slices.ContainsFunc(selected, func(s *v1alpha1.Layer) bool { return s.Name == entry.Name }) {
			keep = append(keep, entry)
			continue
		}
		if entry.DeletionPolicy != v1alpha1.DeletionDelete {
			continue
		}
		done, err := false, v.unselected(ctx, cluster, entry.Name)
		if err == nil {
			done, err = v.remove(ctx, l, &entry)
		}
		if done {
			continue
		}
		settle(&entry, err, metav1.NewTime(v.Now()))
		keep = append(keep, entry)
	}
	v.child.Status.Layers = keep
}

// unselected is an error unless the API server itself says that a layer is gone
// or does not select the cluster: a cache that lags must not delete anything.
func (v *visit) unselected(ctx context.Context, cluster capibridge.Cluster, name string) error {
	layer := &v1alpha1.Layer{}
	err := v.Cluster.Get(ctx, types.NamespacedName{Namespace: v.child.Namespace, Name: name}, layer)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return because(v1alpha1.ReasonProgressing, fmt.Errorf("cannot read Layer %s to tell whether it still selects this cluster: %w", name, err))
	case layer.DeletionTimestamp.IsZero() && Selects(layer, cluster.Labels):
		return because(v1alpha1.ReasonProgressing, fmt.Errorf("layer %s selects this cluster again", name))
	}
	return nil
}

func (v *visit) remove(ctx context.Context, l *link, entry *v1alpha1.ChildLayer) (done bool, err error) {
	owned, err := entriesOf(entry.Inventory)
	if err != nil {
		return false, err
	}
	if err := l.mint(ctx); err != nil {
		return false, err
	}
	applier := apply.New(l.cluster(), apply.Owner{
		FieldManager: seedManager, LabelGroup: v1alpha1.LayerLabelGroup, Name: entry.Name, Namespace: v.child.Namespace,
	}, nil)
	res, err := applier.Remove(ctx, owned, apply.Options{Target: v.child.Status.Identity.KubeSystemUID, LowerTier: true})
	entry.Inventory = refsOf(res.Inventory)
	switch {
	case err != nil:
		return false, because(v1alpha1.ReasonPruneFailed, err)
	case res.Plan.Blocked():
		return false, because(v1alpha1.ReasonPruneBlocked, errors.New(res.Plan.Message(v.child.Name)))
	case len(res.Inventory) > 0:
		return false, because(v1alpha1.ReasonProgressing, fmt.Errorf("waiting for %d objects to be deleted", len(res.Inventory)))
	}
	return true, nil
}

func (v *visit) summarizeLayers(selected []*v1alpha1.Layer) {
	for _, layer := range selected {
		if layer.Spec.Suspend {
			continue
		}
		entry := v.entry(layer.Name)
		if !entry.Ready {
			v.condition(v1alpha1.SeededCondition, metav1.ConditionFalse, entry.Reason, "layer %s: %s", entry.Name, entry.Message)
			return
		}
	}
	if len(selected) == 0 {
		v.condition(v1alpha1.SeededCondition, metav1.ConditionFalse, v1alpha1.ReasonNoLayer, "no Layer of namespace %s selects this cluster", v.child.Namespace)
		return
	}
	v.condition(v1alpha1.SeededCondition, metav1.ConditionTrue, v1alpha1.ReasonSucceeded, "all %d layers are in place", len(selected))
}

// observe reads the report of the child's agent and sums up.
func (v *visit) observe(ctx context.Context, l *link, selected []*v1alpha1.Layer) {
	seeded := meta.FindStatusCondition(v.child.Status.Conditions, v1alpha1.SeededCondition)
	withAgent := slices.ContainsFunc(selected, func(layer *v1alpha1.Layer) bool { return layer.Spec.Agent != nil })
	if withAgent {
		report, err := readReport(ctx, l.cluster())
		if err == nil {
			v.child.Status.Report = report
			err = l.agentAlive(ctx)
		}
		if err != nil && seeded.Status == metav1.ConditionTrue {
			v.condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, reasonOf(err), "%s", err)
			return
		}
	} else {
		v.child.Status.Report = nil
	}
	switch report := v.child.Status.Report; {
	case seeded.Status != metav1.ConditionTrue:
		v.condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, seeded.Reason, "%s", seeded.Message)
	case withAgent && !report.Ready:
		v.condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, report.Reason, "%s", report.Message)
	default:
		v.condition(v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReasonSucceeded, "connected, seeded and in sync")
	}
}

// next says when to come back.
func (v *visit) next() ctrl.Result {
	c := meta.FindStatusCondition(v.child.Status.Conditions, v1alpha1.ReadyCondition)
	switch {
	case c.Status == metav1.ConditionTrue && v.movingBelow():
		return ctrl.Result{RequeueAfter: v.jittered(min(movingPause, v.ObserveInterval))}
	case c.Status == metav1.ConditionTrue:
		return ctrl.Result{RequeueAfter: v.jittered(v.ObserveInterval)}
	case c.Reason == v1alpha1.ReasonPruneBlocked, c.Reason == v1alpha1.ReasonPaused, c.Reason == v1alpha1.ReasonNoLayer, c.Reason == v1alpha1.ReasonInvalidSpec:
		return ctrl.Result{RequeueAfter: v.jittered(v.ObserveInterval)}
	case v.Now().Sub(c.LastTransitionTime.Time) > time.Minute:
		// Not ready for a while: whatever it is, it does not change by the second.
		return ctrl.Result{RequeueAfter: v.jittered(min(waitPause, v.ObserveInterval))}
	}
	return ctrl.Result{RequeueAfter: progressPause}
}

// movingBelow reports whether the child says that not all tiers below it are
// ready, so that its report is about to change.
func (v *visit) movingBelow() bool {
	r := v.child.Status.Report
	return r != nil && r.Children != nil && r.Children.Ready < r.Children.Total
}

// jittered spreads children that would come back at the same time.
func (v *visit) jittered(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64()))
}

// short bounds a message for a condition.
func short(s string) string { return cut(s, 2000) }

// cut bounds a text without leaving half of a letter, which the API server
// would replace, so that we would never find our own text again.
func cut(s string, most int) string {
	if len(s) > most {
		return strings.ToValidUTF8(s[:most-3], "") + "..."
	}
	return s
}
