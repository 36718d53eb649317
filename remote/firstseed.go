package remote

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/plan"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/record"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
)

// firstSyncFlag among the arguments of a layer's agent is how earlier versions said
// spec.agent.firstSync. It does not reach the child: there it would stay for ever, also in
// a cluster that was lost and is built again.
const firstSyncFlag = "--first-sync"

// agentArgs are the arguments that reach the child. create reports whether those that do not
// say that new children create Clusters without approval.
func agentArgs(agent *v1alpha1.AgentSpec) (args []string, create bool) {
	for i := 0; i < len(agent.Args); i++ {
		flag, value, joined := strings.Cut(agent.Args[i], "=")
		if flag != firstSyncFlag {
			args = append(args, agent.Args[i])
			continue
		}
		if !joined && i+1 < len(agent.Args) {
			i++
			value = agent.Args[i]
		}
		create = value == "create"
	}
	return args, create
}

// createsFirst reports whether new children of a layer create Clusters without approval.
func createsFirst(agent *v1alpha1.AgentSpec) bool {
	_, create := agentArgs(agent)
	return create || agent.FirstSync == v1alpha1.FirstSyncPolicyCreate
}

// FirstSeeds remember, in this tier, to which cluster of a name an agent was pushed
// first: one ConfigMap for each name, which outlives the Child and the Cluster. They are
// lost when this tier is, with its own record of the first sync, and only then.
//
// They are safe for concurrent use.
type FirstSeeds struct {
	// tier reads from the API server of this tier, and writes.
	tier client.Client
	// namespace of the agent.
	namespace string

	mu sync.Mutex
	// known has, for each name, the identity of the cluster; nil before it is read.
	known map[types.NamespacedName]string
}

// NewFirstSeeds returns what a tier remembers in the namespace of its agent. c reads from
// the API server, not from a cache.
func NewFirstSeeds(c client.Client, namespace string) *FirstSeeds {
	return &FirstSeeds{tier: c, namespace: namespace}
}

// Keys of the ConfigMap.
const (
	seedNamespaceKey = "namespace"
	seedNameKey      = "name"
	seedIdentityKey  = "kubeSystemUID"
)

// firstSeedName is the name of the ConfigMap of a child.
func firstSeedName(child types.NamespacedName) string {
	name := v1alpha1.FirstSeedPrefix + child.Namespace + "." + child.Name
	if len(name) > 253 {
		sum := sha256.Sum256([]byte(name))
		name = v1alpha1.FirstSeedPrefix + hex.EncodeToString(sum[:])
	}
	return name
}

// reread makes the next call read what is remembered: other processes wrote it, too. Children
// that this process drives from now on would each be written down again, and refused.
func (s *FirstSeeds) reread() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = nil
}

// of returns what is remembered of a name. The first call reads all that is.
func (s *FirstSeeds) of(ctx context.Context, child types.NamespacedName) (identity string, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil {
		list := &corev1.ConfigMapList{}
		if err := s.tier.List(ctx, list, client.InNamespace(s.namespace), client.HasLabels{v1alpha1.FirstSeedLabel}); err != nil {
			return "", false, fmt.Errorf("cannot list the ConfigMaps of first seeds: %w", err)
		}
		s.known = make(map[types.NamespacedName]string, len(list.Items))
		for i := range list.Items {
			data := list.Items[i].Data
			s.known[types.NamespacedName{Namespace: data[seedNamespaceKey], Name: data[seedNameKey]}] = data[seedIdentityKey]
		}
	}
	identity, ok = s.known[child]
	return identity, ok, nil
}

// remember writes down that an agent is pushed to a cluster, unless one of its name is on
// record. The first one stays.
func (s *FirstSeeds) remember(ctx context.Context, child types.NamespacedName, identity string) error {
	if _, ok, err := s.of(ctx, child); ok || err != nil {
		return err
	}
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.namespace, Name: firstSeedName(child), Labels: map[string]string{v1alpha1.FirstSeedLabel: "child"},
		},
		Data: map[string]string{seedNamespaceKey: child.Namespace, seedNameKey: child.Name, seedIdentityKey: identity},
	}
	if err := s.tier.Create(ctx, cm, client.FieldOwner(statusManager)); apierrors.IsAlreadyExists(err) {
		// Of a call whose answer was lost, or of a process that led this tier meanwhile.
		_, _, err = s.find(ctx, child)
		return err
	} else if err != nil {
		return fmt.Errorf("cannot create ConfigMap %s/%s: %w", cm.Namespace, cm.Name, err)
	}
	s.note(child, cm)
	return nil
}

// find returns what is remembered of a name, also by a process that wrote it after all was read here.
func (s *FirstSeeds) find(ctx context.Context, child types.NamespacedName) (identity string, ok bool, err error) {
	if identity, ok, err = s.of(ctx, child); ok || err != nil {
		return identity, ok, err
	}
	cm := &corev1.ConfigMap{}
	name := types.NamespacedName{Namespace: s.namespace, Name: firstSeedName(child)}
	if err := s.tier.Get(ctx, name, cm); apierrors.IsNotFound(err) {
		return "", false, nil
	} else if err != nil {
		return "", false, fmt.Errorf("cannot read ConfigMap %s: %w", name, err)
	}
	s.note(child, cm)
	return cm.Data[seedIdentityKey], true, nil
}

// note keeps what stands in the ConfigMap of a child.
func (s *FirstSeeds) note(child types.NamespacedName, cm *corev1.ConfigMap) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known != nil {
		s.known[child] = cm.Data[seedIdentityKey]
	}
}

// rememberSeeded makes sure that a child that has an agent is on record, also one to which
// an earlier version pushed it. A Cluster that is paused before anything was pushed is
// being moved here or restored: it is not new.
func (r *run) rememberSeeded(ctx context.Context, paused bool, selected []*v1alpha1.Layer) error {
	if !slices.ContainsFunc(selected, hasAgent) {
		return nil
	}
	identity, seeded := "", false
	if id := r.child.Status.Identity; id != nil {
		identity = id.KubeSystemUID
		for _, layer := range selected {
			entry := entryOf(r.child, layer.Name)
			seeded = seeded || hasAgent(layer) && entry != nil && entry.LastAttemptedDigest != ""
		}
	}
	if !seeded && !(paused && identity == "") {
		return nil
	}
	return r.FirstSeeds.remember(ctx, r.key(), identity)
}

// beginAgent settles what has to be before an agent is pushed to a child for the first
// time: whether the child is new, so that its agent may create Clusters without approval.
// The record in the child says so, once. This tier remembers that after the record is there: a
// push that ends before is the first one still, and a record that is gone later was deleted.
func (s *seeding) beginAgent(ctx context.Context) error {
	if createsFirst(s.layer.Spec.Agent) {
		if err := s.tellFirst(ctx); err != nil {
			return err
		}
	}
	if err := s.FirstSeeds.remember(ctx, s.run.key(), s.child.Status.Identity.KubeSystemUID); err != nil {
		return reason.Because(v1alpha1.ReasonProgressing, err)
	}
	return nil
}

// tellFirst creates the record of the first sync in a child that is new and has none.
func (s *seeding) tellFirst(ctx context.Context) error {
	admin, err := s.session.Administrator(ctx)
	if err != nil {
		return cannotReach(err)
	}
	err = admin.Get(ctx, types.NamespacedName{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.FirstSyncConfigMap}, &corev1.ConfigMap{})
	if err == nil {
		return nil // it counts, whoever wrote it
	}
	if !apierrors.IsNotFound(err) {
		return reason.Because(v1alpha1.ReasonSeedFailed, fmt.Errorf("cannot read the record of the first sync in the child: %w", err))
	}
	before, remembered, err := s.FirstSeeds.find(ctx, s.run.key())
	if err != nil {
		return reason.Because(v1alpha1.ReasonProgressing, err)
	}
	facts := plan.FirstSeed{
		Remembered: remembered, Before: before, Identity: s.child.Status.Identity.KubeSystemUID,
		Replaces: s.push.cluster.Annotations[v1alpha1.FirstSyncAnnotation] == firstSyncReplaces,
	}
	if s.object != nil {
		facts.Made = s.object.GetCreationTimestamp().Time
	}
	if facts.Settled, err = s.FirstSeeds.settled(ctx); err != nil {
		return reason.Because(v1alpha1.ReasonProgressing, err)
	}
	may, why := facts.MayCreate()
	if !may {
		s.Events.Eventf(s.child, corev1.EventTypeNormal, "FirstSyncHeld", "the agent creates no Cluster without approval: %s", why)
		return nil
	}
	record := firstsync.SettledRecord(v1alpha1.AgentNamespace, "its parent says so: "+why, s.Now())
	if err := admin.Create(ctx, record, client.FieldOwner(seedManager)); err != nil && !apierrors.IsAlreadyExists(err) {
		return reason.Because(v1alpha1.ReasonSeedFailed, fmt.Errorf("cannot create the record of the first sync in the child: %w", err))
	}
	s.Events.Eventf(s.child, corev1.EventTypeNormal, "FirstSyncSettled", "the agent creates Clusters without approval: %s", why)
	return nil
}

// firstSyncReplaces is the value of the annotation of a Cluster that takes the place of
// another one.
const firstSyncReplaces = "adopt"

// settled is since when this tier creates Clusters without approval, zero if it does not.
func (s *FirstSeeds) settled(ctx context.Context) (time.Time, error) {
	cm := &corev1.ConfigMap{}
	err := s.tier.Get(ctx, types.NamespacedName{Namespace: s.namespace, Name: v1alpha1.FirstSyncConfigMap}, cm)
	if err != nil && !apierrors.IsNotFound(err) {
		return time.Time{}, fmt.Errorf("cannot read the record of this tier's first sync: %w", err)
	}
	since, _ := firstsync.SettledSince(cm)
	return since, nil
}

// firstSync reads the child's record of the first sync, for the Clusters that the
// layer declares; nil if it declares none. A management cluster that a parent pushes
// to may have been lost and rebuilt. Then the push must not create Clusters that run
// already.
func (s *seeding) firstSync(ctx context.Context, phases []apply.Phase, rec *record.Record) (*inventory.FirstSync, error) {
	var objects []*unstructured.Unstructured
	for _, p := range phases {
		objects = append(objects, p.Objects...)
	}
	if inventory.FleetOf(objects).Empty() {
		return nil, nil
	}
	// The parent's own account may not read the record of the child's agent.
	admin, err := s.session.Administrator(ctx)
	if err != nil {
		return nil, err
	}
	known, err := firstsync.Other{Reader: admin}.For(ctx, objects)
	if err != nil {
		return nil, reason.Because(v1alpha1.ReasonSeedFailed, err)
	}
	return ofLayer(known, rec.Settled), nil
}

// ofLayer is what counts for the Clusters of a layer, of what the record of the tier says
// in the child, nil if there is none, and of what the layer's own record says.
func ofLayer(known *inventory.FirstSync, settled bool) *inventory.FirstSync {
	if known == nil {
		known = &inventory.FirstSync{Elsewhere: true}
	}
	// A backup of the child has both, and a person can only be right about it.
	known.Settled = known.Settled || settled && !known.Insisted
	return known
}
