package release

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
)

// collect deletes the objects of earlier revisions that may go by now. held
// says which may not, after when to look again at those that wait for the end of a Cluster;
// handOver records which are kept for other owners. What waits for something else awaits tells.
func (n *run) collect(ctx context.Context) (held string, after time.Duration, handOver *v1alpha1.HandOver, err error) {
	n.awaits = ""
	if len(n.found.leftovers) == 0 {
		n.handsOver(nil, nil)
		n.keeps(nil)
		return "", 0, nil, nil
	}
	s := n.guard.judgeAll(ctx, n.found.leftovers, inventory.Difference(entriesOf(n.obj.Status.Inventory), n.found.leftovers))
	handOver = n.guard.handOver(s, n.req.HandOver, n.Now())
	n.handsOver(s, handOver)
	s.putLast(n.Now())
	begun, problems := n.guard.deleteAll(ctx, s, s.deletable, metav1.DeletePropagationBackground)
	n.keeps(slices.Concat(s.withCluster, s.queued, s.last))
	// What could not be deleted is still deletable.
	kept := inventory.Union(s.kept(), inventory.Difference(s.going(), begun))
	// Helm stores no subcharts, so that definitions of these are taken for leftovers. They stay on record.
	definitions := slices.DeleteFunc(slices.Clone(s.foreign), func(e inventory.Entry) bool { return !s.judged[e].Definition })
	gone := inventory.Difference(n.found.leftovers, slices.Concat(kept, definitions))
	n.obj.Status.Inventory = refsOf(without(entriesOf(n.obj.Status.Inventory), gone))
	n.found.leftovers = inventory.Union(nil, kept)
	awaits := []string{inventory.AwaitsMessage(inventory.Difference(kept, slices.Concat(s.last, s.lastFor)), "")}
	if len(s.lastFor) > 0 {
		awaits = append(awaits, inventory.LastMessage(s.last, s.lastFor[0]))
	}
	n.awaits = strings.Join(slices.DeleteFunc(awaits, func(text string) bool { return text == "" }), "; ")
	n.mu.Lock()
	n.known[n.obj.UID] = n.found
	n.mu.Unlock()
	if len(begun) > 0 {
		n.Events.Eventf(n.obj, corev1.EventTypeNormal, meta.ProgressingReason, "%s deleted", inventory.Names(begun))
	}
	switch {
	case len(s.queued)+len(s.lastFor) > 0, len(s.withCluster) > 0 && slices.ContainsFunc(begun, isCluster):
		after = clusterPoll
	case s.due, len(s.last) > 0:
		after = overduePoll // it may be a Cluster of another owner, which stays, or what a person is asked about
	}
	return s.message(), after, n.guard.handsOverStill(begun), errors.Join(problems...)
}

// without keeps the order.
func without(entries, gone []inventory.Entry) []inventory.Entry {
	ids := map[string]bool{}
	for _, e := range gone {
		ids[e.ID()] = true
	}
	var left []inventory.Entry
	for _, e := range entries {
		if !ids[e.ID()] {
			left = append(left, e)
		}
	}
	return left
}
