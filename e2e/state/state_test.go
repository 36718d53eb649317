package state

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/proxy"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
	"github.com/cascade-gitops/cascade/remote/epoch"
	"github.com/cascade-gitops/cascade/state"
	"github.com/cascade-gitops/cascade/state/archive"
	"github.com/cascade-gitops/cascade/state/key"
	"github.com/cascade-gitops/cascade/state/store"
)

// Keys for tests. What they open is made here.
const (
	recipient = "age192trcm4y0u7ednvzpkqeu9huz7d6f4fpt068teg39mydxu8eq35sh0xahu"
	identity  = "AGE-SECRET-KEY-160VVS740ZJTZ3PAYWXUNWNKTMV09KDVP9NVHU76M4S6EY0Q52LKS03H4U3"
	otherKey  = "AGE-SECRET-KEY-19N5WL8JEN5AM6PANRMFYTARTZN342A0Z9W9WT89FE0MN0NJY63VSFMETMW"
)

// many Clusters are saved.
const many = 50

// TestSavedState saves a tier and restores it into an empty one. The restore is killed at its
// writes, before and after the API server carries one out, and goes on: at each in make kill,
// else at every ninth.
func TestSavedState(t *testing.T) {
	scenario.Alongside(t)
	s := startStage(t)
	former, c := stood(t, s, "former", true)
	made{t, c}.tier(many)
	_, end, err := former.Audit(0)
	if err != nil {
		t.Fatal(err)
	}
	saved := saveAndLoad(t, c)
	wrote, _, err := former.Audit(end)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range wrote {
		if strings.HasPrefix(e.UserAgent, "state.test") {
			t.Errorf("what is saved was written to: %s %s", e.Verb, e.RequestURI)
		}
	}
	if n := len(state.Clusters(saved)); n != many {
		t.Fatalf("%d Clusters are saved, of %d", n, many)
	}
	for i := range saved.Objects {
		if u := &saved.Objects[i]; u.GetName() == "of-nobody" || u.GetName() == "cascade-report" || u.GetKind() == "Layer" {
			t.Errorf("%s %s is saved", u.GetKind(), u.GetName())
		}
	}
	tier, empty := stood(t, s, "next", true)
	kills := restoreKilled(t, tier, saved)
	t.Logf("the restore was killed %d times, and has %d objects", kills, len(saved.Objects))
	if kills < len(saved.Objects)/stride() {
		t.Errorf("it was killed %d times only", kills)
	}
	same(t, empty, saved)
	whole(t, tier, empty)

	// Once more changes nothing.
	_, end, err = tier.Audit(0)
	if err != nil {
		t.Fatal(err)
	}
	report, err := state.Restore(t.Context(), empty, saved, state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if n := report.Count(state.Create) + report.Count(state.Update); n != 0 || len(report.Resumed) != 0 {
		t.Errorf("the second restore makes %d objects, and resumes %v", n, report.Resumed)
	}
	if events, _, err := tier.Audit(end); err != nil {
		t.Fatal(err)
	} else if n := writes(events); n != 0 {
		t.Errorf("the second restore writes %d times", n)
	}
	older(t, empty, saved)
}

// saveAndLoad keeps the state of a tier in a directory, and looks for what must not be there.
func saveAndLoad(t *testing.T, c client.Client) *archive.Snapshot {
	t.Helper()
	began := time.Now()
	taken, err := state.Take(t.Context(), c, state.TakeOptions{Program: "test", Warn: func(text string) { t.Error(text) }})
	if err != nil {
		t.Fatal(err)
	}
	to, err := key.Recipients(t.Context(), recipient)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := archive.Seal(taken, to...)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	at, err := store.Open(t.Context(), dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	l, err := at.Lock(t.Context(), "test", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	v, err := at.Save(t.Context(), l, sealed)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("version %s: %d objects in %d bytes, taken and saved in %s", v, len(taken.Objects), len(sealed), time.Since(began).Round(time.Millisecond))
	lines, err := taken.Lines()
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(lines, []byte("Y2FuYXJ5LTNmOWMxYjdl")); n == 0 {
		t.Fatal("what is looked for would not be found")
	}
	err = filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		content, err := os.ReadFile(name)
		for _, text := range []string{canary, "Y2FuYXJ5LTNmOWMxYjdl", "fleet", "LocalCluster"} {
			if bytes.Contains(content, []byte(text)) {
				t.Errorf("%s has %q", e.Name(), text)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := at.Load(t.Context(), v)
	if err != nil {
		t.Fatal(err)
	}
	wrong, err := key.Identities(t.Context(), []byte(otherKey))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := archive.Open(loaded, wrong...); !errors.Is(err, archive.ErrWrongKey) {
		t.Errorf("another key: %v", err)
	}
	right, err := key.Identities(t.Context(), []byte(identity))
	if err != nil {
		t.Fatal(err)
	}
	opened, err := archive.Open(loaded, right...)
	if err != nil {
		t.Fatal(err)
	}
	return opened
}

// stride is how many writes a restore comes to that is killed at the last of them.
func stride() int {
	if os.Getenv("CASCADE_KILLS") == "all" {
		return 1
	}
	return 9
}

// writeKill ends a restore at one of its writes: its context ends, and its connections are cut.
type writeKill struct {
	end   context.CancelFunc
	after bool

	mu sync.Mutex
	// writes are left until that one.
	writes int
	hit    *proxy.Request
	killed bool
}

func (k *writeKill) Before(r *proxy.Request) http.Handler {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.killed:
		return proxy.Cut
	case k.hit != nil || r.Verb == "get" || r.Verb == "list" || r.Verb == "watch" || r.Resource == "":
		return nil
	}
	if k.writes--; k.writes > 0 {
		return nil
	}
	k.hit = r
	if k.after {
		return nil
	}
	k.killed = true
	k.end()
	return proxy.Cut
}

func (k *writeKill) After(r *proxy.Request, _ *http.Response) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r != k.hit {
		return nil
	}
	k.killed = true
	k.end()
	return errors.New("killed")
}

// restoreKilled restores until it comes to its end. Each try is killed at a write, in turns
// before it and after it.
func restoreKilled(t *testing.T, tier *stage.Tier, saved *archive.Snapshot) int {
	t.Helper()
	text, err := os.ReadFile(tier.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	p, err := proxy.Start(text)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	kubeconfig, err := p.Kubeconfig()
	if err != nil {
		t.Fatal(err)
	}
	through, err := tier.Through("through", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	c, err := through.Client()
	if err != nil {
		t.Fatal(err)
	}
	for kills := 0; ; kills++ {
		if kills > 4*len(saved.Objects)+100 {
			t.Fatalf("after %d kills it has not come to its end", kills)
		}
		ctx, end := context.WithCancel(t.Context())
		k := &writeKill{end: end, after: kills%2 == 1, writes: stride()}
		p.Use(k)
		report, err := state.Restore(ctx, c, saved, state.Options{})
		killed := ctx.Err() != nil
		end()
		switch {
		case err == nil && !killed:
			if k.writes == stride() && len(report.Resumed) != 0 {
				t.Errorf("%v are resumed without a write", report.Resumed)
			}
			return kills
		case err != nil && !killed && !errors.As(err, new(*url.Error)):
			// A connection that was cut with the kill before may be found to be so only now.
			t.Fatalf("after %d kills: %v", kills, err)
		case err != nil && !killed:
			kills--
		}
	}
}

// same checks that each object of a state is in a tier, byte for byte.
func same(t *testing.T, c client.Client, saved *archive.Snapshot) {
	t.Helper()
	differences, err := state.Differences(t.Context(), c, saved)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range differences {
		t.Error(d)
	}
}

// whole checks what a comparison does not see.
func whole(t *testing.T, tier *stage.Tier, c client.Client) {
	t.Helper()
	uids := map[types.UID]string{}
	var all []unstructured.Unstructured
	for _, kind := range [][2]string{
		{"cluster.x-k8s.io/v1beta2", "Cluster"}, {"infrastructure.cluster.x-k8s.io/v1alpha1", "LocalCluster"}, {"controlplane.cluster.x-k8s.io/v1alpha1", "LocalControlPlane"},
		{"cluster.x-k8s.io/v1beta2", "MachineDeployment"}, {"cluster.x-k8s.io/v1beta2", "MachineSet"}, {"cluster.x-k8s.io/v1beta2", "Machine"}, {"v1", "Secret"},
	} {
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion(kind[0])
		list.SetKind(kind[1] + "List")
		if err := c.List(t.Context(), list, client.InNamespace("fleet")); err != nil {
			t.Fatal(err)
		}
		all = append(all, list.Items...)
	}
	for i := range all {
		uids[all[i].GetUID()] = all[i].GetKind()
	}
	for i := range all {
		u := &all[i]
		for _, ref := range u.GetOwnerReferences() {
			if uids[ref.UID] != ref.Kind {
				t.Errorf("%s %s has an owner %s %s that is not there", u.GetKind(), u.GetName(), ref.Kind, ref.Name)
			}
		}
		if u.GetKind() != "Cluster" {
			continue
		}
		if paused, _, _ := unstructured.NestedBool(u.Object, "spec", "paused"); paused || u.GetAnnotations()[v1alpha1.RestoringAnnotation] != "" {
			t.Errorf("Cluster %s was not resumed: %v", u.GetName(), u.GetAnnotations())
		}
	}
	record := get(t, c, "v1", "ConfigMap", v1alpha1.AgentNamespace, v1alpha1.FirstSyncConfigMap)
	data, _, _ := unstructured.NestedStringMap(record.Object, "data")
	if data["state"] != v1alpha1.FirstSyncOpen || data["fleet_away"] != "moving" || data["fleet_new"] != "" {
		t.Errorf("the record of the first sync is %v", data)
	}
	if u := get(t, c, v1alpha1.GroupVersion.String(), "Child", "fleet", "by-hand"); u.Object["spec"].(map[string]any)["suspend"] != true {
		t.Error("the Child is not suspended any more")
	}
	events, _, err := tier.Audit(0)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if strings.HasPrefix(e.Verb, "delete") && strings.HasPrefix(e.UserAgent, "state.test") {
			t.Errorf("the restore deletes: %s", e.RequestURI)
		}
	}
}

// writes of the test itself.
func writes(events []stage.AuditEvent) int {
	n := 0
	for _, e := range events {
		if strings.HasPrefix(e.UserAgent, "state.test") && e.Verb != "get" && e.Verb != "list" && e.Verb != "watch" {
			n++
		}
	}
	return n
}

// older restores a state into a tier that went on since: another agent led it, and a Cluster
// was removed.
func older(t *testing.T, c client.Client, saved *archive.Snapshot) {
	t.Helper()
	if _, err := epoch.NewTier(c, v1alpha1.AgentNamespace, "the-next-agent").Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	u := get(t, c, "cluster.x-k8s.io/v1beta2", "Cluster", "fleet", "c03")
	u.SetFinalizers(nil)
	if err := c.Update(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	_, err := state.Restore(t.Context(), c, saved, state.Options{})
	var refused *state.RefusedError
	if !errors.Is(err, state.ErrRefused) || !errors.As(err, &refused) || refused.Steps[0].Reason != state.ReasonOlder {
		t.Fatalf("a state of before is restored: %v", err)
	}
	report, err := state.Restore(t.Context(), c, saved, state.Options{Older: true})
	if err != nil {
		t.Fatal(err)
	}
	if n := report.Count(state.Create); n != 0 {
		t.Errorf("a state of before makes %d objects", n)
	}
	err = c.Get(t.Context(), client.ObjectKeyFromObject(u), u)
	if !apierrors.IsNotFound(err) {
		t.Errorf("the Cluster that was removed is there again: %v", err)
	}
}
