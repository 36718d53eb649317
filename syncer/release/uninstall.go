package release

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"helm.sh/helm/v4/pkg/release/common"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
)

// clusterPoll is the pause between two looks at Clusters that are being torn
// down, which takes minutes.
const clusterPoll = 15 * time.Second

// Uninstall removes the release of an object that is being deleted. The object
// may go when the outcome is empty and there is no error. Chart and values of
// the request are not used. The caller has found the cluster to act on and the
// user to act as.
func (r *Releases) Uninstall(ctx context.Context, req Request) (out Outcome, err error) {
	obj := req.Object
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("release panicked: %v", p)
			req.Log.Error(err, "cannot uninstall release", "stack", string(debug.Stack()))
			conditions.MarkFalse(obj, meta.ReadyCondition, v2.UninstallFailedReason, "%s", err)
		}
	}()
	if obj.Status.StorageNamespace == "" {
		obj.Status.ClearHistory()
		return Outcome{}, nil // it never had a release
	}
	n, err := r.begin(req, nil)
	if err != nil {
		conditions.MarkFalse(obj, meta.ReadyCondition, v2.UninstallFailedReason, "failed to build REST client getter to uninstall release: %s", err)
		return Outcome{}, err
	}
	defer n.giveBack()
	out, err = n.remove(ctx)
	if err != nil || out != (Outcome{}) {
		return out, err
	}
	obj.Status.ClearHistory()
	obj.Status.StorageNamespace = ""
	r.Forget(client.ObjectKeyFromObject(obj), obj.UID)
	return Outcome{}, nil
}

// remove uninstalls the release of an object that is being deleted, if it has one.
func (n *run) remove(ctx context.Context) (Outcome, error) {
	if n.obj.Status.History.Latest() == nil {
		begun, err := n.begun(ctx)
		var out Outcome
		if err == nil && begun == nil && n.obj.Status.Inventory != nil {
			out, err = n.clear(ctx) // of what is on record all the same
		}
		if err = n.redacted(err); err != nil {
			conditions.MarkFalse(n.obj, meta.ReadyCondition, v2.UninstallFailedReason, "%s", err)
			return Outcome{}, err
		}
		if begun == nil {
			return out, nil
		}
		n.obj.Status.History = v2.Snapshots{begun}
	}
	return n.uninstall(ctx)
}

// begun is the record of a release that the agent was killed in the middle of installing,
// before the history had it; nil if there is none. Helm's storage may have a release of
// another person under the name: the object's own is known by its labels.
func (n *run) begun(ctx context.Context) (*v2.Snapshot, error) {
	n.storageNamespace = n.obj.Status.StorageNamespace
	_, rel, err := n.newest(ctx)
	if err != nil || rel == nil {
		return nil, err
	}
	if ours, err := n.ours(rel); err != nil || !ours {
		return nil, err
	}
	return snapshotOf(rel, "", v2.ReleaseActionInstall), nil
}

// Has reports whether the cluster of a request has the release that the status of the object is about: a
// digest of it tells it from a release of the same name in another cluster. One that changed since it was
// recorded, or is not on record yet because the agent was killed before, is known by its labels.
func (r *Releases) Has(ctx context.Context, req Request) (bool, error) {
	n, err := r.begin(req, nil)
	if err != nil {
		return false, err
	}
	defer n.memory.GiveBack()
	return n.has(ctx)
}

// has is Has of a run.
func (n *run) has(ctx context.Context) (bool, error) {
	latest := n.obj.Status.History.Latest()
	if latest == nil {
		begun, err := n.begun(ctx)
		return begun != nil, err
	}
	rel, err := n.store.read(ctx, n.obj.Status.StorageNamespace, latest.Name, latest.Version)
	if errors.Is(err, driver.ErrReleaseNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot read release %s/%s.v%d: %w", latest.Namespace, latest.Name, latest.Version, n.redacted(err))
	}
	if latest.APIVersion == v2.CurrentSnapshotAPIVersion && verify(latest, rel) == nil {
		return true, nil
	}
	// Helm was called by hand since then, the agent was killed while hooks ran, which Helm notes in the release, or
	// an engine of before recorded no digest. No other cluster has one of ours that was first deployed in the same second.
	if rel.Info.FirstDeployed.Unix() != latest.FirstDeployed.Unix() {
		return false, nil
	}
	return n.ours(rel)
}

// Contents are the objects that the cluster of a request has on record for the release that the status of the
// object is about, for where there is no inventory. An earlier Flux wrote none.
func (r *Releases) Contents(ctx context.Context, req Request) ([]inventory.Entry, error) {
	n, err := r.begin(req, nil)
	if err != nil {
		return nil, err
	}
	defer n.giveBack()
	n.storageNamespace = req.Object.Status.StorageNamespace
	if latest := req.Object.Status.History.Latest(); latest != nil {
		n.name, n.namespace = latest.Name, latest.Namespace
	}
	entries, err := n.onRecord(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot read release %s/%s: %w", n.namespace, n.name, n.redacted(err))
	}
	return entries, nil
}

// onRecord are the objects of the revision that was deployed last, and of those that failed since.
func (n *run) onRecord(ctx context.Context) (entries []inventory.Entry, err error) {
	found, err := n.store.revisions(ctx, n.storageNamespace, n.name)
	if err != nil {
		return nil, err
	}
	for _, r := range found {
		rel, err := n.store.read(ctx, n.storageNamespace, n.name, r.version)
		if errors.Is(err, driver.ErrReleaseNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		n.hide(rel)
		objects, _, err := objectsOf(rel, n.mapper)
		if err != nil {
			return nil, err
		}
		if entries = inventory.Union(entries, inventory.OfAll(objects)); isDeployed(rel) {
			break
		}
	}
	return entries, nil
}

// ours reports whether all that is in the manifest of a release has the labels of the
// object.
func (n *run) ours(rel *helmrelease.Release) (bool, error) {
	objects, _, err := objectsOf(rel, n.mapper)
	if err != nil {
		return false, err
	}
	all := !slices.ContainsFunc(objects, func(u *unstructured.Unstructured) bool { return !n.labelled(u) })
	return all && len(objects) > 0, nil
}

// labelled reports whether an object has the labels of the HelmRelease.
func (n *run) labelled(u *unstructured.Unstructured) bool {
	for label, value := range originLabels(n.obj) {
		if u.GetLabels()[label] != value {
			return false
		}
	}
	return true
}

// leave uninstalls a release that the object does not point at any more.
func (n *run) leave(ctx context.Context) (Outcome, error) {
	out, err := n.uninstall(ctx)
	if err != nil || out != (Outcome{}) {
		return out, err
	}
	n.obj.Status.ClearHistory()
	n.obj.Status.ClearFailures()
	n.obj.Status.StorageNamespace = ""
	return Outcome{Again: true}, nil
}

// uninstall removes the release that the history is about, if all of its
// objects may go. If one must stay, uninstall touches nothing.
func (n *run) uninstall(ctx context.Context) (Outcome, error) {
	obj := n.obj
	before := obj.Status.History.Latest()
	// The release is where it was installed, which may not be where it is declared
	// now.
	n.name, n.namespace, n.storageNamespace = before.Name, before.Namespace, obj.Status.StorageNamespace
	n.guard.name, n.guard.namespace = n.name, n.namespace
	out, err := n.clear(ctx)
	if err = n.redacted(err); err != nil {
		conditions.MarkFalse(obj, meta.ReadyCondition, v2.UninstallFailedReason, "%s", err)
		return Outcome{}, err
	}
	if out != (Outcome{}) {
		return out, nil
	}
	defer n.summarize()
	if n.found.successor != "" {
		message := fmt.Sprintf("Release %s/%s is that of HelmRelease %s by now and stays", n.namespace, n.name, n.found.successor)
		if n.found.successor == client.ObjectKeyFromObject(obj).String() {
			message = fmt.Sprintf("Release %s/%s stays: the HelmRelease is declared again, with all that it has", n.namespace, n.name)
		}
		obj.Status.Inventory = nil
		conditions.MarkFalse(obj, v2.ReleasedCondition, v2.UninstallSucceededReason, "%s", message)
		n.event(about(before), corev1.EventTypeNormal, v2.UninstallSucceededReason, message)
		return Outcome{}, nil
	}
	before = obj.Status.History.Latest().DeepCopy() // it may have been marked just now
	h := n.helm(ctx, func(rel *helmrelease.Release) { replace(obj, rel, always(v2.ReleaseActionUninstall)) })
	rel, err := h.uninstall(before.Name)
	switch {
	case errors.Is(err, driver.ErrReleaseNotFound):
		conditions.MarkFalse(obj, v2.ReleasedCondition, v2.UninstallSucceededReason,
			"Release %s was not found, assuming it is uninstalled", before.FullReleaseName())
		obj.Status.Inventory = nil
		return Outcome{}, nil
	case err != nil && obj.GetUninstall().KeepHistory && strings.Contains(err.Error(), "is already deleted"):
		conditions.MarkFalse(obj, v2.ReleasedCondition, v2.UninstallSucceededReason,
			"Release %s was already uninstalled", before.FullReleaseName())
		obj.Status.Inventory = nil
		return Outcome{}, nil
	}
	err = n.redacted(outcomeOf(rel, err, before, obj))
	latest := obj.Status.History.Latest()
	what := fmt.Sprintf("for release %s with chart %s", latest.FullReleaseName(), latest.VersionedChartName())
	if err != nil {
		obj.Status.Failures++
		message := fmt.Sprintf("Helm uninstall failed %s: %s", what, strings.TrimSpace(err.Error()))
		conditions.MarkFalse(obj, v2.ReleasedCondition, v2.UninstallFailedReason, "%s", message)
		n.event(about(latest), corev1.EventTypeWarning, v2.UninstallFailedReason, h.withLogs(message))
		return Outcome{}, err
	}
	message := "Helm uninstall succeeded " + what
	obj.Status.Inventory = nil
	conditions.MarkFalse(obj, v2.ReleasedCondition, v2.UninstallSucceededReason, "%s", message)
	n.event(about(latest), corev1.EventTypeNormal, v2.UninstallSucceededReason, message)
	return Outcome{}, nil
}

// clear makes sure that all objects of a release may go, and what is on record besides,
// whether Helm knows of a release or not. It deletes Clusters first. Cluster API tears down
// by itself what belongs to a Cluster, in its own order, and cannot do so if those objects
// are deleted before. So do Kustomizations and HelmReleases, as accounts that may be of the
// release, or are kept for this HelmRelease. An outcome means that the release cannot be uninstalled yet.
func (n *run) clear(ctx context.Context) (Outcome, error) {
	found, rel, err := n.newest(ctx)
	if err != nil {
		return Outcome{}, fmt.Errorf("cannot read release %s/%s to uninstall it: %w", n.namespace, n.name, err)
	}
	if rel != nil {
		if n.found.successor, err = n.successor(rel); err != nil {
			return Outcome{}, err
		}
	}
	var going []inventory.Entry
	// A revision that is gone took with it what it had. What is on record besides is still to go.
	n.found.leftovers = undeleted(entriesOf(n.obj.Status.Inventory))
	if rel != nil && rel.Info.Status != common.StatusUninstalled {
		if going, n.found.leftovers, err = n.stillIn(ctx, found, rel); err != nil {
			return Outcome{}, err
		}
	}
	entries := inventory.Union(going, n.found.leftovers)
	n.guard.release = entries
	n.guard.overdue = nil
	n.guard.confirmed = n.obj.Annotations[v1alpha1.DeletionAnnotation] == v1alpha1.DeletionConfirmed
	s := n.guard.judgeAll(ctx, entries, nil)
	if rel != nil && n.comesBack(rel, s, going) {
		// The next one of the name, which cannot be made before this one is gone, takes the release over. It finds
		// what is on its way out only once that is gone.
		n.found.successor = client.ObjectKeyFromObject(n.obj).String()
		entries = slices.DeleteFunc(entries, func(e inventory.Entry) bool {
			d := s.judged[e]
			return !d.Live.Deleting && (d.Again || slices.Contains(going, e))
		})
		s, going = n.guard.judgeAll(ctx, entries, going), nil
	}
	record := n.guard.handOver(s, n.req.HandOver, n.Now())
	n.handsOver(s, record)
	// All that is not a Cluster waits for what dismantle deletes.
	n.keeps(slices.Concat(s.withCluster, s.queued, slices.DeleteFunc(s.going(), func(e inventory.Entry) bool { return !isCluster(e) })))
	if message := s.message(); message != "" {
		n.hold(message)
		conditions.Delete(n.obj, meta.ReconcilingCondition)
		// Confirmations on the objects wake nobody.
		return Outcome{Held: true, After: cmp.Or(n.handOverPause(record), overduePoll), HandOver: record}, nil
	}
	n.unhold()
	if len(s.awaited) > 0 {
		// Of what the object declares now nothing is there yet: it may point at another release.
		n.waits("for another owner to take over " + inventory.Names(s.awaited))
		return Outcome{After: n.handOverPause(record), HandOver: record}, nil
	}
	if out, err := n.dismantle(ctx, s, rel); err != nil || out != (Outcome{}) {
		out.HandOver = record
		return out, err
	}
	// Of the leftovers: the rest is deleted by way of Helm.
	leftovers := slices.DeleteFunc(slices.Clone(s.deletable), func(d Candidate) bool { return slices.Contains(going, d.Entry) })
	if _, errs := n.guard.deleteAll(ctx, s, leftovers, metav1.DeletePropagationBackground); len(errs) > 0 {
		return Outcome{}, errors.Join(errs...)
	}
	if len(s.kept()) > 0 {
		return Outcome{Again: true, HandOver: record}, nil // as it is judged now
	}
	return Outcome{}, nil
}

// comesBack reports whether a HelmRelease that is being deleted is declared again, with the release and all that it has. It
// waits for nobody then, least of all for itself. Whose release failed may have been deleted for that.
func (n *run) comesBack(rel *helmrelease.Release, s *verdicts, going []inventory.Entry) (back bool) {
	if n.obj.DeletionTimestamp.IsZero() || !isDeployed(rel) {
		return false
	}
	for _, e := range going {
		switch d := s.judged[e]; {
		case Judge(d) == Gone, Judge(d) == Foreign:
		case !d.Again || !n.pointsHere(d.Form):
			return false
		default:
			back = true
		}
	}
	return back
}

// pointsHere reports whether a HelmRelease, in the form in which it is to be, has this release. Another one is installed
// beside it, even where both have the same objects, and nobody answers for this one then.
func (n *run) pointsHere(form client.Object) bool {
	next, ok := form.(*v2.HelmRelease)
	return ok && ShortName(next.GetReleaseName()) == n.name && next.GetReleaseNamespace() == n.namespace && next.GetStorageNamespace() == n.storageNamespace
}

// stillIn are the objects that go with the newest revision, which is the first of found, and those on
// record that it does not have.
func (n *run) stillIn(ctx context.Context, found []revision, rel *helmrelease.Release) (going, left []inventory.Entry, err error) {
	objects, _, err := objectsOf(rel, n.mapper)
	if err != nil {
		return nil, nil, err
	}
	mine := n.obj.Status.History.Latest() != nil
	if !mine {
		if mine, err = n.ours(rel); err != nil {
			return nil, nil, err
		}
	}
	// A successor has not applied all of its objects yet, if its upgrade goes on.
	if mine && n.found.successor == "" {
		going = goingOf(objects)
	}
	undone, err := n.undoneIn(ctx, found, rel)
	if err != nil {
		return nil, nil, err
	}
	left, err = n.leftoversOf(rel, undone)
	return going, left, err
}

// successor is the HelmRelease that made a revision, empty if it is ours, or nobody's that
// is known. With releaseName another HelmRelease may have taken the release over, as when
// a HelmRelease is renamed. Helm would run its delete hooks and remove its storage.
func (n *run) successor(rel *helmrelease.Release) (string, error) {
	latest := n.obj.Status.History.Latest()
	if latest != nil && latest.Targets(rel.Name, rel.Namespace, rel.Version) && verify(latest, rel) == nil {
		return "", nil
	}
	return n.madeByOther(rel)
}

// former reports whether another HelmRelease of the namespace made a revision of the release that the
// storage still has, as before a HelmRelease is renamed.
func (n *run) former(ctx context.Context, name string) (bool, error) {
	found, err := n.store.revisions(ctx, n.storageNamespace, n.name)
	if err != nil {
		return false, fmt.Errorf("cannot list revisions of release %s/%s: %w", n.namespace, n.name, err)
	}
	for _, r := range found {
		rel, err := n.store.read(ctx, n.storageNamespace, n.name, r.version)
		if errors.Is(err, driver.ErrReleaseNotFound) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("cannot read release %s/%s.v%d: %w", n.namespace, n.name, r.version, err)
		}
		switch by, err := n.madeByOther(rel); {
		case err != nil:
			return false, err
		case by == n.obj.Namespace+"/"+name:
			return true, nil
		}
	}
	return false, nil
}

// madeByOther is the HelmRelease by whose labels another one made a revision; empty if none did.
func (n *run) madeByOther(rel *helmrelease.Release) (string, error) {
	texts := []string{rel.Manifest}
	for _, h := range rel.Hooks {
		texts = append(texts, h.Manifest)
	}
	for _, text := range texts {
		objects, _, err := objectsIn(rel, text, n.mapper)
		if err != nil {
			return "", err
		}
		for _, u := range objects {
			if name := u.GetLabels()[ownerName]; name != "" && !n.labelled(u) {
				return u.GetLabels()[ownerNamespace] + "/" + name, nil
			}
		}
	}
	return "", nil
}

// goingOf are the objects that go with a release.
func goingOf(objects []*unstructured.Unstructured) []inventory.Entry {
	var going []inventory.Entry
	for _, u := range objects {
		if !keptByPolicy(u) {
			going = append(going, inventory.Of(u))
		}
	}
	return going
}

// dismantle deletes the Kustomizations and HelmReleases of a release, and its Clusters, these one after the
// other, and waits for their end and that of other Clusters which need its objects. rel is the newest revision, nil if
// nothing is to say that its uninstall began.
func (n *run) dismantle(ctx context.Context, s *verdicts, rel *helmrelease.Release) (Outcome, error) {
	first := slices.DeleteFunc(slices.Clone(s.deletable), func(d Candidate) bool {
		return !isCluster(d.Entry) && (d.LowerTier || !d.Live.TakesDown(d.Entry, n.Now()))
	})
	going, errs := n.guard.deleteAll(ctx, s, first, metav1.DeletePropagationBackground)
	// A Cluster that does not go yet is not to go because of that: whatever comes meanwhile may keep it.
	kept := len(s.queued) > 0 || slices.ContainsFunc(first, func(d Candidate) bool { return isCluster(d.Entry) && !slices.Contains(going, d.Entry) })
	if len(going) > 0 && !kept {
		errs = append(errs, n.begins(ctx, rel))
	}
	if err := errors.Join(errs...); err != nil {
		return Outcome{}, err
	}
	if len(s.held)+len(s.awaited) > 0 {
		return Outcome{Again: true}, nil // as it is judged now
	}
	var waits []string
	if len(going) > 0 {
		waits = append(waits, "for the end of "+inventory.Names(going))
	}
	if len(s.queued) > 0 {
		waits = append(waits, fmt.Sprintf("to delete %s when %s is gone", inventory.Names(s.queued), s.inFlight))
	}
	if len(s.withCluster) > 0 {
		waits = append(waits, "for the end of the Clusters that need "+inventory.Names(s.withCluster))
	}
	if len(waits) == 0 {
		return Outcome{}, nil
	}
	waiting := slices.Concat(going, s.withCluster)
	if still := n.guard.judgeAll(ctx, waiting, nil); len(s.queued)+len(still.deletable)+len(still.kept()) == 0 {
		return Outcome{Again: true}, nil // their templates were judged before
	}
	n.waits(strings.Join(waits, ", and "))
	return Outcome{After: clusterPoll}, nil
}

// begins marks the newest revision as one whose uninstall began, in Helm's storage and in the history. What goes before
// Helm uninstalls the rest takes its time, and whatever the object declares meanwhile, all that the release had is made
// anew after that. A HelmRelease that is being deleted may come back with what is left of it.
func (n *run) begins(ctx context.Context, rel *helmrelease.Release) error {
	if rel == nil || !n.obj.DeletionTimestamp.IsZero() || n.found.successor != "" {
		return nil
	}
	latest := n.obj.Status.History.Latest()
	if status := rel.Info.Status; status == common.StatusUninstalling || status == common.StatusUninstalled ||
		latest == nil || !latest.Targets(rel.Name, rel.Namespace, rel.Version) {
		return nil
	}
	h := n.helm(ctx, func(rel *helmrelease.Release) { replace(n.obj, rel, same) })
	if err := h.begun(rel); err != nil {
		return fmt.Errorf("cannot mark release %s/%s as uninstalling: %w", rel.Namespace, rel.Name, err)
	}
	return nil
}

// waits records what the end of a release waits for. The object is not ready for as long.
func (n *run) waits(what string) {
	conditions.MarkReconciling(n.obj, meta.ProgressingReason, "Waiting %s", what)
	conditions.MarkUnknown(n.obj, meta.ReadyCondition, meta.ProgressingReason, "Waiting %s", what)
}
