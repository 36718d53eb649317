package apply

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/directive"
	"github.com/cascade-gitops/cascade/syncer/health"
	"github.com/cascade-gitops/cascade/syncer/observed"
)

func newObject(apiVersion, kind, name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name}}}
}

func TestRedact(t *testing.T) {
	secret := newObject("v1", "Secret", "s")
	key := "-----BEGIN KEY-----\nabcdef\n-----END KEY-----\n"
	secret.Object["data"] = map[string]any{"password": base64.StdEncoding.EncodeToString([]byte("hidden-word")), "key": base64.StdEncoding.EncodeToString([]byte(key)), "broken": "not base64!"}
	secret.Object["stringData"] = map[string]any{"plain": "plain-word", "short": "a"}
	for name, tc := range map[string]struct {
		reason string
		text   string
		want   string
	}{
		"Plain":   {"CVE-2025-23216: the API server quotes what it refuses", "invalid value hidden-word at x", "invalid value ***** at x"},
		"Encoded": {"as it is in the object", "invalid aGlkZGVuLXdvcmQ= at x", "invalid ***** at x"},
		"Quoted":  {"as Go writes a text of several lines", fmt.Sprintf("invalid value: %q", key), `invalid value: "*****"`},
		"Broken":  {"what cannot be decoded may be the value itself", "illegal base64: not base64!", "illegal base64: *****"},
		"String":  {"stringData too", "plain-word", "*****"},
		"Short":   {"a single letter would make the text unreadable and hides nothing", "a b", "a b"},
		"Nothing": {"an error without a secret stays as it is", "no route to host", "no route to host"},
	} {
		t.Run(name, func(t *testing.T) {
			err := errors.New(tc.text)
			got := Redact(err, []*unstructured.Unstructured{newObject("v1", "ConfigMap", "c"), secret})
			if got.Error() != tc.want {
				t.Errorf("%s\nRedact() = %q, want %q", tc.reason, got, tc.want)
			}
			if tc.text == tc.want && !errors.Is(got, err) {
				t.Errorf("%s\nRedact() lost the error's properties", tc.reason)
			}
		})
	}
}

// TestRedactOddValues: what was declared wrongly is as secret; and the error
// stays what it is.
func TestRedactOddValues(t *testing.T) {
	secret := newObject("v1", "Secret", "s")
	secret.Object["stringData"] = map[string]any{"pin": int64(12345678), "x": map[string]any{"password": "hunter22"}, "ns": "default"}
	for _, text := range []string{
		".stringData.pin: expected string, got &value.valueUnstructured{Value:12345678}", ".stringData.x: expected string, got map[password:hunter22]",
	} {
		if got := Redact(errors.New(text), []*unstructured.Unstructured{secret}).Error(); !strings.Contains(got, "*****") {
			t.Errorf("Redact() = %q", got)
		}
	}
	waiting := &WaitError{Health: Health{{Entry: inventory.Entry{Namespace: "default", Name: "a", Kind: "Pod"}, Status: status.InProgressStatus}}}
	var got *WaitError
	if err := Redact(waiting, []*unstructured.Unstructured{secret}); !errors.As(err, &got) || strings.Contains(err.Error(), "default") {
		t.Errorf("Redact() = %v, want the same error without the value", err)
	}
}

func TestStages(t *testing.T) {
	objects := []*unstructured.Unstructured{
		newObject("v1", "ConfigMap", "a"), newObject("apiextensions.k8s.io/v1", "CustomResourceDefinition", "b"), newObject("v1", "Namespace", "c"),
		newObject("storage.k8s.io/v1", "StorageClass", "d"), newObject("rbac.authorization.k8s.io/v1", "ClusterRole", "e"), newObject("cluster.x-k8s.io/v1beta2", "ClusterClass", "f"),
	}
	var got []string
	for _, stage := range stages(objects, nil) {
		var names []string
		for _, u := range stage {
			names = append(names, u.GetName())
		}
		got = append(got, strings.Join(names, ""))
	}
	if diff := cmp.Diff([]string{"bce", "df", "", "a"}, got); diff != "" {
		t.Errorf("stages, what others need first: -want, +got:\n%s", diff)
	}
}

func TestMayRecreate(t *testing.T) {
	cluster, job := newObject("cluster.x-k8s.io/v1beta2", "Cluster", "a"), newObject("batch/v1", "Job", "b")
	asked := newObject("batch/v1", "Job", "c")
	asked.SetAnnotations(map[string]string{directive.Group + "/force": "enabled"})
	for name, tc := range map[string]struct {
		reason string
		object *unstructured.Unstructured
		live   *observed.Object
		force  bool
		want   bool
	}{
		"Protected":   {"to delete a Cluster and create it again destroys the real one", cluster, &observed.Object{Force: true}, true, false},
		"Forced":      {"spec.force", job, &observed.Object{}, true, true},
		"Declared":    {"the annotation in Git", asked, &observed.Object{}, false, true},
		"Live":        {"the annotation in the cluster", job, &observed.Object{Force: true}, false, true},
		"Not asked":   {"nobody wants it", job, &observed.Object{}, false, false},
		"Not existed": {"there is nothing to delete", job, nil, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := mayRecreate(tc.object, tc.live, Options{Force: tc.force}); got != tc.want {
				t.Errorf("%s\nmayRecreate() = %t, want %t", tc.reason, got, tc.want)
			}
		})
	}
}

func TestAutomatic(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		gvk    schema.GroupVersionKind
		meta   metav1.ObjectMeta
		want   bool
	}{
		"Owned":          {"made for another object, and gone with it", schema.GroupVersionKind{Kind: "Pod"}, metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Name: "x"}}}, true},
		"RootCA":         {"in every Namespace", schema.GroupVersionKind{Kind: "ConfigMap"}, metav1.ObjectMeta{Name: "kube-root-ca.crt"}, true},
		"DefaultAccount": {"in every Namespace", schema.GroupVersionKind{Kind: "ServiceAccount"}, metav1.ObjectMeta{Name: "default"}, true},
		"Event":          {"says what happened, is nobody's work", schema.GroupVersionKind{Kind: "Event"}, metav1.ObjectMeta{Name: "x"}, true},
		"Secret":         {"somebody's work", schema.GroupVersionKind{Kind: "Secret"}, metav1.ObjectMeta{Name: "default"}, false},
		"ConfigMap":      {"somebody's work", schema.GroupVersionKind{Kind: "ConfigMap"}, metav1.ObjectMeta{Name: "mine"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := automatic(tc.gvk, &metav1.PartialObjectMetadata{ObjectMeta: tc.meta}); got != tc.want {
				t.Errorf("%s\nautomatic() = %t, want %t", tc.reason, got, tc.want)
			}
		})
	}
}

func TestHealthMessage(t *testing.T) {
	var h Health
	for i := range 30 {
		h = append(h, health.Result{Entry: inventory.Entry{Kind: "Pod", Name: fmt.Sprint("p", i)}, Status: status.InProgressStatus})
	}
	h = append(h, health.Result{Entry: inventory.Entry{Kind: "Pod", Name: "well"}, Status: status.CurrentStatus})
	got := h.Message()
	if !strings.HasPrefix(got, "Pod/p0 status: 'InProgress', ") || !strings.HasSuffix(got, "and 20 more") || strings.Contains(got, "well") {
		t.Errorf("Message() = %q, want what is not done, and few of it", got)
	}
	if len(h.Pending()) != 30 {
		t.Errorf("Pending() has %d objects, want 30", len(h.Pending()))
	}
	if h.Done() || !(Health{}).Done() {
		t.Error("Done() is for nothing in progress and nothing failed")
	}
}

func TestRecorded(t *testing.T) {
	release := func(ids ...string) *unstructured.Unstructured {
		u := newObject("helm.toolkit.fluxcd.io/v2", "HelmRelease", "prod")
		var list []any
		for _, id := range ids {
			list = append(list, map[string]any{"id": id, "v": "v1"})
		}
		u.Object["status"] = map[string]any{"inventory": map[string]any{"entries": list}}
		return u
	}
	for name, tc := range map[string]struct {
		reason string
		object *unstructured.Unstructured
		want   []string
		fails  bool
	}{
		"New":      {"nothing is installed yet", newObject("helm.toolkit.fluxcd.io/v2", "HelmRelease", "prod"), nil, false},
		"Harmless": {"Git brings a ConfigMap back", release("apps_settings__ConfigMap"), nil, false},
		"Cluster":  {"it would go with its release", release("apps_settings__ConfigMap", "fleet_prod_cluster.x-k8s.io_Cluster"), []string{"Cluster/fleet/prod"}, false},
		"Data":     {"so would what is in a volume", release("apps_db__PersistentVolumeClaim"), []string{"PersistentVolumeClaim/apps/db"}, false},
		"Odd":      {"what cannot be read may be anything", release("nonsense"), nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			entries, err := recorded(tc.object)
			var got []string
			for _, e := range entries {
				if inventory.ProtectedKind(e.Group, e.Kind) {
					got = append(got, e.String())
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || (err != nil) != tc.fails {
				t.Errorf("%s: error %v; -want, +got:\n%s", tc.reason, err, diff)
			}
		})
	}
}

// TestSlow: the caller is told once that it takes long, and each object is applied once all the same.
func TestSlow(t *testing.T) {
	for name, tc := range map[string]struct {
		each time.Duration
		told bool
	}{"Quick": {time.Second, false}, "Slow": {6 * time.Second, true}} {
		t.Run(name, func(t *testing.T) {
			now, told, applied := time.Unix(1000, 0), 0, map[int]int{}
			r := &run{Applier: &Applier{client: &Cluster{parallel: 1}, now: func() time.Time { return now }}, begun: now}
			r.options.Slow = func(context.Context) {
				if told++; len(applied) == 0 || len(applied) == 9 {
					t.Errorf("it is told after %d objects", len(applied))
				}
			}
			for rank := range 3 {
				r.each(t.Context(), 3, func(i int) {
					now = now.Add(tc.each)
					applied[3*rank+i]++
				})
			}
			if len(applied) != 9 || slices.ContainsFunc(slices.Collect(maps.Values(applied)), func(n int) bool { return n != 1 }) {
				t.Errorf("applied are %v", applied)
			}
			if want := map[bool]int{true: 1}[tc.told]; told != want {
				t.Errorf("it is told %d times", told)
			}
		})
	}
}

// TestGoingAmongOthers: among failures of others, one that waits for the end of its object is known.
func TestGoingAmongOthers(t *testing.T) {
	wait := func(s status.Status) error {
		return fmt.Errorf("phase: %w", &WaitError{Health: Health{{Entry: inventory.Entry{Name: "a"}, Status: s}}})
	}
	for name, tc := range map[string]struct {
		failed       Failures
		waits, going bool
	}{
		"Going":    {Failures{errors.New("denied"), wait(status.TerminatingStatus)}, false, true},
		"Starting": {Failures{errors.New("denied"), wait(status.InProgressStatus)}, false, false},
		"All":      {Failures{wait(status.TerminatingStatus), wait(status.TerminatingStatus)}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			err := tc.failed.orWait()
			var waiting *WaitError
			var going *GoingError
			if errors.As(err, &waiting) != tc.waits || errors.As(err, &going) != tc.going || waiting != nil && !waiting.Going() {
				t.Errorf("it is %#v", err)
			}
			if text := err.Error(); !strings.Contains(text, "/a status: ") {
				t.Errorf("it says %q", text)
			}
		})
	}
}

func TestRanks(t *testing.T) {
	objects := []*unstructured.Unstructured{
		newObject("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "h"), newObject("apps/v1", "Deployment", "d"),
		newObject("v1", "ConfigMap", "c"), newObject("v1", "ServiceAccount", "a"), newObject("v1", "ConfigMap", "b"),
		newObject("example.com/v1", "Widget", "g"), newObject("example.com/v1", "Gadget", "f"), newObject("policy/v1", "PodDisruptionBudget", "e"),
	}
	got := ""
	for _, rank := range ranks(objects) {
		for _, u := range rank {
			got += u.GetName()
		}
		got += " "
	}
	if want := "a bc d e fg h "; got != want {
		t.Errorf("ranks() = %q, want %q: Flux's order, split where the rank of the kind changes", got, want)
	}
	if objects[0].GetName() != "h" {
		t.Error("ranks() sorted the caller's list")
	}
}
