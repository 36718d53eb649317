package flux

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// Sizes of the fleet of TestIncremental.
const (
	apps     = 60
	overlays = 4
)

// added is the app whose Kustomization firstSync creates.
const added = "added"

// TestIncremental counts, at the API server, what a commit, an interval, a
// request and a restart cost. Every part is counted from where the one before
// it ended, so that what comes late is found by the next.
func TestIncremental(t *testing.T) {
	scenario.Alongside(t)
	b := startRequestCounts(t)
	for _, part := range []struct {
		name string
		run  func(*requestCounts, *testing.T)
	}{
		{"OneLine", (*requestCounts).oneLine},
		{"SharedBase", (*requestCounts).sharedBase},
		{"Requests", (*requestCounts).requests},
		{"Interval", (*requestCounts).interval},
		{"Restart", (*requestCounts).restart},
		{"IntervalAfterRestart", (*requestCounts).interval},
		{"FirstSync", (*requestCounts).firstSync},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.run(b, t) }) {
			return
		}
	}
}

// requestCounts are kept of what the agent asks of the API server.
type requestCounts struct {
	*scenario.Row
	kube *kubernetes.Clientset
	// names of the Kustomizations, and of what they apply as "resource name".
	names, objects []string
	// from is where the audit log was read to, served what the API server had
	// served by then.
	from   int64
	served map[string]int
}

const appStack = `apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: 0
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec: {serviceAccountName: %[1]s, containers: [{name: app, image: "cascade.local/e2e:dev"}]}
---
apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec: {selector: {app: %[1]s}, ports: [{port: 80}]}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: %[1]s}
`

func startRequestCounts(t *testing.T) *requestCounts {
	t.Helper()
	files := map[string]string{
		"base/kustomization.yaml": "resources: [config.yaml, account.yaml]\n",
		"base/config.yaml":        scenario.ConfigMap("shared", "1"),
		"base/account.yaml":       "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: shared}\n",
	}
	b := &requestCounts{}
	for i := range apps {
		name := fmt.Sprintf("app-%02d", i)
		files[name+"/config.yaml"], files[name+"/stack.yaml"] = scenario.ConfigMap(name, "1"), fmt.Sprintf(appStack, name)
		b.names = append(b.names, name)
		for _, resource := range []string{"configmaps", "deployments", "services", "serviceaccounts"} {
			b.objects = append(b.objects, resource+" "+name)
		}
	}
	files[added+"/config.yaml"], files[added+"/stack.yaml"] = scenario.ConfigMap(added, "1"), fmt.Sprintf(appStack, added)
	for i := range overlays {
		name := fmt.Sprintf("overlay-%d", i)
		files[name+"/kustomization.yaml"] = fmt.Sprintf("resources: [../base]\nnamePrefix: %s-\n", name)
		b.names = append(b.names, name)
		b.objects = append(b.objects, "configmaps "+name+"-shared", "serviceaccounts "+name+"-shared")
	}
	b.Row = scenario.StartTier(t).RowNamed(t, "incremental", files)
	config, err := b.MoM.Config()
	if err != nil {
		t.Fatal(err)
	}
	if b.kube, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	for _, name := range b.names {
		b.Kustomization(t, name, "interval: 10s")
	}
	b.arrived(t)
	b.passed(t, 1) // what the first sync leaves to be done is done
	if _, b.from, err = b.MoM.Audit(0); err != nil {
		t.Fatal(err)
	}
	b.served = b.count(t)
	return b
}

// arrived waits until the last commit is in every Kustomization's status. It
// reads by lists, which are not counted.
func (b *requestCounts) arrived(t *testing.T) {
	t.Helper()
	revision := "main@sha1:" + b.Head
	scenario.Eventually(t, scenario.Converge, "every Kustomization is at "+revision, func(ctx context.Context) error {
		return b.each(ctx, func(k *kustomizev1.Kustomization) error {
			if k.Status.LastAppliedRevision != revision || k.Status.ObservedGeneration != k.Generation || !meta.IsStatusConditionTrue(k.Status.Conditions, fluxmeta.ReadyCondition) {
				return fmt.Errorf("conditions of %s are %s", k.Name, scenario.Summary(k.Status.Conditions))
			}
			return nil
		})
	})
}

func (b *requestCounts) each(ctx context.Context, f func(*kustomizev1.Kustomization) error) error {
	list := &kustomizev1.KustomizationList{}
	if err := b.Client.List(ctx, list, client.InNamespace(b.Namespace)); err != nil {
		return err
	}
	if len(list.Items) != len(b.names) {
		return fmt.Errorf("%d Kustomizations are there, want %d", len(list.Items), len(b.names))
	}
	for i := range list.Items {
		if err := f(&list.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// passes is how often the agent that runs has reconciled each Kustomization.
func (b *requestCounts) passes(ctx context.Context) (map[string]int, error) {
	return scenario.Passes(ctx, b.MoM, "Kustomization", b.Namespace)
}

// passed waits until every Kustomization was reconciled n more times.
func (b *requestCounts) passed(t *testing.T, n int) {
	t.Helper()
	var before map[string]int
	scenario.Eventually(t, scenario.Converge, "the agent tells its passes", func(ctx context.Context) (err error) {
		before, err = b.passes(ctx)
		return err
	})
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("every Kustomization is reconciled %d more times", n), func(ctx context.Context) error {
		now, err := b.passes(ctx)
		if err != nil {
			return err
		}
		for _, name := range b.names {
			if now[name] < before[name]+n {
				return fmt.Errorf("%s was %d times, and %d before", name, now[name], before[name])
			}
		}
		return nil
	})
}

// count is what the API server has served so far of the kinds that are applied,
// of those that say so, and of events, by verb and resource, whoever asked.
func (b *requestCounts) count(t *testing.T) map[string]int {
	t.Helper()
	return scenario.Served(t, b.kube, "configmaps", "deployments", "services", "serviceaccounts", "kustomizations", "gitrepositories", "events")
}

// since is what the API server served since the last balance.
func (b *requestCounts) since(t *testing.T) map[string]int {
	t.Helper()
	grown := map[string]int{}
	for key, n := range b.count(t) {
		if n > b.served[key] {
			grown[key] = n - b.served[key]
		}
	}
	return grown
}

// written counts the agent's writes since the last balance, by verb, resource
// and name. Its report of the whole tier is not about one object and left out.
func (b *requestCounts) written(t *testing.T) (writes map[string]int, next int64) {
	t.Helper()
	events, next, err := b.MoM.Audit(b.from)
	if err != nil {
		t.Fatal(err)
	}
	writes = map[string]int{}
	for _, e := range events {
		ref := e.ObjectRef
		if !e.ByAgent() || ref.Resource == "configmaps" && ref.Name == v1alpha1.ReportConfigMap {
			continue
		}
		if ref.Subresource != "" {
			ref.Resource += "/" + ref.Subresource
		}
		verb := e.Verb
		if verb == "patch" && strings.Contains(e.RequestURI, "fieldManager=kustomize-controller") && strings.Contains(e.RequestURI, "force=true") {
			verb = "apply"
		}
		writes[fmt.Sprintf("%s %s %s", verb, ref.Resource, ref.Name)]++
	}
	return writes, next
}

// balance waits until all writes of a part are in the audit log, fails for each
// that there is too often or not at all, and for each read of a single object.
// atMost are writes that may come that often, but at least once.
func (b *requestCounts) balance(t *testing.T, exactly, atMost map[string]int) {
	t.Helper()
	b.balanceReads(t, exactly, atMost, 0)
}

// balanceReads is balance where so many single objects of each kind may be read.
func (b *requestCounts) balanceReads(t *testing.T, exactly, atMost map[string]int, reads int) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, "the writes are recorded", func(context.Context) error {
		writes, _ := b.written(t)
		for key, n := range exactly {
			if writes[key] < n {
				return fmt.Errorf("%s: %d, want %d", key, writes[key], n)
			}
		}
		for key := range atMost {
			if writes[key] == 0 {
				return fmt.Errorf("%s: none", key)
			}
		}
		return nil
	})
	writes, next := b.written(t)
	for key, n := range writes {
		if most := max(exactly[key], atMost[key]); n > most {
			t.Errorf("%s: %d, want at most %d", key, n, most)
		}
	}
	grown := b.since(t)
	t.Logf("%d kinds of writes; the API server served %v", len(writes), grown)
	for key, n := range grown {
		if strings.HasPrefix(key, "GET ") && n > reads {
			t.Errorf("%s: %d, want at most %d", key, n, reads)
		}
	}
	b.from, b.served = next, b.count(t)
}

// statuses expects one patch of each status, and up to three of those that
// work was done for.
func (b *requestCounts) statuses(worked ...string) (exactly, atMost map[string]int) {
	exactly, atMost = map[string]int{}, map[string]int{}
	for _, name := range b.names {
		key := "patch kustomizations/status " + name
		if slices.Contains(worked, name) {
			atMost[key] = 3
		} else {
			exactly[key] = 1
		}
	}
	return exactly, atMost
}

// oneLine: the object that the line declares is applied, and each Kustomization
// takes note of the revision once.
func (b *requestCounts) oneLine(t *testing.T) {
	b.Commit(t, map[string]string{"app-07/config.yaml": scenario.ConfigMap("app-07", "2")})
	b.arrived(t)
	exactly, atMost := b.statuses("app-07")
	exactly["apply configmaps app-07"] = 1
	atMost["patch gitrepositories/status git"] = 3
	b.balance(t, exactly, atMost)
	if got := b.Data(t, "app-07")["value"]; got != "2" {
		t.Errorf("the object has %q", got)
	}
	b.served = b.count(t) // that was our own read
}

// sharedBase: what reads the base, and nothing else, is rendered and applied.
func (b *requestCounts) sharedBase(t *testing.T) {
	b.Commit(t, map[string]string{"base/config.yaml": scenario.ConfigMap("shared", "2")})
	b.arrived(t)
	exactly, atMost := b.statuses(b.names[apps:]...)
	for _, name := range b.names[apps:] {
		exactly["apply configmaps "+name+"-shared"] = 1
	}
	atMost["patch gitrepositories/status git"] = 3
	b.balance(t, exactly, atMost)
}

// requests: each is answered by one patch of a status.
func (b *requestCounts) requests(t *testing.T) {
	for _, name := range b.names {
		b.Ask(t, &kustomizev1.Kustomization{}, name)
	}
	scenario.Eventually(t, scenario.Converge, "every request is handled", func(ctx context.Context) error {
		return b.each(ctx, func(k *kustomizev1.Kustomization) error {
			if want := k.Annotations[fluxmeta.ReconcileRequestAnnotation]; k.Status.LastHandledReconcileAt != want {
				return fmt.Errorf("%s handled %q, want %q", k.Name, k.Status.LastHandledReconcileAt, want)
			}
			return nil
		})
	})
	exactly, _ := b.statuses()
	b.balance(t, exactly, nil)
}

// interval: where nothing changed nothing is written, and no object is asked
// for. Two passes, as the first may have begun before. A watch that broke on a
// machine without time for it is begun anew by a list, but not each time.
func (b *requestCounts) interval(t *testing.T) {
	const tries = 3
	for try := 1; ; try++ {
		b.passed(t, 2)
		grown := b.since(t)
		b.balance(t, nil, nil)
		if len(grown) == 0 {
			return
		}
		lists := true
		for key := range grown {
			lists = lists && strings.HasPrefix(key, "LIST ")
		}
		if !lists || try == tries {
			t.Fatalf("the API server served %v", grown)
		}
		t.Logf("the API server served %v; once more", grown)
	}
}

// restart: a killed agent knows nothing any more. It verifies each object by one
// apply, which changes none, and reads what there is by lists.
func (b *requestCounts) restart(t *testing.T) {
	before := b.versions(t)
	b.served = b.count(t)
	pid := b.MoM.Agent()
	if pid == 0 {
		t.Fatal("the agent has no process")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	exactly := map[string]int{}
	for _, o := range b.objects {
		exactly["apply "+o] = 1
	}
	scenario.Eventually(t, scenario.Converge, "every object is verified", func(context.Context) error {
		writes, _ := b.written(t)
		for key, n := range exactly {
			if writes[key] < n {
				return fmt.Errorf("%s: %d, want %d", key, writes[key], n)
			}
		}
		return nil
	})
	for key, n := range b.since(t) {
		if strings.HasPrefix(key, "LIST ") && n > 2 {
			t.Errorf("%s: %d, want at most 2", key, n)
		}
	}
	// Its report, of which it does not know what it last said, the record of the first
	// sync, and what it heard of repositories.
	b.served["GET configmaps"] += 3
	b.balance(t, exactly, nil)
	for object, version := range b.versions(t) {
		if version != before[object] {
			t.Errorf("%s went from version %s to %s", object, before[object], version)
		}
	}
	b.served = b.count(t) // those were our own lists
}

// versions of all objects that are applied.
func (b *requestCounts) versions(t *testing.T) map[string]string {
	t.Helper()
	versions := map[string]string{}
	for _, kind := range []schema.GroupVersionKind{
		{Version: "v1", Kind: "ConfigMap"}, {Group: "apps", Version: "v1", Kind: "Deployment"},
		{Version: "v1", Kind: "Service"}, {Version: "v1", Kind: "ServiceAccount"},
	} {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind)
		if err := b.Client.List(t.Context(), list, client.InNamespace(b.Namespace), client.HasLabels{"kustomize.toolkit.fluxcd.io/name"}); err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			versions[kind.Kind+" "+list.Items[i].Name] = list.Items[i].ResourceVersion
		}
	}
	if len(versions) != len(b.objects) {
		t.Fatalf("%d objects are there, want %d", len(versions), len(b.objects))
	}
	return versions
}

// firstSync: each object is looked for, lest it is somebody else's, and applied once.
// Besides there are the finalizer, the inventory ahead of the objects, the outcome, and the
// two events that Flux has. Where many objects are looked for at once, a list of a kind
// stands for the reads.
func (b *requestCounts) firstSync(t *testing.T) {
	b.names = append(b.names, added)
	b.Kustomization(t, added, "interval: 10s")
	b.arrived(t)
	scenario.Eventually(t, scenario.Converge, "both events are there", func(context.Context) error {
		if n := b.since(t)["POST events"]; n < 2 {
			return fmt.Errorf("there are %d", n)
		}
		return nil
	})
	if n := b.since(t)["POST events"]; n > 2 {
		t.Errorf("there are %d events, want 2", n)
	}
	exactly := map[string]int{"patch kustomizations " + added: 1, "patch kustomizations/status " + added: 2}
	for _, resource := range []string{"configmaps", "deployments", "services", "serviceaccounts"} {
		exactly["apply "+resource+" "+added] = 1
	}
	b.balanceReads(t, exactly, nil, 1)
}
