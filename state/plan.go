package state

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge/graph"
	"github.com/cascade-gitops/cascade/remote/epoch"
	"github.com/cascade-gitops/cascade/state/archive"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
)

// Action is what becomes of an object of a saved state.
type Action string

const (
	// Create: it is not there, and is made.
	Create Action = "Create"
	// Keep: it is there as it was saved.
	Keep Action = "Keep"
	// Differ: it is there, otherwise than it was saved. It is kept.
	Differ Action = "Differ"
	// Update: it is there, and what was saved is added to it.
	Update Action = "Update"
	// Skip: it is not there, and is not made, for the reason of the step.
	Skip Action = "Skip"
	// Refuse: nothing is restored because of it.
	Refuse Action = "Refuse"
)

// Reasons of a step.
const (
	// ReasonOlder: the tier went on since the state was saved.
	ReasonOlder = "StateIsOlder"
	// ReasonSettled: the tier creates Clusters by itself and has none of that name.
	ReasonSettled = "TierIsSettled"
	// ReasonMovedAway: the Cluster was paused or moved when the tier saw it last, or manages itself.
	ReasonMovedAway = "ClusterMovedAway"
	// ReasonNotAsked: whether the Cluster manages itself by now is not known.
	ReasonNotAsked = "ClusterNotAsked"
	// ReasonRemoved: the Cluster is not in a newer state of the tier.
	ReasonRemoved = "ClusterRemovedSince"
	// ReasonOtherRestore: another state is being restored.
	ReasonOtherRestore = "OtherRestoreUnfinished"
	// ReasonClusterLives: the object's Cluster is there and is not restored.
	ReasonClusterLives = "ClusterIsThere"
	// ReasonClusterSkipped: the object's Cluster is not made.
	ReasonClusterSkipped = "ClusterIsNotRestored"
	// ReasonWasDeleting: it was being deleted, and stays paused.
	ReasonWasDeleting = "WasBeingDeleted"
	// ReasonOwnerMissing: an owner of the object is not there and is not made.
	ReasonOwnerMissing = "OwnerIsNotRestored"
)

// Step is what is done about one object.
type Step struct {
	Object string `json:"object"`
	Action Action `json:"action"`
	Reason string `json:"reason,omitempty"`
	Why    string `json:"why,omitempty"`

	saved *unstructured.Unstructured
	node  *graph.Node
	key   key
	// there is the object of here, nil if there is none.
	there *unstructured.Unstructured
}

// plan of a restore.
type plan struct {
	// id of the state, by which Clusters say that they are being restored.
	id string
	// steps in order.
	steps []*Step
	// resume are the Clusters that this restore paused, or will.
	resume []types.NamespacedName
	// meets plans a record of the tier anew that somebody made since.
	meets func(*Step) error
}

// refused are the steps for which nothing may be done.
func (p *plan) refused() []*Step {
	return slices.DeleteFunc(slices.Clone(p.steps), func(s *Step) bool { return s.Action != Refuse })
}

// facts of the tier that a state is restored to.
type facts struct {
	// there are the objects that the state has as well.
	there map[key]*unstructured.Unstructured
	// firstSync is its record, nil if there is none.
	firstSync *corev1.ConfigMap
	// lineage of the tier, empty if nobody led it.
	lineage []epoch.Mark
	// clusters are those that are there, of the ones that the state's record says were moved away.
	clusters map[types.NamespacedName]bool
	// given are the runs of Rollouts in which Children got a revision.
	given map[runKey]bool
}

// runKey names a run of a Rollout.
type runKey struct {
	namespace, rollout string
	number             int64
}

// ID identifies the content of a saved state.
func ID(s *archive.Snapshot) (string, error) {
	lines, err := s.Lines()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(lines)
	return hex.EncodeToString(sum[:8]), nil
}

// planner makes a plan.
type planner struct {
	facts   facts
	options Options
	plan    *plan
	// newer has the Clusters of a newer state, nil if there is none.
	newer map[types.NamespacedName]bool
	// restored are the Clusters that are made, or were by an earlier try.
	restored map[types.NamespacedName]bool
	// made are the UIDs of before of what is there, or will be.
	made map[types.UID]bool
	// firstSync is the state's own record, and moving are the Clusters that a pivot had.
	firstSync *corev1.ConfigMap
	moving    map[types.NamespacedName]bool
	// older: the tier went on since the state was saved.
	older bool
}

// planOf says what is to be done, from what was saved and what is there. It changes neither.
func planOf(s *archive.Snapshot, f facts, o Options) (*plan, error) {
	id, err := ID(s)
	if err != nil {
		return nil, err
	}
	objects := make([]*unstructured.Unstructured, 0, len(s.Objects))
	var other []*unstructured.Unstructured
	for i := range s.Objects {
		u := &s.Objects[i]
		if !isSaved(u.GroupVersionKind().GroupKind()) {
			return nil, fmt.Errorf("cannot use the saved state: %w: %s", ErrForeign, keyOf(u))
		}
		if isRecord(u, o.Namespace) {
			other = append(other, u)
			continue
		}
		objects = append(objects, u)
	}
	g, err := graph.Of(objects, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot use the saved state: %w", err)
	}
	inGraph := map[types.UID]bool{}
	for _, group := range g.InOrder() {
		for _, n := range group {
			inGraph[n.Object.GetUID()] = true
		}
	}
	// What a tier refers to belongs to no Cluster.
	for _, u := range objects {
		if !inGraph[u.GetUID()] {
			other = append(other, u)
		}
	}
	p := &planner{
		facts: f, options: o, plan: &plan{id: id}, made: map[types.UID]bool{},
		restored: map[types.NamespacedName]bool{}, moving: map[types.NamespacedName]bool{},
	}
	p.plan.meets = p.meets
	for _, u := range objects {
		if isCluster(u) && isMoving(u) {
			p.moving[nameOf(u)] = true
		}
	}
	if o.Newer != nil && !o.NotRemoved {
		p.newer = map[types.NamespacedName]bool{}
		for i := range o.Newer.Objects {
			if u := &o.Newer.Objects[i]; isCluster(u) {
				p.newer[nameOf(u)] = true
			}
		}
	}
	if p.firstSync, err = recordOf(s, o.Namespace, v1alpha1.FirstSyncConfigMap); err != nil {
		return nil, err
	}
	if p.older, err = p.wentOn(s); err != nil {
		return nil, err
	}
	p.clusters(g)
	slices.SortStableFunc(other, func(a, b *unstructured.Unstructured) int { return cmp.Compare(rank(a), rank(b)) })
	for _, u := range other {
		if rank(u) < afterClusters {
			if err := p.record(u); err != nil {
				return nil, err
			}
		}
	}
	for _, group := range g.InOrder() {
		for _, n := range group {
			p.object(n)
		}
	}
	for _, u := range other {
		if rank(u) >= afterClusters {
			if err := p.record(u); err != nil {
				return nil, err
			}
		}
	}
	slices.SortFunc(p.plan.resume, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	return p.plan, nil
}

func nameOf(u *unstructured.Unstructured) types.NamespacedName {
	return types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}
}

func isCluster(u *unstructured.Unstructured) bool {
	return clusterapi.IsCluster(u.GroupVersionKind().GroupKind())
}

// isRecord reports whether an object is one of the tier itself.
func isRecord(u *unstructured.Unstructured, namespace string) bool {
	gvk := u.GroupVersionKind()
	return gvk.Group == v1alpha1.Group || gvk.GroupKind() == spaces.GroupKind() ||
		gvk.GroupKind() == configMaps.GroupKind() && u.GetNamespace() == namespace && strings.HasPrefix(u.GetName(), "cascade-")
}

// isSaved reports whether a state has objects of a kind. Whoever knows a recipient can make an
// archive, and whoever keeps archives can put it in the place of one.
func isSaved(kind schema.GroupKind) bool {
	switch {
	case isData(kind), kind == spaces.GroupKind(), kind == children.GroupKind(), kind == rollouts.GroupKind():
		return true
	}
	return graph.Movable(kind.Group)
}

// afterClusters is the rank of what is made when the Clusters are there.
const afterClusters = 10

// rank of an object that is not of Cluster API: the record of the first sync is there before
// the first Cluster, the lineage when all are. Rollouts have their status before there are Children to
// begin a run with.
func rank(u *unstructured.Unstructured) int {
	switch {
	case u.GetKind() == spaces.Kind:
		return 0
	case u.GetName() == v1alpha1.FirstSyncConfigMap:
		return 1
	case u.GetName() == v1alpha1.EpochConfigMap:
		return afterClusters + 2
	case u.GroupVersionKind().GroupKind() == rollouts.GroupKind():
		return afterClusters
	case u.GroupVersionKind().Group == v1alpha1.Group:
		return afterClusters + 1
	}
	return 2
}

// RecordsIn is the namespace of what a state has on record of its tier, where the agent of that was; empty if
// it has nothing.
func RecordsIn(s *archive.Snapshot) string {
	for i := range s.Objects {
		u := &s.Objects[i]
		if name := u.GetName(); u.GetKind() == configMaps.Kind && (name == v1alpha1.EpochConfigMap || name == v1alpha1.FirstSyncConfigMap) {
			return u.GetNamespace()
		}
	}
	return ""
}

// recordOf is a record of the tier that a state has, empty if it has none.
func recordOf(s *archive.Snapshot, namespace, name string) (*corev1.ConfigMap, error) {
	for i := range s.Objects {
		if u := &s.Objects[i]; u.GetName() == name && u.GetKind() == configMaps.Kind && u.GetNamespace() == namespace {
			return configMap(u)
		}
	}
	return &corev1.ConfigMap{}, nil
}

// lineageOf are those who led the tier of a state, the last one first.
func lineageOf(s *archive.Snapshot) ([]epoch.Mark, error) {
	cm, err := recordOf(s, RecordsIn(s), v1alpha1.EpochConfigMap)
	if err != nil {
		return nil, err
	}
	return epoch.MarksOf(cm)
}

// wentOn reports whether the tier went on since the state was saved: somebody leads it now
// whom the state does not know, after the one who led it then.
func (p *planner) wentOn(s *archive.Snapshot) (bool, error) {
	then, err := lineageOf(s)
	now := p.facts.lineage
	if err != nil || len(then) == 0 || len(now) == 0 {
		return false, err
	}
	known := slices.ContainsFunc(now, func(m epoch.Mark) bool { return m.Holder == then[0].Holder })
	return known && now[0].Holder != then[0].Holder && !p.options.NotRemoved, nil
}

// clusters decides which Clusters are made. A restore that began before the tier went on is
// finished, as if it had not.
func (p *planner) clusters(g *graph.Graph) {
	for _, name := range g.Clusters() {
		if there := p.facts.there[clusterKey(name)]; there != nil && there.GetAnnotations()[v1alpha1.RestoringAnnotation] == p.plan.id {
			p.older = false
			p.restored[name] = true
			p.plan.resume = append(p.plan.resume, name)
		}
	}
	for _, name := range g.Clusters() {
		if p.facts.there[clusterKey(name)] != nil {
			continue
		}
		if reason, _ := p.against(name); reason == "" {
			p.restored[name] = true
			p.plan.resume = append(p.plan.resume, name)
		}
	}
}

func clusterKey(name types.NamespacedName) key { return key{clusterapi.ClusterKind, name} }

// against is why a Cluster that is not there is not made; empty if it is.
func (p *planner) against(name types.NamespacedName) (reason, why string) {
	if p.older {
		return ReasonOlder, "this tier was led by others since the state was saved, and the Cluster may have been removed since; if it was not, restore with --not-removed, else with --older"
	}
	if p.newer != nil && !p.newer[name] {
		return ReasonRemoved, "it is not in the newest saved state, so it was removed or moved since this one; if it was not, restore with --not-removed"
	}
	if p.facts.firstSync == nil {
		return "", ""
	}
	settled, away := firstsync.Says(p.facts.firstSync)
	switch {
	// Where the first sync is not over, a mark that the state has as well, the very same, came from it,
	// by a restore that was ended. Such a Cluster stays paused. Any other mark came here since.
	case away[name] && (settled || !firstsync.SameMark(p.facts.firstSync, p.firstSync, name)):
		return ReasonMovedAway, "it was paused or being moved to another management cluster when this tier saw it last, or is managed by another one"
	case settled && len(p.restored) == 0:
		return ReasonSettled, "the first sync of this tier is settled, and it has no such Cluster; set state: adopt in ConfigMap " + v1alpha1.FirstSyncConfigMap + " if its Clusters are to be restored"
	}
	return "", ""
}

// step adds one about an object, and compares what is there.
func (p *planner) step(u *unstructured.Unstructured, n *graph.Node) *Step {
	s := &Step{Object: keyOf(u).String(), key: keyOf(u), saved: u, node: n, there: p.facts.there[keyOf(u)]}
	p.plan.steps = append(p.plan.steps, s)
	if s.there == nil {
		s.Action = Create
		return s
	}
	p.made[u.GetUID()] = true
	s.Action = Keep
	if !same(u, s.there) {
		s.Action = Differ
	}
	return s
}

// object plans one of the graph.
func (p *planner) object(n *graph.Node) {
	s := p.step(n.Object, n)
	if isCluster(n.Object) {
		p.cluster(s)
	} else if s.there == nil {
		p.part(s)
	}
	if s.Action == Create {
		p.made[n.Object.GetUID()] = true
	}
}

func (p *planner) cluster(s *Step) {
	name := nameOf(s.saved)
	if s.there != nil {
		if by := restoringFrom(s.there); by != "" && by != p.plan.id {
			s.Action, s.Reason = Refuse, ReasonOtherRestore
			s.Why = fmt.Sprintf("state %s is being restored; finish that first, with its --version: cascade restore --dry-run says which state a version has; %s", by, letGo)
		}
		return
	}
	if p.restored[name] {
		switch {
		case s.saved.GetDeletionTimestamp() != nil:
			s.Reason, s.Why = ReasonWasDeleting, "it was being deleted when the state was saved: it stays paused; delete it, or resume it"
		case isMoving(s.saved):
			s.Reason, s.Why = ReasonMovedAway, "it was on its way to another management cluster when the state was saved: it stays paused; find out which one has it; if none has, take the annotation "+v1alpha1.PivotAnnotation+" off it together with spec.paused, and its marks from ConfigMap "+v1alpha1.FirstSyncConfigMap
		}
		return
	}
	s.Action = Refuse
	if s.Reason, s.Why = p.against(name); p.options.Older || s.Reason == ReasonRemoved {
		s.Action = Skip
	}
}

// part plans an object that is not there. It is made with a Cluster that is restored; what
// belongs to none is made if nothing says that the tier went on.
func (p *planner) part(s *Step) {
	n := s.node
	restored := slices.ContainsFunc(n.Clusters, func(name types.NamespacedName) bool { return p.restored[name] })
	alive := slices.ContainsFunc(n.Clusters, func(name types.NamespacedName) bool { return p.facts.there[clusterKey(name)] != nil })
	switch {
	case restored:
	case alive:
		s.Action, s.Reason, s.Why = Skip, ReasonClusterLives, "its Cluster is there and is not restored; it may have been removed since"
	case len(n.Clusters) > 0:
		s.Action, s.Reason, s.Why = Skip, ReasonClusterSkipped, "its Cluster is not restored"
	case p.older:
		s.Action, s.Reason, s.Why = Skip, ReasonOlder, "this tier was led by others since the state was saved"
	}
	if s.Action != Create {
		return
	}
	for _, ref := range s.saved.GetOwnerReferences() {
		if !p.made[ref.UID] {
			s.Action, s.Reason, s.Why = Skip, ReasonOwnerMissing, fmt.Sprintf("its owner %s %s is not restored", ref.Kind, ref.Name)
			return
		}
	}
}

// record plans one of the tier itself.
func (p *planner) record(u *unstructured.Unstructured) error {
	if u.GetName() == v1alpha1.FirstSyncConfigMap && u.GetKind() == configMaps.Kind {
		cm, err := configMap(u)
		if err != nil {
			return err
		}
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(firstsync.Restored(u.GetNamespace(), cm, p.here))
		if err != nil {
			return fmt.Errorf("cannot encode the record of the first sync: %w", err)
		}
		restored := &unstructured.Unstructured{Object: object}
		restored.SetGroupVersionKind(configMaps)
		unstructured.RemoveNestedField(restored.Object, "metadata", "creationTimestamp")
		restored.SetUID(u.GetUID())
		u = restored
	}
	s := p.step(u, nil)
	switch {
	case s.there != nil:
		return p.meets(s)
	case p.older && u.GetKind() != spaces.Kind && !isKept(s.key):
		s.Action, s.Reason, s.Why = Skip, ReasonOlder, "this tier was led by others since the state was saved"
	}
	return nil
}

// isKept reports whether an object is a record that each tier keeps of itself.
func isKept(k key) bool {
	return k.GroupKind == configMaps.GroupKind() && (k.Name == v1alpha1.FirstSyncConfigMap || k.Name == v1alpha1.EpochConfigMap)
}

// here reports whether a Cluster is there, or will be. One that another management cluster may have
// by now is not: what is on record of it holds.
func (p *planner) here(name types.NamespacedName) bool {
	if p.restored[name] {
		return !p.moving[name]
	}
	return p.facts.clusters[name] || p.facts.there[clusterKey(name)] != nil
}

// meets plans a record of the tier that is there: what was saved is added to it where it has
// nothing itself.
func (p *planner) meets(s *Step) error {
	s.Action, s.Reason, s.Why = Keep, "", ""
	if !isKept(s.key) && !same(s.saved, s.there) {
		s.Action = Differ
	}
	if p.older {
		return nil
	}
	switch {
	case isKept(s.key):
		if _, changed, err := merged(s.saved, s.there); err != nil {
			return err
		} else if changed {
			s.Action, s.Why = Update, "those who led the tier before are put after those who lead it now"
			if s.key.Name == v1alpha1.FirstSyncConfigMap {
				s.Why = "what was known of Clusters that are elsewhere, and a hold, are added to what the tier knows now"
			}
		}
	case p.wasSuspended(s.saved, s.there):
		s.Action, s.Why = Update, "it was suspended when the state was saved: it stays so"
	case s.saved.Object["status"] != nil && p.undecided(s.saved, s.there):
		s.Action, s.Why = Update, "which revision passed or failed here is not on record yet"
	}
	return nil
}

// undecided reports whether the agent of here wrote a status of a Rollout before it could know what
// was on record: nothing passed or ended, and a run, if there is one, came to nobody: Clusters of this
// restore are paused, or none of the clusters has anything of it. A run that a newer commit superseded then
// did not end by what came of it. The saved status is taken whole, with its UID, so that what such a run let
// children have counts for nothing.
func (p *planner) undecided(saved, there *unstructured.Unstructured) bool {
	if there.Object["status"] == nil {
		return true
	}
	if saved.GroupVersionKind().GroupKind() != rollouts.GroupKind() {
		return false
	}
	was, is := &v1alpha1.Rollout{}, &v1alpha1.Rollout{}
	if err := errors.Join(runtime.DefaultUnstructuredConverter.FromUnstructured(saved.Object, was), runtime.DefaultUnstructuredConverter.FromUnstructured(there.Object, is)); err != nil {
		return false // an agent of another version keeps what it has
	}
	then, now := was.Status, is.Status
	paused := len(p.restored) > 0
	ended := slices.ContainsFunc(now.History, func(h v1alpha1.RolloutHistory) bool {
		return !paused || h.Phase != v1alpha1.RolloutSuperseded || h.Failed > 0 || then.Run != nil && h.Began.Equal(&then.Run.Began)
	})
	switch {
	case now.LastGood != nil, ended, then.Run == nil && then.LastGood == nil && len(then.History) == 0:
		return false
	case now.Run != nil:
		return then.Run != nil && !now.Run.Began.Equal(&then.Run.Began) && (paused || p.nobodyHas(is))
	}
	return true
}

// nobodyHas reports whether no cluster got anything of the run of a Rollout, or may have. The wave says nothing
// of that: one in which nobody can be reached is passed. Nor do clusters that failed, as those that cannot be
// reached may count as such. The counts are those of now, what Children got of when the restore began.
func (p *planner) nobodyHas(o *v1alpha1.Rollout) bool {
	run, clusters := o.Status.Run, o.Status.Clusters
	if run.Wave == 0 && !run.Begun {
		return true
	}
	return !p.facts.given[runKey{o.Namespace, o.Name, run.Number}] && clusters.Updated+clusters.Updating == 0
}

// wasSuspended reports whether a Child is one that the agent made for a Cluster of this restore
// before it was known that a person had suspended it. Of others somebody may have said so since.
func (p *planner) wasSuspended(saved, there *unstructured.Unstructured) bool {
	if saved.GroupVersionKind().GroupKind() != children.GroupKind() {
		return false
	}
	read := func(u *unstructured.Unstructured) (cluster string, suspended bool) {
		cluster, _, _ = unstructured.NestedString(u.Object, "spec", "clusterRef", "name")
		suspended, _, _ = unstructured.NestedBool(u.Object, "spec", "suspend")
		return cluster, suspended
	}
	was, before := read(saved)
	is, now := read(there)
	return before && !now && was == is && p.restored[types.NamespacedName{Namespace: saved.GetNamespace(), Name: was}]
}

// merged is a record of the tier with what was saved of it. changed is false if it has all of that.
func merged(saved, there *unstructured.Unstructured) (cm *corev1.ConfigMap, changed bool, err error) {
	before, err := configMap(saved)
	if err != nil {
		return nil, false, err
	}
	if cm, err = configMap(there.DeepCopy()); err != nil {
		return nil, false, err
	}
	if cm.Name == v1alpha1.FirstSyncConfigMap {
		return cm, firstsync.Add(cm, before), nil
	}
	then, err := epoch.MarksOf(before)
	if err != nil {
		return nil, false, err
	}
	now, err := epoch.MarksOf(cm)
	if err != nil {
		return nil, false, err
	}
	all, changed := epoch.After(now, then)
	if !changed {
		return cm, false, nil
	}
	return cm, true, epoch.Write(cm, all)
}

// same reports whether what is there is what was saved, but for what the server and this
// package write, and for the identity of owners.
func same(saved, there *unstructured.Unstructured) bool {
	a, err1 := content(saved)
	b, err2 := content(there)
	return errors.Join(err1, err2) == nil && string(a) == string(b)
}

// content is what of an object is equal in both tiers.
func content(u *unstructured.Unstructured) ([]byte, error) {
	out := graph.Portable(u)
	annotations := out.GetAnnotations()
	delete(annotations, v1alpha1.RestoringAnnotation)
	delete(annotations, v1alpha1.RestoredPausedAnnotation)
	out.SetAnnotations(annotations)
	if len(annotations) == 0 {
		unstructured.RemoveNestedField(out.Object, "metadata", "annotations")
	}
	owners := out.GetOwnerReferences()
	for i := range owners {
		owners[i].UID = ""
	}
	unstructured.RemoveNestedField(out.Object, "metadata", "ownerReferences")
	if u.GetKind() == spaces.Kind && u.GroupVersionKind().Group == "" {
		unstructured.RemoveNestedField(out.Object, "spec")
	}
	if u.GroupVersionKind().GroupKind() == rollouts.GroupKind() && u.Object["status"] != nil {
		out.Object["status"] = u.Object["status"]
	}
	return json.Marshal([]any{out.Object, owners})
}

// Compare names the objects of one state that another one does not have equal, and the
// reverse: byte for byte, but for what the server writes, for the UIDs of owners and for
// the records that a restore does not repeat.
func Compare(a, b *archive.Snapshot) ([]string, error) {
	index := func(s *archive.Snapshot) (map[string]string, error) {
		out := map[string]string{}
		for i := range s.Objects {
			u := &s.Objects[i]
			if u.GetKind() == configMaps.Kind && (u.GetName() == v1alpha1.FirstSyncConfigMap || u.GetName() == v1alpha1.EpochConfigMap) {
				continue
			}
			text, err := content(u)
			if err != nil {
				return nil, fmt.Errorf("cannot encode %s: %w", keyOf(u), err)
			}
			out[keyOf(u).String()] = string(text)
		}
		return out, nil
	}
	left, err := index(a)
	if err != nil {
		return nil, err
	}
	right, err := index(b)
	if err != nil {
		return nil, err
	}
	var out []string
	for name, text := range left {
		switch other, ok := right[name]; {
		case !ok:
			out = append(out, name+" is missing")
		case other != text:
			out = append(out, name+" differs")
		}
	}
	for name := range right {
		if _, ok := left[name]; !ok {
			out = append(out, name+" is too many")
		}
	}
	slices.Sort(out)
	return out, nil
}
