package flux

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// Numbers of TestDrift. Each trial has a Kustomization of its own: corrections
// of one that come again and again are delayed on purpose.
const (
	drifting      = 200
	trialsAtATime = 4
	correctedIn   = time.Minute
)

// TestDrift changes what is declared, 200 times in six ways, and watches it come
// back; meanwhile somebody fights for one object of another Kustomization.
func TestDrift(t *testing.T) {
	scenario.Alongside(t)
	d := startDrift(t)
	t.Run("Report", d.report)
	t.Run("Status", d.status)
	t.Run("Meanwhile", func(t *testing.T) {
		parts := scenario.PartsOf(t)
		defer parts.Wait()
		parts.Run("Trials", d.trials)
		parts.Run("Fight", d.fight)
	})
}

type drift struct {
	*scenario.Row
	watcher client.WithWatch
}

const driftApp = `apiVersion: v1
kind: ConfigMap
metadata: {name: %[1]s}
data: {value: declared}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: 0
  minReadySeconds: 1
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec: {containers: [{name: app, image: "cascade.local/e2e:dev"}]}
---
apiVersion: v1
kind: Service
metadata: {name: %[1]s, labels: {tier: web}, annotations: {note: declared}}
spec: {selector: {app: %[1]s}, ports: [{port: 80}]}
`

const (
	declaredSecret = "declared-passphrase"
	editedSecret   = "edited-passphrase"
)

func startDrift(t *testing.T) *drift {
	t.Helper()
	files := map[string]string{
		"reported/config.yaml": scenario.ConfigMap("reported", "declared"),
		"quota/quota.yaml":     "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: quota}\nspec: {hard: {configmaps: \"1000\"}}\n",
		"reported/secret.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: reported}\nstringData: {password: " + declaredSecret + "}\n",
		"fought/config.yaml":   scenario.ConfigMap("fought", "declared"),
	}
	names := []string{"reported", "fought"}
	for i := range drifting {
		name := driftName(i)
		files[name+"/app.yaml"] = fmt.Sprintf(driftApp, name)
		names = append(names, name)
	}
	d := &drift{Row: scenario.StartTier(t).RowNamed(t, "drift", files)}
	config, err := d.MoM.Config()
	if err != nil {
		t.Fatal(err)
	}
	config.Timeout = 0 // it would end the watches
	if d.watcher, err = client.NewWithWatch(config, client.Options{Scheme: d.Client.Scheme(), Mapper: d.Client.RESTMapper()}); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		d.Kustomization(t, name, "{}")
	}
	for _, name := range names {
		d.Ready(t, name)
	}
	return d
}

func driftName(i int) string { return fmt.Sprintf("app-%03d", i) }

// spoil is one way to change an object behind the engine's back.
type spoil struct {
	name, apiVersion, kind string
	// patch is a merge patch; "" deletes the object.
	patch, manager string
}

func spoils() []spoil {
	return []spoil{
		{"data edited", "v1", "ConfigMap", `{"data":{"value":"edited"}}`, "somebody"},
		{"spec edited with kubectl", "apps/v1", "Deployment", `{"spec":{"minReadySeconds":7}}`, "kubectl-edit"},
		{"label stripped", "v1", "Service", `{"metadata":{"labels":{"tier":null}}}`, "somebody"},
		{"owner label stripped", "v1", "ConfigMap", `{"metadata":{"labels":{"kustomize.toolkit.fluxcd.io/name":null}}}`, "somebody"},
		{"annotation changed", "v1", "Service", `{"metadata":{"annotations":{"note":"edited"}}}`, "somebody"},
		{"deleted", "apps/v1", "Deployment", "", ""},
		{"deleted", "v1", "ConfigMap", "", ""},
		{"deleted", "v1", "Service", "", ""},
	}
}

// trials spoils one object of each Kustomization.
func (d *drift) trials(t *testing.T) {
	ways := spoils()
	took := map[string][]time.Duration{}
	var mu sync.Mutex
	next := make(chan int)
	var workers sync.WaitGroup
	for range trialsAtATime {
		workers.Go(func() {
			for i := range next {
				way := ways[i%len(ways)]
				within, err := d.trial(t.Context(), way, driftName(i))
				if err != nil {
					t.Errorf("%s %s: %s: %v", way.kind, driftName(i), way.name, err)
					continue
				}
				mu.Lock()
				took[way.name] = append(took[way.name], within)
				took["all"] = append(took["all"], within)
				mu.Unlock()
			}
		})
	}
	for i := range drifting {
		next <- i
	}
	close(next)
	workers.Wait()
	for _, name := range slices.Sorted(maps.Keys(took)) {
		list := took[name]
		slices.Sort(list)
		t.Logf("%s: %d trials, p50 %s, p99 %s, at most %s", name, len(list), list[len(list)/2].Round(time.Millisecond),
			list[len(list)*99/100].Round(time.Millisecond), list[len(list)-1].Round(time.Millisecond))
	}
	if n := len(took["all"]); n != drifting {
		t.Errorf("%d trials were corrected, want %d", n, drifting)
	}
}

// trial spoils an object and returns the time until it is as it was.
func (d *drift) trial(ctx context.Context, way spoil, name string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, correctedIn)
	defer cancel()
	// Of the version of the list, not of the object: that may be older than what
	// the API server remembers.
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion(way.apiVersion)
	list.SetKind(way.kind + "List")
	if err := d.watcher.List(ctx, list, client.InNamespace(d.Namespace), client.MatchingFields{"metadata.name": name}); err != nil {
		return 0, err
	}
	if len(list.Items) != 1 {
		return 0, fmt.Errorf("there are %d", len(list.Items))
	}
	object := &list.Items[0]
	declared := declaredPart(object)
	watcher, err := d.watcher.Watch(ctx, list.DeepCopy(), client.InNamespace(d.Namespace), client.MatchingFields{"metadata.name": name},
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}})
	if err != nil {
		return 0, err
	}
	defer watcher.Stop()
	begin := time.Now()
	if way.patch == "" {
		err = d.watcher.Delete(ctx, object.DeepCopy(), client.PropagationPolicy(metav1.DeletePropagationBackground))
	} else {
		err = d.watcher.Patch(ctx, object.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(way.patch)), client.FieldOwner(way.manager))
	}
	if err != nil {
		return 0, err
	}
	spoiled := false
	for {
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("it was not corrected within %s; seen to be spoiled: %t", correctedIn, spoiled)
		case event, open := <-watcher.ResultChan():
			if !open {
				return 0, errors.New("the watch has ended")
			}
			live, ok := event.Object.(*unstructured.Unstructured)
			if !ok || event.Type == watch.Error {
				return 0, fmt.Errorf("the watch says %v", event.Object)
			}
			same := event.Type != watch.Deleted && equality.Semantic.DeepEqual(declaredPart(live), declared)
			if spoiled && same {
				return time.Since(begin), nil
			}
			spoiled = spoiled || !same
		}
	}
}

// declaredPart is an object without what the API server and controllers make of
// it anew each time.
func declaredPart(u *unstructured.Unstructured) map[string]any {
	annotations := maps.Clone(u.GetAnnotations())
	delete(annotations, "deployment.kubernetes.io/revision")
	u = u.DeepCopy()
	unstructured.RemoveNestedField(u.Object, "spec", "clusterIP")
	unstructured.RemoveNestedField(u.Object, "spec", "clusterIPs")
	return map[string]any{"labels": u.GetLabels(), "annotations": annotations, "data": u.Object["data"], "spec": u.Object["spec"]}
}

// setMode chooses what is done about drift, and waits until it holds: the
// request comes with it.
func (d *drift) setMode(t *testing.T, name, mode string) {
	t.Helper()
	at := d.NewRequest(mode)
	d.Patch(t, &kustomizev1.Kustomization{}, name, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q,%q:%q}}}`,
		v1alpha1.DriftAnnotation, mode, fluxmeta.ReconcileRequestAnnotation, at))
	d.Handled(t, name, at)
}

// report: what somebody else changed is told, without values of Secrets, and
// left until the mode is another.
func (d *drift) report(t *testing.T) {
	const name = "reported"
	d.setMode(t, name, "report")
	_, from, err := d.MoM.Audit(0)
	if err != nil {
		t.Fatal(err)
	}
	d.Patch(t, &corev1.ConfigMap{}, name, `{"data":{"value":"edited"}}`)
	d.Patch(t, &corev1.Secret{}, name, fmt.Sprintf(`{"data":{"password":%q}}`, base64.StdEncoding.EncodeToString([]byte(editedSecret))))
	c := d.Says(t, name, v1alpha1.DriftedCondition, metav1.ConditionTrue, v1alpha1.ReasonDriftDetected,
		fmt.Sprintf("ConfigMap/%[1]s/%[2]s drifted: /data/value is edited (declared declared)\nSecret/%[1]s/%[2]s drifted: /data/password differs", d.Namespace, name))
	d.tellsNoSecret(t, "the condition", c.Message)
	scenario.Eventually(t, scenario.Converge, "an event tells of the drift", func(ctx context.Context) error {
		list := &corev1.EventList{}
		if err := d.Client.List(ctx, list, client.InNamespace(d.Namespace)); err != nil {
			return err
		}
		for i := range list.Items {
			if e := &list.Items[i]; e.InvolvedObject.Name == name && strings.Contains(e.Message, "Secret/"+d.Namespace+"/"+name+" drifted") {
				d.tellsNoSecret(t, "the event", e.Message)
				return nil
			}
		}
		return fmt.Errorf("none of %d does", len(list.Items))
	})
	d.Handled(t, name, d.Ask(t, &kustomizev1.Kustomization{}, name)) // nor does a request correct it
	events, _, err := d.MoM.Audit(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if e.ByAgent() && e.ObjectRef.Namespace == d.Namespace && slices.Contains([]string{"configmaps", "secrets"}, e.ObjectRef.Resource) && !strings.Contains(e.RequestURI, "dryRun=All") {
			t.Errorf("%s %s, want nothing written", e.Verb, e.RequestURI)
		}
	}
	if got := d.Data(t, name)["value"]; got != "edited" {
		t.Errorf("the ConfigMap has %q", got)
	}

	d.setMode(t, name, "correct")
	d.Has(t, name, "value", "declared")
	secret := &corev1.Secret{}
	if err := d.Load(t.Context(), secret, d.Namespace, name); err != nil {
		t.Fatal(err)
	}
	if got := string(secret.Data["password"]); got != declaredSecret {
		t.Errorf("the Secret is not as declared")
	}
	k, err := d.Read(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if meta.FindStatusCondition(k.Status.Conditions, v1alpha1.DriftedCondition) != nil {
		t.Errorf("conditions are %s", scenario.Summary(k.Status.Conditions))
	}
}

func (d *drift) tellsNoSecret(t *testing.T, what, text string) {
	t.Helper()
	for _, value := range []string{declaredSecret, editedSecret} {
		if strings.Contains(text, value) || strings.Contains(text, base64.StdEncoding.EncodeToString([]byte(value))) {
			t.Errorf("%s shows a value of a Secret", what)
		}
	}
}

// Numbers of the fight.
const (
	rounds = 10
	// window ends it, as the tenth correction comes only after a minute and more.
	window = 20 * time.Second
)

// corrections is how many of them are allowed within a time: five at once, and
// each after that with twice the delay of the one before.
func corrections(within time.Duration) int {
	n, at := 5, time.Duration(0)
	for delay := 2 * time.Second; at+delay <= within; delay = min(2*delay, time.Minute) {
		n, at = n+1, at+delay
	}
	return n
}

// fight: somebody applies another value each time that the declared one comes
// back. The agent insists, but less and less often.
func (d *drift) fight(t *testing.T) {
	const name = "fought"
	_, from, err := d.MoM.Audit(0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), window)
	defer cancel()
	watcher, err := d.watcher.Watch(ctx, &corev1.ConfigMapList{}, client.InNamespace(d.Namespace), client.MatchingFields{"metadata.name": name})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	begin := time.Now()
	var lost []string
	for over := false; !over && len(lost) < rounds; {
		select {
		case <-ctx.Done():
			over = true
		case event, open := <-watcher.ResultChan():
			if !open {
				over = true
				break
			}
			cm, ok := event.Object.(*corev1.ConfigMap)
			if !ok || cm.Data["value"] != "declared" {
				continue
			}
			lost = append(lost, time.Since(begin).Round(100*time.Millisecond).String())
			rival := stage.Object("v1", "ConfigMap")
			rival.Object["metadata"] = map[string]any{"namespace": d.Namespace, "name": name}
			rival.Object["data"] = map[string]any{"value": "rival"}
			if err := d.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(rival), client.FieldOwner("rival"), client.ForceOwnership); err != nil {
				t.Fatal(err)
			}
		}
	}
	events, _, err := d.MoM.Audit(from)
	took := time.Since(begin)
	if err != nil {
		t.Fatal(err)
	}
	applies := 0
	for _, e := range events {
		if e.ByAgent() && e.ObjectRef.Namespace == d.Namespace && e.ObjectRef.Resource == "configmaps" && e.ObjectRef.Name == name {
			applies++
		}
	}
	t.Logf("the rival applied at %v, the agent %d times within %s", lost, applies, took.Round(time.Second))
	if most := corrections(took); applies > most {
		t.Errorf("the agent applied %d times within %s, want at most %d", applies, took, most)
	}
	if applies == 0 {
		t.Error("the agent never corrected it")
	}
	// A person who asks does not wait for that.
	d.Handled(t, name, d.Ask(t, &kustomizev1.Kustomization{}, name))
	if got := d.Data(t, name)["value"]; got != "declared" {
		t.Errorf("after a request it has %q", got)
	}
}
