package health

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/polling"
	"github.com/fluxcd/cli-utils/pkg/kstatus/polling/clusterreader"
	"github.com/fluxcd/cli-utils/pkg/kstatus/polling/engine"
	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/cli-utils/pkg/object"
	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/cel"
	"github.com/fluxcd/pkg/runtime/statusreaders"
	"github.com/fluxcd/pkg/ssa"
	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/inventory"
)

func read(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := u.UnmarshalJSON(data); err != nil {
		t.Fatal(err)
	}
	return u
}

const (
	deploymentInProgress = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, generation: 1}
spec: {replicas: 1, selector: {matchLabels: {app: web}}}
status: {observedGeneration: 1, replicas: 1, updatedReplicas: 1}
`
	deploymentCurrent = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, generation: 1}
spec: {replicas: 1, selector: {matchLabels: {app: web}}}
status:
  observedGeneration: 1
  replicas: 1
  updatedReplicas: 1
  readyReplicas: 1
  availableReplicas: 1
  conditions: [{type: Available, status: "True"}, {type: Progressing, status: "True", reason: NewReplicaSetAvailable}]
`
	setInProgress = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web, namespace: shop, generation: 1}
spec: {replicas: 1, selector: {matchLabels: {app: web}}}
status: {observedGeneration: 1, replicas: 1}
`
	crashingPod = `
apiVersion: v1
kind: Pod
metadata: {name: web-1-a, namespace: shop, labels: {app: web, hash: "1"}}
status:
  phase: Running
  containerStatuses: [{name: web, state: {waiting: {reason: CrashLoopBackOff}}}]
  conditions: [{type: Ready, status: "False"}]
`
	unschedulablePod = `
apiVersion: v1
kind: Pod
metadata: {name: web-1-a, namespace: shop, labels: {app: web, hash: "1"}}
status:
  phase: Pending
  conditions: [{type: PodScheduled, status: "False", reason: Unschedulable}]
`
	jobRunning = `
apiVersion: batch/v1
kind: Job
metadata: {name: migrate, namespace: shop}
status: {startTime: "2026-01-01T00:00:00Z", active: 1}
`
	jobComplete = `
apiVersion: batch/v1
kind: Job
metadata: {name: migrate, namespace: shop}
status: {startTime: "2026-01-01T00:00:00Z", succeeded: 1, conditions: [{type: Complete, status: "True"}]}
`
	jobFailed = `
apiVersion: batch/v1
kind: Job
metadata: {name: migrate, namespace: shop}
status: {startTime: "2026-01-01T00:00:00Z", failed: 1, conditions: [{type: Failed, status: "True"}]}
`
	jobSuspended = `
apiVersion: batch/v1
kind: Job
metadata: {name: migrate, namespace: shop}
spec: {suspend: true}
`
	custom = `
apiVersion: example.com/v1beta1
kind: Database
metadata: {name: db, namespace: shop, generation: 2}
status: {observedGeneration: 2, phase: Up}
`
	customStale = `
apiVersion: example.com/v1beta1
kind: Database
metadata: {name: db, namespace: shop, generation: 2}
status: {observedGeneration: 1, phase: Up}
`
	configMap = `
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: shop}
`
)

func databases(current, failed, inProgress string) []kustomize.CustomHealthCheck {
	return []kustomize.CustomHealthCheck{{
		APIVersion: "example.com/v1", Kind: "Database",
		HealthCheckExpressions: kustomize.HealthCheckExpressions{Current: current, Failed: failed, InProgress: inProgress},
	}}
}

func TestStatus(t *testing.T) {
	for name, tt := range map[string]struct {
		reason  string
		exprs   []kustomize.CustomHealthCheck
		object  string
		pods    []string
		want    status.Status
		unknown string
	}{
		"Deployment": {reason: "kstatus decides", object: deploymentCurrent, want: status.CurrentStatus},
		"Rolling":    {reason: "a Deployment without available replicas is in progress", object: deploymentInProgress, want: status.InProgressStatus},
		"Crashing": {reason: "a StatefulSet has no deadline of its own",
			object: setInProgress, pods: []string{crashingPod}, want: status.FailedStatus},
		"Unschedulable": {reason: "an autoscaler may still make room", object: setInProgress,
			pods: []string{unschedulablePod}, want: status.InProgressStatus},
		"OtherPods": {reason: "pods of others say nothing", object: setInProgress,
			pods: []string{strings.ReplaceAll(crashingPod, "app: web", "app: other")}, want: status.InProgressStatus},
		"JobRunning":   {reason: "for kstatus a started Job is Current; Flux waits until it is done", object: jobRunning, want: status.InProgressStatus},
		"JobComplete":  {reason: "done", object: jobComplete, want: status.CurrentStatus},
		"JobFailed":    {reason: "a failed Job never completes", object: jobFailed, want: status.FailedStatus},
		"JobSuspended": {reason: "nothing to wait for", object: jobSuspended, want: status.CurrentStatus},
		"JobByCEL": {reason: "expressions do not change how Jobs are seen", object: jobRunning, want: status.InProgressStatus,
			exprs: []kustomize.CustomHealthCheck{{APIVersion: "batch/v1", Kind: "Job",
				HealthCheckExpressions: kustomize.HealthCheckExpressions{Current: "true"}}}},
		"Current": {reason: "the version in the expression is not compared", object: custom, want: status.CurrentStatus,
			exprs: databases("status.phase == 'Up'", "", "")},
		"Failed": {reason: "failed comes before current", object: custom, want: status.FailedStatus,
			exprs: databases("status.phase == 'Up'", "status.phase == 'Up'", "")},
		"InProgress": {reason: "inProgress comes first", object: custom, want: status.InProgressStatus,
			exprs: databases("true", "true", "true")},
		"Neither": {reason: "nothing matched", object: custom, want: status.InProgressStatus, exprs: databases("false", "false", "")},
		"Stale": {reason: "a status of an older generation says nothing", object: customStale, want: status.InProgressStatus,
			exprs: databases("true", "", "")},
		"Group": {reason: "without a kind the expression is for the group", object: custom, want: status.FailedStatus,
			exprs: []kustomize.CustomHealthCheck{{APIVersion: "example.com/v1",
				HealthCheckExpressions: kustomize.HealthCheckExpressions{Current: "false", Failed: "true"}}}},
		"KindOverGroup": {reason: "the kind's own expression wins over the group's", object: custom, want: status.CurrentStatus,
			exprs: append(databases("true", "", ""), kustomize.CustomHealthCheck{APIVersion: "example.com/v1",
				HealthCheckExpressions: kustomize.HealthCheckExpressions{Current: "false", Failed: "true"}})},
		"MissingField": {reason: "an error is not a verdict", object: custom, want: status.UnknownStatus,
			exprs: databases("status.nothing == 'x'", "", ""), unknown: "no such key: nothing"},
		"Endless": {reason: "a tenant's expression has a time limit", object: custom, want: status.UnknownStatus,
			exprs: databases(endless, "", ""), unknown: "interrupt"},
		"Doubling": {reason: "and one of memory, or of what it takes to live within that", object: custom, want: status.UnknownStatus,
			exprs: databases(doubling, "", ""), unknown: "it needs more than"},
		"Plain": {reason: "objects without status are Current when they exist", object: configMap, want: status.CurrentStatus},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := New(tt.exprs, workers)
			if err != nil {
				t.Fatal(err)
			}
			var pods []*unstructured.Unstructured
			for _, g := range tt.pods {
				pods = append(pods, read(t, g))
			}
			u := read(t, tt.object)
			got := c.Status(t.Context(), u, pods)
			if got.Status != tt.want {
				t.Errorf("%s: status is %s (%s, %v), want %s", tt.reason, got.Status, got.Message, got.Err, tt.want)
			}
			if (got.Err != nil) != (tt.unknown != "") || got.Err != nil && !strings.Contains(got.Err.Error(), tt.unknown) {
				t.Errorf("%s: error is %v, want %q", tt.reason, got.Err, tt.unknown)
			}
			if got.Entry != inventory.Of(u) {
				t.Errorf("result is about %s", got.Entry)
			}
		})
	}
}

// endless takes 100^5 steps.
var endless = func() string {
	many := "[" + strings.TrimSuffix(strings.Repeat("1,", 100), ",") + "]"
	expr := "true"
	for _, v := range []string{"a", "b", "c", "d", "e"} {
		expr = many + ".all(" + v + ", " + expr + ")"
	}
	return expr
}()

// doubling makes a string of 2^40 bytes, between two looks of CEL at its deadline.
var doubling = "'aa'" + strings.Repeat(".replace('a', 'aa')", 40) + " == 'x'"

func TestNewRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		exprs  []kustomize.CustomHealthCheck
		want   string
	}{
		"Syntax":     {reason: "final, the object must change", exprs: databases("status.", "", ""), want: "failed to parse the expression Current"},
		"NoCurrent":  {reason: "current is required", exprs: databases("", "true", ""), want: "expression Current not specified"},
		"InProgress": {reason: "each expression is parsed", exprs: databases("true", "", "("), want: "failed to parse the expression InProgress"},
		"Duplicate": {reason: "two answers for one kind", exprs: append(databases("true", "", ""), databases("false", "", "")...),
			want: "duplicate custom health check for GroupKind Database.example.com at healthchecks[1]"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := New(tt.exprs, workers); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: got %v, want %q", tt.reason, err, tt.want)
			}
		})
	}
}

func TestJudge(t *testing.T) {
	current, failed := Result{Status: status.CurrentStatus}, Result{Status: status.FailedStatus}
	open, unknown := Result{Status: status.InProgressStatus}, Result{Status: status.UnknownStatus}
	gone, done := Result{Status: status.NotFoundStatus}, Result{Status: status.NotFoundStatus, Vanishes: true}
	for name, tt := range map[string]struct {
		reason  string
		results []Result
		slow    bool
		want    Verdict
	}{
		"Nothing":   {reason: "nothing to wait for", want: Healthy},
		"Current":   {reason: "all are", results: []Result{current, current}, want: Healthy},
		"Job":       {reason: "a Job that vanished is done", results: []Result{current, done}, want: Healthy},
		"NotFound":  {reason: "it may still come", results: []Result{current, gone}, want: Waiting},
		"Unknown":   {reason: "unknown is not healthy", results: []Result{current, unknown}, want: Waiting},
		"FailFast":  {reason: "one failed, others are under way", results: []Result{open, failed}, want: Stalled},
		"FailSlow":  {reason: "without fail fast the others are waited for", results: []Result{open, failed}, slow: true, want: Waiting},
		"AllFailed": {reason: "nothing left that could change", results: []Result{current, failed, done}, slow: true, want: Stalled},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Judge(tt.results, !tt.slow); got != tt.want {
				t.Errorf("%s: got %d, want %d", tt.reason, got, tt.want)
			}
		})
	}
}

// TestTextsAreFlux compares with what Flux's own wait says about the same
// object, pods included.
func TestTextsAreFlux(t *testing.T) {
	for name, tt := range map[string]struct {
		reason  string
		objects []string // the first is waited for
		missing bool
		exprs   []kustomize.CustomHealthCheck
	}{
		"InProgress": {reason: "a wait that is over", objects: []string{deploymentInProgress}},
		"Crashing":   {reason: "failed early", objects: []string{setInProgress, crashingPod}},
		"Job":        {reason: "failed early", objects: []string{jobFailed}},
		"NotFound":   {reason: "an object that does not come", objects: []string{configMap}, missing: true},
		"Broken": {reason: "an expression that cannot be evaluated", objects: []string{deploymentCurrent},
			exprs: []kustomize.CustomHealthCheck{{APIVersion: "apps/v1", Kind: "Deployment",
				HealthCheckExpressions: kustomize.HealthCheckExpressions{Current: "status.nothing"}}}},
		"Healthy": {reason: "no error", objects: []string{deploymentCurrent}},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := clientgoscheme.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			var objects []client.Object
			var all []*unstructured.Unstructured
			for _, text := range tt.objects {
				u := read(t, text)
				all = append(all, u)
				if !tt.missing {
					objects = append(objects, u)
				}
			}
			c := fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(testrestmapper.TestOnlyStaticRESTMapper(scheme)).WithObjects(objects...).Build()
			want := waitLikeFlux(c, all[0], tt.exprs)

			checker, err := New(tt.exprs, workers)
			if err != nil {
				t.Fatal(err)
			}
			u := all[0].DeepCopy()
			result := Missing(inventory.Of(u), c.Get(t.Context(), client.ObjectKeyFromObject(u), u))
			if !tt.missing {
				result = checker.Status(t.Context(), u, all[1:])
			}
			var got error
			switch results := []Result{result}; Judge(results, true) {
			case Stalled:
				got = StalledError(results)
			case Waiting:
				got = TimeoutError(results)
			}
			if diff := cmp.Diff(text(want), text(got)); diff != "" {
				t.Errorf("%s (-Flux +ours):\n%s", tt.reason, diff)
			}
		})
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func waitLikeFlux(c client.Client, u *unstructured.Unstructured, exprs []kustomize.CustomHealthCheck) error {
	readers := []engine.StatusReader{statusreaders.NewCustomJobStatusReader(c.RESTMapper())}
	if len(exprs) > 0 {
		byExpression, err := cel.NewStatusReader(exprs)
		if err != nil {
			return err
		}
		readers = append(readers, byExpression(c.RESTMapper()))
	}
	poller := polling.NewStatusPoller(c, c.RESTMapper(), polling.Options{
		CustomStatusReaders:  readers,
		ClusterReaderFactory: engine.ClusterReaderFactoryFunc(clusterreader.NewDirectClusterReader),
	})
	return ssa.NewResourceManager(c, poller, ssa.Owner{}).WaitForSet(
		object.ObjMetadataSet{object.UnstructuredToObjMetadata(u)},
		ssa.WaitOptions{Interval: 10 * time.Millisecond, Timeout: 200 * time.Millisecond, FailFast: true},
	)
}

func TestTextsAreBounded(t *testing.T) {
	var results []Result
	for range 5000 {
		results = append(results, Result{Entry: inventory.Entry{Namespace: "ns", Name: "an-object-with-a-name", Kind: "ConfigMap"}, Status: status.InProgressStatus})
	}
	got := TimeoutError(results).Error()
	if len(got) > 20<<10 || !strings.HasSuffix(got, " more]") {
		t.Errorf("text has %d bytes and ends %q", len(got), got[len(got)-30:])
	}
	long := Result{Entry: results[0].Entry, Status: status.UnknownStatus, Err: errors.New(strings.Repeat("x", 1<<20))}
	if got := TimeoutError([]Result{long}).Error(); len(got) > 20<<10 {
		t.Errorf("one long error makes %d bytes", len(got))
	}
}

// TestHostileStatus: an API server behind a kubeconfig answers what it likes.
func TestHostileStatus(t *testing.T) {
	c, err := New(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	pod := read(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop, labels: {app: web}}\nspec: {containers: [{name: web}]}\n"+
		"status: {phase: Running, conditions: [{type: Ready, status: 'False'}], containerStatuses: [x]}")
	set := read(t, "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: web, namespace: shop, generation: 1}\nspec: {selector: {matchLabels: {app: web}}, replicas: 1}\nstatus: {observedGeneration: 1, replicas: 1}")
	for name, r := range map[string]Result{
		"a Pod":        c.Status(t.Context(), pod, nil),
		"one of a set": c.Status(t.Context(), set, []*unstructured.Unstructured{pod}),
	} {
		if r.Status != status.UnknownStatus || r.Err == nil {
			t.Errorf("%s whose container has no status gives %+v, want an unknown one", name, r)
		}
	}
}

func TestVanishes(t *testing.T) {
	ttl := read(t, jobRunning)
	if err := unstructured.SetNestedField(ttl.Object, int64(0), "spec", "ttlSecondsAfterFinished"); err != nil {
		t.Fatal(err)
	}
	for _, u := range []*unstructured.Unstructured{ttl, read(t, jobRunning), read(t, configMap)} {
		want := len(ssautil.ExtractJobsWithTTL([]*unstructured.Unstructured{u})) == 1
		if got := Vanishes(u); got != want {
			t.Errorf("%s: got %t, Flux says %t", u.GetName(), got, want)
		}
	}
}

func TestMissing(t *testing.T) {
	e := inventory.Entry{Name: "x", Kind: "Secret"}
	notFound := apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, "x")
	if r := Missing(e, notFound); r.Status != status.NotFoundStatus || r.Err != nil {
		t.Errorf("not found gives %+v", r)
	}
	if r := Missing(e, context.DeadlineExceeded); r.Status != status.UnknownStatus || r.Err == nil {
		t.Errorf("an unreachable cluster gives %+v", r)
	}
}

func TestReferenced(t *testing.T) {
	got, err := Referenced([]meta.NamespacedObjectKindReference{
		{Kind: "Deployment", Name: "web", Namespace: "shop"},
		{APIVersion: "kustomize.toolkit.fluxcd.io/v1", Kind: "Kustomization", Name: "apps", Namespace: "flux-system"},
		{APIVersion: "v1", Kind: "Namespace", Name: "shop"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []inventory.Entry{
		{Group: "apps", Version: "v1", Kind: "Deployment", Name: "web", Namespace: "shop"},
		{Version: "v1", Kind: "Namespace", Name: "shop"},
	}
	self := types.NamespacedName{Namespace: "flux-system", Name: "apps"}
	if diff := cmp.Diff(want, Without(got, self)); diff != "" {
		t.Errorf("default version, and never itself (-want +got):\n%s", diff)
	}
	if _, err := Referenced([]meta.NamespacedObjectKindReference{{APIVersion: "a/b/c", Kind: "X", Name: "x"}}); err == nil {
		t.Error("a wrong apiVersion is accepted")
	}
}

func TestPods(t *testing.T) {
	if selector := Pods(read(t, setInProgress)); selector == nil || selector.String() != "app=web" {
		t.Errorf("for a StatefulSet %v is listed", selector)
	}
	if selector := Pods(read(t, deploymentInProgress)); selector != nil {
		t.Errorf("for a Deployment %v is listed", selector)
	}
	everything := read(t, setInProgress)
	unstructured.RemoveNestedField(everything.Object, "spec", "selector")
	if Pods(everything) != nil {
		t.Error("a StatefulSet without a selector lists all pods of its namespace")
	}
}
