package release

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"helm.sh/helm/v4/pkg/kube"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/clusters"
)

// Labels that say which HelmRelease an object belongs to, and annotations of
// Helm that say which release.
const (
	ownerName        = "helm.toolkit.fluxcd.io/name"
	ownerNamespace   = "helm.toolkit.fluxcd.io/namespace"
	releaseName      = "meta.helm.sh/release-name"
	releaseNamespace = "meta.helm.sh/release-namespace"
)

// Verdict on an object that is to be deleted.
type Verdict int

const (
	// Deletable: nothing speaks against it.
	Deletable Verdict = iota
	// Gone: there is no such object.
	Gone
	// Foreign: it has another owner by now, or is left behind on purpose.
	Foreign
	// Held: it carries a cluster or data and its deletion is not confirmed, or it
	// could not be read.
	Held
	// WithCluster: a Cluster that exists has been made after it, or needs it to be taken
	// down, or is in it. It goes with it, later.
	WithCluster
	// Awaited: another owner declares it and has not applied it yet.
	Awaited
	// Queued: a Cluster that goes when another one is gone.
	Queued
)

// Candidate is what is known of an object that is to be deleted.
type Candidate struct {
	Entry inventory.Entry
	// Live is what the cluster says.
	Live inventory.Live
	// Ours: its labels name this HelmRelease. Marked: it has no such labels, and
	// Helm's annotations name the release or mark it as a hook. Others: labels or
	// annotations name another owner.
	Ours, Marked, Others bool
	// Kept: it has Helm's policy to keep it. Of a hook that is about its end: it is made anew all
	// the same, as Helm does, but for what carries data or takes others along.
	Kept bool
	// Taken: another owner of the tier has it in its inventory and applied it. NewOwner
	// is one that declares it and has not. Unsure: it is not known whether NewOwner does. Ahead: it
	// has it once a Rollout lets it. Again: NewOwner is the HelmRelease itself, as it is declared by now,
	// which is Form.
	Taken    bool
	NewOwner string
	Unsure   bool
	Ahead    bool
	Again    bool
	Form     client.Object
	// InFlight names another Cluster that is being torn down. It is known once this one is
	// about to be deleted.
	InFlight string
	// OwnCluster: it is a part of a Cluster of the same release.
	OwnCluster bool
	// Hook: the chart declares it as a hook, and it was created as one.
	Hook bool
	// Definition: it is ours, and came with a chart beside its templates. Helm leaves it behind.
	Definition bool
	// LowerTier: it is in a cluster that is not the agent's own.
	LowerTier bool
	// WithRelease: a person confirmed the deletion of the HelmRelease, which is for each of its
	// objects.
	WithRelease bool
}

// Judge decides whether an object may be deleted. It is pure.
func Judge(d Candidate) Verdict {
	v := d.judge()
	if v == Held && d.WithRelease && d.Live.State == inventory.Present {
		d.Live.Confirmed = true
		return d.judge()
	}
	return v
}

// judge is Judge as if nobody had confirmed the deletion of the HelmRelease.
func (d Candidate) judge() Verdict {
	e, live := d.Entry, d.Live
	// The chart does not matter here, because the deletion takes others along. What is in
	// a Namespace is known only of a Namespace of our own.
	takesOthers := inventory.TakesOthers(e, live, d.LowerTier) || isNamespace(e) && (!d.Ours || live.Exempt)
	switch {
	case live.State == inventory.Unknown:
		return Held
	case live.State == inventory.Absent:
		return Gone
	case d.Others, d.Kept && !d.Hook, d.Taken, !d.Ours && !d.Marked:
		// A release does not own an object just because its manifest names it. Anybody
		// who may write the release's Secret can put a name there.
		return Foreign
	case live.Deleting:
		return Deletable
	case d.NewOwner != "":
		return Awaited
	case live.OfCluster != "" && clusterapi.IsTemplate(e.Kind) && (d.OwnCluster || !live.Confirmed):
		return WithCluster
	case live.OfCluster != "" && live.Confirmed && neededToTheEnd(e, live):
		return WithCluster
	case live.Confirmed && d.InFlight != "":
		return Queued
	case live.Confirmed:
		return Deletable
	case d.Kept && (takesOthers || inventory.ProtectedKind(e.Group, e.Kind)):
		return Foreign
	case takesOthers, !d.Hook && inventory.ProtectedKind(e.Group, e.Kind):
		return Held
	}
	return Deletable
}

// neededToTheEnd reports whether Cluster API needs a part of a Cluster to take that down: its
// infrastructure, control plane, class and certificates, the identity that it uses and the
// keys of that, and the Namespace of these. Machines and what they are made after may go before.
func neededToTheEnd(e inventory.Entry, live inventory.Live) bool {
	kind := strings.TrimSuffix(e.Kind, "Template") // of a class
	return live.ClusterSecret || live.Credential != "" || isNamespace(e) ||
		clusterapi.IsGroup(e.Group) && (clusterapi.IsIdentity(kind) || clusterapi.IsClass(kind) || clusterapi.MayNameIdentity(kind))
}

// finder is how a guard finds out about objects.
type finder interface {
	Looks(owned []inventory.Entry, confirmed bool) apply.Look
	Creation(ctx context.Context, objects []*unstructured.Unstructured, record *inventory.FirstSync) (*inventory.Creation, error)
}

// guarded is a cluster, as far as a guard changes it.
type guarded interface {
	clusters.Reader
	// Confirm confirms the deletion of an object as it was in a version, and returns that of now.
	Confirm(ctx context.Context, e inventory.Entry, version, manager string) (string, error)
	// DeleteAt deletes an object as it was in a version, in the version of its kind that is served.
	DeleteAt(ctx context.Context, e inventory.Entry, uid, version string, policy metav1.DeletionPropagation) error
	// MayDelete is an error if this process lost the right to delete.
	MayDelete() error
	// TearDown calls remove, which deletes a Cluster, unless it names another one that is
	// being torn down.
	TearDown(ctx context.Context, e inventory.Entry, now time.Time, remove func() error) (inFlight string, err error)
}

var (
	_ finder  = (*apply.Applier)(nil)
	_ guarded = (*apply.Cluster)(nil)
)

// guard reads what Judge needs. It is for one HelmRelease in one cluster.
type guard struct {
	cluster guarded
	facts   finder
	obj     *v2.HelmRelease
	now     func() time.Time
	// lowerTier: the cluster is not the agent's own.
	lowerTier bool
	// name and namespace of the release.
	name, namespace string
	// release are all objects that the HelmRelease answers for, as of the last look at it.
	release []inventory.Entry
	// claimed tells of other owners; it may be nil. It is not asked about those of
	// overdue, by id: others had the time to take them.
	claimed apply.Claims
	overdue map[string]bool
	// former reports whether a HelmRelease made a revision of the release before this one; nil knows of
	// none.
	former func(ctx context.Context, name string) (bool, error)
	// pending are the objects of the record of the last handOver, and waits since when they wait.
	pending []inventory.Entry
	waits   inventory.Waits
	// confirmed: the release goes, and a person confirmed that on the HelmRelease.
	confirmed bool
}

func newGuard(c *apply.Cluster, obj *v2.HelmRelease, name, namespace string, now func() time.Time) *guard {
	owner := apply.Owner{FieldManager: fieldManager, LabelGroup: v2.GroupVersion.Group, Name: obj.Name, Namespace: obj.Namespace}
	return &guard{cluster: c, facts: apply.New(c, owner, nil, now), obj: obj, now: now, name: name, namespace: namespace}
}

// looks begins to look at objects that are judged together.
func (g *guard) looks() apply.Look { return g.facts.Looks(g.release, g.confirmed) }

// look reads an object that is to be deleted.
func (g *guard) look(ctx context.Context, look apply.Look, e inventory.Entry, hook bool) Candidate {
	// An object of a hook is none of the release.
	d := Candidate{Entry: e, LowerTier: g.lowerTier, WithRelease: g.confirmed && !hook}
	var labels, annotations map[string]string
	d.Live, labels, annotations = look(ctx, e)
	d.Kept = isKeep(annotations[kube.ResourcePolicyAnno])
	// Another object may have had the name before the hook.
	d.Hook = hook && annotations[helmrelease.HookAnnotation] != ""
	g.claim(ctx, &d, labels)
	if d.Live.Owned {
		d.Ours = true
		// What is of a template has Helm's mark.
		d.Definition = isDefinition(e) && annotations[releaseName] == ""
		d.Kept = d.Kept || d.Definition
		d.OwnCluster = slices.ContainsFunc(g.release, func(c inventory.Entry) bool {
			return isCluster(c) && c.Name == d.Live.OfCluster && c.Namespace == e.Namespace
		})
		return d
	}
	owner, release := labels[ownerName], annotations[releaseName]
	d.Others = owner != "" && (owner != g.obj.Name || labels[ownerNamespace] != g.obj.Namespace) ||
		release != "" && (release != g.name || annotations[releaseNamespace] != g.namespace)
	d.Marked = release != "" || d.Hook
	if d.Others && d.Hook && release == "" && g.former != nil && labels[ownerNamespace] == g.obj.Namespace {
		// A hook is of the release, whatever its HelmRelease was called when it was made.
		before, err := g.former(ctx, owner)
		if d.Others = !before; err != nil {
			d.Live = inventory.Live{State: inventory.Unknown, Problem: err.Error()}
		}
	}
	return d
}

// claim sets which other owner answers for an object. One that has it in its inventory
// and not its label on it has not applied it yet.
func (g *guard) claim(ctx context.Context, d *Candidate, labels map[string]string) {
	if g.claimed == nil || d.Live.State != inventory.Present || g.overdue[d.Entry.ID()] {
		return
	}
	claim, err := g.claimed(ctx, d.Entry, inventory.Entry{})
	by := apply.Marked(labels, v2.GroupVersion.Group)
	d.Again, d.Form = err == nil && claim.Kind == apply.Again, claim.Form
	switch {
	case err != nil:
		d.Live = inventory.Live{State: inventory.Unknown, Problem: err.Error()}
	case slices.Contains(claim.Perhaps, by), claim.Kind == apply.Recorded && by != "" && by == claim.Owner:
		d.Taken = true
	case claim.Owner == "", d.Hook && (claim.Unsure || claim.Kind == apply.Again): // it is made anew at once, and of the chart alone as far as is known
	default:
		d.NewOwner, d.Unsure, d.Ahead = claim.Owner, claim.Unsure, claim.Ahead
	}
}

// verdicts sorts objects that are to be deleted by what may happen to them.
type verdicts struct {
	// deletable are as they were when that was judged.
	deletable                                         []Candidate
	gone, foreign, held, withCluster, awaited, queued []inventory.Entry
	// candidates are those of awaited, in their order.
	candidates []Candidate
	// last are deletable, and wait for lastFor, the Kustomizations and HelmReleases that go and may need them, or for such
	// of held: putLast.
	last, lastFor []inventory.Entry
	// unknown is why one of held is, if that is because it could not be read. inFlight is
	// what one of queued waits for.
	unknown, inFlight string
	// due: one of withCluster was confirmed, and goes with a Cluster that is none of the release.
	due bool
	// judged are all objects that were looked at, as they were last: Namespaces go by what becomes
	// of these. declared and left are what stays whatever it is like: what the chart declares, and
	// what it leaves behind.
	judged         map[inventory.Entry]Candidate
	declared, left []inventory.Entry
	// settled are Namespaces that would be deletable but for what is in them.
	settled []Candidate
}

func newVerdicts() *verdicts { return &verdicts{judged: map[inventory.Entry]Candidate{}} }

// namespaces tells what Namespaces go by. inhabited are those in which something is to stay, for whatever
// reason; before those of what has to go before them: Clusters and what these may need.
func (s *verdicts) namespaces() (inhabited, before map[string]bool) {
	inhabited, before = map[string]bool{}, map[string]bool{}
	for _, e := range slices.Concat(s.declared, s.left) {
		inhabited[e.Namespace] = true
	}
	for _, e := range s.declared {
		before[e.Namespace] = before[e.Namespace] || isCluster(e)
	}
	for e, d := range s.judged {
		v := Judge(d)
		if v == Held || v == Awaited || v == Foreign {
			inhabited[e.Namespace] = true
		}
		// Keys that Clusters use go after these, whoever is asked about what first. Whoever confirmed that all of
		// the release goes was asked about those that stay in it and that no Cluster uses.
		serves := (v == Held || v == Awaited) && d.Live.Serves() || v == Foreign && (d.Live.OfCluster != "" || !d.WithRelease && d.Live.Serves())
		if v == WithCluster || serves || isCluster(e) && v != Gone && v != Foreign {
			before[e.Namespace] = true
		}
	}
	return inhabited, before
}

func (s *verdicts) add(d Candidate) Verdict {
	v := Judge(d)
	s.judged[d.Entry] = d
	switch v {
	case Deletable:
		s.deletable = append(s.deletable, d)
	case Foreign:
		s.foreign = append(s.foreign, d.Entry)
	case Held:
		s.held = append(s.held, d.Entry)
		if s.unknown == "" {
			s.unknown = d.Live.Problem
		}
	case WithCluster:
		s.withCluster = append(s.withCluster, d.Entry)
		s.due = s.due || d.Live.Confirmed && !d.OwnCluster
	case Awaited:
		s.awaited = append(s.awaited, d.Entry)
		s.candidates = append(s.candidates, d)
	case Queued:
		s.queued = append(s.queued, d.Entry)
		s.inFlight = d.InFlight
	case Gone:
		s.gone = append(s.gone, d.Entry)
	}
	return v
}

// settle has Namespaces wait for what has to go before them, and asks a person about those in which
// something is to stay. It is called when all is judged, and again if something is judged anew.
func (s *verdicts) settle() {
	settled := func(e inventory.Entry) bool {
		return slices.ContainsFunc(s.settled, func(d Candidate) bool { return d.Entry == e })
	}
	s.held, s.withCluster = slices.DeleteFunc(s.held, settled), slices.DeleteFunc(s.withCluster, settled)
	s.deletable, s.settled = append(s.deletable, s.settled...), nil
	inhabited, before := s.namespaces()
	s.deletable = slices.DeleteFunc(s.deletable, func(d Candidate) bool {
		switch {
		case !isNamespace(d.Entry), d.Live.Deleting:
			return false
		case inhabited[d.Entry.Name] && !d.Live.Confirmed && !d.WithRelease:
			s.held = append(s.held, d.Entry)
		case before[d.Entry.Name]:
			s.withCluster = append(s.withCluster, d.Entry)
		default:
			return false
		}
		s.settled = append(s.settled, d)
		return true
	})
}

// takes reports whether the Namespace of an object is about to be deleted.
func (s *verdicts) takes(e inventory.Entry) bool {
	return e.Namespace != "" && slices.ContainsFunc(s.deletable, func(d Candidate) bool { return isNamespace(d.Entry) && d.Entry.Name == e.Namespace })
}

// going are the deletable objects.
func (s *verdicts) going() []inventory.Entry {
	entries := make([]inventory.Entry, 0, len(s.deletable))
	for _, d := range s.deletable {
		entries = append(entries, d.Entry)
	}
	return entries
}

// kept are what stays in the inventory.
func (s *verdicts) kept() []inventory.Entry {
	return slices.Concat(s.held, s.withCluster, s.awaited, s.queued, s.last, s.lastFor)
}

// putLast has what Kustomizations and HelmReleases that go may need to take down what they applied wait until these are
// gone, as a plan of a Kustomization does. They stay on record for as long: nothing else tells then that they still go.
// One that a person is asked about, or that could not be read, may go later.
func (s *verdicts) putLast(now time.Time) {
	var syncs []Candidate
	for _, d := range s.judged {
		if v := Judge(d); !d.LowerTier && d.Live.TakesDown(d.Entry, now) && (v == Deletable || v == Held) {
			syncs = append(syncs, d)
		}
	}
	s.deletable = slices.DeleteFunc(s.deletable, func(d Candidate) bool {
		if !slices.ContainsFunc(syncs, func(sync Candidate) bool { return inventory.MayNeed(sync.Entry, d.Entry) }) {
			return false
		}
		s.last = append(s.last, d.Entry)
		return true
	})
	if len(s.last) == 0 {
		return
	}
	for _, d := range syncs {
		if Judge(d) == Deletable {
			s.lastFor = append(s.lastFor, d.Entry)
		}
	}
	slices.SortFunc(s.lastFor, func(a, b inventory.Entry) int { return strings.Compare(a.ID(), b.ID()) })
	// There is nothing to do about those that are on their way out.
	s.deletable = slices.DeleteFunc(s.deletable, func(d Candidate) bool { return d.Live.Deleting && slices.Contains(s.lastFor, d.Entry) })
}

// handOver returns the record of what is kept for other owners, nil if nothing is. What
// has been kept long enough is judged again without them, and from then on: what is neither
// protected nor held back by a Rollout, and all of which it is not known whether another one declares it. before is the
// record of the last time.
func (g *guard) handOver(s *verdicts, before *v1alpha1.HandOver, now time.Time) *v1alpha1.HandOver {
	g.overdue, g.pending, g.waits = nil, s.awaited, inventory.Waiting(s.awaited, before, now)
	record := g.waits.Record(g.pending)
	if !slices.ContainsFunc(g.pending, func(e inventory.Entry) bool { return g.waits.Overdue(e, now) }) {
		return record
	}
	candidates := s.candidates
	s.awaited, s.candidates = nil, nil
	for _, d := range candidates {
		alone := d
		alone.NewOwner = ""
		if g.waits.Overdue(d.Entry, now) && (d.Unsure || !d.Ahead && alone.judge() == Deletable && !inventory.Protected(d.Entry, d.Live, d.LowerTier)) {
			d = alone
			if g.overdue == nil {
				g.overdue = map[string]bool{}
			}
			g.overdue[d.Entry.ID()] = true
		}
		s.add(d)
	}
	s.settle()
	return record
}

// handsOverStill is the record once some objects have gone: what stays has waited as long as before.
func (g *guard) handsOverStill(gone []inventory.Entry) *v1alpha1.HandOver {
	return g.waits.Record(inventory.Difference(g.pending, gone))
}

// has reports whether an object is one of those that stay.
func (s *verdicts) has(e inventory.Entry) bool {
	return slices.Contains(s.kept(), e) || slices.Contains(s.foreign, e)
}

// message says what is held and what to do next; empty if nothing is.
func (s *verdicts) message() string {
	if len(s.held) == 0 {
		return ""
	}
	if s.unknown != "" {
		return fmt.Sprintf("will not delete %s: it cannot be read: %s", inventory.Names(s.held), s.unknown)
	}
	return fmt.Sprintf("will not delete protected %s; restore them in the chart or its values, or set the annotation %s: %s on each and remove them after that",
		inventory.Names(s.held), v1alpha1.DeletionAnnotation, v1alpha1.DeletionConfirmed)
}

// judgeAll judges each of entries. declared is what else the release has, and keeps.
func (g *guard) judgeAll(ctx context.Context, entries, declared []inventory.Entry) *verdicts {
	s, look := newVerdicts(), g.looks()
	s.declared = declared
	for _, e := range entries {
		s.add(g.look(ctx, look, e, false))
	}
	g.lookWithin(ctx, look, s, nil)
	return s
}

// lookWithin looks at what else is in the Namespaces that are about to be deleted, and settles that: at
// what waits to be deleted, and of what the chart declares or leaves behind at what Clusters may need.
func (g *guard) lookWithin(ctx context.Context, look apply.Look, s *verdicts, waiting []inventory.Entry) {
	serving := slices.DeleteFunc(slices.Concat(s.declared, s.left), func(e inventory.Entry) bool { return !inventory.MayServe(e) })
	for _, e := range slices.Concat(waiting, serving) {
		if s.takes(e) {
			d := g.look(ctx, look, e, false)
			d.Kept = d.Kept || slices.Contains(s.left, e)
			s.judged[e] = d
		}
	}
	s.settle()
}

// deleteAll deletes objects of s that were judged deletable, one after the other. Those of
// which the delete has begun are returned. What may not be deleted any more is sorted anew.
func (g *guard) deleteAll(ctx context.Context, s *verdicts, which []Candidate, policy metav1.DeletionPropagation) (begun []inventory.Entry, errs []error) {
	for _, d := range which {
		after, err := g.delete(ctx, d, policy)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("cannot delete %s: %w", d.Entry, err))
		case Judge(after) == Deletable:
			begun = append(begun, d.Entry)
		default:
			s.deletable = slices.DeleteFunc(slices.Clone(s.deletable), func(c Candidate) bool { return c.Entry == d.Entry })
			s.add(after)
		}
	}
	return begun, errs
}

// delete deletes an object that was judged deletable, a Cluster only if no other one is being
// torn down. It returns what was judged last: the delete has begun if that is deletable.
func (g *guard) delete(ctx context.Context, d Candidate, policy metav1.DeletionPropagation) (after Candidate, err error) {
	if !isCluster(d.Entry) || d.Live.Deleting {
		return g.deleteUnchanged(ctx, d, policy)
	}
	after = d
	after.InFlight, err = g.cluster.TearDown(ctx, d.Entry, g.now(), func() (err error) {
		after, err = g.deleteUnchanged(ctx, d, policy)
		return err
	})
	return after, err
}

// deleteUnchanged deletes an object as it was when it was judged. One that has changed since,
// and is still the same object, is judged again. So is one whose kind is not served any more: it
// may be gone with its definition, as Helm deletes that before. What a person confirmed on the
// HelmRelease alone is confirmed only now, as the API server asks for it: until an object's turn
// comes, that can be taken back, and who has the object later is asked.
func (g *guard) deleteUnchanged(ctx context.Context, d Candidate, policy metav1.DeletionPropagation) (Candidate, error) {
	uid := d.Live.UID
	// API servers take a moment to see that a kind is gone.
	err := retry.OnError(retry.DefaultBackoff, func(err error) bool { return apierrors.IsConflict(err) || notServed(err) }, func() error {
		if Judge(d) != Deletable || d.Live.Deleting {
			return nil
		}
		if d.Live.UID != uid {
			return errors.New("it was created again meanwhile")
		}
		var err error
		if d.judge() == Held {
			d.Live.Version, err = g.cluster.Confirm(ctx, d.Entry, d.Live.Version, fieldManager)
		}
		if err == nil {
			err = g.cluster.DeleteAt(ctx, d.Entry, d.Live.UID, d.Live.Version, policy)
		}
		switch {
		case apierrors.IsConflict(err):
			d = g.look(ctx, g.looks(), d.Entry, d.Hook)
		case notServed(err):
			if now := g.look(ctx, g.looks(), d.Entry, d.Hook); Judge(now) == Gone {
				d = now
				return nil
			}
		}
		return err
	})
	return d, err
}

// notServed reports whether a guarded cluster does not serve the kind of an object, in the version
// that was known. Of an object that is not there it makes no error.
func notServed(err error) bool { return apierrors.IsNotFound(err) || meta.IsNoMatchError(err) }

// sift judges a list of Helm's, but for what the chart itself says is to be left behind. targets is
// what the chart declares from now on. The release may have more than both: what of earlier revisions
// waits to be deleted.
func (g *guard) sift(ctx context.Context, list, targets kube.ResourceList) *verdicts {
	s, look := newVerdicts(), g.looks()
	var known []inventory.Entry
	for _, info := range targets {
		e := entryOf(info)
		known, s.declared = append(known, e), append(s.declared, e)
	}
	for _, info := range list {
		e := entryOf(info)
		known = append(known, e)
		keep, hook := isKeep(annotationsOf(info)[kube.ResourcePolicyAnno]), isHook(info)
		if keep && !hook {
			s.left = append(s.left, e)
			continue
		}
		d := g.look(ctx, look, e, hook)
		d.Kept = d.Kept || keep
		s.add(d)
	}
	g.lookWithin(ctx, look, s, inventory.Difference(g.release, known))
	return s
}

func entryOf(info *resource.Info) inventory.Entry {
	gvk := info.Mapping.GroupVersionKind
	e := inventory.Entry{Name: info.Name, Group: gvk.Group, Kind: gvk.Kind, Version: gvk.Version}
	if info.Mapping.Scope.Name() != meta.RESTScopeNameRoot {
		e.Namespace = info.Namespace
	}
	return e
}

func isCluster(e inventory.Entry) bool { return clusterapi.IsCluster(e.GroupKind()) }

func isDefinition(e inventory.Entry) bool {
	return e.Group == "apiextensions.k8s.io" && e.Kind == "CustomResourceDefinition"
}

func isNamespace(e inventory.Entry) bool { return e.Group == "" && e.Kind == "Namespace" }

func isHook(info *resource.Info) bool { return annotationsOf(info)[helmrelease.HookAnnotation] != "" }

func annotationsOf(info *resource.Info) map[string]string {
	annotations, err := meta.NewAccessor().Annotations(info.Object)
	if err != nil {
		return nil
	}
	return annotations
}

// isKeep reads Helm's resource policy.
func isKeep(policy string) bool { return strings.EqualFold(strings.TrimSpace(policy), kube.KeepPolicy) }

// errHeld is wrapped by errors of actions that a person has to release.
var errHeld = errors.New("deletion is held")
