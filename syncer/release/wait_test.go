package release

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	v2 "github.com/fluxcd/helm-controller/api/v2"
	"helm.sh/helm/v4/pkg/kube"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/inventory"
)

func parsed(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	u.SetNamespace("apps")
	return u
}

func TestWaitStrategy(t *testing.T) {
	for name, tc := range map[string]struct {
		reason          string
		declared        string
		disabled, helm3 bool
		want            kube.WaitStrategy
	}{
		"Default":  {"Flux polls kstatus", "", false, false, kube.StatusWatcherStrategy},
		"Disabled": {"hooks have to end nevertheless", "", true, false, kube.HookOnlyStrategy},
		"Helm3":    {"the gate of that name", "", false, true, kube.LegacyStrategy},
		"Declared": {"a declaration goes before the gate", "legacy", false, true, kube.LegacyStrategy},
		"Poller":   {"ours takes the place of the one of that name", string(v2.WaitStrategyPoller), false, true, kube.StatusWatcherStrategy},
	} {
		t.Run(name, func(t *testing.T) {
			obj := &v2.HelmRelease{}
			if tc.declared != "" {
				obj.Spec.WaitStrategy = &v2.WaitStrategy{Name: v2.WaitStrategyName(tc.declared)}
			}
			if got := waitStrategy(obj, tc.disabled, tc.helm3); got != tc.want {
				t.Errorf("%s: waitStrategy() = %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

// TestWait: what an action waits for, of objects as they are.
func TestWait(t *testing.T) {
	const (
		ready   = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, generation: 1}\nspec: {selector: {matchLabels: {app: web}}, replicas: 1}\nstatus: {observedGeneration: 1, replicas: 1, updatedReplicas: 1, readyReplicas: 1, availableReplicas: 1, conditions: [{type: Available, status: 'True'}]}"
		stalled = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, generation: 1}\nspec: {selector: {matchLabels: {app: web}}, replicas: 1}\nstatus: {observedGeneration: 1, conditions: [{type: Progressing, status: 'False', reason: ProgressDeadlineExceeded}]}"
		paused  = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, generation: 1}\nspec: {selector: {matchLabels: {app: web}}, replicas: 1, paused: true}\nstatus: {observedGeneration: 0}"
		done    = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: web}\nstatus: {conditions: [{type: Complete, status: 'True'}]}"
		working = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: web}\nstatus: {startTime: '2026-01-01T00:00:00Z', active: 1}"
		pod     = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nstatus: {phase: Succeeded}"
		running = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nstatus: {phase: Running}"
	)
	plain, jobs, hooks := (*waiter).Wait, (*waiter).WaitWithJobs, (*waiter).WatchUntilReady
	for name, tc := range map[string]struct {
		reason    string
		object    string
		wait      func(*waiter, kube.ResourceList, time.Duration) error
		hooksOnly bool
		fails     string
	}{
		"Ready":       {"it is as it should be", ready, plain, false, ""},
		"Stalled":     {"it will never be, so that nobody waits for the time-out", stalled, plain, false, "Deployment/apps/web status: 'Failed'"},
		"Paused":      {"a person paused it, so it never gets ready", paused, plain, false, ""},
		"Unwaited":    {"waiting is disabled", stalled, plain, true, ""},
		"Jobs":        {"so it is for Jobs", working, jobs, true, ""},
		"JobStarted":  {"a Job that works is current for kstatus", working, plain, false, ""},
		"JobEnded":    {"and has to end where Jobs are waited for", done, jobs, false, ""},
		"JobWorks":    {"which it has not", working, jobs, false, "Job/apps/web"},
		"Hook":        {"a hook that ended well", pod, hooks, false, ""},
		"HookRuns":    {"a hook has to end", running, hooks, true, "Pod/apps/web"},
		"HookOfOther": {"a hook of any other kind is ready at once", stalled, hooks, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			u := parsed(t, tc.object)
			w := &waiter{ctx: t.Context(), cluster: clusterWith(u), hooksOnly: tc.hooksOnly}
			err := tc.wait(w, kube.ResourceList{infoOf(u)}, 200*time.Millisecond)
			if (err != nil) != (tc.fails != "") || err != nil && !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("%s: %v, want %q", tc.reason, err, tc.fails)
			}
		})
	}
}

// TestWaitForDelete: nobody waits for the end of what must stay.
func TestWaitForDelete(t *testing.T) {
	config := parsed(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}")
	for name, tc := range map[string]struct {
		reason    string
		there     []client.Object
		spared    []inventory.Entry
		hooksOnly bool
		fails     bool
	}{
		"Gone":     {"it is gone", nil, nil, false, false},
		"There":    {"a finalizer holds it", []client.Object{config}, nil, false, true},
		"Spared":   {"it was not deleted", []client.Object{config}, []inventory.Entry{inventory.Of(config)}, false, false},
		"Unwaited": {"waiting is disabled", []client.Object{config}, nil, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := &waiter{ctx: t.Context(), cluster: clusterWith(tc.there...), spared: &verdicts{held: tc.spared}, hooksOnly: tc.hooksOnly}
			if err := w.WaitForDelete(kube.ResourceList{infoOf(config)}, 50*time.Millisecond); (err != nil) != tc.fails {
				t.Errorf("%s: WaitForDelete() = %v", tc.reason, err)
			}
		})
	}
}

func TestPodStatus(t *testing.T) {
	for phase, want := range map[string]status.Status{
		"Succeeded": status.CurrentStatus, "Failed": status.FailedStatus, "Running": status.InProgressStatus, "": status.InProgressStatus,
	} {
		got, err := podStatus(parsed(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: test}\nstatus: {phase: '"+phase+"'}"))
		if err != nil || got.Status != want {
			t.Errorf("a hook whose Pod is %q is %v, %v; want %s", phase, got, err, want)
		}
	}
}

// clusterWith is a cluster that has objects.
func clusterWith(objects ...client.Object) client.WithWatch {
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{{Version: "v1"}, {Group: "apps", Version: "v1"}, {Group: "batch", Version: "v1"}})
	for _, gvk := range []schema.GroupVersionKind{
		{Group: "apps", Version: "v1", Kind: "Deployment"}, {Group: "apps", Version: "v1", Kind: "ReplicaSet"}, {Group: "apps", Version: "v1", Kind: "StatefulSet"},
		{Group: "batch", Version: "v1", Kind: "Job"}, {Version: "v1", Kind: "Pod"}, {Version: "v1", Kind: "ConfigMap"},
	} {
		mapper.Add(gvk, meta.RESTScopeNamespace)
	}
	return fake.NewClientBuilder().WithScheme(runtime.NewScheme()).WithRESTMapper(mapper).WithObjects(objects...).Build()
}

// infoOf is an object as Helm passes it around.
func infoOf(u *unstructured.Unstructured) *resource.Info {
	return &resource.Info{
		Namespace: u.GetNamespace(), Name: u.GetName(), Object: u,
		Mapping: &meta.RESTMapping{GroupVersionKind: u.GroupVersionKind(), Scope: meta.RESTScopeNamespace},
	}
}

// TestWaitFailsWithPods: a StatefulSet has no deadline of its own. That its Pods crash ends
// the wait, as with Flux, and so the remediation of the release does not wait for its timeout.
func TestWaitFailsWithPods(t *testing.T) {
	set := parsed(t, "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: db, namespace: x, generation: 1}\nspec: {selector: {matchLabels: {app: db}}, replicas: 1}\nstatus: {observedGeneration: 1, replicas: 1}")
	pod := parsed(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: db-0, namespace: x, labels: {app: db}}\nspec: {containers: [{name: db}]}\n"+
		"status:\n  phase: Running\n  conditions: [{type: Ready, status: \"False\", reason: ContainersNotReady}]\n"+
		"  containerStatuses: [{name: db, ready: false, restartCount: 3, state: {waiting: {reason: CrashLoopBackOff}}}]\n")
	w := &waiter{ctx: t.Context(), cluster: clusterWith(set, pod)}
	begin := time.Now()
	err := w.Wait(kube.ResourceList{infoOf(set)}, time.Minute)
	if err == nil || !strings.Contains(err.Error(), "failed early due to stalled resources") || time.Since(begin) > 30*time.Second {
		t.Errorf("Wait() = %v after %s", err, time.Since(begin))
	}
}

// TestHostileStatus: what an API server answers is judged in goroutines of the library and
// of Helm, where a panic would end the agent.
func TestHostileStatus(t *testing.T) {
	pod := parsed(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: web}]}\n"+
		"status: {phase: Running, conditions: [{type: Ready, status: 'False'}], containerStatuses: [x]}")
	set := parsed(t, "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: db, generation: 1}\nspec: {selector: {matchLabels: {app: db}}, replicas: 1}\nstatus: {observedGeneration: 1, replicas: 1}")
	of := pod.DeepCopy()
	of.SetLabels(map[string]string{"app": "db"})
	for name, tc := range map[string]struct {
		reason string
		object *unstructured.Unstructured
		there  []client.Object
		wait   func(*waiter, kube.ResourceList, time.Duration) error
	}{
		"Pod":      {"a container has no status", pod, []client.Object{pod}, (*waiter).Wait},
		"WithJobs": {"nor has it here", pod, []client.Object{pod}, (*waiter).WaitWithJobs},
		"Of":       {"nor has one of what is waited for", set, []client.Object{set, of}, (*waiter).Wait},
	} {
		t.Run(name, func(t *testing.T) {
			w := &waiter{ctx: t.Context(), cluster: clusterWith(tc.there...)}
			err := tc.wait(w, kube.ResourceList{infoOf(tc.object)}, 200*time.Millisecond)
			if err == nil || !strings.Contains(err.Error(), "status: 'Unknown': cannot compute status") {
				t.Errorf("%s: %v, want a status that is not known", tc.reason, err)
			}
		})
	}
	t.Run("Legacy", func(t *testing.T) {
		list := kube.ResourceList{infoOf(pod)}
		p := parked{Waiter: panicking{}, ctx: t.Context()}
		for name, wait := range map[string]func(kube.ResourceList, time.Duration) error{
			"Wait": p.Wait, "WaitWithJobs": p.WaitWithJobs, "WaitForDelete": p.WaitForDelete, "WatchUntilReady": p.WatchUntilReady,
		} {
			if err := wait(list, time.Second); err == nil || !strings.Contains(err.Error(), "helm panicked") {
				t.Errorf("%s() = %v, want an error", name, err)
			}
		}
	})
}

// panicking is a waiter of Helm's that reads what it did not expect.
type panicking struct{}

func (panicking) Wait(kube.ResourceList, time.Duration) error            { panic("no backoffLimit") }
func (panicking) WaitWithJobs(kube.ResourceList, time.Duration) error    { panic("no backoffLimit") }
func (panicking) WaitForDelete(kube.ResourceList, time.Duration) error   { panic("no backoffLimit") }
func (panicking) WatchUntilReady(kube.ResourceList, time.Duration) error { panic("no backoffLimit") }

// TestWaitListsNothing: a Deployment that does not become ready is read by itself. Its Pods
// are nobody's concern, and lists of them would keep the API server busy.
func TestWaitListsNothing(t *testing.T) {
	u := parsed(t, "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, generation: 1}\nspec: {selector: {matchLabels: {app: web}}, replicas: 1}\nstatus: {observedGeneration: 1}")
	lists := 0
	cluster := interceptor.NewClient(clusterWith(u), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			lists++
			return c.List(ctx, list, options...)
		},
	})
	w := &waiter{ctx: t.Context(), cluster: cluster}
	if err := w.Wait(kube.ResourceList{infoOf(u)}, 200*time.Millisecond); err == nil || lists > 0 {
		t.Errorf("Wait() = %v after %d lists, want a time-out after none", err, lists)
	}
}
