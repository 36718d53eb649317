package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestKubernetesUpgrade has six clusters of one Kustomization in three waves, two of which
// HelmReleases make, and commits that change the version of Kubernetes of all of them: with
// Cluster API, the local provider and the agent's own decisions. The provider runs one version of Kubernetes, whatever is
// declared: the test says in its place that a control plane runs another. The parts build on
// each other.
func TestKubernetesUpgrade(t *testing.T) {
	scenario.Alongside(t)
	f := &upgradedFleet{startPinned(t, []string{"d", "e"}, slices.Concat(upgradeWaves()...)...)}
	f.Apply(t, `apiVersion: cascade.dev/v1alpha1
kind: Layer
metadata: {name: note, namespace: cascade-system}
spec:
  clusterSelector: {matchExpressions: [{key: cluster, operator: Exists}]}
  sourceRef: {kind: GitRepository, name: tenants}
  path: ./note
  wait: true
`)
	f.connected(t)
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"ClustersThatAreThereStayAsTheyAre", f.adopts},
		{"OneMinorVersionGoesOverTheWaves", func(t *testing.T) { f.raises(t, 2, "v1.37.0") }},
		{"SkippedMinorVersionTouchesNobody", f.refuses},
		{"RightStepHeals", func(t *testing.T) { f.raises(t, 4, "v1.38.0") }},
	} {
		if !t.Run(part.name, part.run) {
			return
		}
	}
}

// upgradedFleet is a tier whose Clusters are in the waves of a Rollout.
type upgradedFleet struct{ *pinnedFleet }

// upgradeWaves are the Clusters of each wave. Their names tell nothing of it, since an order by
// name must not pass for the order of the waves.
func upgradeWaves() [][]string { return [][]string{{"d"}, {"b", "f"}, {"a", "c", "e"}} }

// connected waits until the agent has reached all clusters.
func (f *upgradedFleet) connected(t *testing.T) {
	t.Helper()
	scenario.Eventually(t, 2*scenario.Converge, "all clusters are ready", func(ctx context.Context) error {
		var problems []error
		for _, name := range f.names {
			child := &v1alpha1.Child{}
			if err := f.Load(ctx, child, stage.Namespace, name); err != nil {
				return err
			}
			if !meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.ReadyCondition) {
				problems = append(problems, fmt.Errorf("%s: %s", name, scenario.Summary(child.Status.Conditions)))
			}
		}
		return errors.Join(problems...)
	})
}

// rollout waits until the Rollout is as it should be.
func (f *upgradedFleet) rollout(t *testing.T, what string, is func(*v1alpha1.Rollout) bool) *v1alpha1.Rollout {
	t.Helper()
	o := &v1alpha1.Rollout{}
	scenario.Eventually(t, 2*scenario.Converge, "the Rollout "+what, func(ctx context.Context) error {
		*o = v1alpha1.Rollout{}
		if err := f.Load(ctx, o, stage.Namespace, "waves"); err != nil {
			return err
		}
		if !is(o) {
			return fmt.Errorf("run %+v, clusters %+v, failing %v: %s", o.Status.Run, o.Status.Clusters, o.Status.Failing, scenario.Summary(o.Status.Conditions))
		}
		return nil
	})
	return o
}

// completed waits until a commit has passed all waves, with all clusters.
func (f *upgradedFleet) completed(t *testing.T, number int) {
	t.Helper()
	f.rollout(t, fmt.Sprintf("is over at commit %d", number), func(o *v1alpha1.Rollout) bool {
		good := o.Status.LastGood
		return good != nil && good.Revision == f.commits[number] && o.Status.Clusters.Updated == int32(len(f.names)) && meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ReadyCondition)
	})
}

// adopts: a Rollout comes. Of the Clusters that are there nothing changes but the mark of
// their revision. The agent sends their objects once more, to verify them, which is why the
// objects are compared, their generations with them, and not requests counted.
func (f *upgradedFleet) adopts(t *testing.T) {
	f.looked(t)
	f.calm(t)
	before := f.declared(t)
	f.begin(t)
	var waves strings.Builder
	for i, names := range upgradeWaves() {
		fmt.Fprintf(&waves, "  - {name: wave-%d, maxConcurrent: %d, selector: {matchExpressions: [{key: cluster, operator: In, values: [%s]}]}}\n", i+1, len(names), strings.Join(names, ", "))
	}
	f.Apply(t, "apiVersion: cascade.dev/v1alpha1\nkind: Rollout\nmetadata: {name: waves, namespace: cascade-system}\nspec:\n  moves: {kustomizationRef: {name: tenants}}\n  deadline: 60s\n  waves:\n"+waves.String())
	f.completed(t, 1)
	for _, name := range f.names {
		f.pins[name] = 1
	}
	f.has(t, f.pins)
	after := f.declared(t)
	for _, o := range after {
		delete(o.([]any)[3].(map[string]string), v1alpha1.RolloutRevisionAnnotation)
	}
	if diff := cmp.Diff(before, after, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("what is of Clusters changed: -before, +after:\n%s", diff)
	}
}

// written is when the agent wrote an object of a Cluster first since begin, by resource and
// name.
func (f *upgradedFleet) written(t *testing.T) map[string]time.Time {
	t.Helper()
	events, _, err := f.MoM.Audit(f.from)
	if err != nil {
		t.Fatal(err)
	}
	first := map[string]time.Time{}
	for _, e := range events {
		of := e.ObjectRef.Resource + "/" + e.ObjectRef.Name
		declared := slices.Contains([]string{"clusters", "localclusters", "localcontrolplanes"}, e.ObjectRef.Resource) && e.ObjectRef.Subresource == ""
		if !declared || !e.ByAgent() || !e.Writes() || strings.Contains(e.RequestURI, "dryRun=All") {
			continue
		}
		if at, ok := first[of]; !ok || e.Received.Before(at) {
			first[of] = e.Received
		}
	}
	return first
}

// raises: a commit gives all clusters the next minor version. Each wave waits until the control
// planes of the one before it run that. By the audit log each wave is written to after the one
// before it, and the provider's control planes are what they are told to be.
func (f *upgradedFleet) raises(t *testing.T, number int, version string) {
	f.begin(t)
	began := time.Now()
	f.commit(t, number, version, f.names...)
	for i, names := range upgradeWaves() {
		f.told(t, version, names...)
		f.rollout(t, fmt.Sprintf("waits for wave %d", i+1), func(o *v1alpha1.Rollout) bool {
			c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ReadyCondition)
			return o.Status.Run.Revision == f.commits[number] && int(o.Status.Run.Wave) == i && c != nil && c.Reason == v1alpha1.ReasonRollingOut && strings.Contains(c.Message, "and not "+version+" yet")
		})
		if later := slices.Concat(upgradeWaves()[i+1:]...); len(later) > 0 {
			f.untouched(t, later...)
		}
		f.run(t, version, names...)
	}
	f.completed(t, number)
	t.Logf("%s was in all clusters after %.1f s", version, time.Since(began).Seconds())
	for _, name := range f.names {
		f.pins[name] = number
	}
	f.has(t, f.pins)
	written := f.written(t)
	var last time.Time // of the waves before
	for i, names := range upgradeWaves() {
		end := last
		for _, name := range names {
			for _, resource := range []string{"clusters", "localcontrolplanes"} {
				at, ok := written[resource+"/"+name]
				if !ok || !at.After(last) {
					t.Errorf("%s %s of wave %d was written at %s, the wave before at %s", resource, name, i+1, at, last)
				}
				if at.After(end) {
					end = at
				}
			}
		}
		last = end
	}
}

// told waits until control planes are told a version.
func (f *upgradedFleet) told(t *testing.T, version string, names ...string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("the control planes of %v are told %s", names, version), func(ctx context.Context) error {
		var problems []error
		for _, name := range names {
			if got, err := f.field(ctx, "controlplane.cluster.x-k8s.io/v1alpha1", "LocalControlPlane", name, "spec", "version"); err != nil || got != version {
				problems = append(problems, fmt.Errorf("%s has %q: %w", name, got, err))
			}
		}
		return errors.Join(problems...)
	})
}

// run has control planes report a version, as a provider does when it has brought it up.
func (f *upgradedFleet) run(t *testing.T, version string, names ...string) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"version": version}})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		u := stage.Object("controlplane.cluster.x-k8s.io/v1alpha1", "LocalControlPlane")
		u.SetNamespace(stage.Namespace)
		u.SetName(name)
		if err := f.Client.Status().Patch(t.Context(), u, client.RawPatch(types.MergePatchType, patch)); err != nil {
			t.Fatal(err)
		}
	}
}

// refuses: a commit that skips a minor version halts before the first cluster, and says why of
// all that it is known of. Of what a HelmRelease makes it is known once that has it: the
// release of the first wave refuses it, and of the last wave nothing is asked any more.
func (f *upgradedFleet) refuses(t *testing.T) {
	before := f.declared(t)
	f.begin(t)
	f.commit(t, 3, "v1.39.0", f.names...)
	o := f.rollout(t, "is halted at commit 3", func(o *v1alpha1.Rollout) bool {
		c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ReadyCondition)
		return o.Status.Run != nil && o.Status.Run.Revision == f.commits[3] && c != nil && c.Reason == v1alpha1.ReasonRolloutHalted
	})
	if len(o.Status.Failing) != len(f.names)-1 || o.Status.Clusters.Failed != int32(len(f.names)-1) || slices.ContainsFunc(o.Status.Failing, func(x v1alpha1.Failure) bool { return x.Name == "e" }) {
		t.Errorf("it failed on %+v: %v", o.Status.Clusters, o.Status.Failing)
	}
	for _, failing := range o.Status.Failing {
		if failing.Reason != v1alpha1.ReasonUnsupportedVersionStep || !strings.Contains(failing.Message, "from v1.37.0 to v1.39.0") || !strings.Contains(failing.Message, "go to 1.38 first") {
			t.Errorf("of %s it says %s: %s", failing.Name, failing.Reason, failing.Message)
		}
	}
	f.common(t, 3)
	f.says(t, "", "")
	f.untouched(t, f.names...)
	if diff := cmp.Diff(before, f.declared(t)); diff != "" {
		t.Errorf("what is of Clusters changed: -before, +after:\n%s", diff)
	}
}
