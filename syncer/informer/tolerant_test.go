package informer

import (
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := kustomizev1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	metav1.AddToGroupVersion(s, kustomizev1.GroupVersion)
	return s
}

const object = `{"apiVersion":"kustomize.toolkit.fluxcd.io/v1","kind":"Kustomization","metadata":{"name":"a","namespace":"x","resourceVersion":"7"},` +
	`"spec":SPEC,"status":{"observedGeneration":3,"inventory":{"entries":[{"id":"x_a__ConfigMap","v":"v1"}]}MORE}}`

// TestDecode: an object that somebody made unreadable is read without what is in the way.
func TestDecode(t *testing.T) {
	spec := `{"interval":"1m","prune":true,"path":"./a","sourceRef":{"kind":"GitRepository","name":"git"}}`
	for name, tc := range map[string]struct {
		reason, spec, more string
		without            string
		fails              bool
	}{
		"Good":       {reason: "nothing is left out", spec: spec},
		"History":    {reason: "a duration that is none", spec: spec, more: `,"history":[{"lastReconciledDuration":"x"}]`, without: "status.history"},
		"Conditions": {reason: "a lower-case t", spec: spec, more: `,"conditions":[{"type":"Ready","status":"True","lastTransitionTime":"2026-01-01t00:00:00Z"}]`, without: "status.conditions"},
		"Both":       {reason: "both", spec: spec, more: `,"history":[{"totalReconciliations":"x"}],"conditions":{}`, without: "status.conditions"},
		"Status":     {reason: "something else of the status", spec: spec, more: `,"lastAppliedRevision":{}`, without: "status"},
		"Spec":       {reason: "an interval that the pattern of the definition admits", spec: `{"interval":"9999999h","prune":true}`, without: "spec"},
		"SpecAndStatus": {
			reason: "both", spec: `{"interval":"9999999h","prune":true}`, more: `,"conditions":{}`, without: "spec, status.conditions",
		},
		"Nothing": {reason: "no JSON at all", spec: `{`, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			raw := strings.NewReplacer("SPEC", tc.spec, "MORE", tc.more).Replace(object)
			got, without, err := decode(scheme(t), kustomizev1.GroupVersion.WithKind("Kustomization"), []byte(raw))
			if (err != nil) != tc.fails || without != tc.without {
				t.Fatalf("%s: decode() = without %q, %v; want %q", tc.reason, without, err, tc.without)
			}
			if tc.fails {
				return
			}
			k := got.(*kustomizev1.Kustomization)
			if k.Name != "a" || k.ResourceVersion != "7" {
				t.Errorf("%s: it is %s at %s", tc.reason, k.Name, k.ResourceVersion)
			}
			if tc.without != "status" && (k.Status.Inventory == nil || k.Status.ObservedGeneration != 3) {
				t.Errorf("%s: the rest of the status is lost: %+v", tc.reason, k.Status)
			}
			why := k.Annotations[v1alpha1.UnreadAnnotation]
			if unread := strings.HasPrefix(tc.without, "spec"); unread != k.Spec.Suspend || unread != strings.Contains(why, "spec.interval") {
				t.Errorf("%s: what cannot be read is acted on: %+v, %q", tc.reason, k.Spec, why)
			}
		})
	}
}

// TestDecodeRollout: a Rollout that has one field which cannot be read still says what it moves, and of which
// clusters, and has its run: those who ask what a cluster may have would let it have the newest revision otherwise.
func TestDecodeRollout(t *testing.T) {
	s := scheme(t)
	if err := v1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	for _, unread := range []string{`"deadline":"9999999h"`, `"waves":[{"name":"a","soak":"9999999h"}]`, `"waves":[{"name":"a","maxFailures":9999999999}]`, `"upstream":{"name":"u","minAge":"9999999h"}`} {
		raw := `{"apiVersion":"cascade.dev/v1alpha1","kind":"Rollout","metadata":{"name":"base","namespace":"x","annotations":{"a":"b"}},"spec":{"moves":{"layerRef":{"name":"base"}},` +
			`"clusterSelector":{"matchLabels":{"env":"prod"}},` + unread + `},"status":{"uid":"u","run":{"number":7,"phase":"Progressing","revision":"c7","terms":{"waves":[],"deadline":"30m"}}}}`
		got, without, err := decode(s, v1alpha1.GroupVersion.WithKind("Rollout"), []byte(raw))
		if err != nil || without != "spec" {
			t.Fatalf("%s: without %q, %v", unread, without, err)
		}
		r := got.(*v1alpha1.Rollout)
		if ref := r.Spec.Moves.LayerRef; ref == nil || ref.Name != "base" || r.Spec.ClusterSelector == nil || r.Spec.ClusterSelector.MatchLabels["env"] != "prod" {
			t.Errorf("%s: it lets go of what it moves: %+v", unread, r.Spec)
		}
		if run := r.Status.Run; r.Status.UID != "u" || run == nil || run.Number != 7 {
			t.Errorf("%s: its status is lost: %+v", unread, r.Status)
		}
		if !r.Spec.Suspend || r.Annotations[v1alpha1.UnreadAnnotation] == "" || r.Annotations["a"] != "b" {
			t.Errorf("%s: nobody is told that it cannot be read: %+v, %v", unread, r.Spec, r.Annotations)
		}
	}
}

// TestUnread: a Status is decoded, and everything else is left to decode.
func TestUnread(t *testing.T) {
	d := unread{serializer.NewCodecFactory(scheme(t))}.DecoderToVersion(nil, nil)
	for text, isStatus := range map[string]bool{
		`{"kind":"Status","apiVersion":"v1","message":"gone","code":410}`:                                 true,
		`{"kind":"Kustomization","apiVersion":"kustomize.toolkit.fluxcd.io/v1","spec":{"path":"Status"}}`: false,
		`{"kind":"Status","apiVersion":"x.io/v1"}`:                                                        false,
	} {
		o, _, err := d.Decode([]byte(text), nil, nil)
		if _, got := o.(*metav1.Status); err != nil || got != isStatus {
			t.Errorf("Decode(%s) = %T, %v", text, o, err)
		}
		if unknown, ok := o.(*runtime.Unknown); !isStatus && (!ok || string(unknown.Raw) != text) {
			t.Errorf("Decode(%s) = %v", text, o)
		}
	}
}
