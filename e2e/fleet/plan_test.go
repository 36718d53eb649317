package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

var update = flag.Bool("update", false, "write the golden files anew")

// plannedCommit is a commit to a repository of the example fleet, and the exit code of its plan.
type plannedCommit struct {
	name, reason string
	// at is the tier whose source the commit is of, and source its GitRepository.
	at, source, repository string
	change                 func(dir string) error
	code                   int
}

const plannedNote = `apiVersion: v1
kind: ConfigMap
metadata: {name: planned, namespace: cascade-system}
data: {cluster: "%s"}
`

// plannedCommits build on each other.
func plannedCommits() []plannedCommit {
	write := func(name, text string) func(string) error {
		return func(dir string) error { return scenario.ChangeFiles(dir, map[string]string{name: text}) }
	}
	replace := func(name, before, after string) func(string) error {
		return func(dir string) error {
			return scenario.ReplaceIn(filepath.Join(dir, filepath.FromSlash(name)), before, after)
		}
	}
	return []plannedCommit{
		{"Nothing", "nothing reads the file", "mom", "masters", "masters", write("README.md", "other\n"), 0},
		{"LayerChanged", "both masters get another field", "mom", "masters", "masters", replace("layers/master/sync.yaml", "retryInterval: 2s", "retryInterval: 3s"), 2},
		{"LayerMore", "each master gets an object of its own", "mom", "masters", "masters", write("layers/master/planned.yaml", fmt.Sprintf(plannedNote, "${cluster_name}")), 2},
		{"LayerLess", "and loses it again", "mom", "masters", "masters", write("layers/master/planned.yaml", ""), 2},
		{"Kustomization", "what syncs the clusters", "mom", "masters", "masters", replace("mom/clusters.yaml", "interval: 10m", "interval: 11m"), 2},
		{"Release", "a release of a cluster", "mom", "masters", "masters", replace("clusters/staging.yaml", "  interval: 10m\n  chart", "  interval: 11m\n  chart"), 2},
		{"Workload", "a workload of the environment", "staging", "environment", "env-staging", replace("services/aggregator.yaml", "aggregator of", "the aggregator of"), 2},
		{"Added", "an object more in the environment", "staging", "environment", "env-staging", write("services/planned.yaml", fmt.Sprintf(plannedNote, "1")), 2},
		{"Moved", "from one Kustomization to another", "staging", "environment", "env-staging", func(dir string) error {
			return scenario.ChangeFiles(dir, map[string]string{"services/planned.yaml": "", "fleet/planned.yaml": fmt.Sprintf(plannedNote, "2")})
		}, 2},
		{"Deleted", "and it goes", "staging", "environment", "env-staging", write("fleet/planned.yaml", ""), 2},
		{"Tenants", "each tenant gets another field", "staging", "environment", "env-staging", replace("layers/tenant/sync.yaml", "retryInterval: 5s", "retryInterval: 4s"), 2},
		{"Rights", "the profile that all tenants share, seen from one", "gamma", "base", "base", replace("profiles/tenant/access.yaml", `pods: "50"`, `pods: "60"`), 2},
		{"Application", "what a tenant runs", "gamma", "apps", "apps", replace("hello/deployment.yaml", "periodSeconds: 2", "periodSeconds: 3"), 2},
	}
}

// planIsWhatHappens: what cascade plan says of commits to the repositories of the example fleet,
// in each of its tiers, is what the agents then do, by the audit logs of the tier and of its
// children: the same objects are written, the same are deleted, and no others.
func (f *fleet) planIsWhatHappens(t *testing.T) {
	var texts strings.Builder
	for _, commit := range plannedCommits() {
		if !t.Run(commit.name, func(t *testing.T) {
			text, want := "", []string(nil)
			from := f.auditEnds(t, commit.at)
			// The plan is made of what is to be pushed, before it is.
			head := f.commit(t, commit.repository, commit.reason, func(dir string) error {
				if err := commit.change(dir); err != nil {
					return err
				}
				text, want = f.planned(t, commit, dir)
				return nil
			})
			fmt.Fprintf(&texts, "# %s: %s\n%s\n", commit.name, commit.reason, text)
			f.synced(t, commit, head)
			scenario.Eventually(t, scenario.Converge, "the agents did what the plan says", func(ctx context.Context) error {
				done, err := f.done(commit.at, from)
				if err != nil {
					return err
				}
				if diff := cmp.Diff(want, slices.Sorted(maps.Keys(done))); diff != "" {
					// When and by whom tells a restart from a comparison.
					maps.DeleteFunc(done, func(what, _ string) bool { return slices.Contains(want, what) })
					return fmt.Errorf("%s: -planned, +done:\n%s\nnot planned: %v\nrestarts of agents: %v", commit.reason, diff, done, f.restarts(ctx, commit.at))
				}
				return nil
			})
		}) {
			return
		}
	}
	got := regexp.MustCompile(`\b[0-9a-f]{12}([0-9a-f]{28})?\b`).ReplaceAllString(texts.String(), "<commit>")
	file := filepath.Join("testdata", "plans.txt")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(golden), got); diff != "" {
		t.Errorf("%s: -want, +got:\n%s", file, diff)
	}
}

// below are the tiers whose parent a tier is.
func (f *fleet) below(tier string) []string {
	if tier == "mom" {
		return slices.Sorted(maps.Keys(declared))
	}
	return declared[tier]
}

// auditEnds is where the audit logs of a tier and of its children end.
func (f *fleet) auditEnds(t *testing.T, at string) map[string]int64 {
	t.Helper()
	ends := map[string]int64{}
	for _, name := range append(f.below(at), at) {
		_, end, err := f.tiers[name].Audit(0)
		if err != nil {
			t.Fatal(err)
		}
		ends[name] = end
	}
	return ends
}

// planned runs the program for a work tree with a change that is not committed, and returns what
// it prints, and which objects it says are written and deleted.
func (f *fleet) planned(t *testing.T, commit plannedCommit, tree string) (string, []string) {
	t.Helper()
	clone := filepath.Join(t.TempDir(), "clone")
	if err := os.CopyFS(clone, os.DirFS(tree)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"add", "--all", "--force"}, {"-c", "user.name=jane", "-c", "user.email=jane@example.org", "commit", "--quiet", "--message=Change"}} {
		if out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", clone}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	program, err := f.Program("cascade")
	if err != nil {
		t.Fatal(err)
	}
	run := func(more ...string) []byte {
		args := []string{"plan", "--kubeconfig", f.tiers[commit.at].Kubeconfig(), "-n", stage.Namespace, "--source", commit.source, "--path", clone}
		out, err := exec.CommandContext(t.Context(), program, append(args, more...)...).Output()
		var exit *exec.ExitError
		code := 0
		if errors.As(err, &exit) {
			code = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if code != commit.code {
			t.Fatalf("cascade plan ends with %d, want %d: %s", code, commit.code, out)
		}
		return out
	}
	r := struct {
		Owners []struct {
			Kind   string
			Groups []struct {
				Clusters []string
				Changes  []struct{ Action, Kind, Name string }
			}
		}
	}{}
	if err := json.Unmarshal(run("-o", "json"), &r); err != nil {
		t.Fatal(err)
	}
	done := map[string]bool{}
	for _, o := range r.Owners {
		for _, g := range o.Groups {
			clusters := []string{commit.at}
			if o.Kind == "Layer" {
				clusters = g.Clusters
			}
			for _, cluster := range clusters {
				for _, c := range g.Changes {
					switch at := path.Base(cluster) + ": "; c.Action {
					case "Added", "Changed", "Moved":
						done[at+"write "+c.Kind+"/"+c.Name] = true
					case "Deleted":
						done[at+"delete "+c.Kind+"/"+c.Name] = true
					}
				}
			}
		}
	}
	return string(run()), slices.Sorted(maps.Keys(done))
}

// plannedKinds are those that the commits are about, by the resources of audit logs.
var plannedKinds = map[string]string{
	"configmaps": "ConfigMap", "deployments": "Deployment", "gitrepositories": "GitRepository", "helmreleases": "HelmRelease",
	"kustomizations": "Kustomization", "layers": "Layer", "resourcequotas": "ResourceQuota",
}

// done is what was written and deleted of what is declared since: in the tier by its agent, and in
// its children by that as their parent. What they keep of their own, as finalizers and records,
// they write in other ways than by applying. Each is with the first request.
func (f *fleet) done(at string, since map[string]int64) (map[string]string, error) {
	done := map[string]string{}
	add := func(what string, e stage.AuditEvent) {
		if done[what] == "" {
			done[what] = fmt.Sprintf("%s %s by %s (%s)", e.Received.Format("15:04:05.000"), e.Verb, e.UserAgent, e.User.Username)
		}
	}
	for name, from := range since {
		events, _, err := f.tiers[name].Audit(from)
		if err != nil {
			return nil, err
		}
		for _, e := range events {
			kind := plannedKinds[e.ObjectRef.Resource]
			if kind == "" || !e.ByAgent() || e.ByParent() == (name == at) || e.ObjectRef.Subresource != "" || e.ResponseStatus.Code >= 300 || strings.Contains(e.RequestURI, "dryRun") {
				continue
			}
			object := kind + "/" + e.ObjectRef.Name
			applied := strings.Contains(e.RequestURI, "fieldManager=kustomize-controller") || strings.Contains(e.RequestURI, "fieldManager=cascade-seed")
			switch {
			case e.Verb == "delete":
				add(name+": delete "+object, e)
			case applied:
				add(name+": write "+object, e)
			}
		}
	}
	return done, nil
}

// restarts of the agents of a tier and its children, by their pods, or why that is not known.
func (f *fleet) restarts(ctx context.Context, at string) map[string]string {
	restarts := map[string]string{}
	for _, name := range append(f.below(at), at) {
		api, err := f.tiers[name].Client()
		pods := &corev1.PodList{}
		if err == nil {
			err = api.List(ctx, pods, client.InNamespace(stage.Namespace))
		}
		if err != nil {
			restarts[name] = err.Error()
		}
		for i := range pods.Items {
			for _, s := range pods.Items[i].Status.ContainerStatuses {
				restarts[name+"/"+pods.Items[i].Name] = fmt.Sprint(s.RestartCount)
			}
		}
	}
	return restarts
}

// synced waits until all that the tier makes of the source is at the commit, and in its children.
func (f *fleet) synced(t *testing.T, commit plannedCommit, head string) {
	t.Helper()
	tier := f.tiers[commit.at]
	scenario.Eventually(t, scenario.Converge, commit.at+" is at the commit", func(ctx context.Context) error {
		api, err := tier.Client()
		if err != nil {
			return err
		}
		list := &kustomizev1.KustomizationList{}
		if err := api.List(ctx, list, client.InNamespace(stage.Namespace)); err != nil {
			return err
		}
		for i := range list.Items {
			k := &list.Items[i]
			if k.Spec.SourceRef.Name != commit.source {
				continue
			}
			ready := meta.FindStatusCondition(k.Status.Conditions, fluxmeta.ReadyCondition)
			if !strings.HasSuffix(k.Status.LastAppliedRevision, head) || ready == nil || ready.Status != metav1.ConditionTrue || k.Status.ObservedGeneration != k.Generation {
				return fmt.Errorf("kustomization %s is at %s: %s", k.Name, k.Status.LastAppliedRevision, scenario.Summary(k.Status.Conditions))
			}
		}
		layers := &v1alpha1.LayerList{}
		if err := api.List(ctx, layers, client.InNamespace(stage.Namespace)); meta.IsNoMatchError(err) {
			return nil
		} else if err != nil {
			return err
		}
		children := &v1alpha1.ChildList{}
		if err := api.List(ctx, children, client.InNamespace(stage.Namespace)); err != nil {
			return err
		}
		for i := range layers.Items {
			for j := range children.Items {
				l, c := &layers.Items[i], &children.Items[j]
				at := slices.IndexFunc(c.Status.Layers, func(of v1alpha1.ChildLayer) bool { return of.Name == l.Name })
				if at < 0 || l.Spec.SourceRef.Name != commit.source {
					continue
				}
				if of := c.Status.Layers[at]; !strings.HasSuffix(of.Revision, head) || !of.Ready {
					return fmt.Errorf("layer %s of %s is at %s: %s %s", l.Name, c.Name, of.Revision, of.Reason, of.Message)
				}
			}
		}
		return nil
	})
}
