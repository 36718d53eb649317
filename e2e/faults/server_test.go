package faults

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/proxy"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

const (
	// faulty is the share of requests that fail.
	faulty = 0.2
	// overloaded is how long all fail with 429, once in each period.
	overloaded, period = 10 * time.Second, time.Minute
	// commitEach is the pause between two commits.
	commitEach = 2 * time.Second
	// teams is how many Kustomizations there are besides the one that declares them,
	// objects how many each of them has that are always declared.
	teams, objects = 6, 8
	// slow is the number of commits after which a short-lived object comes, one goes, and
	// releases change. More objects than 10 that a Kustomization could not delete for
	// some time would be held until a person decides.
	slow = 5
	// lifetime is how many short-lived objects there are.
	lifetime = 3
)

// TestFaultyServer lets the API server fail a fifth of all requests, in all the ways in
// which API servers do, while commits come: conflicts, 429, 500, answers that never come
// or are lost after the commit, connections that are cut, lists that are old, watches
// that have expired. When it works again, everything is as declared within 30 s. No
// object that is declared was deleted or created again, and under 429 we ask for less.
func TestFaultyServer(t *testing.T) {
	scenario.Alongside(t)
	lasts := 40 * time.Second
	if text := os.Getenv("CASCADE_FAULTS_FOR"); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil || lasts < overloaded {
			t.Fatalf("CASCADE_FAULTS_FOR must be a duration of %s at least, it is %q", overloaded, text)
		}
	}
	s := startStand(t, scenario.Programs(t))
	for _, version := range []string{"1.0.0", "1.1.0"} {
		s.charts.Add(scenario.AppChart("app", version))
	}
	f := &failing{worker: s.worker(t, "w0", "--first-sync=create"), ns: "tier", removed: map[string]time.Time{}}
	f.begin(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	faults := proxy.NewFaults(proxy.FaultOptions{
		Share: faulty, Random: rand.New(rand.NewPCG(seed, seed)), RetryAfter: time.Second, Hang: 40 * time.Second, Stale: 20 * time.Second, Now: time.Now,
	})
	f.proxy.Use(faults)
	rates := f.disturb(t, faults, lasts)
	f.proxy.Use(nil)
	faults.End()
	begin := time.Now()
	if err := await(t.Context(), recovery, f.asDeclared); err != nil {
		t.Errorf("the tier is not as declared: %v", err)
	}
	t.Logf("as declared %s after the faults, at commit %d", time.Since(begin).Round(100*time.Millisecond), f.n)
	counts := faults.Counts()
	t.Logf("%d requests, of which failed: %v", faults.Requests(), counts)
	t.Logf("%.1f requests/s, %.1f under 429", rates.open, rates.under429)
	if rates.under429 >= rates.open {
		t.Errorf("under 429 there are %.1f requests/s, and %.1f otherwise", rates.under429, rates.open)
	}
	if !f.agent.Running() {
		t.Error("the agent has ended")
	}
	f.spared(t)
}

// failing is the tier: a Kustomization that declares others, which declare ConfigMaps,
// and releases.
type failing struct {
	*worker
	ns   string
	head string
	// n is the number of the last commit.
	n    int
	uids map[string]string
	from int64
	// removed is when the commit came that removed an object.
	removed map[string]time.Time
}

// files of a commit.
func (f *failing) files() map[string]string {
	fleet := []string{}
	files := map[string]string{}
	for i := range teams {
		name := fmt.Sprintf("team-%d", i)
		text := kustomization(name, f.ns, f.name)
		if i > 0 {
			text += fmt.Sprintf("  dependsOn: [{name: team-%d}]\n", i-1)
		}
		fleet = append(fleet, text)
		files[name+"/objects.yaml"] = manifests(name, 0, objects, fmt.Sprint(f.n))
		files[name+"/short-lived.yaml"] = manifests("short-"+name, max(0, f.n/slow-lifetime), f.n/slow, "here")
	}
	for _, name := range releases {
		fleet = append(fleet, fmt.Sprintf(`apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: %s, namespace: %s}
spec:
  interval: 10m
  timeout: 1m
  install: {strategy: {name: RetryOnFailure, retryInterval: 1s}}
  upgrade: {strategy: {name: RetryOnFailure, retryInterval: 1s}}
  chart: {spec: {chart: app, version: 1.0.0, sourceRef: {kind: HelmRepository, name: charts}}}
  values: {settings: {value: "%d"}}
`, name, f.ns, f.n/slow))
	}
	files["fleet/fleet.yaml"] = strings.Join(fleet, "---\n")
	return files
}

var releases = []string{"web", "db"}

// begin sets up the tier without faults.
func (f *failing) begin(t *testing.T) {
	t.Helper()
	if err := f.Git.Create(t.Context(), f.ns); err != nil {
		t.Fatal(err)
	}
	f.push(t)
	user, password := f.Git.Login()
	for _, text := range []string{fmt.Sprintf(`apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: v1
kind: Secret
metadata: {name: git-auth, namespace: %[1]s}
stringData: {username: %[2]s, password: %[3]s}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: git, namespace: %[1]s}
spec: {url: %[4]s, ref: {branch: main}, secretRef: {name: git-auth}, interval: 10m}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: HelmRepository
metadata: {name: charts, namespace: %[1]s}
spec: {url: %[5]q, interval: 10m}
`, f.ns, user, password, f.Git.HTTPURL(f.ns), f.charts.URL()), kustomization("fleet", f.ns, f.name)} {
		if err := f.apply(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	if err := await(t.Context(), patience, f.asDeclared); err != nil {
		t.Fatal(err)
	}
	now, err := f.place().sweep(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f.uids = map[string]string{}
	for id := range f.kept() {
		f.uids[id] = now[id].uid
	}
	if f.from, err = f.auditEnd(); err != nil {
		t.Fatal(err)
	}
}

// place is the tier as one that is swept.
func (f *failing) place() *place { return &place{worker: f.worker, ns: f.ns} }

func (f *failing) push(t *testing.T) {
	t.Helper()
	head, err := f.Git.Commit(t.Context(), f.ns, "main", fmt.Sprintf("Change %d", f.n), func(dir string) error { return scenario.WriteFiles(dir, f.files()) })
	if err != nil {
		t.Fatal(err)
	}
	f.head = head
}

// commit makes the next commit and tells the source.
func (f *failing) commit(t *testing.T) {
	t.Helper()
	f.n++
	now := time.Now()
	f.push(t)
	for i := range teams {
		if old := f.n/slow - lifetime - 1; old >= 0 && f.n%slow == 0 {
			f.removed[fmt.Sprintf("configmaps/short-team-%d-%02d", i, old)] = now
		}
	}
	g := &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "git"}}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, fluxmeta.ReconcileRequestAnnotation, f.head)
	if err := f.client.Patch(t.Context(), g, client.RawPatch("application/merge-patch+json", patch)); err != nil {
		t.Fatal(err)
	}
}

// rates are requests per second.
type rates struct{ open, under429 float64 }

// disturb commits for a while, and has the API server overloaded once in each period.
func (f *failing) disturb(t *testing.T, faults *proxy.Faults, lasts time.Duration) rates {
	t.Helper()
	var open, under struct {
		requests int
		time     time.Duration
	}
	begin := time.Now()
	last, seen, on := begin, 0, false
	tick := time.NewTicker(commitEach)
	defer tick.Stop()
	for last.Sub(begin) < lasts {
		select {
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-tick.C:
		}
		f.commit(t)
		now, requests := time.Now(), faults.Requests()
		if on {
			under.requests, under.time = under.requests+requests-seen, under.time+now.Sub(last)
		} else {
			open.requests, open.time = open.requests+requests-seen, open.time+now.Sub(last)
		}
		last, seen = now, requests
		// The end of each period, so that there is something to do.
		on = now.Sub(begin)%period >= min(period, lasts)-overloaded-commitEach && now.Sub(begin)%period < min(period, lasts)-commitEach
		faults.Overload(on)
	}
	return rates{open: float64(open.requests) / open.time.Seconds(), under429: float64(under.requests) / max(1, under.time.Seconds())}
}

// kept are the objects that are always declared, with their values.
func (f *failing) kept() map[string]string {
	all := map[string]string{"kustomizations/fleet": ""}
	for i := range teams {
		name := fmt.Sprintf("team-%d", i)
		all["kustomizations/"+name] = ""
		maps.Copy(all, ids(name, 0, objects, fmt.Sprint(f.n)))
	}
	for _, name := range releases {
		all["configmaps/"+name+"-settings"] = fmt.Sprint(f.n / slow)
		all["helmcharts/"+f.ns+"-"+name] = ""
	}
	return all
}

// declared are all objects of the last commit.
func (f *failing) declared() map[string]string {
	all := f.kept()
	for i := range teams {
		maps.Copy(all, ids(fmt.Sprintf("short-team-%d", i), max(0, f.n/slow-lifetime), f.n/slow, "here"))
	}
	return all
}

// asDeclared is an error until the last commit is in place, and nothing else.
func (f *failing) asDeclared(ctx context.Context) error {
	p := f.place()
	if err := p.applied(ctx, "fleet", f.head); err != nil {
		return err
	}
	for i := range teams {
		if err := p.applied(ctx, fmt.Sprintf("team-%d", i), f.head); err != nil {
			return err
		}
	}
	for _, name := range releases {
		if err := p.released(ctx, name, "1.0.0"); err != nil {
			return err
		}
	}
	now, err := p.sweep(ctx)
	if err != nil {
		return err
	}
	declared := f.declared()
	for id, value := range declared {
		if is, ok := now[id]; !ok || value != "" && is.value != value {
			return fmt.Errorf("%s must have %q, it is %+v", id, value, is)
		}
	}
	for id, is := range now {
		if _, ok := declared[id]; !ok && is.owned {
			return fmt.Errorf("%s is left behind", id)
		}
	}
	return nil
}

// spared fails if an object that was always declared is another now, or the agent
// deleted one that was declared.
func (f *failing) spared(t *testing.T) {
	t.Helper()
	now, err := f.place().sweep(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range slices.Sorted(maps.Keys(f.uids)) {
		if now[id].uid != f.uids[id] {
			t.Errorf("%s had UID %s and has %q", id, f.uids[id], now[id].uid)
		}
	}
	events, _, err := f.plane.Audit(f.from)
	if err != nil {
		t.Fatal(err)
	}
	deletes := 0
	for _, e := range events {
		id := e.ObjectRef.Resource + "/" + e.ObjectRef.Name
		if !e.ByAgent() || !strings.HasPrefix(e.Verb, "delete") || e.ResponseStatus.Code >= 300 || e.ObjectRef.Namespace != f.ns || strings.HasPrefix(id, "secrets/sh.helm.") {
			continue
		}
		deletes++
		if since, ok := f.removed[id]; !ok || e.Received.Before(since) {
			t.Errorf("the agent deleted %s, which is declared", id)
		}
	}
	for _, name := range releases {
		o := &helmv2.HelmRelease{}
		if err := f.place().load(t.Context(), o, name); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("the agent deleted %d objects that were not declared any more", deletes)
}
