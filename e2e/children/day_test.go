package children

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/remote"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// day is a tier in which the test is the clusters, and turns the clock of the reconciler of
// Rollouts, which works on a real API server.
type day struct {
	*hub
	rollouts *remote.Rollouts
	now      time.Time
	// turned is by how much the clock was turned, each time counted as numbersPause at most.
	turned time.Duration
	names  []string
	// dead do not answer, failing are not ready at the second revision.
	dead, failing map[string]bool
	// written counts what the reconciler wrote, by the name of the Child.
	written map[string]int
}

// dayWave has the clusters of each hundred up to a number, which no wave before it has.
type dayWave struct {
	name string
	upTo int
}

func dayWaves() []dayWave {
	return []dayWave{{"canary", 1}, {"early", 10}, {"half", 40}, {"most", 70}, {"rest", 100}}
}

const (
	theRollout   = "web"
	dayNamespace = "day"
	dayDeadline  = 30 * time.Minute
	// numbersPause is how often numbers of a Rollout are written at most.
	numbersPause = 5 * time.Second
)

// TestRolloutReturns: a revision goes over a fleet in five waves, of which one in fifty
// clusters is dead and one in a hundred fails. The dead ones hold nobody up, and get the
// revision when they return a day later. A run writes each Child twice at most, and the
// Rollout no more often than its numbers are to be fresh.
func TestRolloutReturns(t *testing.T) {
	scenario.Alongside(t)
	d := &day{hub: openHub(t), now: time.Now().Truncate(time.Second), dead: map[string]bool{}, failing: map[string]bool{}, written: map[string]int{}}
	d.installAll(t, "v1beta2")
	d.declareFleet(t, times(t, "CASCADE_ROLLOUT_CHILDREN", 200))
	d.release(t, "1.0.0")
	d.over(t, "1.0.0", len(d.names), 0, 0)

	d.turned = 0
	clear(d.written)
	for i, name := range d.names {
		d.dead[name], d.failing[name] = i%50 == 25, i%100 == 60
	}
	d.report(t, d.names)
	d.release(t, "1.1.0")
	dead, failing := len(d.names)/50, len(d.names)/100
	d.over(t, "1.1.0", len(d.names)-dead-failing, dead, failing)
	d.cost(t)
	for name := range d.dead {
		if d.dead[name] {
			d.has(t, name, "1.0.0", v1alpha1.ResultSucceeded)
		}
	}

	d.now = d.now.Add(24 * time.Hour)
	d.rest(t)
	returned := d.dead
	d.dead = map[string]bool{}
	d.report(t, d.names)
	d.over(t, "1.1.0", len(d.names)-failing, 0, failing)
	for name, was := range returned {
		if was {
			d.has(t, name, "1.1.0", v1alpha1.ResultSucceeded)
		}
	}
}

// declareFleet declares the clusters, a layer that selects them, and the Rollout of a release in them.
func (d *day) declareFleet(t *testing.T, n int) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, "Rollouts and HelmCharts are served", func(ctx context.Context) error {
		return errors.Join(d.client.List(ctx, &v1alpha1.RolloutList{}), d.client.List(ctx, &sourcev1.HelmChartList{}))
	})
	d.apply(t, object("v1", "Namespace", "", dayNamespace))
	layer := object("cascade.dev/v1alpha1", "Layer", dayNamespace, "services")
	layer.Object["spec"] = map[string]any{
		"clusterSelector": map[string]any{"matchExpressions": []any{map[string]any{"key": "wave", "operator": "Exists"}}},
		"sourceRef":       map[string]any{"kind": "GitRepository", "name": "fleet"}, "path": "./services",
	}
	d.apply(t, layer)
	waves := make([]any, 0, len(dayWaves()))
	for _, w := range dayWaves() {
		waves = append(waves, map[string]any{
			"name": w.name, "selector": map[string]any{"matchLabels": map[string]any{"wave": w.name}}, "maxConcurrent": "10%", "maxFailures": "10%", "soak": "1m",
		})
	}
	rollout := object("cascade.dev/v1alpha1", "Rollout", dayNamespace, theRollout)
	rollout.Object["spec"] = map[string]any{
		"moves": map[string]any{"source": map[string]any{"kind": "HelmRelease", "name": "web", "namespace": "apps"}}, "sourceRef": map[string]any{"kind": "HelmChart", "name": "web"},
		"deadline": dayDeadline.String(), "waves": waves,
	}
	chart := object("source.toolkit.fluxcd.io/v1", "HelmChart", dayNamespace, "web")
	chart.Object["spec"] = map[string]any{"chart": "web", "interval": "1h", "sourceRef": map[string]any{"kind": "HelmRepository", "name": "charts"}}
	d.apply(t, chart)
	for i := range n {
		name := fmt.Sprintf("tenant-%04d", i)
		d.names = append(d.names, name)
		wave := slices.IndexFunc(dayWaves(), func(w dayWave) bool { return i%100 < w.upTo })
		child := object("cascade.dev/v1alpha1", "Child", dayNamespace, name)
		child.SetLabels(map[string]string{"wave": dayWaves()[wave].name})
		child.Object["spec"] = map[string]any{"kubeConfig": map[string]any{"secretRef": map[string]any{"name": name}}}
		d.apply(t, child)
	}
	d.report(t, d.names)
	d.apply(t, rollout)
	d.rollouts = &remote.Rollouts{
		Client: interceptor.NewClient(d.client, interceptor.Funcs{
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
				d.written[o.GetName()]++
				return c.SubResource(sub).Patch(ctx, o, patch, opts...)
			},
		}),
		Reader: d.client, Events: &record.FakeRecorder{}, Snapshots: source.NewSnapshots(), Version: "v1.0.0", Now: func() time.Time { return d.now },
	}
}

// release lets the chart have a version.
func (d *day) release(t *testing.T, version string) {
	t.Helper()
	chart := &sourcev1.HelmChart{}
	if err := d.client.Get(t.Context(), client.ObjectKey{Namespace: dayNamespace, Name: "web"}, chart); err != nil {
		t.Fatal(err)
	}
	before := chart.DeepCopy()
	chart.Status.Artifact = &fluxmeta.Artifact{Path: "web.tgz", URL: "http://localhost/web.tgz", Revision: version, Digest: "sha256:" + fmt.Sprintf("%064d", 1), LastUpdateTime: metav1.NewTime(d.now)}
	if err := d.client.Status().Patch(t.Context(), chart, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
}

// report has clusters say what they have: what they may, where they live. Who says that it is
// ready says in the same write that it succeeded, as the run of a child does.
func (d *day) report(t *testing.T, names []string) {
	t.Helper()
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(8)
	for _, name := range names {
		group.Go(func() error { return d.reportOf(ctx, name) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

func (d *day) reportOf(ctx context.Context, name string) error {
	child := &v1alpha1.Child{}
	if err := d.client.Get(ctx, client.ObjectKey{Namespace: dayNamespace, Name: name}, child); err != nil {
		return err
	}
	before, now := child.DeepCopy(), metav1.NewTime(d.now)
	say := func(kind, reason string, is bool) {
		status := metav1.ConditionFalse
		if is {
			status = metav1.ConditionTrue
		}
		if c := meta.FindStatusCondition(child.Status.Conditions, kind); c == nil || c.Status != status {
			meta.RemoveStatusCondition(&child.Status.Conditions, kind)
			child.Status.Conditions = append(child.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: reason, LastTransitionTime: now})
		}
	}
	if d.dead[name] {
		say(v1alpha1.ConnectedCondition, v1alpha1.ReasonUnreachable, false)
		say(v1alpha1.ReadyCondition, v1alpha1.ReasonUnreachable, false)
	} else {
		said := child.Status.Report
		if said == nil {
			said = &v1alpha1.Report{Brought: &v1alpha1.ReportBrought{Objects: []v1alpha1.ReportedSource{{Kind: "HelmRelease", Namespace: "apps", Name: "web", Revision: "1.0.0"}}}, Since: now}
		}
		pin := v1alpha1.ChildRollout{}
		if len(child.Status.Rollouts) > 0 {
			pin = child.Status.Rollouts[0]
			said.Brought.Objects[0].Revision = pin.Revision
		}
		said.Ready, said.Reason = !d.failing[name] || pin.Revision != "1.1.0", v1alpha1.ReasonSucceeded
		child.Status.Report = said
		say(v1alpha1.ConnectedCondition, v1alpha1.ReasonSucceeded, true)
		say(v1alpha1.ReadyCondition, v1alpha1.ReasonSucceeded, said.Ready)
		if said.Ready && pin.Result == v1alpha1.ResultUpdating {
			child.Status.Rollouts[0].Result, child.Status.Rollouts[0].Since = v1alpha1.ResultSucceeded, now
		}
	}
	return d.client.Status().Patch(ctx, child, client.MergeFrom(before))
}

// over decides, and has clusters do what they may, until the numbers of the Rollout are these
// and the revision passed all waves. The clock goes on to when the reconciler wants to look
// again.
func (d *day) over(t *testing.T, version string, updated, deferred, failed int) {
	t.Helper()
	o := &v1alpha1.Rollout{}
	for range 2000 {
		d.decide(t)
		*o = v1alpha1.Rollout{}
		if err := d.client.Get(t.Context(), client.ObjectKey{Namespace: dayNamespace, Name: theRollout}, o); err != nil {
			t.Fatal(err)
		}
		if run := o.Status.Run; run != nil && run.Phase == v1alpha1.RolloutHalted {
			t.Fatalf("it halted with %+v: %+v", o.Status.Clusters, o.Status.Failing)
		}
		c := o.Status.Clusters
		if good := o.Status.LastGood; good != nil && good.Revision == version && int(c.Updated) == updated && int(c.Deferred) == deferred && int(c.Failed) == failed && c.Updating == 0 {
			// What is said of the numbers may follow.
			for range 6 {
				d.decide(t)
			}
			return
		}
	}
	t.Fatalf("it is at %+v, %+v: %s", o.Status.Run, o.Status.Clusters, scenario.Summary(o.Status.Conditions))
}

// decide makes one decision, and has the clusters act on it.
func (d *day) decide(t *testing.T) {
	t.Helper()
	result, err := d.rollouts.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Namespace: dayNamespace, Name: theRollout}})
	if err != nil {
		t.Fatal(err)
	}
	list := &v1alpha1.ChildList{}
	if err := d.client.List(t.Context(), list, client.InNamespace(dayNamespace)); err != nil {
		t.Fatal(err)
	}
	var behind []string
	for i := range list.Items {
		c := &list.Items[i]
		if r := c.Status.Rollouts; len(r) > 0 && !d.dead[c.Name] && c.Status.Report.Brought.Objects[0].Revision != r[0].Revision {
			behind = append(behind, c.Name)
		}
	}
	d.report(t, behind)
	wait := max(result.RequeueAfter, time.Second)
	if len(behind) > 0 {
		wait = time.Second // what they said calls for another decision
	}
	d.now, d.turned = d.now.Add(wait), d.turned+min(wait, numbersPause)
}

// rest expects that nothing is written while nothing happens.
func (d *day) rest(t *testing.T) {
	t.Helper()
	clear(d.written)
	for range 3 {
		d.decide(t)
	}
	if len(d.written) > 0 {
		t.Errorf("at rest it wrote %v", d.written)
	}
}

// cost expects that a run wrote no more than it has to.
func (d *day) cost(t *testing.T) {
	t.Helper()
	children, rollout := 0, d.written[theRollout]
	for name, n := range d.written {
		if name == theRollout {
			continue
		}
		// One that succeeds says so itself, with what else it has to say.
		if n > 2 || n > 1 && !d.failing[name] {
			t.Errorf("Child %s was written %d times", name, n)
		}
		children += n
	}
	// A wave begins, soaks and passes; between that are numbers.
	if most := 4*len(dayWaves()) + int(d.turned/numbersPause); rollout == 0 || rollout > most {
		t.Errorf("the Rollout was written %d times, want at most %d", rollout, most)
	}
	t.Logf("a run over %d clusters wrote Children %d times, and the Rollout %d times in %s without pauses", len(d.names), children, rollout, d.turned)
}

// has expects what a child may have of the Rollout.
func (d *day) has(t *testing.T, name, revision string, result v1alpha1.RolloutResult) {
	t.Helper()
	child := &v1alpha1.Child{}
	if err := d.client.Get(t.Context(), client.ObjectKey{Namespace: dayNamespace, Name: name}, child); err != nil {
		t.Fatal(err)
	}
	if r := child.Status.Rollouts; len(r) != 1 || r[0].Revision != revision || r[0].Result != result {
		t.Errorf("%s may have %+v, want %s, %s", name, r, revision, result)
	}
}
