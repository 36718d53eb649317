package inventory

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/cascade-gitops/cascade/api/v1alpha1"

	"github.com/fluxcd/pkg/ssa"

	"github.com/cascade-gitops/cascade/api/clusterapi"
)

// Numbers of the shrink guard: a removal of more than the larger of
// ShrinkFloor objects and ShrinkPercent of the inventory is held. Of objects that are
// still in files, which the source ignores, IgnoredFloor stands for ShrinkFloor: nobody
// removed their lines.
const (
	ShrinkFloor   = 10
	IgnoredFloor  = 1
	ShrinkPercent = 25
)

// LastBound is how long a Kustomization or HelmRelease that is being deleted keeps what it may need for
// that, among which may be rights that somebody revoked for another reason. One that has Clusters, or
// something else that is protected, keeps it until these are gone: they go one after the other, or wait
// for a person, however long that takes.
const LastBound = time.Hour

// State of an object by the API server.
type State int

const (
	// Unknown: the request failed, or its result decides nothing.
	Unknown State = iota
	// Absent: the API server said that there is no such object, or that its
	// kind does not exist.
	Absent
	// Present: the object was read.
	Present
)

// Live is what was read about one object that may have to be deleted. Every
// field but State is meaningless unless State is Present.
type Live struct {
	State State
	// Problem explains Unknown.
	Problem string
	UID     string
	// Version is the resource version of the object that was read.
	Version string
	// Owned: the owner labels on the live object are the owner's.
	Owned bool
	// Exempt: the live object asks not to be pruned.
	Exempt bool
	// Confirmed: the live object carries the confirmation of its deletion.
	Confirmed bool
	// Deleting: a deletion is already under way, since Since.
	Deleting bool
	Since    time.Time
	// ClusterSecret: a Secret of Cluster API's type.
	ClusterSecret bool
	// Credential names what reads this Secret to reach its cloud, as an identity of Cluster API.
	// It is told to those who may read the Secret.
	Credential string
	// OfCluster names the Cluster that the object is a part of, or needed by, and
	// that still exists; empty for the Cluster itself.
	OfCluster string
	// Guarded: the live object is marked as protected, or is the owner itself. Self: it is that, or, where the
	// owner is a HelmRelease, what waits for that to be gone.
	Guarded, Self bool
	// OfAgent: the live object has the labels of an agent's. LockedDown: the agent of the
	// cluster has the rights of a lockdown alone; it is told of LockdownRights only.
	OfAgent, LockedDown bool
	// Provider is the provider of Cluster API that the object is a component of.
	Provider string
	// NeededBy names an object of the provider's kinds that still exists, while
	// nothing of the provider is declared any more. Without the provider's components
	// nothing would take down what that object stands for.
	NeededBy string
	// Holds names objects in a Namespace that are protected or not in the inventory,
	// and protected objects that would be deleted with a Kustomization or HelmRelease. Of
	// what is being deleted it is known only of one of these that Lingers.
	Holds []string
	// Below is about what is deleted with the object.
	Below
	// Claimed names another owner that has the object in its inventory.
	Claimed string
	// HandOver names another owner that declares the object now, and does not have it
	// in its inventory yet.
	HandOver string
	// Unsure: it is not known whether HandOver declares it. Ahead: that one has it once a Rollout
	// lets it, which may take days.
	Unsure, Ahead bool
	// Again: the owner itself declares the object by now, by a newer revision or spec,
	// or will when it is created again.
	Again bool
	// Recreated: it has the owner's labels, but the owner never applied it. A person
	// restored it, for instance from a backup.
	Recreated bool
}

// Lingers reports whether an object has been on its way out for LastBound.
func (l Live) Lingers(now time.Time) bool { return l.Deleting && now.Sub(l.Since) >= LastBound }

// Below is about what is deleted with a Kustomization, a HelmRelease or a Layer.
type Below struct {
	// Carries is how many objects would be deleted with it.
	Carries int
	// Along says what would go with a Layer, for people.
	Along string
	// Holding says what a Layer that is being deleted holds until a person decides about
	// it there.
	Holding string
}

// Facts is the input of a prune plan.
type Facts struct {
	// Target names the cluster that the plan is for; it is part of the hash.
	Target string
	// Owned is the inventory before the rendering was applied.
	Owned []Entry
	// Rendered is what the rendering declares. All of it has been applied.
	Rendered []Entry
	// Live has a record for each of Candidates and Beside.
	Live map[Entry]Live
	// LowerTier: the target is a child, whose sync objects are protected.
	LowerTier bool
	// Moved: the owner is applied to another cluster from now on, and Target is the
	// previous one. It is intended that nothing is declared for Target, so the empty
	// guard does not apply; the shrink guard does.
	Moved bool
	// Asked: a person deleted the owner and thereby asked for the removal of
	// everything; the empty and shrink guards do not apply.
	Asked bool
	// Undecided: the owner's last plan was held and nobody has decided since. Applies
	// in the meantime made the inventory larger, so by its numbers alone the shrink
	// guard would let the same removal pass now.
	Undecided bool
	// Approved is the hash of the plan that a person approved, if any.
	Approved string
	// Decided is the record of what the last plans put last, or were approved to delete and could not, as
	// Decisions wrote it. Nothing holds that any more.
	Decided string
	// InFlight names a Cluster that is being deleted already, if there is one.
	InFlight string
	// Ignored are entries that files declare which the source ignores, with the files: they
	// were removed by an edit of what is ignored, and not of what is declared.
	Ignored map[Entry]string
	// HandOver is the record of the last plan's hand-over, nil if it had none. Now is
	// the time by which its age is measured.
	HandOver *v1alpha1.HandOver
	Now      time.Time
}

// Delete is one step of a plan. The UID and the resource version are preconditions of the
// request. An object that has another version by now is looked at again before.
type Delete struct {
	Entry   Entry
	UID     string
	Version string
	// Confirmed: the step is in the plan only because the live object carries the
	// confirmation. It must still do so when the step is carried out.
	Confirmed bool
}

// Plan lists what may be deleted now, what may not and why, and what the inventory
// must keep.
type Plan struct {
	// Deletes in the order in which they are to be carried out.
	Deletes []Delete
	// Hash identifies the list of deletes, whether or not they are held.
	Hash string
	// Unasked: nobody confirmed one of these, or of what is put last.
	Unasked bool
	// Held: the empty or shrink guard holds all deletes; Deletes is what an
	// approval of Hash would release.
	Held bool
	// Guard explains Held.
	Guard string
	// Protected objects that lack their confirmation.
	Protected []Entry
	// Along says what would go with the first Layer among Deletes and Protected.
	Along string
	// Holding are Layers among Waiting that are not let go before a person approves
	// that; Holds says so for the first one.
	Holding []Entry
	Holds   string
	// Needed are components of a provider that objects of its kinds still need,
	// whatever confirmation they have; NeededBy names one of those.
	Needed   []Entry
	NeededBy string
	// Waiting objects are already being deleted. OfCluster are deleted after their
	// Cluster, which still exists, and confirmed Namespaces after what has to go before
	// them. Queued are Clusters that are deleted when the one before them is gone. Claimed
	// have another owner as well, which may drop them later. Credential names what uses the
	// first keys of OfCluster.
	Waiting    []Entry
	Credential string
	OfCluster  []Entry
	Queued     []Entry
	Claimed    []Entry
	// Last is what Kustomizations and HelmReleases that go may need to take down what they applied:
	// accounts, rights and keys. It is deleted once those are gone, or LastBound has passed for those with
	// nothing protected; LastFor is one of them.
	Last    []Entry
	LastFor Entry
	// Going are those Kustomizations and HelmReleases, whether or not anything is put last for them: what they
	// need may be in another plan, which keeps it while their owner is there.
	Going []Entry
	// HandOver are objects that another owner declares and does not have yet; NewOwner
	// names the first one's, and Unsure is about that. They are kept for it until
	// HandOverBound has passed. Late have been kept that long and are not deleted now, for
	// what another list of the plan says: nobody waits for an owner to take them over.
	HandOver []Entry
	NewOwner string
	Unsure   bool
	Late     []Entry
	// Superseded: the owner declares something else by now than what was rendered. The
	// plan deletes nothing and keeps everything; the next one is made of what is
	// declared then.
	Superseded bool
	// Unknown objects could not be read; Problem has the first cause.
	Unknown []Entry
	Problem string
	// Keep is what the inventory must still hold besides the rendering before
	// any delete is confirmed.
	Keep []Entry
}

// Candidates returns the entries that may have to be deleted. PlanPrune needs their live state.
func Candidates(owned, rendered []Entry) []Entry { return Difference(owned, rendered) }

// Beside returns the entries of a rendering that are in Namespaces which it lacks, and which Clusters
// may need. PlanPrune needs their live state, too.
func Beside(owned, rendered []Entry) []Entry {
	going := map[string]bool{}
	for _, e := range Candidates(owned, rendered) {
		if isNamespace(e) {
			going[e.Name] = true
		}
	}
	var beside []Entry
	for _, e := range rendered {
		if going[e.Namespace] && MayServe(e) {
			beside = append(beside, e)
		}
	}
	return beside
}

// MayServe reports whether Clusters may need an object of the kind until they are gone: a part of
// theirs, an identity or keys.
func MayServe(e Entry) bool {
	return clusterapi.IsGroup(e.Group) && !isCluster(e) || e.Group == "" && e.Kind == "Secret" || e.Group == v1alpha1.Group && e.Kind == "Credential"
}

// Serves reports whether Clusters need an object, or may do so and nobody has confirmed its deletion.
// Such ones go before it.
func (l Live) Serves() bool {
	return l.State == Unknown || l.OfCluster != "" || l.Credential != "" && !l.Confirmed
}

// PlanPrune decides what may be deleted. Callers call it only after they applied
// every object of the rendering. A caller that could not apply everything has no
// plan, hence no deletes.
func PlanPrune(f Facts) Plan {
	var p Plan
	var c counts
	if f.superseded() {
		return Plan{Superseded: true, Keep: Candidates(f.Owned, f.Rendered)}
	}
	waits, before := f.waits(), parseDecided(f.Decided)
	var late []Entry // nobody took them over
	// inhabited Namespaces hold something that is to stay. awaited ones hold what has to go
	// before them, even if they are confirmed: Clusters and what these may need until then.
	inhabited, awaited := map[string]bool{}, map[string]bool{}
	for _, e := range f.Rendered {
		inhabited[e.Namespace] = true
		if isCluster(e) {
			awaited[e.Namespace] = true
		}
	}
	for _, e := range Beside(f.Owned, f.Rendered) {
		awaited[e.Namespace] = awaited[e.Namespace] || f.Live[e].Serves()
	}
	for _, e := range namespacesLast(Candidates(f.Owned, f.Rendered)) {
		live, overdue := f.Live[e], waits.Overdue(e, f.Now)
		if overdue {
			late = append(late, e)
		}
		switch {
		case live.State == Unknown:
			inhabited[e.Namespace], awaited[e.Namespace] = true, true
			p.Unknown = append(p.Unknown, e)
			if p.Problem == "" {
				p.Problem = live.Problem
			}
		case live.State == Absent:
			c.gone++
			continue
		case !live.Owned, live.Exempt, live.Recreated, live.Again:
			// Another owner took the object over or created it, or it asks not to be
			// pruned, or an owner of the same name is to be created and declares it: the
			// entry leaves the inventory.
			inhabited[e.Namespace] = true
			c.gone++
			continue
		case live.Claimed != "":
			inhabited[e.Namespace], awaited[e.Namespace] = true, awaited[e.Namespace] || live.Serves()
			p.Claimed = append(p.Claimed, e)
			c.gone++
		case live.Deleting:
			p.waits(e, live)
		case live.HandOver != "" && (!overdue || !live.Unsure && (live.Ahead || Protected(e, live, f.LowerTier))):
			inhabited[e.Namespace], awaited[e.Namespace] = true, awaited[e.Namespace] || live.Serves()
			p.handsOver(e, live)
			c.gone++
		case live.OfCluster != "", isNamespace(e) && live.Confirmed && awaited[e.Name]:
			inhabited[e.Namespace], awaited[e.Namespace] = true, true
			p.Credential = cmp.Or(p.Credential, live.Credential)
			p.OfCluster = append(p.OfCluster, e)
		case live.NeededBy != "":
			inhabited[e.Namespace], awaited[e.Namespace] = true, true
			p.Needed = append(p.Needed, e)
			p.NeededBy = live.NeededBy
			c.unconfirmed++
		case (Protected(e, live, f.LowerTier) || isNamespace(e) && inhabited[e.Name]) && !live.Confirmed:
			// Keys that Clusters use go after these, whoever is asked about what first.
			inhabited[e.Namespace], awaited[e.Namespace] = true, awaited[e.Namespace] || live.Serves()
			p.Protected = append(p.Protected, e)
			p.Along = cmp.Or(p.Along, live.Along)
			c.carried += live.Carries
			c.unconfirmed += 1 + live.Carries
		default:
			p.Deletes = append(p.Deletes, Delete{Entry: e, UID: live.UID, Version: live.Version, Confirmed: live.Confirmed})
			p.Along = cmp.Or(p.Along, live.Along)
			if before.has(e, live.UID) {
				c.gone++
			} else {
				c.deletes(e, live, f.Ignored[e])
			}
		}
		if isCluster(e) {
			inhabited[e.Namespace], awaited[e.Namespace] = true, true
		}
		p.Keep = append(p.Keep, e)
	}
	order(p.Deletes)
	p.Hash, p.Unasked = hash(f.Target, p.Deletes), c.unasked > 0

	if len(p.Deletes) > 0 && f.Approved != p.Hash {
		p.Guard = c.guard(f, p)
		p.Held = p.Guard != ""
	}
	if !p.Held {
		p.queue(f.InFlight)
		p.putLast(f)
	}
	for _, e := range late {
		goes := !p.Held && slices.ContainsFunc(p.Deletes, func(d Delete) bool { return d.Entry == e })
		if !goes && !slices.Contains(p.HandOver, e) {
			p.Late = append(p.Late, e)
		}
	}
	return p
}

// handsOver keeps an object for another owner.
func (p *Plan) handsOver(e Entry, live Live) {
	if len(p.HandOver) == 0 {
		p.NewOwner, p.Unsure = live.HandOver, live.Unsure
	}
	p.HandOver = append(p.HandOver, e)
}

// waits has an object wait that is being deleted already.
func (p *Plan) waits(e Entry, live Live) {
	p.Waiting = append(p.Waiting, e)
	if live.Holding != "" {
		p.Holding, p.Holds = append(p.Holding, e), cmp.Or(p.Holds, live.Holding)
	}
}

// queue leaves one Cluster among the deletes, and none while another is being deleted.
// If it is all a mistake, a person has time to notice it.
func (p *Plan) queue(inFlight string) {
	p.Deletes = slices.DeleteFunc(p.Deletes, func(d Delete) bool {
		if !isCluster(d.Entry) {
			return false
		}
		if inFlight == "" {
			inFlight = d.Entry.String()
			return false
		}
		p.Queued = append(p.Queued, d.Entry)
		return true
	})
}

// putLast leaves out of the deletes what has to outlive Kustomizations and HelmReleases that go: the API
// server only marks these, and each takes down what it applied afterwards, as its account and by its
// kubeconfig. Without them that would stay for good, with nobody who answers for it. They go at once after
// LastBound, and in another cluster, where the agent that has to take it down may go as well. Nobody is asked
// about them again then: see Facts.Decisions.
func (p *Plan) putLast(f Facts) {
	if f.LowerTier {
		return
	}
	going := slices.Concat(p.Unknown, p.Waiting)
	for _, d := range p.Deletes {
		if d.Entry.Kind == "HelmRelease" || f.Live[d.Entry].Carries > 0 { // a HelmRelease may not say what it has
			going = append(going, d.Entry)
		}
	}
	going = slices.DeleteFunc(going, func(e Entry) bool { return !f.Live[e].TakesDown(e, f.Now) })
	if len(going) == 0 {
		return
	}
	p.Going, p.LastFor = going, going[0]
	p.Deletes = slices.DeleteFunc(p.Deletes, func(d Delete) bool {
		if !slices.ContainsFunc(going, func(e Entry) bool { return MayNeed(e, d.Entry) }) {
			return false
		}
		p.Last = append(p.Last, d.Entry)
		return true
	})
}

// TakesDown reports whether an object takes down what it applied once it is deleted, perhaps as a service account
// or by a kubeconfig, and is waited for. An owner that declares itself has nothing to wait for.
func (l Live) TakesDown(e Entry, now time.Time) bool {
	isSync := v1alpha1.IsFluxGroup(e.Group) && (e.Kind == "Kustomization" || e.Kind == "HelmRelease")
	return isSync && !l.Self && (!l.Lingers(now) || len(l.Holds) > 0)
}

// MayNeed reports whether a Kustomization or HelmRelease may need an object to take down what it
// applied. Its account may have rights in any namespace.
func MayNeed(sync, e Entry) bool {
	switch {
	case e.Group == rbac:
		return true
	case makesSecret(e):
		return e.Namespace == sync.Namespace
	case e.Group != "":
		return false
	case e.Kind == "Namespace":
		return e.Name == sync.Namespace
	}
	return e.Namespace == sync.Namespace && (e.Kind == "ServiceAccount" || e.Kind == "Secret" || e.Kind == "ConfigMap")
}

// makesSecret reports whether an object takes a Secret of its namespace along, which may be a kubeconfig
// and is in no inventory; a Credential revokes what it has, too.
func makesSecret(e Entry) bool {
	switch e.Group + "/" + e.Kind {
	case v1alpha1.Group + "/Credential", "external-secrets.io/ExternalSecret", "bitnami.com/SealedSecret":
		return true
	}
	return false
}

// counts of a plan.
type counts struct {
	// gone are entries of the inventory whose objects are absent or have another owner, or whose
	// removal is decided. They count neither as deletes nor as a part of the inventory.
	gone int
	// carried are objects that are not in the inventory and would be deleted with an
	// object that is.
	carried int
	// unconfirmed objects would be lost, or are protected from it; unasked are
	// those of them that the plan deletes, namespaces the Namespaces among these.
	unconfirmed, unasked, namespaces int
	// ignored are those of unasked that ignored files declare, file is one of these.
	ignored int
	file    string
}

// deletes counts an object that the plan deletes. file declares it and is ignored.
func (c *counts) deletes(e Entry, live Live, file string) {
	c.carried += live.Carries
	if live.Confirmed {
		return
	}
	c.unconfirmed += 1 + live.Carries
	c.unasked++
	if file != "" {
		c.ignored++
		c.file = cmp.Or(c.file, file)
	}
	if isNamespace(e) {
		c.namespaces++
	}
}

// guard says why the deletes of a plan are held; empty if they are not.
func (c counts) guard(f Facts, p Plan) string {
	owned := len(f.Owned) - c.gone + c.carried
	limit := max(ShrinkFloor, owned*ShrinkPercent/100)
	isDeclared := slices.ContainsFunc(f.Rendered, isNamespace)
	switch {
	case c.unasked == 0:
		// Each object to be deleted carries a person's confirmation.
		return ""
	case len(p.Protected) > 0:
		// The objects beside a cluster or data are needed as long as that exists, and
		// were lost from Git for the same reason.
		return fmt.Sprintf("%d protected objects are no longer declared either", len(p.Protected))
	case f.Asked:
		return ""
	case len(f.Rendered) == 0 && !f.Moved:
		return fmt.Sprintf("nothing is declared any more, but the inventory has %d objects", owned)
	case c.unconfirmed > limit:
		return fmt.Sprintf("%d of %d objects are no longer declared, more than %d", c.unconfirmed, owned, limit)
	case c.ignored > max(IgnoredFloor, owned*ShrinkPercent/100):
		return fmt.Sprintf("%d of %d objects are still in files that the source ignores, %s among them", c.ignored, owned, c.file)
	case c.namespaces > 1 && !isDeclared && !f.Moved:
		return fmt.Sprintf("none of %d Namespaces is declared any more", c.namespaces)
	case f.Undecided:
		return "an earlier removal was held and nobody has decided about it"
	}
	return ""
}

// Blocked reports whether a person has to act before the cluster can equal Git.
func (p Plan) Blocked() bool {
	return p.Held || len(p.Protected) > 0 || len(p.Needed) > 0 || len(p.Holding) > 0
}

// Hold is what a person has to decide about; nil if nothing is. before is what was on record: a plan that is blocked
// for another reason, and leaves open what that is about, keeps its hash.
func (p Plan) Hold(before *v1alpha1.HeldPrune) *v1alpha1.HeldPrune {
	if !p.Blocked() {
		return nil
	}
	hold := &v1alpha1.HeldPrune{Protected: int32(len(p.Protected) + len(p.Needed)), Holding: int32(len(p.Holding))}
	switch {
	case p.Held:
		hold.Hash, hold.Deletes = p.Hash, int32(len(p.Deletes))
	case before != nil && p.leavesOpen():
		hold.Hash, hold.Deletes = before.Hash, before.Deletes
	}
	return hold
}

// mostKept bounds the record of what is kept.
const mostKept = 20

// Kept is the record of objects that are deleted later without a person: with their Cluster,
// or after another one, or a Kustomization or HelmRelease; nil if there are none. Equal objects make an equal record.
func Kept(entries []Entry) *v1alpha1.HeldKept {
	if len(entries) == 0 {
		return nil
	}
	objects := make([]string, 0, len(entries))
	for _, e := range entries {
		objects = append(objects, e.String())
	}
	slices.Sort(objects)
	objects = slices.Compact(objects)
	return &v1alpha1.HeldKept{Objects: objects[:min(len(objects), mostKept)]}
}

// Kept is the record of what the plan keeps without a person.
func (p Plan) Kept() *v1alpha1.HeldKept { return Kept(slices.Concat(p.OfCluster, p.Queued, p.Last)) }

// Settles reports whether the plan ends what an earlier one held. One that leaves it open, or holds
// nothing because another declaration comes, ends nothing. A plan that was not made ends nothing
// either; neither that nor one that is superseded has a hash.
func (p Plan) Settles() bool { return p.Hash != "" && !p.Blocked() && !p.leavesOpen() }

// leavesOpen reports whether objects that an earlier plan held may be deleted later all the same, as they are
// kept for another owner or could not be read. What nobody confirmed is deleted while something is held only
// if that was approved.
func (p Plan) leavesOpen() bool { return !p.Unasked && len(p.HandOver)+len(p.Unknown) > 0 }

// Undecided reports whether an owner's plan was held and nobody has decided since.
// blocked: the owner's status says that deletes are held. hold is the status's record
// of them. If it is nil, the plan is not known, and so nobody has decided about it.
func Undecided(blocked bool, hold *v1alpha1.HeldPrune) bool {
	return blocked && (hold == nil || hold.Hash != "")
}

// Message says what is blocked and what to do next; empty if nothing is.
func (p Plan) Message(owner string) string {
	var parts []string
	if p.Along != "" && (p.Held || len(p.Protected) > 0) {
		parts = append(parts, p.Along)
	}
	if p.Held {
		entries := make([]Entry, 0, len(p.Deletes))
		for _, d := range p.Deletes {
			entries = append(entries, d.Entry)
		}
		parts = append(parts, fmt.Sprintf("%s; would delete %s; restore them in Git, or run: cascade approve prune %s --hash %s",
			p.Guard, Names(entries), owner, p.Hash))
	}
	if len(p.Protected) > 0 {
		parts = append(parts, fmt.Sprintf("will not delete protected %s; "+
			"restore them in Git, or commit the annotation %s on each first and remove them in a later commit",
			Names(p.Protected), v1alpha1.DeletionAnnotation+": "+v1alpha1.DeletionConfirmed))
	}
	if len(p.Needed) > 0 {
		parts = append(parts, fmt.Sprintf("will not delete %s while there is %s, which needs the provider; "+
			"restore the provider in Git, or delete the objects of its kinds first", Names(p.Needed), p.NeededBy))
	}
	if p.Holds != "" {
		parts = append(parts, p.Holds)
	}
	return strings.Join(parts, "; ")
}

// AwaitsMessage says what is kept until Clusters are gone, and whose keys are among that; empty
// if it is nothing but templates: an old one is a part of its Cluster as long as that lives, and
// nobody misses its end.
func AwaitsMessage(kept []Entry, credential string) string {
	told := slices.DeleteFunc(slices.Clone(kept), func(e Entry) bool { return clusterapi.IsGroup(e.Group) && clusterapi.IsTemplate(e.Kind) })
	if len(told) == 0 {
		return ""
	}
	keys := ""
	if credential != "" {
		keys = ", with keys of " + credential
	}
	return fmt.Sprintf("%d objects that are no longer declared wait for Clusters to be gone: %s%s", len(told), Names(told), keys)
}

// LastMessage says what is kept for a Kustomization or HelmRelease that is not gone since the plan before;
// empty if nothing is.
func (p Plan) LastMessage() string {
	if !slices.Contains(p.Waiting, p.LastFor) {
		return ""
	}
	return LastMessage(p.Last, p.LastFor)
}

// LastMessage says what is kept for a Kustomization or HelmRelease; empty if nothing is.
func LastMessage(last []Entry, lastFor Entry) string {
	if len(last) == 0 {
		return ""
	}
	return fmt.Sprintf("%d objects that are no longer declared are kept until %s is gone, which may need them: %s", len(last), lastFor, Names(last))
}

// Protected reports whether deleting the object may destroy a cluster, data that Git does
// not have, or the agent. lowerTier: it is in a child.
func Protected(e Entry, live Live, lowerTier bool) bool {
	return ProtectedKind(e.Group, e.Kind) || TakesOthers(e, live, lowerTier)
}

// TakesOthers reports whether others are lost with an object: a cluster, the agent, or what a lower tier
// follows. It is Protected, however it is declared.
func TakesOthers(e Entry, live Live, lowerTier bool) bool {
	switch {
	case clusterapi.IsGroup(e.Group), OfAgent(e, live), live.ClusterSecret, live.Credential != "", live.Guarded, len(live.Holds) > 0:
		return true
	case lowerTier && (v1alpha1.IsFluxGroup(e.Group) || e.Group == v1alpha1.Group):
		return true
	}
	return false
}

// ProtectedKind reports whether objects of a kind are protected whatever they
// contain.
func ProtectedKind(group, kind string) bool {
	switch {
	case clusterapi.IsGroup(group):
		return true
	case group == "apiextensions.k8s.io" && kind == "CustomResourceDefinition":
		return true
	case group == "" && (kind == "PersistentVolume" || kind == "PersistentVolumeClaim"):
		return true
	}
	return false
}

// order sorts deletes in reverse order of applying, after the Clusters: Cluster API
// itself takes down what belongs to a Cluster.
func order(deletes []Delete) {
	sort.SliceStable(deletes, func(i, j int) bool {
		a, b := deletes[i].Entry, deletes[j].Entry
		if ca, cb := isCluster(a), isCluster(b); ca != cb {
			return ca
		}
		metas := ssa.SortableMetas{a.metadata(), b.metadata()}
		return metas.Less(1, 0)
	})
}

func isNamespace(e Entry) bool { return e.Group == "" && e.Kind == "Namespace" }

// namespacesLast keeps the order otherwise. Whether a Namespace may be deleted depends
// on the decisions about its objects.
func namespacesLast(entries []Entry) []Entry {
	rank := map[bool]int{true: 1}
	slices.SortStableFunc(entries, func(a, b Entry) int { return rank[isNamespace(a)] - rank[isNamespace(b)] })
	return entries
}

func isCluster(e Entry) bool { return clusterapi.IsCluster(e.GroupKind()) }

func hash(target string, deletes []Delete) string {
	lines := make([]string, 0, len(deletes))
	for _, d := range deletes {
		lines = append(lines, d.Entry.ID()+" "+d.UID)
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(target + "\n" + strings.Join(lines, "\n")))
	return hex.EncodeToString(sum[:8])
}
