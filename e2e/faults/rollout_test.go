package faults

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// beginRollout makes a place with two clusters and a Rollout of their layer: it comes to the
// cluster "it" first, and to "later" with an approval.
func (p *place) beginRollout(ctx context.Context) (err error) {
	if err := p.addChild(ctx); err != nil {
		return err
	}
	if p.later, err = p.addCluster(ctx, "later", p.ns+"-later"); err != nil {
		return err
	}
	return p.layer(ctx)
}

// begunRollout is an error until the Rollout found both clusters at the commit before, which
// they had when it came.
func (p *place) begunRollout(ctx context.Context) error {
	if err := firstError(p.childHas(ctx, "it", p.commits.before, "app"), p.childHas(ctx, "later", p.commits.before, "app")); err != nil {
		return err
	}
	if err := p.apply(ctx, fmt.Sprintf(`apiVersion: cascade.dev/v1alpha1
kind: Rollout
metadata: {name: app, namespace: %s, labels: {worker: %s}}
spec:
  moves: {layerRef: {name: app}}
  deadline: 20s
  waves:
  - {name: it, selector: {matchLabels: {wave: it}}}
  - {name: later, approval: Required}
`, p.ns, p.name)); err != nil {
		return err
	}
	return p.rolled(ctx, p.commits.before, v1alpha1.ReasonSucceeded, p.commits.before)
}

// rolled is an error until the Rollout has brought a commit to the first cluster, and stands
// for this reason; of another commit the other cluster has the layer.
func (p *place) rolled(ctx context.Context, commit, reason, later string) error {
	o := &v1alpha1.Rollout{}
	if err := p.load(ctx, o, "app"); err != nil {
		return err
	}
	c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ReadyCondition)
	if c == nil || c.Reason != reason || o.Status.Run == nil || !strings.HasSuffix(o.Status.Run.Revision, commit) {
		return fmt.Errorf("the Rollout is at %+v: %s", o.Status.Run, scenario.Summary(o.Status.Conditions))
	}
	return firstError(p.childHas(ctx, "it", commit, "app"), p.childHas(ctx, "later", later, "app"))
}

// approveNext approves the second wave of the commit after.
func (p *place) approveNext(ctx context.Context) error {
	o := &v1alpha1.Rollout{}
	o.Namespace, o.Name = p.ns, "app"
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.ApproveRolloutAnnotation, "later=main@sha1:"+p.commits.after)
	return firstError(p.client.Patch(ctx, o, client.RawPatch(types.MergePatchType, patch)), p.commit(ctx))
}

// laterStays are the writes to the second cluster, to which nothing may come.
func laterStays(p *place) (wrong []string) {
	for _, w := range p.later.cluster.Writes()[p.later.writes:] {
		if w.Changed && w.Namespace == "apps" {
			wrong = append(wrong, fmt.Sprintf("%s: %s %s/%s in the cluster that waits", p.ns, w.Verb, w.Resource, w.Name))
		}
	}
	return wrong
}

// laterFollows is the order in which the objects of the clusters were written.
func laterFollows(p *place) []string {
	first := p.child.cluster.Writes()[p.child.writes:]
	last := time.Time{}
	for _, w := range first {
		if w.Changed && w.Namespace == "apps" {
			last = w.Time
		}
	}
	for _, w := range p.later.cluster.Writes()[p.later.writes:] {
		if w.Changed && w.Namespace == "apps" && w.Time.Before(last) {
			return []string{fmt.Sprintf("%s: %s %s/%s at %s, and the first cluster was not done before %s", p.ns, w.Verb, w.Resource, w.Name, w.Time, last)}
		}
	}
	return nil
}

// rolloutKills are the scenarios of a Rollout.
var rolloutKills = []killing{
	{
		name: "Rollout", files: layered(0, 10, "one"), commit: layered(2, 12, "two"), begin: (*place).beginRollout,
		begun:  (*place).begunRollout,
		change: (*place).commit,
		done: func(p *place, ctx context.Context) error {
			return p.rolled(ctx, p.commits.after, v1alpha1.ReasonAwaitingApproval, p.commits.before)
		},
		expect: expectLayer, below: ids("o", 2, 12, "two"), belowGoes: names(ids("o", 0, 2, "")), order: laterStays,
	},
	{
		name: "RolloutApproved", files: layered(0, 10, "one"), commit: layered(2, 12, "two"), begin: (*place).beginRollout,
		begun:  (*place).begunRollout,
		change: (*place).approveNext,
		done: func(p *place, ctx context.Context) error {
			return p.rolled(ctx, p.commits.after, v1alpha1.ReasonSucceeded, p.commits.after)
		},
		expect: expectLayer, below: ids("o", 2, 12, "two"), belowGoes: names(ids("o", 0, 2, "")), order: laterFollows,
	},
}
