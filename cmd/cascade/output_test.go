package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares with testdata/<name>.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: -want, +got:\n%s", file, diff)
	}
}

var noon = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(noon.Add(-d)) }

const (
	shaOne = "main@sha1:1111111111111111111111111111111111111111"
	shaTwo = "main@sha1:2222222222222222222222222222222222222222"
)

func conditions(kind string, status metav1.ConditionStatus, reason, message string, since time.Duration) []metav1.Condition {
	return []metav1.Condition{{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: ago(since)}}
}

func child(namespace, name string, ready []metav1.Condition, report *v1alpha1.Report) *v1alpha1.Child {
	c := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: ago(48 * time.Hour)}}
	c.Status.Conditions, c.Status.Report, c.Status.Version = ready, report, "v1.36.3"
	return c
}

// beat is the Lease of an agent, renewed some time before noon.
func beat(namespace string, ago time.Duration) client.Object {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.HeartbeatLease},
		Spec:       coordinationv1.LeaseSpec{RenewTime: new(metav1.NewMicroTime(noon.Add(-ago))), LeaseDurationSeconds: new(int32(45))},
	}
}

// fleet is three tiers: two masters, of which one has tenants.
func fleet(t *testing.T) []client.Object {
	t.Helper()
	report, err := json.Marshal(v1alpha1.Report{Revision: shaOne, Ready: true, Reason: "Succeeded", Since: ago(3 * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	aws := &v1alpha1.Report{
		Revision: shaTwo, Children: &v1alpha1.ReportCounts{Total: 14, Ready: 12},
		Tiers: []v1alpha1.TierRow{
			{Path: "tenants/shop>edge/one", Reason: "Unreachable", Message: "no route", Since: ago(time.Minute), Version: "v1.35.0"},
			{Path: "tenants/shop", Reason: "KustomizationFailing", Message: "Kustomization/cascade-system/apps: BuildFailed:\n  cannot build " + strings.Repeat("very ", 30) + "long", Revision: shaOne, Since: ago(10 * time.Minute), Version: "v1.36.3"},
			{Path: "tenants/bank", Ready: true, Reason: "Succeeded", Revision: shaTwo, Since: ago(26 * time.Hour), Version: "v1.36.3"},
		},
	}
	return []client.Object{
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.ReportConfigMap},
			Data:       map[string]string{v1alpha1.ReportKey: string(report)},
		},
		child("masters", "aws", conditions("Ready", metav1.ConditionTrue, "Succeeded", "connected, seeded and in sync", 2*time.Hour), aws),
		child("masters", "azure", conditions("Ready", metav1.ConditionFalse, "Unreachable", "cannot read namespace kube-system: dial timeout", 30*time.Second), nil),
		child("masters", "new", nil, nil),
	}
}

func TestTree(t *testing.T) {
	cl := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(fleet(t)...).WithObjects(beat(v1alpha1.AgentNamespace, 0)).Build()
	root, err := loadTree(t.Context(), cl, v1alpha1.AgentNamespace, noon)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := printTree(&out, root, noon, false); err != nil {
		t.Fatal(err)
	}
	golden(t, "tree.txt", out.String())
	text, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "tree.json", string(text)+"\n")
}

func TestTreeWithoutReport(t *testing.T) {
	cl := fake.NewClientBuilder().WithScheme(newScheme()).Build()
	root, err := loadTree(t.Context(), cl, v1alpha1.AgentNamespace, noon)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := printTree(&out, root, noon, false); err != nil {
		t.Fatal(err)
	}
	golden(t, "tree-empty.txt", out.String())
}

func objects() []client.Object {
	source := func(name string, ready []metav1.Condition) *sourcev1.GitRepository {
		o := &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: name}}
		o.Status.Conditions = ready
		return o
	}
	fetched := source("fleet", conditions("Ready", metav1.ConditionTrue, "Succeeded", "stored artifact for revision '"+shaOne+"'", 0))
	fetched.Status.Artifact = &fluxmeta.Artifact{Revision: shaOne}
	k := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: "apps"}, Spec: kustomizev1.KustomizationSpec{Suspend: true}}
	k.Status.LastAppliedRevision = shaOne
	k.Status.Conditions = conditions("Ready", metav1.ConditionFalse, "BuildFailed", "cannot build:\n\tno such file", 0)
	elsewhere := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "mine"}}
	l := &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: "tenants"}}
	l.Labels = map[string]string{"team": "fleet"}
	l.Status.Revision, l.Status.Children = shaTwo, v1alpha1.ChildCounts{Total: 3, Current: 2, Seeded: 2, Failing: 1}
	l.Status.Conditions = conditions("Ready", metav1.ConditionFalse, "ChildrenNotReady", "in place on 2 of 3 children", 0)
	c := child(v1alpha1.AgentNamespace, "shop", append(conditions("Ready", metav1.ConditionTrue, "Succeeded", "connected", 0), conditions("Connected", metav1.ConditionTrue, "Succeeded", "", 0)...), &v1alpha1.Report{Revision: shaTwo})
	r := aRollout("base", v1alpha1.RolloutProgressing)
	r.Namespace = v1alpha1.AgentNamespace
	broken := source("broken", nil)
	broken.Spec.URL = "https://me:hidden-word@example.com/team/broken?token=hidden-word"
	return []client.Object{fetched, broken, k, elsewhere, l, c, r}
}

func newCLI(t *testing.T) (*cli, *bytes.Buffer) {
	t.Helper()
	var out bytes.Buffer
	return &cli{streams: genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &out}, flags: genericclioptions.NewConfigFlags(true), now: time.Now}, &out
}

func TestGet(t *testing.T) {
	cl := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(objects()...).
		WithIndex(&sourcev1.GitRepository{}, "metadata.name", nameOf).WithIndex(&kustomizev1.Kustomization{}, "metadata.name", nameOf).
		WithIndex(&v1alpha1.Layer{}, "metadata.name", nameOf).WithIndex(&v1alpha1.Child{}, "metadata.name", nameOf).
		WithIndex(&v1alpha1.Rollout{}, "metadata.name", nameOf).Build()
	for name, tc := range map[string]struct {
		reason                     string
		kinds, namespace, name     string
		output                     string
		selector, status           string
		noHeader, nothing, invalid bool
	}{
		"all":            {reason: "several kinds are told apart by a prefix", kinds: "all", namespace: v1alpha1.AgentNamespace},
		"all-namespaces": {reason: "then the namespace is a column", kinds: "all"},
		"sources":        {reason: "what is not reconciled yet says so", kinds: "sources", namespace: v1alpha1.AgentNamespace},
		"one":            {reason: "one object by name, for scripts", kinds: "ks", namespace: v1alpha1.AgentNamespace, name: "apps", noHeader: true},
		"wide":           {reason: "more columns of each kind", kinds: "all", namespace: v1alpha1.AgentNamespace, output: "wide"},
		"name":           {reason: "as kubectl takes them", kinds: "all", output: "name"},
		"yaml":           {reason: "several objects, or any number of those not named, are a List", kinds: "layer", namespace: v1alpha1.AgentNamespace, output: "yaml"},
		"json":           {reason: "one that is named is itself", kinds: "child", namespace: v1alpha1.AgentNamespace, name: "shop", output: "json"},
		"jsonpath":       {reason: "over the List, as kubectl does", kinds: "all", output: `jsonpath={range .items[*]}{.kind}/{.metadata.name}{"\n"}{end}`},
		"not-ready":      {reason: "what has no condition is not ready", kinds: "all", status: "ready!=true"},
		"labels":         {reason: "by labels", kinds: "layer", selector: "team=fleet"},
		"none-left":      {reason: "a selector that leaves nothing is an answer", kinds: "all", selector: "team=nobody"},
		"empty-list":     {reason: "and a List without items for programs", kinds: "all", selector: "team=nobody", output: "yaml"},
		"one-left-out":   {reason: "one that is named may be left out as well", kinds: "child", namespace: v1alpha1.AgentNamespace, name: "shop", selector: "team=nobody", output: "json"},
		"nothing":        {reason: "an empty answer is an error, or scripts take it for success", kinds: "all", namespace: "nowhere", nothing: true},
		"format":         {reason: "an unknown format is an error", kinds: "all", namespace: v1alpha1.AgentNamespace, output: "toml", invalid: true},
		"bad-selector":   {reason: "before anything is listed", kinds: "all", selector: "a in", invalid: true},
		"bad-status":     {reason: "a typo would list nothing, and all would look well", kinds: "all", status: "ready=maybe", invalid: true},
	} {
		t.Run(name, func(t *testing.T) {
			c, out := newCLI(t)
			c.now = func() time.Time { return noon }
			chosen, err := choose(tc.kinds)
			if err != nil {
				t.Fatal(err)
			}
			o := newGetOptions()
			o.namespace, o.name, o.noHeader, o.selector, o.status = tc.namespace, tc.name, tc.noHeader, tc.selector, tc.status
			*o.print.OutputFormat = tc.output
			err = c.get(t.Context(), cl, chosen, o)
			if (err != nil) != (tc.nothing || tc.invalid) {
				t.Fatalf("%s\nget: %v", tc.reason, err)
			}
			if err == nil {
				golden(t, "get-"+name+".txt", out.String())
			}
			if tc.output == "toml" && !strings.Contains(err.Error(), "use wide, name, json, yaml, jsonpath=") {
				t.Errorf("%s\nerror %q, want it to say what to use", tc.reason, err)
			}
		})
	}
}

// TestGetRefused: a kind that may not be read keeps nothing of the others back, and a script learns of it.
func TestGetRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, kinds, output string
		err                   error // of the list
		has, hasNot           string
		want                  error
	}{
		"Table":       {"a role of a tenant says nothing of that kind", "all", "", apierrors.NewForbidden(schema.GroupResource{Resource: "artifactgenerators"}, "", errors.New("no")), "kustomization/apps", "", errNotReady},
		"Programs":    {"they get the List of the rest", "all", "json", apierrors.NewInternalError(errors.New("conversion webhook failed")), `"name": "apps"`, "found nothing", errNotReady},
		"One":         {"there is nothing else to print", "ag", "", apierrors.NewForbidden(schema.GroupResource{Resource: "artifactgenerators"}, "", errors.New("no")), "", "✗", nil},
		"Unreachable": {"the others cannot be read either", "all", "", errors.New("connection refused"), "", "✗", nil},
	} {
		t.Run(name, func(t *testing.T) {
			cl := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(objects()...).WithInterceptorFuncs(interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					if _, ok := list.(*generatorv1.ArtifactGeneratorList); ok {
						return tc.err
					}
					return c.List(ctx, list, opts...)
				},
			}).Build()
			c, out := newCLI(t)
			c.now = func() time.Time { return noon }
			chosen, err := choose(tc.kinds)
			if err != nil {
				t.Fatal(err)
			}
			o := newGetOptions()
			o.namespace, *o.print.OutputFormat = v1alpha1.AgentNamespace, tc.output
			err = c.get(t.Context(), cl, chosen, o)
			if err == nil || errors.Is(err, errNotReady) != (tc.want != nil) {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if !strings.Contains(out.String(), tc.has) || tc.hasNot != "" && strings.Contains(out.String(), tc.hasNot) {
				t.Errorf("%s: it prints\n%s", tc.reason, out)
			}
			if said := strings.Contains(out.String(), "✗ cannot list artifactgenerators"); said != (tc.want != nil) {
				t.Errorf("%s: it says which kind: %t\n%s", tc.reason, said, out)
			}
		})
	}
}

func nameOf(o client.Object) []string { return []string{o.GetName()} }

func TestUnknownKinds(t *testing.T) {
	_, getErr := choose("pods")
	_, reconcileErr := newSubject("pod", client.ObjectKey{})
	_, _, approveErr := heldPlans(t.Context(), nil, "Pod", client.ObjectKey{})
	for name, tc := range map[string]struct {
		err   error
		names []string
	}{
		"get":       {getErr, []string{"pods", "sources", "kustomizations", "layers", "children", "all"}},
		"reconcile": {reconcileErr, []string{"pod", "source", "kustomization", "layer", "child"}},
		"approve":   {approveErr, []string{"Pod", "Kustomization", "Child"}},
	} {
		if tc.err == nil {
			t.Errorf("%s takes a kind that does not exist", name)
			continue
		}
		for _, want := range tc.names {
			if !strings.Contains(tc.err.Error(), want) {
				t.Errorf("%s: error %q, want it to name %q", name, tc.err, want)
			}
		}
	}
	for _, kind := range []string{"source", "git", "Kustomization", "ks", "layer", "child", "rollout", "hr", "oci", "bucket", "helmrepo", "chart"} {
		if _, err := newSubject(kind, client.ObjectKey{Name: "x"}); err != nil {
			t.Errorf("newSubject(%s): %v", kind, err)
		}
	}
}

func TestSubjectSource(t *testing.T) {
	k, err := newSubject("ks", client.ObjectKey{Namespace: "team", Name: "apps"})
	if err != nil {
		t.Fatal(err)
	}
	ref := &k.object.(*kustomizev1.Kustomization).Spec.SourceRef
	*ref = kustomizev1.CrossNamespaceSourceReference{Kind: "GitRepository", Name: "fleet"}
	if got := k.source(); got == nil || *got != (sourceRef{"GitRepository", client.ObjectKey{Namespace: "team", Name: "fleet"}}) {
		t.Errorf("source() = %v, want the one of the same namespace", got)
	}
	ref.Namespace = "other"
	if got := k.source(); got == nil || got.key.Namespace != "other" {
		t.Errorf("source() = %v, want the one of the namespace that is named", got)
	}
	ref.Kind = "OCIRepository"
	if got := k.source(); got == nil || got.kind != "OCIRepository" {
		t.Errorf("source() = %v, want one of the kind that is named", got)
	}
	h, err := newSubject("hr", client.ObjectKey{Namespace: "team", Name: "mesh"})
	if err != nil {
		t.Fatal(err)
	}
	if got := h.source(); got != nil {
		t.Errorf("source() = %v, want none: its chart has not been made yet", got)
	}
	h.object.(*helmv2.HelmRelease).Status.HelmChart = "charts/team-mesh"
	if got := h.source(); got == nil || *got != (sourceRef{"HelmChart", client.ObjectKey{Namespace: "charts", Name: "team-mesh"}}) {
		t.Errorf("source() = %v, want the chart that it made", got)
	}
}

func TestApprove(t *testing.T) {
	const plan = "nothing is declared any more; would delete ConfigMap/a/b; restore them in Git, or run: cascade approve prune apps --hash 0123456789abcdef"
	k := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "apps"}}
	k.Status.Conditions = conditions("Ready", metav1.ConditionFalse, v1alpha1.ReasonPruneBlocked, plan, 0)
	older := k.DeepCopy()
	older.Name = "older"
	v1alpha1.SetHeld(k, v1alpha1.Held{Prune: &v1alpha1.HeldPrune{Hash: "0123456789abcdef", Deletes: 1}})
	fine := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "fine"}}
	fine.Status.Conditions = conditions("Ready", metav1.ConditionTrue, "ReconciliationSucceeded", "", 0)
	protected := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "protected"}}
	protected.Status.Conditions = conditions("Ready", metav1.ConditionFalse, v1alpha1.ReasonPruneBlocked, "will not delete protected Cluster/fleet/prod", 0)
	v1alpha1.SetHeld(protected, v1alpha1.Held{Prune: &v1alpha1.HeldPrune{Protected: 1}})
	c := child("ns", "shop", nil, nil)
	c.Status.Layers = []v1alpha1.ChildLayer{{Name: "a", Ready: true}, {Name: "b", Reason: v1alpha1.ReasonPruneBlocked, Message: plan, Held: &v1alpha1.Held{Prune: &v1alpha1.HeldPrune{Hash: "0123456789abcdef", Deletes: 1}}}}
	// What is held stays held while something else fails.
	beside := k.DeepCopy()
	beside.Name = "beside"
	beside.Status.Conditions = append(conditions("Ready", metav1.ConditionFalse, "ReconciliationFailed", "refused", 0),
		conditions(v1alpha1.PruneBlockedCondition, metav1.ConditionTrue, v1alpha1.ReasonPruneBlocked, plan, 0)...)
	failing := child("ns", "failing", nil, nil)
	failing.Status.Layers = []v1alpha1.ChildLayer{{Name: "b", Reason: v1alpha1.ReasonHealthCheckFailed, Message: "not well", Held: &v1alpha1.Held{Prune: &v1alpha1.HeldPrune{Hash: "0123456789abcdef", Deletes: 1}}}}
	for name, tc := range map[string]struct {
		reason   string
		kind     string
		name     string
		hash     string
		approved bool
		shown    bool
	}{
		"Kustomization": {"the exact list", "Kustomization", "apps", "0123456789abcdef", true, false},
		"LowerCase":     {"kinds are written in any case", "kustomization", "apps", "0123456789abcdef", true, false},
		"Child":         {"a plan of one of its layers", "Child", "shop", "0123456789abcdef", true, false},
		"Beside":        {"it fails for something else by now", "Kustomization", "beside", "0123456789abcdef", true, false},
		"BesideShow":    {"and says what it holds", "Kustomization", "beside", "", false, true},
		"ChildBeside":   {"so does a layer of a child", "Child", "failing", "0123456789abcdef", true, false},
		"BesideStale":   {"another list was held", "Child", "failing", "fedcba9876543210", false, false},
		"Older":         {"an agent that records no hash compares the one that it is given", "Kustomization", "older", "0123456789abcdef", true, false},
		"Show":          {"without a hash a person first sees what it is", "Kustomization", "apps", "", false, true},
		"Stale":         {"another list was held when the person decided", "Kustomization", "apps", "fedcba9876543210", false, false},
		"Prefix":        {"a part of a hash names no list", "Kustomization", "apps", "0123", false, false},
		"Word":          {"nor does another word of the message", "Kustomization", "apps", "restore", false, false},
		"Nothing":       {"nothing is held", "Kustomization", "fine", "0123456789abcdef", false, false},
		"Protected":     {"protected objects are not released this way", "Kustomization", "protected", "0123456789abcdef", false, false},
		"Missing":       {"no such object", "Kustomization", "nowhere", "x", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			cl := fake.NewClientBuilder().WithScheme(newScheme()).
				WithObjects(k.DeepCopy(), older.DeepCopy(), fine.DeepCopy(), protected.DeepCopy(), c.DeepCopy(), beside.DeepCopy(), failing.DeepCopy()).Build()
			cli, out := newCLI(t)
			key := client.ObjectKey{Namespace: "ns", Name: tc.name}
			err := cli.approvePrune(t.Context(), cl, tc.kind, key, tc.hash)
			if (err == nil) != tc.approved {
				t.Errorf("%s\napprove: %v, want it approved: %t", tc.reason, err, tc.approved)
			}
			if got := strings.Contains(out.String(), plan); got != tc.shown || errors.Is(err, errNotReady) != tc.shown {
				t.Errorf("%s\noutput %q, error %v, want the plan shown: %t, and an exit status that says not yet", tc.reason, out, err, tc.shown)
			}
			if got := annotated(t.Context(), cl, tc.kind, key); (got == tc.hash && got != "") != tc.approved {
				t.Errorf("%s\nthe annotation is %q", tc.reason, got)
			}
		})
	}
}

func annotated(ctx context.Context, cl client.Client, kind string, key client.ObjectKey) string {
	var o client.Object = &kustomizev1.Kustomization{}
	if kind == "Child" {
		o = &v1alpha1.Child{}
	}
	_ = cl.Get(ctx, key, o)
	return o.GetAnnotations()[v1alpha1.ApprovePruneAnnotation]
}

func TestTexts(t *testing.T) {
	for name, tc := range map[string]struct{ reason, got, want string }{
		"Revision":  {"as the flux CLI shortens it", shortRevision(shaOne), "main@sha1:11111111"},
		"Several":   {"each of several", shortRevision("a=" + shaOne + ",b=" + shaTwo), "a=main@sha1:11111111,b=main@sha1:22222222"},
		"SHA256":    {"other hashes too", shortRevision("sha256:" + strings.Repeat("ab", 32)), "sha256:abababab"},
		"NoHash":    {"nothing to shorten", shortRevision("main"), "main"},
		"InText":    {"also within a message", shortRevision("stored '" + shaOne + "'"), "stored 'main@sha1:11111111'"},
		"OneLine":   {"a table has lines, not paragraphs", oneLine(" a\n\tb  c\r\n"), "a b c"},
		"Cut":       {"a message is cut to the width", oneLine(strings.Repeat("ü", 200)), strings.Repeat("ü", 117) + "..."},
		"Fits":      {"and only if it is longer", oneLine(strings.Repeat("x", 120)), strings.Repeat("x", 120)},
		"Dash":      {"an empty cell would shift what people see", orDash(""), "-"},
		"NoAge":     {"an unknown moment has no age", age(metav1.Time{}, noon), "-"},
		"Age":       {"as kubectl writes it", age(ago(90*time.Minute), noon), "90m"},
		"True":      {"as conditions write it", truth(true) + truth(false), "TrueFalse"},
		"Namespace": {"without a flag it is the agent's", (&cli{flags: &genericclioptions.ConfigFlags{}}).namespace(), v1alpha1.AgentNamespace},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.got != tc.want {
				t.Errorf("%s\ngot %q, want %q", tc.reason, tc.got, tc.want)
			}
		})
	}
}

func TestCommands(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		args   []string
		has    string
		err    string
	}{
		"Version":      {"one line, with the name first", []string{"version"}, "cascade ", ""},
		"Help":         {"every verb is listed", []string{"--help"}, "approve", ""},
		"Export":       {"manifests for those who install by other means", []string{"install", "--export", "--image", "registry/cascade:v1"}, "image: registry/cascade:v1", ""},
		"Replicas":     {"which share the Children out", []string{"install", "--export", "--image", "registry/cascade:v1", "--replicas", "3"}, "--shards=6", ""},
		"NoReplicas":   {"what cannot be is an error", []string{"install", "--export", "--image", "registry/cascade:v1", "--replicas", "99"}, "", "from 1 to 32"},
		"ZeroReplicas": {"none is no installation", []string{"install", "--export", "--image", "registry/cascade:v1", "--replicas", "0"}, "", "from 1 to 32"},
		"UnknownVerb":  {"a typo is an error", []string{"gett"}, "", "gett"},
		"UnknownKind":  {"before any cluster is asked", []string{"get", "pods"}, "", "use all, sources"},
		"ReconcileIt":  {"the same", []string{"reconcile", "pod", "x"}, "", "use kustomization, helmrelease"},
		"NoName":       {"what is missing is said", []string{"approve", "prune"}, "", "1 arg"},
		"LogLevel":     {"flags are checked before anything starts", []string{"agent", "--log-level", "loud"}, "", "debug, info or error"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			root := newRoot(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &out})
			root.SetArgs(tc.args)
			err := root.ExecuteContext(t.Context())
			if (err == nil) != (tc.err == "") || (err != nil && !strings.Contains(err.Error(), tc.err)) {
				t.Fatalf("%s\ncascade %v: %v, want an error with %q", tc.reason, tc.args, err, tc.err)
			}
			if !strings.Contains(out.String(), tc.has) {
				t.Errorf("%s\ncascade %v prints %q, want it to have %q", tc.reason, tc.args, out.String(), tc.has)
			}
		})
	}
}
