package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/account"
	"github.com/cascade-gitops/cascade/remote/link"
	"github.com/cascade-gitops/cascade/remote/plan"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/report"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// push is the part of a run that writes to the child: all layers together. What the
// layers declare is applied first, in the order of their dependencies. What they no
// longer declare, and what the layers applied that no longer select the child, is deleted
// after that, so that an object which moves from one layer to another changes its owner
// and is never gone.
type push struct {
	*run
	session *link.Session
	cluster capibridge.Cluster
	vars    map[string]string
	// layers that select the child, in the order of their dependencies.
	layers []*seeding
	// view has all layers rendered at one revision of each source, however long the push
	// takes. A commit that moves an object from one layer to another would else be seen on
	// neither side, and the object would be deleted.
	view source.View
	// begun is when the push began.
	begun time.Time
	// silent is the layer of which a call got no answer; empty if none is.
	silent string
	// sweeps are what layers that are due are held against, by the accounts that they are
	// pushed as; nil for an account for which there is none. records shows what is there of
	// the records of layers, nil without a sweep of the parent's own.
	sweeps  map[account.Account]*apply.Sweep
	records *apply.Sweep
	// listed are the records of the layers as one list showed them, until they are used.
	listed map[string]*corev1.ConfigMap
	// installed is the image of the child's agent, nil until it is read.
	installed *string
	// foreign: another management cluster has the record of a layer. ours: none took the child over.
	foreign, ours bool
	// taking: the records that another management cluster left are taken over.
	taking bool
}

// seedAll brings each selected layer into the child and releases the layers that no
// longer select it. A layer that fails does not stop the layers that do not depend on it.
func (r *run) seedAll(ctx context.Context, session *link.Session, cluster capibridge.Cluster, selected []*v1alpha1.Layer) {
	vars := clusterVariables(cluster, r.child)
	p := &push{run: r, session: session, cluster: cluster, vars: vars, begun: r.Now()}
	defer p.end()
	given := slices.Clone(r.child.Status.Rollouts)
	for i := range r.child.Status.Layers {
		r.child.Status.Layers[i].Past = "" // before it is looked at, which one that is suspended is not
	}
	for _, layer := range selected {
		p.layers = append(p.layers, &seeding{push: p, layer: layer, vars: maps.Clone(vars), notes: r.notes.of(layer.Name)})
	}
	defer p.noteReferences()
	if err := p.takeOver(ctx); err != nil {
		for _, s := range p.layers {
			if !s.layer.Spec.Suspend {
				p.record(s, p.entry(s.layer.Name), err)
			}
		}
		p.leave(selected, err)
		r.summarizeLayers(selected)
		return
	}
	p.applyLayers(ctx)
	p.noteBrought(given)
	why := p.barred()
	if why == nil {
		p.pruneLayers(ctx)
		why = p.postponed()
	}
	if why == nil {
		p.release(ctx, selected)
	} else {
		p.leave(selected, why)
	}
	p.noteOwner()
	r.summarizeLayers(selected)
}

// end notes what the push cost.
func (p *push) end() {
	if kept, called := p.session.Kept(); called {
		p.notes.slow = kept >= link.SlowPush
	}
	p.rest = p.session.Wait()
}

// barred is why nothing may be deleted in the child, and no record taken over; nil if both may.
func (p *push) barred() error {
	switch {
	case p.elsewhere:
		return reason.Because(v1alpha1.ReasonManagedElsewhere, errors.New("another tier manages the Cluster; what the layer applied stays"))
	case p.cluster.Paused:
		return reason.Because(v1alpha1.ReasonPaused, errors.New("the Cluster is paused; what the layer applied stays until it is not"))
	case p.child.Spec.Suspend:
		return reason.Because(v1alpha1.ReasonSuspended, fmt.Errorf("the Child is suspended; what the layer applied stays until cascade resume child %s -n %s", p.child.Name, p.child.Namespace))
	}
	return nil
}

// postponed is why nothing more can be pushed in this run, nil if something can.
func (p *push) postponed() error {
	if p.silent != "" {
		return reason.Because(v1alpha1.ReasonUnreachable, fmt.Errorf("not begun: the API server did not answer a call for layer %s", p.silent))
	}
	if wait := p.session.Wait(); wait > 0 {
		return reason.Because(v1alpha1.ReasonPushTimedOut, fmt.Errorf("not begun: %w", &link.BudgetError{Wait: wait}))
	}
	return nil
}

// judged gives a push that failed for the time that it took the reason for that: an API
// server that answers, and waits for something itself, is told from one that does not
// answer.
func judged(err error) error {
	if !refused(err) {
		return err
	}
	var spent *link.BudgetError
	var stuck *apply.StuckError
	switch {
	case errors.As(err, &spent), errors.As(err, &stuck):
		return reason.Because(v1alpha1.ReasonPushTimedOut, err)
	case apply.Unanswered(err):
		return reason.Because(v1alpha1.ReasonUnreachable, err)
	}
	return err
}

// noteReferences records what the layers refer to for this child, so that it is woken when
// that changes. A layer whose inputs were not gathered is looked at again anyway.
func (p *push) noteReferences() {
	refers := map[types.NamespacedName][]use{}
	for _, s := range p.layers {
		refers[s.key()] = s.refers
	}
	p.inUse.set(p.run.key(), refers)
}

// applyLayers applies what each layer declares.
func (p *push) applyLayers(ctx context.Context) {
	if p.elsewhere {
		p.stand(metav1.NewTime(p.Now()))
		return
	}
	agents := 0
	for _, s := range p.layers {
		if s.layer.Spec.Suspend {
			p.suspend(s.layer)
			continue
		}
		entry := p.entry(s.layer.Name)
		entry.Suspended = false
		if s.layer.Spec.Agent != nil {
			agents++
		}
		err := p.attempt(ctx, s, entry, agents)
		if s.rendered != nil && !s.leftover {
			// Many children are pushed to at the same time, each with all its layers.
			s.rendered.phases = nil
		}
		if err != nil || !s.leftover || p.cluster.Paused {
			p.record(s, entry, err) // else when it is known what becomes of the rest
		}
		s.noteHandled(entry)
	}
	p.noteDelivered()
}

// noteHandled has the entry say which request and which generation of the layer were handled.
func (s *seeding) noteHandled(entry *v1alpha1.ChildLayer) {
	if s.unvisited {
		s.run.revisit = true
		return
	}
	if entry.LastHandledReconcileAt = s.requested(); s.standing == "" {
		entry.ObservedGeneration = s.layer.Generation
	}
}

// record writes the outcome of a step into the layer's entry, and another cluster that
// was met on the way into the conditions of the child.
func (p *push) record(s *seeding, entry *v1alpha1.ChildLayer, err error) {
	var other *link.IdentityError
	if errors.As(err, &other) {
		p.identityChanged(other.Found)
	}
	now := p.Now()
	if err = judged(err); p.silent == "" && err != nil && reason.Of(err) == v1alpha1.ReasonUnreachable && apply.Unanswered(err) {
		p.silent = s.layer.Name
		p.session.Silent()
	}
	if reason.Of(err) == v1alpha1.ReasonSuperseded {
		// What this process knows of the layer is another's to change. Until the record is this
		// tier's again, each run reads it first.
		*s.notes = layerNotes{}
	}
	s.notes.attempted(err, now, s.progressed)
	if reason.Of(err) == v1alpha1.ReasonPaused && isApplied(entry) && isUnseen(entry) {
		return // the pause hides no fault: elsewhere the layer would be taken for healthy
	}
	recordOutcome(entry, err, metav1.NewTime(now))
	if entry.Ready {
		entry.Message = cmp.Or(s.standing, s.notes.lingers())
	}
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

// attempt brings one layer into the child as far as it may be.
func (p *push) attempt(ctx context.Context, s *seeding, entry *v1alpha1.ChildLayer, agents int) error {
	if err := s.actAs(ctx); err != nil {
		return err
	}
	if err := account.Admit(s.layer, *s.as); err != nil {
		return err
	}
	if err := p.allowed(ctx, s.layer, entry, agents); err != nil {
		return err
	}
	if err := p.gather(ctx, s); err != nil {
		if isWaitingError(err) {
			return s.waits(ctx, entry, err)
		}
		if entry.Ready && (reason.Of(err) == v1alpha1.ReasonSourceNotReady || errors.Is(err, errNoImage)) && p.Now().Sub(p.notes.began) < sourceWait {
			// A process that has just started has fetched nothing yet, nor noted the image of a
			// layer that an earlier version pushed. The layer is in place all the same.
			s.unvisited = true
			return nil
		}
		return err
	}
	err := s.repaired(func() error { return s.bring(ctx, entry) })
	if isWaitingError(err) {
		return s.waits(ctx, entry, err)
	}
	s.brought = true
	return err
}

// allowed is an error while the layer must not be pushed.
func (p *push) allowed(ctx context.Context, layer *v1alpha1.Layer, entry *v1alpha1.ChildLayer, agents int) error {
	when := layer.Spec.ReadyWhen
	if entry.Digest != "" {
		// readyWhen gates the first push: an outage must not keep updates from the child.
		when = capibridge.WhenControlPlaneInitialized
	}
	if verdict := p.gates.Gate(ctx, layerWorkers(p.Workers, layer), p.cluster, when); !verdict.Open {
		return reason.Because(verdict.Reason, errors.New(verdict.Message))
	}
	if _, err := selectorOf(layer); err != nil {
		return err
	}
	switch {
	case len(layer.Name) > validation.LabelValueMaxLength:
		return reason.Because(v1alpha1.ReasonInvalidSpec, fmt.Errorf("the name of the layer has %d letters, and is to be a label of what it applies, which has %d at most; rename the Layer", len(layer.Name), validation.LabelValueMaxLength))
	case layer.Spec.Agent != nil && p.ownCluster():
		return reason.Because(v1alpha1.ReasonInvalidSpec, errors.New("the child is this tier's own cluster, which has its agent; remove spec.agent, or do not select the cluster"))
	case layer.Spec.Agent != nil && agents > 1:
		return reason.Because(v1alpha1.ReasonInvalidSpec, errors.New("another layer already installs the agent in this child; remove spec.agent from one of them"))
	}
	for _, d := range layer.Spec.DependsOn {
		if err := p.awaits(ctx, d.Name); err != nil {
			return reason.Because(v1alpha1.ReasonDependencyNotReady, err)
		}
	}
	return nil
}

// awaits is an error while a layer on which another one depends is not ready on this child.
func (p *push) awaits(ctx context.Context, name string) error {
	at := slices.IndexFunc(p.layers, func(s *seeding) bool { return s.layer.Name == name })
	on := entryOf(p.child, name)
	switch {
	case on != nil && on.Ready:
		return nil
	case at >= 0 && p.layers[at].complete:
		// What a layer no longer declares holds nobody up: it may have moved to the very
		// layer that depends on it.
		return nil
	case at >= 0:
		return fmt.Errorf("layer %s is not ready on this child", name)
	}
	layer := &v1alpha1.Layer{}
	switch err := p.Client.Get(ctx, types.NamespacedName{Namespace: p.child.Namespace, Name: name}, layer); {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no layer %s, which dependsOn names; declare it, or correct dependsOn", name)
	case err != nil:
		return fmt.Errorf("cannot read Layer %s, which dependsOn names: %w", name, err)
	case layer.DeletionTimestamp != nil:
		return fmt.Errorf("layer %s, which dependsOn names, is being deleted; take it out of dependsOn", name)
	}
	switch selects, err := Selects(layer, p.labels); {
	case err != nil:
		return fmt.Errorf("dependsOn waits: %w", err)
	case selects:
		return fmt.Errorf("layer %s is not ready on this child", name)
	}
	return fmt.Errorf("layer %s, which dependsOn names, does not select this child; have it do so, or take it out of dependsOn", name)
}

// repaired takes a step again after what the child refused was renewed. Twice: repairing
// the token may show that the rights are missing, and the other way round.
func (s *seeding) repaired(step func() error) error {
	err := step()
	for range 2 {
		if reason.Of(err) == v1alpha1.ReasonForbidden || !s.session.Repair(err) {
			break // what the layer's account may not do is not the parent's to mend
		}
		// What the first try noted may not have been sent.
		s.notes.inputs = ""
		err = step()
	}
	return err
}

// grant makes sure that the parent has the rights for the push.
func (p *push) grant(ctx context.Context, role string, rules []rbacv1.PolicyRule) error {
	err := p.session.Grant(ctx, role, rules)
	if err != nil && !reason.Given(err) {
		return reason.Because(v1alpha1.ReasonSeedFailed, err)
	}
	return err
}

// declared tells what each layer that selects the child declares there, unless others do by now. Of one that
// came, or was changed, since the push began that is not known. So says the API server: the commit that takes an
// object out of one layer may bring the Layer that is to have it, which the cache may not show yet.
func (p *push) declared(ctx context.Context) ([]plan.Declared, error) {
	live := &v1alpha1.LayerList{}
	if err := p.Cluster.List(ctx, live, client.InNamespace(p.child.Namespace)); err != nil {
		return nil, reason.Because(v1alpha1.ReasonProgressing, fmt.Errorf("cannot list Layers to tell which of them declare what is to be deleted: %w", err))
	}
	asked := p.revisions.asked() // once for all layers, many of which have one source
	if err := p.relabelled(ctx); err != nil {
		return nil, err
	}
	all := make([]plan.Declared, 0, len(p.layers))
	for i := range live.Items {
		layer := &live.Items[i]
		same := func(s *seeding) bool { return s.layer.UID == layer.UID && s.layer.Generation == layer.Generation }
		selects, err := Selects(layer, p.labels)
		if layer.DeletionTimestamp.IsZero() && (selects || err != nil) && !slices.ContainsFunc(p.layers, same) {
			all = append(all, plan.Declared{Layer: client.ObjectKeyFromObject(layer).String(), Unsure: err != nil && entryOf(p.child, layer.Name) == nil})
		}
	}
	for _, s := range p.layers {
		entry := entryOf(p.child, s.layer.Name)
		d := plan.Declared{Layer: s.key().String()}
		if s.rendered == nil {
			// Nothing was to be done about it, or nothing may be.
			if err := p.gather(ctx, s); err == nil {
				err = s.render(ctx)
				d.Known = err == nil
			}
		} else {
			d.Known = true
		}
		if d.Known {
			d.Entries = s.rendered.entries
			d.Applied = entry != nil && entry.Digest == s.rendered.digest && entry.LastAttemptedDigest == s.rendered.digest
		}
		all = append(all, d)
		if next, ok := s.declaredAhead(ctx, asked); ok && d.Known {
			all = append(all, next)
		}
	}
	return all, nil
}

// recordOutcome writes the outcome of a push into the layer's entry.
func recordOutcome(entry *v1alpha1.ChildLayer, err error, now metav1.Time) {
	ready, why, message := err == nil, v1alpha1.ReasonSucceeded, ""
	if err != nil {
		why, message = reason.Of(err), report.Cut(err.Error(), maxLayerMessage)
	}
	if entry.Ready != ready || entry.Reason != why {
		entry.Since = now
	}
	entry.Ready, entry.Reason, entry.Message = ready, why, message
	changeHeld(entry, func(held *v1alpha1.Held) {
		if why != v1alpha1.ReasonCreateHeld {
			held.Create = nil
		}
		if why != v1alpha1.ReasonHandOverPending {
			held.HandOver = nil
		}
		if why != v1alpha1.ReasonRemovalHeld {
			held.Removal = nil
		}
		if why != v1alpha1.ReasonPruneBlocked && !undecided(entry) {
			held.Prune = nil
		}
	})
}

// changeHeld changes what the layer's entry says is held.
func changeHeld(entry *v1alpha1.ChildLayer, change func(held *v1alpha1.Held)) {
	var held v1alpha1.Held
	if entry.Held != nil {
		held = *entry.Held
	}
	if change(&held); held == (v1alpha1.Held{}) {
		entry.Held = nil
		return
	}
	entry.Held = &held
}

const (
	// maxLayerMessage bounds what the Child says of one layer, and maxLayerMessages what it
	// says of all of them, so that a Child of many layers stays small.
	maxLayerMessage  = 1000
	maxLayerMessages = 2500
)

// boundMessages cuts the messages of layers to what they may take together.
func boundMessages(layers []v1alpha1.ChildLayer) {
	size, said := 0, 0
	for _, l := range layers {
		if size += len(l.Message); l.Message != "" {
			said++
		}
	}
	if size <= maxLayerMessages {
		return
	}
	for i := range layers {
		layers[i].Message = report.Cut(layers[i].Message, max(maxLayerMessages/said, 100))
	}
}

// undecided reports whether a prune plan of a layer was held for approval, and nothing has
// settled that since. The reason alone does not tell: a push that fails has another one.
func undecided(entry *v1alpha1.ChildLayer) bool {
	var hold *v1alpha1.HeldPrune
	if entry.Held != nil {
		hold = entry.Held.Prune
	}
	return inventory.Undecided(hold != nil || entry.Reason == v1alpha1.ReasonPruneBlocked, hold)
}

// named is how the command line names the child.
func (r *run) named() string {
	return fmt.Sprintf("%s -n %s --kind Child", r.child.Name, r.child.Namespace)
}
