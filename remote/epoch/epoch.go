// Package epoch numbers the processes that lead a tier, so that of two that seed the
// same children one gives way.
//
// Each process that takes a tier over writes down the next epoch, beside those before
// it: the lineage of the tier. What it writes into children carries its epoch. A process
// that finds the mark of another one in a child looks it up in the lineage of its own
// tier. A predecessor is succeeded. Whoever is not in the lineage took the child over
// from outside of this tier's history: another management cluster that was made of a
// copy or of Git. This process is superseded then, and writes nothing. An old management
// cluster that comes back finds its successor's marks that way, whatever number it gives
// itself.
//
// Several processes of one tier may seed different children at the same time. Each takes
// a new epoch when it begins with some of them. A process that finds the mark of a later
// one of its own tier was outrun: the child is another's by now.
//
// Invariants:
//
//   - two processes of one tier never have the same epoch: the lineage is written
//     conditionally on what was read;
//   - who begins with children later has the larger epoch;
//   - only who never had to do with a child before takes it from a process that is not
//     in the lineage, or whom a person told to.
//
// Failure model: a process that cannot write the lineage has no epoch, and writes to no
// child. A record that is deleted while a process leads children is written again within a
// minute; one that is deleted while none does makes the next one a stranger to them.
package epoch

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Mark is what a process leaves in what it writes. The zero value is that of versions
// that left none.
type Mark struct {
	Epoch int64 `json:"epoch,omitempty"`
	// Holder names the process, and no other one ever.
	Holder string `json:"holder,omitempty"`
}

// maxLineage bounds how many predecessors are remembered. A process that led the tier
// before all of these is not known any more, and what it wrote last counts as another tier's.
// Processes that end before they compare anything, and layers that are suspended for a year, use
// them up. A mark takes some 80 bytes, and a ConfigMap has a MiB.
const maxLineage = 4096

const (
	// mostAhead is how much an epoch grows at once. Each process of a tier takes one number, so that
	// no other tier is further ahead, and there are numbers left whatever children say.
	mostAhead = 1 << 20
	// mostEpoch is the largest epoch: no tier gets there by itself. Earlier versions let a child raise it
	// further, until the next one was below zero.
	mostEpoch = 1 << 53
)

const (
	// lookEvery is how long a record that was deleted may be missing.
	lookEvery = time.Minute
	// callTimeout bounds each look.
	callTimeout = 30 * time.Second
)

// lineageKey is the key in the ConfigMap.
const lineageKey = "lineage.json"

// Verdict says how a process stands to a mark.
type Verdict int

const (
	// Unmarked: nobody left a mark.
	Unmarked Verdict = iota
	// Own: the process wrote it itself.
	Own
	// Succeeded: a predecessor in this tier wrote it.
	Succeeded
	// Outrun: a process of this tier wrote it that began later.
	Outrun
	// Foreign: somebody else wrote it, who is not of this tier's history.
	Foreign
)

// Judge tells how the first of a lineage stands to a mark. The holder of the mark says
// whether it is of this tier, the numbers say who began later. The number of a mark counts
// only as far as the lineage knows it: a tier that was restored from a backup does not know
// that a predecessor raised its own.
func Judge(lineage []Mark, m Mark) Verdict {
	if (m == Mark{}) {
		return Unmarked
	}
	if len(lineage) == 0 {
		return Foreign
	}
	own := lineage[0]
	for _, l := range lineage[1:] {
		if l.Holder == m.Holder && min(l.Epoch, m.Epoch) > own.Epoch {
			return Outrun
		}
	}
	switch {
	case own.Holder == m.Holder:
		return Own
	case has(lineage, m.Holder):
		return Succeeded
	}
	return Foreign
}

// From is a lineage as one sees it who began with mark m.
func From(m Mark, lineage []Mark) []Mark {
	return append([]Mark{m}, lineage...)
}

// Tier is the lineage of a tier as one process, the first of it, knows it. It is safe
// for concurrent use.
type Tier struct {
	client    client.Client
	namespace string
	holder    string
	// turn is taken by the call that writes the lineage; the others wait for what it wrote.
	turn chan struct{}

	mu      sync.Mutex // guards lineage; never held over a call
	lineage []Mark
}

// NewTier returns the lineage of the tier whose records are in namespace. c reads from
// the API server, not from a cache. holder names this process.
func NewTier(c client.Client, namespace, holder string) *Tier {
	return &Tier{client: c, namespace: namespace, holder: holder, turn: make(chan struct{}, 1)}
}

// Lineage returns the marks of the processes that led the tier, this one first. The first
// call writes this process's own down.
func (t *Tier) Lineage(ctx context.Context) ([]Mark, error) {
	return t.above(ctx, 0)
}

// Raise makes the epoch of this process larger than that of a mark which it takes over. The mark is
// from a child, which may say any number: no more than mostAhead of it is believed.
func (t *Tier) Raise(ctx context.Context, over Mark) error {
	lineage, err := t.Lineage(ctx)
	if err == nil {
		_, err = t.above(ctx, min(over.Epoch, lineage[0].Epoch+mostAhead))
	}
	return err
}

// Begin gives this process a new epoch, above those of all processes that led the tier or
// seed some of its children.
func (t *Tier) Begin(ctx context.Context) (Mark, error) {
	t.mu.Lock()
	var least int64
	if len(t.lineage) > 0 {
		least = t.lineage[0].Epoch
	}
	t.mu.Unlock()
	lineage, err := t.above(ctx, least)
	if err != nil {
		return Mark{}, err
	}
	return lineage[0], nil
}

// Look reads the lineage again, with the processes that came since this one.
func (t *Tier) Look(ctx context.Context) ([]Mark, error) {
	known, err := t.Lineage(ctx)
	if err != nil {
		return nil, err
	}
	all, _, absent, err := t.read(ctx)
	if err != nil {
		return nil, err
	}
	if absent || !has(all, t.holder) {
		// Somebody deleted it, and another process may have written it again since: it gets all that this
		// one knows.
		return t.above(ctx, known[0].Epoch)
	}
	lineage := known[:1:1]
	for _, m := range all {
		if m.Holder != t.holder {
			lineage = append(lineage, m)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lineage[0] == known[0] {
		t.lineage = lineage
	}
	return lineage, nil
}

// Start looks at the record for as long as the process runs. Who leads its children already has no
// other cause to, and the next process would take all of them for another tier's if it were gone by
// then. It implements manager.Runnable.
func (t *Tier) Start(ctx context.Context) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if _, ok := t.known(0); !ok {
			continue // it leads nothing yet, and may never
		}
		call, cancel := context.WithTimeout(ctx, callTimeout)
		_, err := t.Look(call)
		cancel()
		if err != nil {
			log.FromContext(ctx).Error(err, "cannot look whether those who led the tier are on record, trying again")
		}
	}
}

// NeedLeaderElection is false: each replica that drives children is on record.
func (t *Tier) NeedLeaderElection() bool { return false }

// has reports whether a holder is among marks.
func has(marks []Mark, holder string) bool {
	return slices.ContainsFunc(marks, func(m Mark) bool { return m.Holder == holder })
}

// read returns what the tier has on record. absent: it has nothing.
func (t *Tier) read(ctx context.Context) (marks []Mark, cm *corev1.ConfigMap, absent bool, err error) {
	cm = &corev1.ConfigMap{}
	err = t.client.Get(ctx, types.NamespacedName{Namespace: t.namespace, Name: v1alpha1.EpochConfigMap}, cm)
	absent = apierrors.IsNotFound(err)
	if err != nil && !absent {
		return nil, nil, false, fmt.Errorf("cannot read the epoch of this tier: %w", err)
	}
	if text := cm.Data[lineageKey]; text != "" {
		if err := json.Unmarshal([]byte(text), &marks); err != nil {
			return nil, nil, false, fmt.Errorf("cannot parse the epoch of this tier: %w; repair ConfigMap %s/%s, or delete it and, once no other management cluster seeds the children of this tier, run: cascade approve take-over --all",
				err, t.namespace, v1alpha1.EpochConfigMap)
		}
	}
	return marks, cm, absent, nil
}

// known returns the lineage if its first epoch is above least.
func (t *Tier) known(least int64) ([]Mark, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lineage, len(t.lineage) > 0 && t.lineage[0].Epoch > least
}

// above returns the lineage, whose first epoch is above least.
func (t *Tier) above(ctx context.Context, least int64) ([]Mark, error) {
	if known, ok := t.known(least); ok {
		return known, nil
	}
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("cannot wait for the epoch of this tier: %w", ctx.Err())
	}
	if known, ok := t.known(least); ok {
		return known, nil
	}
	before, cm, absent, err := t.read(ctx)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	for _, m := range t.lineage { // who is not on record any more led the tier all the same
		if !has(before, m.Holder) {
			before = append(before, m)
		}
	}
	t.mu.Unlock()
	lineage := next(before, t.holder, least)
	text, err := json.Marshal(lineage)
	if err != nil {
		return nil, fmt.Errorf("cannot encode the epoch of this tier: %w", err)
	}
	cm.ObjectMeta = metav1.ObjectMeta{Namespace: t.namespace, Name: v1alpha1.EpochConfigMap, ResourceVersion: cm.ResourceVersion, Labels: cm.Labels, Annotations: cm.Annotations}
	cm.Data = map[string]string{lineageKey: string(text)}
	if absent {
		err = t.client.Create(ctx, cm, client.FieldOwner("cascade"))
	} else {
		err = t.client.Update(ctx, cm, client.FieldOwner("cascade"))
	}
	if err != nil {
		return nil, fmt.Errorf("cannot write the epoch of this tier: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lineage = lineage
	return lineage, nil
}

// next is the lineage with holder in front, whose epoch is above least and above all
// others. Who has an epoch that there is not led the tier all the same, before all others.
func next(before []Mark, holder string, least int64) []Mark {
	possible := func(epoch int64) int64 {
		if epoch < 0 || epoch > mostEpoch {
			return 0
		}
		return epoch
	}
	least = possible(least)
	for _, m := range before {
		least = max(least, possible(m.Epoch))
	}
	lineage := []Mark{{Epoch: least + 1, Holder: holder}}
	for _, m := range before {
		if m.Holder != holder && len(lineage) < maxLineage {
			lineage = append(lineage, Mark{Epoch: possible(m.Epoch), Holder: m.Holder})
		}
	}
	return lineage
}

// MarksOf reads the lineage in the ConfigMap of a tier, the process that led it last first.
func MarksOf(cm *corev1.ConfigMap) ([]Mark, error) {
	var marks []Mark
	text := cm.Data[lineageKey]
	if text == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(text), &marks); err != nil {
		return nil, fmt.Errorf("cannot parse the epoch of the tier in ConfigMap %s/%s: %w", cm.Namespace, cm.Name, err)
	}
	return marks, nil
}

// Below are the processes that led the tier which runs in a cluster, in whichever namespace its agent is; none if none
// runs there. Of several records all count, as whoever asks leaves to these processes what is theirs. Who may not
// list them gets that of the usual namespace.
func Below(ctx context.Context, cluster client.Reader) ([]Mark, error) {
	all := &corev1.ConfigMapList{}
	err := cluster.List(ctx, all, client.MatchingFields{metav1.ObjectNameField: v1alpha1.EpochConfigMap}) // earlier versions gave it no label
	if apierrors.IsForbidden(err) {
		all.Items = make([]corev1.ConfigMap, 1)
		err = client.IgnoreNotFound(cluster.Get(ctx, types.NamespacedName{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.EpochConfigMap}, &all.Items[0]))
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read who led the tier in the cluster, ConfigMaps %s: %w", v1alpha1.EpochConfigMap, err)
	}
	var below []Mark
	for i := range all.Items {
		if marks, err := MarksOf(&all.Items[i]); err == nil { // by what its agent cannot read either it leads nothing
			below = append(below, marks...)
		}
	}
	return below, nil
}

// After is the lineage of a tier that goes on where another one ended, whose lineage was
// saved: those who led that one came before all who led this one, whatever their numbers
// were. changed is false if all are known.
func After(own, before []Mark) (lineage []Mark, changed bool) {
	lineage = slices.Clone(own)
	var least int64
	for i, m := range own {
		if i == 0 || m.Epoch < least {
			least = m.Epoch
		}
	}
	for _, m := range before {
		if has(lineage, m.Holder) || len(lineage) == maxLineage {
			continue
		}
		if len(own) > 0 {
			m.Epoch = max(0, min(m.Epoch, least-1))
		}
		lineage = append(lineage, m)
		changed = true
	}
	return lineage, changed
}

// Write puts a lineage into the ConfigMap of a tier.
func Write(cm *corev1.ConfigMap, lineage []Mark) error {
	text, err := json.Marshal(lineage)
	if err != nil {
		return fmt.Errorf("cannot encode the epoch of this tier: %w", err)
	}
	if cm.Data == nil {
		cm.Data = map[string]string{}
	}
	cm.Data[lineageKey] = string(text)
	return nil
}
