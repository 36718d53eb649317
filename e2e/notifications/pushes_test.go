package notifications

import (
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

const (
	// pushed is the time in which a push is an object, in the long form.
	pushed = time.Second
	// pushEach is the least time between two pushes.
	pushEach = 500 * time.Millisecond
)

// TestPushes: how long it takes from a webhook to the object that its push changes, beside
// Kustomizations on the same source that the push does not change; and while forged requests
// come. CASCADE_PUSHES is the long form: so many pushes beside a thousand Kustomizations, 99 of
// a hundred within a second, and beside forged requests not much later than without.
func TestPushes(t *testing.T) {
	scenario.Alongside(t)
	pushes, beside, long := 10, 60, false
	if n, err := strconv.Atoi(os.Getenv("CASCADE_PUSHES")); err == nil {
		pushes, beside, long = n, 1000, true
	}
	h := startReceivers(t, long)
	files := map[string]string{}
	for n := range beside {
		name := fmt.Sprint("beside-", n)
		files["beside/"+name+"/a.yaml"] = scenario.ConfigMapWith(name, "", "{k: one}")
	}
	r, other := h.hooked(t, "pushes", files), h.hooked(t, "other", map[string]string{})
	for n := range beside {
		name := fmt.Sprint("beside-", n)
		r.Kustomization(t, name, "path: ./beside/"+name)
	}
	for _, of := range []*hookRow{r, other} {
		of.Kustomization(t, "app", "")
	}
	rested := func() {
		t.Helper()
		for n := range beside {
			r.Ready(t, fmt.Sprint("beside-", n))
		}
	}
	rested()
	r.Ready(t, "app")
	other.Ready(t, "app")
	quiet := r.measure(t, "quiet", pushes)
	if p99 := quantile(quiet, 0.99); long && p99 > pushed {
		t.Errorf("beside %d Kustomizations the p99 of %d pushes is %s, want %s", beside, pushes, p99, pushed)
	}

	// Pushes to another repository are what forged requests are beside: of those before, a thousand others take note,
	// and on processors that have no time left each further request is slower by more than what it costs. As many before
	// each time of forged requests are what those beside them are compared with: how fast the machine is changes.
	rested()
	var without, beset []time.Duration
	var of forgeries
	each := max(pushes/10, 2)
	for range 4 {
		without = append(without, other.measure(t, "without", each)...)
		f := startForger(t, h.url+r.path)
		beset = append(beset, other.measure(t, "forged", each)...)
		of.add(f.end(t))
	}
	if of.Accepted > 0 {
		t.Errorf("%d forged requests are accepted", of.Accepted)
	} else if rate := float64(of.Sent) / of.Seconds; long && (of.Sent < forgedMost || rate < 0.9*forgedRate) {
		t.Errorf("%d forged requests came, %.0f in a second, want %d and %d", of.Sent, rate, forgedMost, forgedRate)
	}
	before, after := quantile(without, 0.5), quantile(beset, 0.5)
	t.Logf("the median beside forged requests is %s, %.2f times the %s without", after, after.Seconds()/before.Seconds(), before)
	if long && after > before*12/10 {
		t.Errorf("beside forged requests the median is %s, without %s", after, before)
	}
}

// hooked is a repository with these files and the object that pushes change, and a Receiver of its source.
func (h *receivers) hooked(t *testing.T, name string, files map[string]string) *hookRow {
	t.Helper()
	files["app/a.yaml"] = scenario.ConfigMapWith("a", "", "{k: one}")
	r := &hookRow{Row: h.RowNamed(t, name, files), h: h}
	r.Fetched(t)
	h.Apply(t, fmt.Sprintf(`apiVersion: v1
kind: Secret
metadata: {name: hook, namespace: %[1]s}
stringData: {token: %[2]s}
---
apiVersion: notification.toolkit.fluxcd.io/v1
kind: Receiver
metadata: {name: hook, namespace: %[1]s}
spec: {type: github, events: [push], secretRef: {name: hook}, resources: [{kind: GitRepository, name: git}]}
`, r.Namespace, token))
	r.ready(t)
	return r
}

// startReceivers is a tier whose agent serves Receivers. shipped: it is the one that is
// shipped, without the race detector.
func startReceivers(t *testing.T, shipped bool) *receivers {
	t.Helper()
	h := &receivers{}
	if shipped {
		h.Tier = startShipped(t)
	} else {
		h.Tier = scenario.StartTier(t)
	}
	h.RestartAgent(t, "--receiver-addr=$(POD_IP):9292")
	metrics, err := scenario.MetricsAddress(h.MoM)
	if err != nil {
		t.Fatal(err)
	}
	host, _, err := net.SplitHostPort(metrics)
	if err != nil {
		t.Fatal(err)
	}
	h.url = "http://" + net.JoinHostPort(host, "9292")
	return h
}

// startShipped starts a tier with the agent that is shipped.
func startShipped(t *testing.T) *scenario.Tier {
	t.Helper()
	none := filepath.Join(t.TempDir(), "bootstrap.yaml")
	if err := os.WriteFile(none, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := stage.Start(t.Context(), stage.Options{Run: scenario.RunDir(t), Bin: []string{scenario.Path(t, "bin")}, Bootstrap: none, Log: t.Logf})
	if err != nil {
		t.Fatalf("cannot start the stage: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("cannot clean up: %v", err)
		}
	})
	tier := &scenario.Tier{Stage: s}
	if tier.Client, err = s.MoM.Client(); err != nil {
		t.Fatal(err)
	}
	return tier
}

// measure makes pushes, one after the other, and returns how long each took to be an object.
func (r *hookRow) measure(t *testing.T, of string, pushes int) []time.Duration {
	t.Helper()
	const body = `{"ref":"refs/heads/main"}`
	good := []string{"X-Hub-Signature-256", "sha256=" + signature(sha256.New, body), "X-GitHub-Event", "push"}
	seen := r.watch(t)
	defer seen.Stop()
	var took []time.Duration
	turn := time.NewTicker(pushEach)
	defer turn.Stop()
	for i := range pushes {
		<-turn.C
		value := fmt.Sprint(of, i)
		head, err := r.Git.Put(t.Context(), r.Namespace, "main", "Push", map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: "+value+"}")})
		if err != nil {
			t.Fatal(err)
		}
		r.Head = head
		begun := time.Now()
		if status := r.send(t, body, good...); status != http.StatusOK {
			t.Fatalf("push %d is answered with %d", i, status)
		}
		seen.until(t, value)
		took = append(took, time.Since(begun))
	}
	t.Logf("%s: %d pushes, p50 %s, p99 %s, most %s", of, pushes, quantile(took, 0.5), quantile(took, 0.99), slices.Max(took))
	return took
}

// watched is the object that pushes change. Who asked for it every few milliseconds would keep the
// API server as busy as the pushes do.
type watched struct{ watch.Interface }

func (r *hookRow) watch(t *testing.T) watched {
	t.Helper()
	api, err := r.MoM.Watcher()
	if err != nil {
		t.Fatal(err)
	}
	w, err := api.Watch(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(r.Namespace), client.MatchingFields{"metadata.name": "a"})
	if err != nil {
		t.Fatal(err)
	}
	return watched{w}
}

// until waits until the object has a value.
func (w watched) until(t *testing.T, value string) {
	t.Helper()
	late := time.NewTimer(scenario.Converge)
	defer late.Stop()
	for {
		select {
		case e, open := <-w.ResultChan():
			if !open {
				t.Fatal("the watch has ended")
			}
			if o, ok := e.Object.(*corev1.ConfigMap); ok && o.Data["k"] == value {
				return
			}
		case <-late.C:
			t.Fatalf("the object does not get the value %s", value)
		}
	}
}

// quantile of durations.
func quantile(all []time.Duration, q float64) time.Duration {
	all = slices.Sorted(slices.Values(all))
	return all[min(int(q*float64(len(all))), len(all)-1)]
}
