package remote

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/account"
	"github.com/cascade-gitops/cascade/remote/epoch"
	"github.com/cascade-gitops/cascade/remote/plan"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/record"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// openRecord reads the record of a layer in the child and makes sure that this process
// may write it. What an earlier version recorded is taken over.
func (p *push) openRecord(ctx context.Context, layer types.NamespacedName, entry *v1alpha1.ChildLayer) (*record.Record, error) {
	rec, err := record.Get(ctx, p.readRecord, layer)
	if err != nil {
		return nil, cannotRead(err)
	}
	if err := p.fromEarlier(ctx, rec, entry); err != nil {
		return nil, err
	}
	if !rec.Exists() {
		if err := p.stillHere(ctx, layer.Name); err != nil {
			return nil, err
		}
	}
	if err := p.claim(ctx, rec); err != nil {
		return nil, err
	}
	if err := p.recover(ctx, rec, entry); err != nil {
		return nil, err
	}
	if n := p.notes.layers[layer.Name]; n != nil {
		n.given = rec.Pinned
	}
	return rec, nil
}

// cannotRead gives an error of records in the child its reason.
func cannotRead(err error) error {
	if errors.Is(err, record.ErrUnusable) {
		return reason.Because(v1alpha1.ReasonRecordInvalid, err)
	}
	return cannotReach(err)
}

// stillHere makes sure, once in a push, that no other management cluster took the child over, for a layer that
// has no record there. Who does marks all records, so that one of another layer which this tier pushed tells; all of them
// where the Child says already that it was taken. In the tier's own cluster they are the tier's above by right.
func (p *push) stillHere(ctx context.Context, layer string) error {
	if p.ours || p.ownCluster() {
		return nil
	}
	for i := range p.child.Status.Layers {
		entry := &p.child.Status.Layers[i]
		if entry.Name == layer || !onRecord(entry) {
			continue
		}
		rec, err := record.Get(ctx, p.readRecord, types.NamespacedName{Namespace: p.child.Namespace, Name: entry.Name})
		switch {
		case errors.Is(err, record.ErrUnusable):
			continue // that is an error of its layer
		case err != nil:
			return cannotReach(err)
		case !rec.Exists():
			continue
		}
		if err := p.claim(ctx, rec); err != nil {
			return err
		}
		if p.child.Status.SupersededBy == nil {
			break
		}
	}
	p.ours = true
	return nil
}

// recover finds in the child what a layer applied whose record somebody deleted there, though the Child's
// status says that there is something: nobody would answer for it any more. Without a kubeconfig to look with it
// is not found.
func (p *push) recover(ctx context.Context, rec *record.Record, entry *v1alpha1.ChildLayer) error {
	if rec.Exists() || len(rec.Inventory) > 0 || entry.Objects == 0 {
		return nil
	}
	cluster, err := p.lister(ctx, account.Account{})
	if err != nil || cluster == nil {
		return err
	}
	rec.Inventory, err = apply.New(cluster, ownerOf(rec.Layer.Namespace, rec.Layer.Name), nil, p.Now).Applied(ctx)
	if err != nil {
		return cannotReach(err)
	}
	return nil
}

// readRecord reads a ConfigMap in the child, with the kubeconfig if the parent's own
// account may not: its rights for a layer come with the first push.
func (p *push) readRecord(ctx context.Context, name string) (*corev1.ConfigMap, error) {
	cm, err := p.listedRecord(ctx, name)
	if cm != nil || err != nil {
		return cm, err
	}
	cm = &corev1.ConfigMap{}
	return cm, p.readOwn(ctx, "/api/v1", "configmaps", name, cm)
}

// readOwn reads an object of the agent's namespace in the child, with the kubeconfig if the parent's own
// account may not.
func (p *push) readOwn(ctx context.Context, api, kind, name string, into client.Object) error {
	err := p.session.Read(ctx, api+"/namespaces/"+v1alpha1.AgentNamespace+"/"+kind+"/"+name, into)
	if !apierrors.IsForbidden(err) {
		return err
	}
	admin, err := p.session.Administrator(ctx)
	if err != nil {
		return err
	}
	return admin.Get(ctx, types.NamespacedName{Namespace: v1alpha1.AgentNamespace, Name: name}, into)
}

// fewRecords are read one by one.
const fewRecords = 2

// listedRecord is a record as a list of all showed it, once: who reads it again wants it as
// it is by then. The list is made with the kubeconfig, when many are read: after a start,
// and by the first comparison. Nil is to be read by itself, as somebody may have taken its label.
func (p *push) listedRecord(ctx context.Context, name string) (*corev1.ConfigMap, error) {
	if p.listed == nil {
		p.listed = map[string]*corev1.ConfigMap{}
		unread := 0
		for _, s := range p.layers {
			// One that was never looked at, or is due and has no seal.
			if n := s.notes; !n.looked || n.seal == nil && !p.Now().Before(n.due) {
				unread++
			}
		}
		if unread <= fewRecords {
			return nil, nil
		}
		admin, err := p.session.AtHand(ctx)
		if err == nil && admin == nil {
			admin, err = p.lister(ctx, account.Account{})
		}
		if err != nil || admin == nil {
			return nil, err
		}
		list := &corev1.ConfigMapList{}
		err = admin.List(ctx, list, client.InNamespace(v1alpha1.AgentNamespace), client.MatchingLabels{v1alpha1.RecordLabel: "layer"})
		switch {
		case apierrors.IsForbidden(err):
			return nil, nil // each may be read all the same
		case err != nil:
			return nil, fmt.Errorf("cannot list the records of layers in the child: %w", err)
		}
		for i := range list.Items {
			p.listed[list.Items[i].Name] = &list.Items[i]
		}
	}
	cm := p.listed[name]
	delete(p.listed, name)
	return cm, nil
}

// claim makes sure that this process may write a record, and marks it as its own.
func (p *push) claim(ctx context.Context, rec *record.Record) error {
	lineage, err := p.lineage(ctx, rec.Parent)
	if err != nil {
		return reason.Because(v1alpha1.ReasonProgressing, err)
	}
	switch epoch.Judge(lineage, rec.Parent) {
	case epoch.Outrun:
		if err := p.stillOurs(ctx, rec); err != nil {
			return err
		}
		if lineage, err = p.raise(ctx, rec.Parent); err != nil {
			return reason.Because(v1alpha1.ReasonProgressing, err)
		}
	case epoch.Foreign:
		if !p.takesOver(rec.Parent) {
			p.foreign = true
			// The largest number of its marks, which an approval is for.
			by := &v1alpha1.Epoch{Number: rec.Parent.Epoch, Holder: rec.Parent.Holder}
			if other := p.child.Status.SupersededBy; other != nil && other.Holder == by.Holder {
				by.Number = max(by.Number, other.Number)
			}
			p.child.Status.SupersededBy = by
			above := ""
			if p.ownCluster() {
				above = "The cluster is this tier's own, and the tier above it may have a Layer of this name: rename the one here. "
			}
			return reason.Because(v1alpha1.ReasonSuperseded, fmt.Errorf(
				"another management cluster took this child over: the record of layer %s has epoch %d of %s, which is not in the history of this tier; nothing is written. "+
					"%sIf that one is gone, `cascade approve take-over %s -n %s` lets this tier go on",
				rec.Layer.Name, rec.Parent.Epoch, rec.Parent.Holder, above, p.child.Name, p.child.Namespace))
		}
		if lineage, err = p.raise(ctx, rec.Parent); err != nil {
			return reason.Because(v1alpha1.ReasonProgressing, err)
		}
	}
	rec.Parent = lineage[0]
	return nil
}

// noteOwner has the status say no longer that another management cluster took the child over,
// once the record of each layer is known to be this tier's. A run that could not read one
// leaves what is said.
func (p *push) noteOwner() {
	known := false
	for _, s := range p.layers {
		switch read := s.notes.looked || s.notes.noted; {
		case read:
			known = true
		case !s.layer.Spec.Suspend:
			return
		}
	}
	if known && !p.foreign {
		p.child.Status.SupersededBy = nil
	}
}

// takesOver reports whether this tier may take the child over from a process outside of
// its history: at the first contact, or because a person said so. An approval that has to be taken off
// counts where that is done.
func (p *push) takesOver(from epoch.Mark) bool {
	approved, lasts := epoch.Approves(p.child.Annotations[v1alpha1.ApproveTakeOverAnnotation], from)
	return p.child.Status.Identity.TakingOver || approved && (p.taking || !lasts)
}

// putRecord writes a record, and what the Child's status has of it. The identity of the
// child is recorded in this tier before anything is written to the child.
func (p *push) putRecord(ctx context.Context, rec *record.Record, entry *v1alpha1.ChildLayer, child client.Writer) error {
	if p.recorded.Status.Identity == nil {
		if err := p.writeStatus(ctx); err != nil {
			return reason.Because(v1alpha1.ReasonProgressing, err)
		}
	}
	rec.Cluster = record.Cluster{UID: p.vars["cluster_uid"]}
	if !p.child.Spec.InCluster { // the tier above has the cluster by another name, by right
		rec.Cluster.Namespace, rec.Cluster.Name = p.cluster.Namespace, p.cluster.Name
	}
	err := rec.Put(ctx, child)
	switch {
	case errors.Is(err, record.ErrMoved):
		return reason.Because(v1alpha1.ReasonProgressing, err)
	case err != nil:
		return reason.Because(v1alpha1.ReasonSeedFailed, err)
	}
	p.ours = true
	noteRecord(entry, rec)
	if err := p.dropEarlier(ctx, rec.Layer); err != nil {
		return err
	}
	// As long as it is there, the child may have a record of an earlier version.
	entry.Inventory = nil
	return nil
}

// noteRecord has the Child's status say what the record of a layer says. Of two commits with the same
// content the record has the first: the later one stands.
func noteRecord(entry *v1alpha1.ChildLayer, rec *record.Record) {
	if entry.Digest != rec.Applied.Digest {
		entry.Revision, entry.Digest = rec.Applied.Revision, rec.Applied.Digest
	}
	entry.LastAttemptedRevision, entry.LastAttemptedDigest = rec.Attempted.Revision, rec.Attempted.Digest
	entry.Objects = int32(len(rec.Inventory))
}

// dropRecord deletes the record of a layer from the child.
func (p *push) dropRecord(ctx context.Context, rec *record.Record, child client.Writer) error {
	if err := rec.Delete(ctx, child); err != nil {
		if errors.Is(err, record.ErrMoved) {
			return reason.Because(v1alpha1.ReasonProgressing, err)
		}
		return reason.Because(v1alpha1.ReasonSeedFailed, err)
	}
	return p.dropEarlier(ctx, rec.Layer)
}

// state is what the record says of a rendering that is sent. One that is in place came with
// another commit, perhaps: that alone is not worth two writes for each layer of each child.
func (s *seeding) state(rec *record.Record) record.State {
	if rec.InPlace(s.rendered.digest) {
		return rec.Applied
	}
	return record.State{Revision: s.revision(), Digest: s.rendered.digest}
}

// attempting is what the record says was tried last while a rendering is sent. A revert to what was
// applied before leaves there the digest of what was tried since: the layer is not in place before all is sent.
func attempting(rec *record.Record, state record.State) record.State {
	if since := rec.Attempted; since.Digest != "" && since.Digest != state.Digest && state.Digest == rec.Applied.Digest {
		return record.State{Revision: state.Revision, Digest: since.Digest}
	}
	return state
}

// mostDescribed bounds the objects of a layer of which the record says what was sent: its
// ConfigMap has a bound, and most of that is for the inventory.
const mostDescribed = 4096

// describe has the record say what a rendering that is in place was made from, and what was sent
// of it, so that a later process need not render it to know, and sends what is new alone. Nothing is
// said of Secrets.
func (s *seeding) describe(rec *record.Record, sent apply.Sent) {
	rec.Inputs, rec.Sent = "", nil
	if len(sent) == 0 || len(sent) > mostDescribed || len(s.sensitive) > 0 {
		return
	}
	open, err := sent.Without(s.owner(), s.rendered.phases, isSecret)
	if err != nil {
		return // a later process sends all
	}
	rec.Sent = open.Bytes()
	if len(open) == len(sent) {
		rec.Inputs = s.recordable()
	}
}

func isSecret(e inventory.Entry) bool { return e.Group == "" && e.Kind == "Secret" }

// before is what is known to have been sent of a layer by the process before, as its record says,
// nil if that is not known.
func before(rec *record.Record) apply.Sent {
	if !rec.InPlace(rec.Applied.Digest) {
		return nil // a part of another rendering was sent since
	}
	sent, err := apply.ParseSent(rec.Sent)
	if err != nil {
		return nil
	}
	return sent
}

// adopt reports whether the layer is in place by its record alone: an earlier process of the same
// version applied all of it, rendered from the same, and nothing is left of what it declared
// before. The first comparison renders it.
func (s *seeding) adopt(rec *record.Record, entry *v1alpha1.ChildLayer, inputs string) bool {
	if !entry.Ready || rec.Inputs == "" || !rec.InPlace(rec.Applied.Digest) || rec.Inputs != s.recordable() || len(rec.Sent) != len(rec.Inventory)*apply.SentSize {
		return false
	}
	sent := before(rec)
	if sent == nil {
		return false
	}
	noteRecord(entry, rec)
	s.notes.sent = sent
	s.notes.inputs, s.notes.requested, s.notes.as = inputs, s.requested(), s.as
	s.looked()
	return true
}

// looked notes that the record of a layer that is ready and in place was read.
func (s *seeding) looked() {
	// It is not compared in this run, nor while other children are still adopted: a start
	// compares nothing.
	interval := s.layer.Spec.Interval.Duration
	s.notes.due = plan.NextDue(s.Now().Add(min(interval, adoptFirst)), interval, s.run.notes.phase)
	s.notes.looked, s.notes.others = true, false
}

// look reads the record of the layer in the child, once in the life of the process, and again
// after another management cluster had the child; rec is nil if it was not read yet. The record
// counts, not what the Child's status says: the process before may have ended between the two.
func (s *seeding) look(ctx context.Context, rec *record.Record, entry *v1alpha1.ChildLayer) (err error) {
	if rec == nil {
		if rec, err = s.openRecord(ctx, s.key(), entry); err != nil {
			return err
		}
	}
	if err := s.behind(ctx, rec); err != nil {
		return err
	}
	ready := entry.Ready || unsent(entry.Reason)
	told := entry.Digest == rec.Applied.Digest // else the process before ended before it could say how this is
	if rec.Exists() || rec.Applied.Digest != "" {
		noteRecord(entry, rec)
	}
	if err := s.unpinned(ctx, rec, entry); err != nil {
		return err
	}
	if rec.InPlace(s.rendered.digest) {
		entry.DeletionPolicy = s.layer.Spec.DeletionPolicy
		s.leaves(rec, entry)
		if told {
			s.deletesBegan(entry)
		}
		if ready {
			s.looked()
		}
		// An earlier process applied these phases, so that neither a change nor a comparison
		// need send all of them.
		if s.notes.sent, err = apply.SentOf(s.owner(), s.rendered.phases); err != nil {
			return reason.Because(v1alpha1.ReasonSeedFailed, err)
		}
	} else {
		entry.Ready = false
		s.notes.sent = before(rec)
	}
	s.notes.looked, s.notes.others = true, false
	return nil
}

// unsent reports whether a layer with this reason was not pushed since it was in
// place: what failed comes before the push or after it.
func unsent(why string) bool {
	switch why {
	case v1alpha1.ReasonSourceNotReady, v1alpha1.ReasonAccessDenied, v1alpha1.ReasonCredentialMissing, v1alpha1.ReasonReferenceInvalid, v1alpha1.ReasonDependencyNotReady, v1alpha1.ReasonClusterNotReady,
		v1alpha1.ReasonPaused, v1alpha1.ReasonRolloutPending, v1alpha1.ReasonRolloutConflict, v1alpha1.ReasonBuildFailed, v1alpha1.ReasonProgressing, v1alpha1.ReasonHealthCheckFailed,
		v1alpha1.ReasonSuspended, v1alpha1.ReasonManagedElsewhere: // it did not select the child meanwhile
		return true
	}
	return false
}
