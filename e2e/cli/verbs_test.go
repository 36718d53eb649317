package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// TestVerbs: the verbs for people, against a real API server: its selectors, its watches, its
// schemas and columns. No agent runs: what one would write, the test does.
func TestVerbs(t *testing.T) {
	scenario.Alongside(t)
	s := scenario.StartAPIServer(t)
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	cl, err := client.New(s.Config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	v := &rolloutVerbs{APIServer: s, Client: cl, program: scenario.Path(t, "bin", "cascade")}
	v.prepare(t)
	v.furnish(t)
	for _, c := range []struct {
		reason string
		args   string
		code   int
		says   string
		// file of the whole output.
		file string
	}{
		{"whose cluster, where, at which version", "children", 0, "", "children"},
		{"for other systems", "children -o json", 0, "", "children-json"},
		{"by a label that the Cluster has", "children -l cascade.dev/owner=retail --no-header", 0, "fleet/bank", ""},
		{"more columns", "get children -o wide", 0, "", "get-wide"},
		{"as kubectl takes them", "get all -o name", 0, "", "get-name"},
		{"a List, and a template over it", "get children -o jsonpath={.kind}:{.items[*].metadata.name}", 0, "List:bank shop", ""},
		{"one that is named is itself", "get child bank -o jsonpath={.kind}/{.metadata.name}", 0, "Child/bank", ""},
		{"the condition decides", "get children --status-selector ready=false --no-header", 0, "", "get-not-ready"},
		{"what never was reconciled is not ready", "get layers --status-selector ready!=true", 0, "waiting to be reconciled", ""},
		{"a selector may leave nothing", "get children -l team=none", 0, "nothing in namespace fleet is so", ""},
		{"without one, nothing is a mistake", "get helmreleases", 1, "found nothing", ""},
		{"a selector that is none", "get children --status-selector ready=perhaps", 1, "use a condition and true, false or unknown", ""},
		{"a format that is none", "get children -o toml", 1, "use wide, name, json", ""},
		{"several kinds have several tables", "get all --watch", 1, "cannot watch several kinds", ""},
		{"of one object, by the selectors of the API server", "events --for child/bank", 0, "", "events"},
		{"by type", "events --types warning --no-header", 0, "", "events-warning"},
		{"no such events", "events --for layer/none", 0, "there are no such events", ""},
		{"a part of the tree", "tree --filter owner=retail", 0, "", "tree-filter"},
		{"a tier of it", "tree fleet/bank --depth 1", 0, "", "tree-path"},
		{"one that is not there", "tree fleet/none", 1, "found no fleet/none", ""},
		{"nothing is pushed to a child", "suspend child bank", 0, "child fleet/bank is suspended", ""},
		{"and says so", "get child bank -o jsonpath={.spec.suspend}", 0, "true", ""},
		{"all of a kind", "suspend layer --all", 0, "layer fleet/base is suspended", ""},
		{"a name that is not there touches none", "resume layer base typo", 1, "found no layer typo", ""},
		{"it is as it was", "get layer base -o jsonpath={.spec.suspend}", 0, "true", ""},
		{"it goes on", "resume layer base", 0, "layer fleet/base is resumed", ""},
		{"names or all", "resume layer", 1, "say the names", ""},
		{"a kind without the field", "suspend pods x", 1, "use gitrepository", ""},
		{"to what applies it", "trace layer base", 0, "", "trace"},
		{"by kubectl's words", "trace cm settings", 0, "nothing in this cluster", ""},
		{"a kind that is none", "trace gadgets x", 1, "cannot find kind", ""},
		{"no commit is compared", "diff layer base", 1, "it has no source", ""},
		{"nobody logs here", "logs", 1, "found no pod of an agent", ""},
	} {
		out, code := v.run(t, c.args)
		if code != c.code || !strings.Contains(out, c.says) {
			t.Errorf("%s: cascade %s ends with %d, and says:\n%s", c.reason, c.args, code, out)
		}
		if c.file != "" {
			compare(t, c.file, out)
		}
	}
	completion := exec.CommandContext(t.Context(), v.program, "__complete", "suspend", "-n", "fleet", "--kubeconfig", v.Kubeconfig, "child", "b")
	if out, err := completion.Output(); err != nil || !strings.HasPrefix(string(out), "bank\n:") {
		t.Errorf("children that begin with b are %q, %v", out, err)
	}
	t.Run("Watch", func(t *testing.T) { v.watch(t) })
	t.Run("Columns", func(t *testing.T) {
		// kubectl prints what the API server says, which has the columns of the definition.
		table := &metav1.Table{}
		api, err := kubernetes.NewForConfig(s.Config)
		if err != nil {
			t.Fatal(err)
		}
		text, err := api.RESTClient().Get().AbsPath("/apis/cascade.dev/v1alpha1/namespaces/fleet/children/bank").
			SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, table); err != nil {
			t.Fatal(err)
		}
		var got []string
		for i, c := range table.ColumnDefinitions {
			if len(table.Rows) == 1 && i < len(table.Rows[0].Cells) && c.Name != "Age" {
				cell, _ := table.Rows[0].Cells[i].(string)
				got = append(got, c.Name+"="+cell)
			}
		}
		want := "Name=bank Connected=True Seeded= Ready=False Owner=retail Environment=production Version=v1.36.3 Provider=aws Region=eu-central-1 Endpoint=bank.example.com Revision=main@sha1:2222222222222222222222222222222222222222 Status=no answer"
		if strings.Join(got, " ") != want {
			t.Errorf("a Child has the columns\n%s\nwant\n%s", strings.Join(got, " "), want)
		}
	})
}

// furnish adds a child that is not well, what happened to it, and a layer.
func (v *rolloutVerbs) furnish(t *testing.T) {
	t.Helper()
	layer := &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "base", Labels: map[string]string{
		"kustomize.toolkit.fluxcd.io/name": "fleet", "kustomize.toolkit.fluxcd.io/namespace": "cascade-system",
	}}}
	layer.Spec.ClusterSelector.MatchLabels = map[string]string{"environment": "production"}
	layer.Spec.Interval = metav1.Duration{Duration: 10 * time.Minute}
	bank := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "bank", Labels: map[string]string{v1alpha1.OwnerLabel: "retail", "environment": "production"}}}
	bank.Spec.ClusterRef = &v1alpha1.LocalReference{Name: "bank"}
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "settings"}}
	agents := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.AgentNamespace}}
	beat := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: agents.Name, Name: v1alpha1.HeartbeatLease}}
	beat.Spec.RenewTime, beat.Spec.LeaseDurationSeconds = new(metav1.NowMicro()), new(int32(3600))
	for _, o := range []client.Object{layer, bank, settings, agents, beat} {
		if err := v.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	now := metav1.Now()
	ready := metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonUnreachable, Message: "no answer"}
	meta.SetStatusCondition(&bank.Status.Conditions, ready)
	meta.SetStatusCondition(&bank.Status.Conditions, metav1.Condition{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSucceeded})
	bank.Status.Provider, bank.Status.Region, bank.Status.Version, bank.Status.Endpoint = "aws", "eu-central-1", "v1.36.3", "bank.example.com"
	bank.Status.Report = &v1alpha1.Report{
		Agent: "v1.0.0", Revision: "main@sha1:2222222222222222222222222222222222222222", Reason: v1alpha1.ReasonSucceeded, Ready: true, Since: now,
		Children: &v1alpha1.ReportCounts{Total: 2, Ready: 1},
		Tiers:    []v1alpha1.TierRow{{Path: "edge/one", Ready: true, Reason: v1alpha1.ReasonSucceeded, Since: now, Owner: "retail"}},
	}
	if err := v.Status().Update(t.Context(), bank); err != nil {
		t.Fatal(err)
	}
	v.event(t, "one", "Child", "bank", corev1.EventTypeWarning, "Unreachable", "no answer")
	v.event(t, "two", "Cluster", "bank", corev1.EventTypeWarning, "ChildRefused", "quota")
	v.event(t, "three", "Child", "shop", corev1.EventTypeNormal, "Ready", "well")
}

func (v *rolloutVerbs) event(t *testing.T, name, kind, object, of, reason, message string) {
	t.Helper()
	e := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name}, Type: of, Reason: reason, Message: message, LastTimestamp: metav1.Now(),
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: kind, Namespace: "fleet", Name: object},
	}
	if err := v.Create(t.Context(), e); err != nil {
		t.Fatal(err)
	}
}

// watch: a watch shows what comes, and ends when a person ends it, with 0.
func (v *rolloutVerbs) watch(t *testing.T) {
	for _, args := range []string{"get children --watch --no-header", "events --watch --no-header", "tree --watch"} {
		cmd := exec.CommandContext(t.Context(), v.program, append(strings.Fields(args), "-n", "fleet", "--kubeconfig", v.Kubeconfig)...)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		until := func(text string) {
			t.Helper()
			for lines.Scan() {
				if strings.Contains(lines.Text(), text) {
					return
				}
			}
			t.Fatalf("cascade %s ended without %q", args, text)
		}
		until("bank")
		name := "late-" + strings.Fields(args)[0]
		child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name}}
		child.Spec.InCluster = true
		if err := v.Create(t.Context(), child); err != nil {
			t.Fatal(err)
		}
		v.event(t, name, "Child", name, corev1.EventTypeNormal, "Connected", "it answers")
		until(name)
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() { // it is read to its end
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("cascade %s, interrupted: %v", args, err)
		}
	}
}

var (
	times = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`)
	ages  = regexp.MustCompile(`\b(\d+[smhd]|<invalid>)+( ago)?(  +|\n|$)`)
)

// compare compares an output with its file, without times and ages.
func compare(t *testing.T, name, got string) {
	t.Helper()
	got = ages.ReplaceAllString(times.ReplaceAllString(got, "(time)"), "(age)$3")
	file := filepath.Join("testdata", "verbs", name+".txt")
	if *update {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(got), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	// Columns move with the length of an age.
	if diff := cmp.Diff(strings.Fields(string(want)), strings.Fields(got)); diff != "" {
		t.Errorf("%s: -want, +got:\n%s\nall of it:\n%s", file, diff, got)
	}
}
