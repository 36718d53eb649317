package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestRolloutOfClusters has three clusters of one Kustomization, which follow its commits by
// their pins: with Cluster API and the local provider, whose versions of Kubernetes are
// labels, but for the one that a control plane reports. The test writes the pins, as the
// reconciler of Rollouts does. The parts build on each other.
func TestRolloutOfClusters(t *testing.T) {
	scenario.Alongside(t)
	f := startPinned(t, nil, "a", "b", "c")
	for _, part := range []struct {
		name string
		run  func(*pinnedFleet, *testing.T)
	}{
		{"NothingMovesBeforeTheFirstPin", (*pinnedFleet).firstPin},
		{"CommitMovesOnlyWhoMayHaveIt", (*pinnedFleet).oneMoves},
		{"AgentKilledInBetween", (*pinnedFleet).agentKilled},
		{"OthersFollowByTheirPins", (*pinnedFleet).othersFollow},
		{"SkippedMinorVersionIsRefused", (*pinnedFleet).skippedMinor},
		{"RevisionThatIsNotThere", (*pinnedFleet).revisionMissing},
		{"RemovalComesWithThePin", (*pinnedFleet).removal},
		{"WithoutTheRolloutAllFollow", (*pinnedFleet).rolloutDeleted},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.run(f, t) }) {
			return
		}
	}
}

// pinnedFleet is the tier, and what Git declares.
type pinnedFleet struct {
	*scenario.Tier
	// names of the Clusters that it began with, and those of them that HelmReleases make.
	names, released []string
	// from is where the audit log was when something began.
	from int64
	// commits by the number that the ConfigMap has.
	commits map[int]string
	// pins are the numbers of the commits that Clusters may have.
	pins map[string]int
}

func startPinned(t *testing.T, released []string, names ...string) *pinnedFleet {
	t.Helper()
	bootstrap := filepath.Join(t.TempDir(), "bootstrap.yaml")
	text := `apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: base, namespace: cascade-system}
spec: {url: "${git_url}/base.git", ref: {branch: main}, secretRef: {name: git-auth}, interval: 1m}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: management, namespace: cascade-system}
spec: {sourceRef: {kind: GitRepository, name: base}, path: ./profiles/management, prune: true, wait: true, interval: 10m, retryInterval: 2s}
`
	if err := os.WriteFile(bootstrap, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := scenario.StartStage(t, stage.Options{
		Repos: scenario.Path(t, "e2e", "testdata", "repos"), Components: scenario.Path(t, "bin", "components", "local"), Bootstrap: bootstrap,
	})
	f := &pinnedFleet{Tier: &scenario.Tier{Stage: s}, names: names, released: released, commits: map[int]string{}, pins: map[string]int{}}
	var err error
	if f.Client, err = s.MoM.Client(); err != nil {
		t.Fatal(err)
	}
	f.Repository(t, "tenants", map[string]string{
		"README.md": "The clusters of a tier.\n", "note/note.yaml": scenario.ConfigMapWith("note", ", namespace: default", "{k: one}"),
		"charts/cluster/Chart.yaml":             "apiVersion: v2\nname: cluster\nversion: 1.0.0\n",
		"charts/cluster/templates/cluster.yaml": pinnedCluster("{{ .Release.Name }}", "{{ .Values.number }}", "{{ .Values.version }}", ""),
	})
	f.commit(t, 1, "v1.36.0", names...)
	f.Apply(t, `apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: tenants, namespace: cascade-system}
spec:
  dependsOn: [{name: management}]
  sourceRef: {kind: GitRepository, name: tenants}
  path: ./clusters
  prune: true
  interval: 10m
  retryInterval: 1s
`)
	scenario.Eventually(t, scenario.BringUp, "all control planes run", func(ctx context.Context) error {
		for _, name := range names {
			if v, err := f.field(ctx, "controlplane.cluster.x-k8s.io/v1alpha1", "LocalControlPlane", name, "status", "version"); err != nil || v == "" {
				return fmt.Errorf("%s reports %q: %w", name, v, err)
			}
			if err := f.Load(ctx, &v1alpha1.Child{}, stage.Namespace, name); err != nil {
				return err
			}
		}
		return nil
	})
	return f
}

// commit declares the Clusters with a number, and a ConfigMap that has it as well.
func (f *pinnedFleet) commit(t *testing.T, number int, version string, names ...string) {
	t.Helper()
	files := map[string]string{"clusters/common.yaml": fmt.Sprintf(
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: common, namespace: %s}\ndata: {number: \"%d\"}\n", stage.Namespace, number)}
	if !slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, "c") }) {
		files["clusters/c.yaml"] = "" // removes it
	}
	for _, name := range names {
		name, more, _ := strings.Cut(name, " ")
		if i := slices.Index(f.released, name); i >= 0 {
			files["clusters/"+name+".yaml"] = releasedCluster(name, fmt.Sprintf("number: \"%d\", version: %s", number, version), i == 0)
			continue
		}
		files["clusters/"+name+".yaml"] = pinnedCluster(name, fmt.Sprint(number), version, more)
	}
	sha, err := f.Git.Commit(t.Context(), "tenants", "main", fmt.Sprintf("Commit %d", number), func(dir string) error { return scenario.ChangeFiles(dir, files) })
	if err != nil {
		t.Fatal(err)
	}
	f.commits[number] = "main@sha1:" + sha
}

// pinnedCluster declares a Cluster, with annotations besides.
func pinnedCluster(name, number, version, annotations string) string {
	return strings.NewReplacer("NAMESPACE", stage.Namespace, "NAME", name, "NUMBER", number, "VERSION", version, "MORE", annotations).Replace(
		`apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: NAME, namespace: NAMESPACE, labels: {cluster: NAME, number: "NUMBER"}, annotations: {MORE}}
spec:
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: LocalCluster, name: NAME}
  controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: LocalControlPlane, name: NAME}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1alpha1
kind: LocalCluster
metadata: {name: NAME, namespace: NAMESPACE}
---
apiVersion: controlplane.cluster.x-k8s.io/v1alpha1
kind: LocalControlPlane
metadata: {name: NAME, namespace: NAMESPACE, annotations: {number: "NUMBER"}}
spec: {version: VERSION}
`)
}

// releasedCluster declares a HelmRelease that makes a Cluster, with its values in a ConfigMap if
// its generation is to tell nothing of them.
func releasedCluster(name, values string, apart bool) string {
	in := "values: {" + values + "}"
	text := ""
	if apart {
		in = "valuesFrom: [{kind: ConfigMap, name: " + name + "-values}]"
		text = fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s-values, namespace: %s}\ndata:\n  values.yaml: |\n    {%s}\n---\n", name, stage.Namespace, values)
	}
	return text + fmt.Sprintf(`apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: %s, namespace: %s}
spec:
  interval: 10m
  chart: {spec: {chart: ./charts/cluster, sourceRef: {kind: GitRepository, name: tenants}}}
  install: {disableWait: true}
  upgrade: {disableWait: true}
  %s
`, name, stage.Namespace, in)
}

// pin writes which commits Clusters may have, as the reconciler of Rollouts does.
func (f *pinnedFleet) pin(t *testing.T, number int, names ...string) {
	t.Helper()
	for _, name := range names {
		f.pins[name] = number
		f.pinTo(t, name, f.commits[number])
	}
}

func (f *pinnedFleet) pinTo(t *testing.T, name, revision string) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"rollouts": []v1alpha1.ChildRollout{{
		Name: "waves", RolloutRevision: v1alpha1.RolloutRevision{Revision: revision}, Run: int64(f.pins[name]), Result: v1alpha1.ResultUpdating, Since: metav1.Now(),
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: name}}
	if err := f.Client.Status().Patch(t.Context(), child, client.RawPatch(types.MergePatchType, patch), client.FieldOwner("rollouts")); err != nil {
		t.Fatal(err)
	}
}

// field reads text of an object.
func (f *pinnedFleet) field(ctx context.Context, version, kind, name string, at ...string) (string, error) {
	u := stage.Object(version, kind)
	if err := f.Load(ctx, u, stage.Namespace, name); err != nil {
		return "", err
	}
	text, _, err := unstructured.NestedString(u.Object, at...)
	return text, err
}

// has waits until Clusters are as the commits with these numbers have them, and say so.
func (f *pinnedFleet) has(t *testing.T, want map[string]int) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("the Clusters are those of the commits %v", want), func(ctx context.Context) error {
		var problems []error
		for _, name := range slices.Sorted(maps.Keys(want)) {
			number, marked := fmt.Sprint(want[name]), [2]string{"cluster.x-k8s.io/v1beta2", "Cluster"}
			if slices.Contains(f.released, name) {
				marked = [2]string{"helm.toolkit.fluxcd.io/v2", "HelmRelease"}
			}
			for _, of := range []struct {
				version, kind, want string
				at                  []string
			}{
				{"cluster.x-k8s.io/v1beta2", "Cluster", number, []string{"metadata", "labels", "number"}},
				{marked[0], marked[1], f.commits[want[name]], []string{"metadata", "annotations", v1alpha1.RolloutRevisionAnnotation}},
				{"controlplane.cluster.x-k8s.io/v1alpha1", "LocalControlPlane", number, []string{"metadata", "annotations", "number"}},
			} {
				if got, err := f.field(ctx, of.version, of.kind, name, of.at...); err != nil || got != of.want {
					problems = append(problems, fmt.Errorf("%s %s has %q, want %q: %w", of.kind, name, got, of.want, err))
				}
			}
		}
		return errors.Join(problems...)
	})
}

// common waits until what is of no Cluster is that of a commit: the Kustomization has
// looked at it.
func (f *pinnedFleet) common(t *testing.T, number int) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("what is of no Cluster is of commit %d", number), func(ctx context.Context) error {
		cm := &corev1.ConfigMap{}
		if err := f.Load(ctx, cm, stage.Namespace, "common"); err != nil {
			return err
		}
		if got := cm.Data["number"]; got != fmt.Sprint(number) {
			return fmt.Errorf("it is of %s", got)
		}
		return nil
	})
}

// begin notes where the audit log is.
func (f *pinnedFleet) begin(t *testing.T) { f.from = f.AuditOffset(t) }

// untouched fails if the agent wrote objects of Clusters since begin.
func (f *pinnedFleet) untouched(t *testing.T, names ...string) {
	t.Helper()
	events, _, err := f.MoM.Audit(f.from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if touches(e) && slices.Contains(names, e.ObjectRef.Name) {
			t.Errorf("the agent did %s %s %s: %s", e.Verb, e.ObjectRef.Resource, e.ObjectRef.Name, e.RequestURI)
		}
	}
}

// touches reports whether the agent wrote an object of a Cluster. What it asks with a dry
// run changes nothing, and status is not what Git declares.
func touches(e stage.AuditEvent) bool {
	return slices.Contains([]string{"clusters", "localclusters", "localcontrolplanes"}, e.ObjectRef.Resource) && e.ObjectRef.Subresource == "" &&
		e.ByAgent() && e.Writes() && !strings.Contains(e.RequestURI, "dryRun=All")
}

// calm waits until the agent has not written objects of Clusters for a while. Cluster API
// touches each of them when it comes up, and the agent then verifies it.
func (f *pinnedFleet) calm(t *testing.T) {
	t.Helper()
	const long = 5 * time.Second
	since := time.Now()
	scenario.Eventually(t, scenario.Converge, "the agent has no Cluster to verify", func(ctx context.Context) error {
		events, _, err := f.MoM.Audit(0)
		if err != nil {
			return err
		}
		for _, e := range events {
			if touches(e) && e.Received.After(since) {
				since = e.Received
			}
		}
		if left := long - time.Since(since); left > 0 {
			return fmt.Errorf("it wrote one %s ago", time.Since(since))
		}
		return nil
	})
}

// says waits until the Kustomization has the condition of Rollouts for a reason, with a text;
// without a reason, until it has it no more. It returns the Kustomization.
func (f *pinnedFleet) says(t *testing.T, reason, text string) *kustomizev1.Kustomization {
	t.Helper()
	k := &kustomizev1.Kustomization{}
	scenario.Eventually(t, scenario.Converge, "the Kustomization says "+reason, func(ctx context.Context) error {
		if err := f.Load(ctx, k, stage.Namespace, "tenants"); err != nil {
			return err
		}
		c := meta.FindStatusCondition(k.Status.Conditions, v1alpha1.RolloutPendingCondition)
		if reason == "" && c == nil && meta.IsStatusConditionTrue(k.Status.Conditions, fluxmeta.ReadyCondition) {
			return nil
		}
		if c == nil || c.Reason != reason || !strings.Contains(c.Message, text) {
			return fmt.Errorf("conditions are %s", scenario.Summary(k.Status.Conditions))
		}
		return nil
	})
	return k
}

// firstPin: a Rollout comes, and a commit before it gave anybody a revision.
func (f *pinnedFleet) firstPin(t *testing.T) {
	f.common(t, 1)
	f.calm(t)
	f.begin(t)
	f.Apply(t, `apiVersion: cascade.dev/v1alpha1
kind: Rollout
metadata: {name: waves, namespace: cascade-system}
spec:
  moves: {kustomizationRef: {name: tenants}}
  waves: [{name: all}]
  # Nobody can read it, so that the agent decides nothing, and the test writes the pins.
  window: {cron: "of no time", duration: 1h}
`)
	f.says(t, v1alpha1.ReasonRolloutPending, "Cluster a, b, c keeps what is in place")
	f.commit(t, 2, "v1.37.0", "a", "b", "c")
	f.common(t, 2)
	k := f.says(t, v1alpha1.ReasonRolloutPending, "waves")
	if k.Status.LastAppliedRevision != f.commits[1] {
		t.Errorf("on record as applied is %s, and the Clusters have %s", k.Status.LastAppliedRevision, f.commits[1])
	}
	if !meta.IsStatusConditionTrue(k.Status.Conditions, fluxmeta.ReadyCondition) {
		t.Errorf("to wait for a pin is no failure: %s", scenario.Summary(k.Status.Conditions))
	}
	f.untouched(t, "a", "b", "c")
	f.pin(t, 1, "a", "b", "c")
	f.says(t, "", "")
	f.has(t, f.pins)
}

// oneMoves: of a commit that changes all, one Cluster gets its part.
func (f *pinnedFleet) oneMoves(t *testing.T) {
	f.begin(t)
	f.pin(t, 2, "a")
	f.has(t, f.pins)
	if v, err := f.field(t.Context(), "controlplane.cluster.x-k8s.io/v1alpha1", "LocalControlPlane", "a", "spec", "version"); v != "v1.37.0" {
		t.Errorf("its control plane is told to have %q: %v", v, err)
	}
	k := f.says(t, "", "")
	if k.Status.LastAppliedRevision != f.commits[2] {
		t.Errorf("on record as applied is %s, want the newest, %s", k.Status.LastAppliedRevision, f.commits[2])
	}
	f.untouched(t, "b", "c")
}

// agentKilled: another process goes on with the same pins, and fetches what it lacks. It
// sends each object once, to verify it, and that changes none.
func (f *pinnedFleet) agentKilled(t *testing.T) {
	before := f.declared(t)
	if err := syscall.Kill(f.MoM.Agent(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	f.commit(t, 3, "v1.37.0", "a", "b", "c")
	killed := time.Now()
	f.common(t, 3)
	f.says(t, "", "")
	f.has(t, f.pins)
	f.looked(t)
	t.Logf("the new process had composed the commit %.1f s after the kill", time.Since(killed).Seconds())
	if diff := cmp.Diff(before, f.declared(t)); diff != "" {
		t.Errorf("the new process changed what is of Clusters: -before, +after:\n%s", diff)
	}
}

// looked asks the agent to look at the Kustomization, and waits until it has verified all
// that it declares.
func (f *pinnedFleet) looked(t *testing.T) {
	t.Helper()
	token := time.Now().Format(time.RFC3339Nano)
	k := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: "tenants"}}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, fluxmeta.ReconcileRequestAnnotation, token)
	if err := f.Client.Patch(t.Context(), k, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		t.Fatal(err)
	}
	scenario.Eventually(t, scenario.Converge, "the request is handled", func(ctx context.Context) error {
		if err := f.Load(ctx, k, stage.Namespace, "tenants"); err != nil {
			return err
		}
		if k.Status.LastHandledReconcileAt != token {
			return fmt.Errorf("handled is %q", k.Status.LastHandledReconcileAt)
		}
		return nil
	})
	f.says(t, "", "")
}

// declared is the part of the objects of Clusters that Git declares, and their UIDs.
func (f *pinnedFleet) declared(t *testing.T) map[string]any {
	t.Helper()
	found := map[string]any{}
	for _, kind := range scenario.ClusterKinds() {
		for _, name := range f.names {
			u := stage.Object(kind[0], kind[1])
			if err := f.Load(t.Context(), u, stage.Namespace, name); err != nil {
				t.Fatal(err)
			}
			found[kind[1]+"/"+name] = []any{string(u.GetUID()), u.GetGeneration(), u.GetLabels(), u.GetAnnotations(), u.Object["spec"]}
		}
	}
	return found
}

// othersFollow: each with its own pin.
func (f *pinnedFleet) othersFollow(t *testing.T) {
	f.begin(t)
	f.pin(t, 3, "b")
	f.has(t, f.pins)
	f.untouched(t, "a", "c")
	f.pin(t, 2, "c")
	f.has(t, f.pins)
	f.pin(t, 3, "a", "c")
	f.has(t, f.pins)
}

// skippedMinor: a pin that would go over a minor version of what runs moves nothing.
func (f *pinnedFleet) skippedMinor(t *testing.T) {
	f.commit(t, 4, "v1.39.0", "a", "b", "c")
	f.common(t, 4)
	f.begin(t)
	f.pinTo(t, "a", f.commits[4])
	k := f.says(t, v1alpha1.ReasonUnsupportedVersionStep, "cannot change Kubernetes of Cluster cascade-system/a from v1.36.")
	ready := meta.FindStatusCondition(k.Status.Conditions, fluxmeta.ReadyCondition)
	if ready == nil || ready.Status != metav1.ConditionFalse || ready.Reason != v1alpha1.ReasonUnsupportedVersionStep || !strings.Contains(ready.Message, "to v1.39.0") {
		t.Errorf("conditions are %s", scenario.Summary(k.Status.Conditions))
	}
	f.has(t, f.pins)
	f.untouched(t, "a", "b", "c")
	f.commit(t, 5, "v1.37.1", "a", "b", "c")
	f.common(t, 5)
	f.pin(t, 5, "a")
	f.has(t, f.pins)
	f.says(t, "", "")
	f.untouched(t, "b", "c")
}

// revisionMissing: a pin that no source has is not replaced by another revision.
func (f *pinnedFleet) revisionMissing(t *testing.T) {
	before := f.declared(t)
	f.begin(t)
	f.pinTo(t, "b", "main@sha1:"+strings.Repeat("0123456789", 4))
	f.says(t, v1alpha1.ReasonRevisionMissing, "0123456789")
	f.untouched(t, "a", "b", "c")
	f.pin(t, 3, "b")
	f.says(t, "", "")
	f.has(t, f.pins)
	f.untouched(t, "a", "c")
	if diff := cmp.Diff(before, f.declared(t)); diff != "" {
		t.Errorf("what is of Clusters changed: -before, +after:\n%s", diff)
	}
}

// removal: two commits remove a Cluster, and each comes with the pin of it.
func (f *pinnedFleet) removal(t *testing.T) {
	f.commit(t, 6, "v1.37.1", "a", "b", "c "+v1alpha1.DeletionAnnotation+": "+v1alpha1.DeletionConfirmed)
	f.common(t, 6)
	f.begin(t)
	f.commit(t, 7, "v1.37.1", "a", "b")
	f.common(t, 7)
	f.says(t, "", "")
	f.has(t, f.pins)
	f.untouched(t, "a", "b", "c")
	f.pin(t, 6, "c")
	f.has(t, f.pins)
	f.pin(t, 7, "c")
	scenario.Eventually(t, scenario.BringUp, "Cluster c is gone", func(ctx context.Context) error {
		u := stage.Object("cluster.x-k8s.io/v1beta2", "Cluster")
		if err := f.Load(ctx, u, stage.Namespace, "c"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is deleted since %v: %w", u.GetDeletionTimestamp(), err)
		}
		return nil
	})
	delete(f.pins, "c")
	f.has(t, f.pins)
	f.untouched(t, "a", "b")
}

// rolloutDeleted: what it moved has the newest revision, at once, and no mark of it.
func (f *pinnedFleet) rolloutDeleted(t *testing.T) {
	if err := f.Client.Delete(t.Context(), &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: "waves"}}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	scenario.Eventually(t, scenario.Converge, "a and b are as the newest commit has them", func(ctx context.Context) error {
		for _, name := range []string{"a", "b"} {
			u := stage.Object("cluster.x-k8s.io/v1beta2", "Cluster")
			if err := f.Load(ctx, u, stage.Namespace, name); err != nil {
				return err
			}
			if _, marked := u.GetAnnotations()[v1alpha1.RolloutRevisionAnnotation]; marked || u.GetLabels()["number"] != "7" {
				return fmt.Errorf("%s has labels %v and annotations %v", name, u.GetLabels(), u.GetAnnotations())
			}
		}
		return nil
	})
	t.Logf("they were %.1f s after it", time.Since(began).Seconds())
}
