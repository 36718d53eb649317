package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestPlan: what cascade plan says of a commit is what the agent then does, by the audit log
// of the tier: the same objects are written, the same are deleted, and no others. The commits
// build on each other. The tier is its own child, so that a layer is part of it.
func TestPlan(t *testing.T) {
	scenario.Alongside(t)
	s := scenario.StartTier(t)
	p := &plans{Row: s.Row(t, map[string]string{
		"root/apps.yaml":   planKustomization("apps", "apps") + "---\n" + planKustomization("other", "other"),
		"root/layer.yaml":  planLayer,
		"apps/one.yaml":    planConfigMap("one", "1"),
		"apps/two.yaml":    planConfigMap("two", "1"),
		"apps/three.yaml":  planConfigMap("three", "1"),
		"other/four.yaml":  planConfigMap("four", "1"),
		"layer/child.yaml": planConfigMap("child", "${cluster_name}") + "---\n" + planConfigMap("fixed", "1"),
	})}
	p.Apply(t, p.Fill(`apiVersion: cascade.dev/v1alpha1
kind: Child
metadata: {name: self, namespace: $ns, labels: {tier: own}}
spec: {inCluster: true}
`))
	p.Kustomization(t, "root", "")
	p.settled(t)
	for _, commit := range planCommits() {
		if !t.Run(commit.name, func(t *testing.T) { p.compare(t, commit) }) {
			return
		}
	}
}

const planLayer = `apiVersion: cascade.dev/v1alpha1
kind: Layer
metadata: {name: layer, namespace: $ns}
spec:
  clusterSelector: {matchLabels: {tier: own}}
  sourceRef: {kind: GitRepository, name: git}
  path: ./layer
  interval: 10m
`

func planKustomization(name, path string) string {
	return fmt.Sprintf("apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {name: %s, namespace: $ns}\n"+
		"spec: {sourceRef: {kind: GitRepository, name: git}, path: ./%s, prune: true, interval: 10m, retryInterval: 1s}\n", name, path)
}

func planConfigMap(name, value string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: $ns}\ndata: {value: %q}\n", name, value)
}

// planCommit is a commit, and the exit code of its plan.
type planCommit struct {
	name, reason string
	files        map[string]string
	code         int
}

func planCommits() []planCommit {
	secret := "apiVersion: v1\nkind: Secret\nmetadata: {name: token, namespace: $ns}\nstringData: {token: %s}\n"
	claim := "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data, namespace: $ns}\n" +
		"spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n"
	return []planCommit{
		{"Nothing", "nothing reads the file", map[string]string{"README.md": "text\n"}, 0},
		{"Changed", "one field of one object", map[string]string{"apps/one.yaml": planConfigMap("one", "2")}, 2},
		{"Added", "several objects, a Secret among them", map[string]string{"apps/token.yaml": fmt.Sprintf(secret, "first"), "apps/data.yaml": claim, "apps/five.yaml": planConfigMap("five", "1")}, 2},
		{"Secret", "a value of a Secret", map[string]string{"apps/token.yaml": fmt.Sprintf(secret, "second")}, 2},
		{"Deleted", "an object goes", map[string]string{"apps/three.yaml": ""}, 2},
		{"Protected", "data does not go unconfirmed", map[string]string{"apps/data.yaml": ""}, 2},
		{"Restored", "and is declared again", map[string]string{"apps/data.yaml": claim}, 2},
		{"Layer", "what a child gets", map[string]string{"layer/child.yaml": planConfigMap("child", "${cluster_name}-x") + "---\n" + planConfigMap("fixed", "1")}, 2},
		{"LayerLess", "a child loses an object", map[string]string{"layer/child.yaml": planConfigMap("child", "${cluster_name}-x")}, 2},
		{"Moved", "from one Kustomization to another", map[string]string{"apps/five.yaml": "", "other/five.yaml": planConfigMap("five", "2")}, 2},
		{"NewOwner", "a Kustomization with what it brings", map[string]string{"root/more.yaml": planKustomization("more", "more"), "more/six.yaml": planConfigMap("six", "1")}, 2},
		{"OtherPath", "a Kustomization is made of another directory", map[string]string{
			"root/more.yaml": planKustomization("more", "else"), "else/six.yaml": planConfigMap("six", "2"),
		}, 2},
		{"LostOwner", "a Kustomization goes with what it brought", map[string]string{"root/more.yaml": ""}, 2},
	}
}

type plans struct{ *scenario.Row }

// planReport is what the test reads of a plan.
type planReport struct {
	Owners []struct {
		Kind   string
		Groups []struct {
			Clusters []string
			Changes  []struct{ Action, Kind, Name string }
		}
	}
	Problems []struct{ Owner, Message string }
}

func (p *plans) compare(t *testing.T, commit planCommit) {
	files := map[string]string{}
	for name, text := range commit.files {
		files[name] = p.Fill(text)
	}
	// It is in the repository, and the tier has not fetched it.
	head, err := p.Git.Commit(t.Context(), p.Namespace, "main", commit.name, func(dir string) error { return scenario.ChangeFiles(dir, files) })
	if err != nil {
		t.Fatal(err)
	}
	from := p.AuditOffset(t)
	planned := p.plan(t, head, commit.code)
	events, _, err := p.MoM.Audit(from)
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(events, func(e stage.AuditEvent) bool { return strings.HasPrefix(e.UserAgent, "cascade/") && e.Writes() }); i >= 0 {
		t.Errorf("the plan wrote: %+v", events[i])
	}
	p.Head = head
	p.Ask(t, &sourcev1.GitRepository{}, "git")
	p.settled(t)
	scenario.Eventually(t, scenario.Converge, "the agent did what the plan says", func(context.Context) error {
		if diff := cmp.Diff(planned, p.did(t, from)); diff != "" {
			return fmt.Errorf("%s: -planned, +done:\n%s", commit.reason, diff)
		}
		return nil
	})
}

// plan runs the program, and returns which objects it says are written and deleted.
func (p *plans) plan(t *testing.T, head string, code int) []string {
	t.Helper()
	program, err := p.Program("cascade")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "plan", "--kubeconfig", p.MoM.Kubeconfig(), "-n", p.Namespace, "--path", t.TempDir(), "--revision", head, "-o", "json")
	out, err := cmd.Output()
	var exit *exec.ExitError
	got := 0
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	r := planReport{}
	if got != code || json.Unmarshal(out, &r) != nil {
		t.Fatalf("cascade plan ends with %d, want %d: %s", got, code, out)
	}
	done := map[string]bool{}
	for _, o := range r.Owners {
		for _, g := range o.Groups {
			if want := o.Kind == "Layer"; (len(g.Clusters) > 0) != want {
				t.Errorf("the clusters of a %s are %v", o.Kind, g.Clusters)
			}
			for _, c := range g.Changes {
				switch c.Action {
				case "Added", "Changed", "Moved":
					done["write "+c.Kind+"/"+c.Name] = true
				case "Deleted":
					done["delete "+c.Kind+"/"+c.Name] = true
				}
			}
		}
	}
	if len(done) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(done))
}

// did is what the agent wrote and deleted of what is declared. What it keeps of its own,
// such as finalizers, it writes in other ways than by applying.
func (p *plans) did(t *testing.T, from int64) []string {
	t.Helper()
	kinds := map[string]string{"configmaps": "ConfigMap", "secrets": "Secret", "kustomizations": "Kustomization", "layers": "Layer", "persistentvolumeclaims": "PersistentVolumeClaim"}
	done := map[string]bool{}
	for _, e := range p.Writes(t, from) {
		name := kinds[e.ObjectRef.Resource] + "/" + e.ObjectRef.Name
		applied := strings.Contains(e.RequestURI, "fieldManager=kustomize-controller") || strings.Contains(e.RequestURI, "fieldManager=cascade-seed")
		switch {
		case e.ObjectRef.Subresource != "" || kinds[e.ObjectRef.Resource] == "" || e.ObjectRef.Namespace != p.Namespace:
		case e.Verb == "delete":
			done["delete "+name] = true
		case applied:
			done["write "+name] = true
		}
	}
	if len(done) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(done))
}

// settled waits until all that syncs has looked at the last commit.
func (p *plans) settled(t *testing.T) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, "the tier is at the last commit", func(ctx context.Context) error {
		list := &kustomizev1.KustomizationList{}
		if err := p.Client.List(ctx, list, client.InNamespace(p.Namespace)); err != nil {
			return err
		}
		if len(list.Items) < 3 {
			return fmt.Errorf("there are %d Kustomizations", len(list.Items))
		}
		for i := range list.Items {
			k := &list.Items[i]
			ready := meta.FindStatusCondition(k.Status.Conditions, fluxmeta.ReadyCondition)
			if !strings.HasSuffix(k.Status.LastAttemptedRevision, p.Head) || ready == nil || ready.Status == metav1.ConditionUnknown || k.Status.ObservedGeneration != k.Generation {
				return fmt.Errorf("kustomization %s is at %s: %s", k.Name, k.Status.LastAttemptedRevision, scenario.Summary(k.Status.Conditions))
			}
		}
		child := &v1alpha1.Child{}
		if err := p.Load(ctx, child, p.Namespace, "self"); err != nil {
			return err
		}
		if len(child.Status.Layers) != 1 || !strings.HasSuffix(child.Status.Layers[0].Revision, p.Head) || !child.Status.Layers[0].Ready {
			return fmt.Errorf("layers of the child are %+v, conditions %s", child.Status.Layers, scenario.Summary(child.Status.Conditions))
		}
		return nil
	})
}
