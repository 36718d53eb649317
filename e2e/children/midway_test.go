package children

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// gate is a webhook that lets the writes of one object pass when it is told so, and all
// others at once.
type gate struct {
	// came has an entry while a write waits. Each one takes something from pass, nothing
	// once that is closed.
	came, pass chan struct{}
}

// gated puts a gate before the writes of a ConfigMap of namespace default.
func (p *plane) gated(t *testing.T, name string) *gate {
	t.Helper()
	g := &gate{came: make(chan struct{}, 1), pass: make(chan struct{})}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		review := &admissionv1.AdmissionReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if review.Request.Name == name {
			select {
			case g.came <- struct{}{}:
			default:
			}
			select {
			case <-g.pass:
			case <-r.Context().Done():
			}
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review) // the API server tells if it has no answer
	}))
	t.Cleanup(server.Close)
	p.hook(t, server.URL+"/", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	return g
}

// commitDuringPush: while a layer is applied, a commit moves an object into it from a layer
// whose turn comes later. It is not deleted.
func commitDuringPush(h *hub, t *testing.T) {
	f := h.fleet(t, "midway", map[string]string{
		"first/gate.yaml": noteNamed("gate", "version", "1"), "second/rest.yaml": noteNamed("rest", "version", "1"),
		"second/moves.yaml": noteNamed("moves", "version", "1"),
	})
	p := h.plane(t, "midway")
	f.layer(t, "first", "midway")
	f.layer(t, "second", "midway", "dependsOn: [{name: first}]")
	f.declare(t, "midway")
	f.report(t, "midway", initialized)
	f.handOver(t, "midway", p.issue(t).kubeconfig)
	f.ready(t, "midway", "")
	uid := func() types.UID {
		t.Helper()
		cm := &corev1.ConfigMap{}
		if err := p.client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "moves"}, cm); err != nil {
			t.Fatal(err)
		}
		return cm.UID
	}
	before := uid()
	g := p.gated(t, "gate")
	// The API server takes the webhook up a moment later; until then writes pass.
	scenario.Eventually(t, scenario.Converge, "a write waits", func(ctx context.Context) error {
		probe := object("v1", "ConfigMap", "default", "gate")
		probe.Object["data"] = map[string]any{"version": "1"}
		done := make(chan error, 1)
		go func() {
			done <- p.client.Patch(ctx, probe, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"probe":"1"}}}`)))
		}()
		select {
		case <-g.came:
			g.pass <- struct{}{}
			return <-done
		case err := <-done:
			return errors.Join(errors.New("it passed"), err)
		}
	})
	f.commit(t, map[string]string{"first/gate.yaml": noteNamed("gate", "version", "2")})
	select {
	case <-g.came:
	case <-t.Context().Done():
		t.Fatal("the layer was not applied")
	}
	sha := f.commit(t, map[string]string{"first/moves.yaml": noteNamed("moves", "version", "1"), "second/moves.yaml": ""})
	f.fetched(t, sha)
	close(g.pass)
	f.ready(t, "midway", sha)
	p.has(t, "gate", "version", "2")
	if after := uid(); after != before {
		t.Errorf("the object was %s and is %s", before, after)
	}
}

// revertOfHalf: a commit of which the child took one half is reverted, and of the revert it takes
// the other half (C7). The layer is not in place because it was before the commit.
func revertOfHalf(h *hub, t *testing.T) {
	version := func(v string) map[string]string {
		return map[string]string{"half/a.yaml": noteNamed("half-a", "version", v), "half/b.yaml": noteNamed("half-b", "version", v)}
	}
	f := h.fleet(t, "half", version("1"))
	p := h.plane(t, "half")
	f.layer(t, "half", "half")
	f.declare(t, "half")
	f.report(t, "half", initialized)
	f.handOver(t, "half", p.issue(t).kubeconfig)
	f.ready(t, "half", "")
	refuse := func(name string) { p.patch(t, name, map[string]any{"immutable": true}) }
	refuse("half-b")
	f.commit(t, version("2"))
	p.has(t, "half-a", "version", "2")
	f.says(t, "half", v1alpha1.SeededCondition, v1alpha1.ReasonSeedFailed, "half-b")
	refuse("half-a")
	from := p.now(t)
	sha := f.commit(t, version("1"))
	f.says(t, "half", v1alpha1.SeededCondition, v1alpha1.ReasonSeedFailed, "half-a")
	scenario.Eventually(t, scenario.Converge, "what was refused is tried again", func(context.Context) error {
		tried := 0
		for _, e := range p.byParent(t, from) {
			if e.Verb == "patch" && e.ObjectRef.Name == "half-a" {
				tried++
			}
		}
		if tried < 2 {
			return fmt.Errorf("it was tried %d times", tried)
		}
		return nil
	})
	if l := f.child1(t, "half").Status.Layers[0]; l.Ready || l.LastAttemptedDigest == l.Digest {
		t.Errorf("of a revert that was refused it says %+v", l)
	}
	if err := p.client.Delete(t.Context(), object("v1", "ConfigMap", "default", "half-a")); err != nil {
		t.Fatal(err)
	}
	f.request(t, layerNamed(f, "half"))
	f.ready(t, "half", sha)
	p.has(t, "half-a", "version", "1")
}
