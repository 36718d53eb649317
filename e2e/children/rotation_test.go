package children

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/api/clusterapi"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// Times of a rotation, as of a provider that hands out tokens of a short life.
const (
	rotateEvery = 10 * time.Second
	// notUsedAfter is how long an agent may use the token before, which is still
	// accepted until revokedAfter.
	notUsedAfter = 5 * time.Second
	revokedAfter = 8 * time.Second
	// dismissedAfter is when the parent's own account goes, in every second
	// rotation: then the newest token of the provider is the only way in.
	dismissedAfter = 3 * time.Second
)

// rotation replaces the kubeconfig of a cluster every ten seconds, while commits
// keep coming. CASCADE_ROTATIONS says how often.
func rotation(h *hub, t *testing.T) {
	n := times(t, "CASCADE_ROTATIONS", 6)
	f := h.fleet(t, "rotation", map[string]string{"app/note.yaml": noteNamed("note", "version", "0")})
	p := h.plane(t, "rotation")
	f.layer(t, "app", "c")
	f.declare(t, "c")
	f.report(t, "c", initialized)
	current := p.issue(t)
	f.handOver(t, "c", current.kubeconfig)
	f.ready(t, "c", "")
	from := p.now(t)
	said := f.keep(t)

	replaced := map[string]time.Time{} // when, by the id of the token
	dismissed, commits := 0, 0
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for i := range n {
		next, begin := p.issue(t), time.Now()
		f.handOver(t, "c", next.kubeconfig)
		replaced[current.id] = time.Now()
		gone, revoked := i%2 == 0, false
		for time.Since(begin) < rotateEvery {
			commits++
			f.commit(t, map[string]string{"app/note.yaml": noteNamed("note", "version", fmt.Sprint(commits))})
			if !gone && time.Since(begin) >= dismissedAfter {
				p.dismiss(t)
				gone = true
				dismissed++
			}
			if !revoked && time.Since(begin) >= revokedAfter {
				p.revoke(t, current)
				revoked = true
			}
			<-tick.C
		}
		if !revoked {
			p.revoke(t, current)
		}
		current = next
	}
	p.has(t, "note", "version", fmt.Sprint(commits))
	f.ready(t, "c", "")

	for _, c := range said.complaints() {
		t.Error(c)
	}
	asked, used := 0, map[string]bool{}
	for _, e := range p.requests(t, from) {
		asked++
		used[e.Credential()] = true
		if at, old := replaced[e.Credential()]; old && e.Received.Sub(at) > notUsedAfter {
			t.Errorf("%s %s came with a token that had been replaced %.1f s before", e.Verb, e.RequestURI, e.Received.Sub(at).Seconds())
		}
	}
	// Each dismissal is noticed by a few requests that are on their way at once;
	// a replaced token is not noticed at all.
	refused := len(p.refused(t, from))
	if refused > 8*dismissed {
		t.Errorf("%d requests were refused, %d accounts were dismissed", refused, dismissed)
	}
	if dismissed == 0 || len(used) < dismissed {
		t.Errorf("%d accounts were dismissed and %d tokens used; the test does not see what it is about", dismissed, len(used))
	}
	t.Logf("%d rotations, %d commits, %d requests with %d tokens, %d accounts dismissed, %d requests refused, %d complaints",
		n, commits, asked, len(used), dismissed, refused, len(said.complaints()))
}

// recreation has a cluster replaced by another one of the same name, again and
// again. CASCADE_RECREATIONS says how often.
func recreation(h *hub, t *testing.T) {
	n := times(t, "CASCADE_RECREATIONS", 2)
	files := map[string]string{}
	for i := range 10 {
		files[fmt.Sprintf("app/note-%d.yaml", i)] = noteNamed(fmt.Sprintf("note-%d", i), "uid", "${cluster_uid}")
	}
	f := h.fleet(t, "recreation", files)
	f.layer(t, "app", "c")
	var slowest time.Duration
	var p *plane
	for i := range n + 1 {
		old := p
		p = h.plane(t, fmt.Sprintf("recreated-%d", i))
		var attempts *connections
		if old != nil {
			f.dropCluster(t, "c", i%2 == 0)
			attempts = old.replaceByListener(t)
		}
		uid := string(f.declare(t, "c").GetUID())
		f.report(t, "c", initialized)
		f.handOver(t, "c", p.issue(t).kubeconfig)
		start := time.Now()
		for note := range files {
			p.has(t, strings.TrimSuffix(strings.TrimPrefix(note, "app/"), ".yaml"), "uid", uid)
		}
		took := time.Since(start)
		t.Logf("cluster %d had its layer %.1f s after it was ready", i, took.Seconds())
		slowest = max(slowest, took)
		var identity *string
		scenario.Eventually(t, scenario.Converge, "the new cluster is ready", func(ctx context.Context) error {
			child, err := f.child(ctx, "c")
			if err != nil {
				return err
			}
			if child.Status.Identity == nil || child.Status.Identity.ClusterUID != uid || len(child.Status.Layers) != 1 || !child.Status.Layers[0].Ready {
				return fmt.Errorf("identity is %v, conditions are %s", child.Status.Identity, scenario.Summary(child.Status.Conditions))
			}
			r, err := p.record(ctx, f.name, child.Status.Layers[0].Name)
			if err != nil {
				return err
			}
			if got := len(r.Inventory); got != len(files) {
				return fmt.Errorf("the inventory has %d objects", got)
			}
			identity = &child.Status.Identity.KubeSystemUID
			return nil
		})
		ns := &corev1.Namespace{}
		if err := p.client.Get(t.Context(), client.ObjectKey{Name: "kube-system"}, ns); err != nil || string(ns.UID) != *identity {
			t.Fatalf("the recorded identity is %s, the cluster's %s: %v", *identity, ns.UID, err)
		}
		attempts.none(t)
	}
	t.Logf("%d re-creations, the slowest had its layer %.1f s after it was ready", n, slowest.Seconds())
}

// dropCluster ends a Cluster as Cluster API does: its kubeconfig may go later,
// with the garbage.
func (f *fleet) dropCluster(t *testing.T, name string, withSecret bool) {
	t.Helper()
	if err := f.client.Delete(t.Context(), f.cluster(t, name)); err != nil {
		t.Fatal(err)
	}
	if withSecret {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.name, Name: clusterapi.KubeconfigSecret(name)}}
		if err := f.client.Delete(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
	}
	f.release(t, name)
}

// release takes Cluster API's finalizer off, after which nothing may hold the
// Cluster.
func (f *fleet) release(t *testing.T, name string) {
	t.Helper()
	cluster := f.cluster(t, name)
	if got := cluster.GetFinalizers(); len(got) != 1 || got[0] != clusterFinalizer {
		t.Errorf("the Cluster has finalizers %v", got)
	}
	f.patch(t, cluster, map[string]any{"metadata": map[string]any{"finalizers": nil}})
	if err := f.client.Get(t.Context(), client.ObjectKeyFromObject(cluster), cluster); !apierrors.IsNotFound(err) {
		t.Errorf("the Cluster is still there, or cannot be read: %v", err)
	}
}

// connections counts connections to a port that nobody should know any more.
type connections struct{ count atomic.Int64 }

// replaceByListener ends a control plane and listens in its place.
func (p *plane) replaceByListener(t *testing.T) *connections {
	t.Helper()
	config, err := p.Config()
	if err != nil {
		t.Fatal(err)
	}
	server, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := &connections{}
	l, err := net.Listen("tcp", server.Host)
	if err != nil {
		t.Fatalf("cannot listen in place of a control plane: %v", err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			connection, err := l.Accept()
			if err != nil {
				return
			}
			c.count.Add(1)
			_ = connection.Close()
		}
	}()
	return c
}

// none fails the test if somebody connects from now on, until it ends.
func (c *connections) none(t *testing.T) {
	if c == nil {
		return
	}
	before := c.count.Load()
	t.Cleanup(func() {
		if after := c.count.Load(); after > before {
			t.Errorf("the agent still dialled a cluster that is gone, %d times", after-before)
		}
	})
}

// deletion deletes clusters in the middle of a push, every second one with an API
// server that does not answer. CASCADE_DELETIONS says how many.
func deletion(h *hub, t *testing.T) {
	const size = 40
	content := func(version int) map[string]string {
		files := map[string]string{}
		for i := range size {
			files[fmt.Sprintf("app/note-%02d.yaml", i)] = noteNamed(fmt.Sprintf("note-%02d", i), "version", fmt.Sprint(version), "cluster", "${cluster_name}")
		}
		return files
	}
	f := h.fleet(t, "deletion", content(0))
	f.define(t, "{apiVersion: cascade.dev/v1alpha1, kind: Layer, metadata: {name: app}, spec: {clusterSelector: {matchExpressions: [{key: cluster, operator: Exists}]}, "+
		"sourceRef: {kind: GitRepository, name: fleet}, path: ./app}}")
	p := h.plane(t, "deletion")
	// Beside other tests the news of a deletion takes longer to reach the agent than a
	// write. The long form has the machine for itself.
	const short = 6
	n, news := times(t, "CASCADE_DELETIONS", short), time.Duration(0)
	if n == short {
		news = time.Second
	}
	var slowest time.Duration
	inFlight := 0
	for i := range n {
		name := fmt.Sprintf("c-%03d", i)
		f.declare(t, name)
		f.report(t, name, initialized)
		f.handOver(t, name, p.issue(t).kubeconfig)
		f.ready(t, name, "")
		from := p.now(t)
		f.commit(t, content(i+1))
		scenario.Eventually(t, scenario.Converge, "a push is on its way", func(context.Context) error {
			if len(p.writes(t, from)) == 0 {
				return errors.New("nothing was written")
			}
			return nil
		})
		var revive func()
		switch i % 4 {
		case 1:
			if err := p.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			revive = func() {
				if err := p.Signal(syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
			}
		case 3:
			if err := p.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			revive = func() {
				if err := p.StartControlPlane(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := f.client.Delete(t.Context(), f.cluster(t, name)); err != nil {
			t.Fatal(err)
		}
		deleted := time.Now()
		scenario.Eventually(t, scenario.Converge, "the Child of a deleted Cluster goes", func(ctx context.Context) error {
			child, err := f.child(ctx, name)
			if err == nil {
				return fmt.Errorf("conditions are %s", scenario.Summary(child.Status.Conditions))
			}
			return client.IgnoreNotFound(err)
		})
		gone := time.Now()
		slowest = max(slowest, gone.Sub(deleted))
		scenario.Eventually(t, scenario.Converge, name+" is not among the metrics", func(ctx context.Context) error {
			metrics, err := h.agent.Read(ctx, "/metrics")
			if err != nil {
				return err
			}
			for line := range strings.Lines(metrics) {
				if strings.Contains(line, `"`+name+`"`) && strings.Contains(line, `"`+f.name+`"`) {
					return errors.New(line)
				}
			}
			return nil
		})
		if revive != nil {
			revive()
			scenario.Eventually(t, scenario.Converge, "the control plane answers", func(ctx context.Context) error {
				return p.client.Get(ctx, client.ObjectKey{Name: "kube-system"}, &corev1.Namespace{})
			})
		}
		// A commit would write, and make the Child come back, if anything did.
		f.fetched(t, f.commit(t, content(-1)))
		if _, err := f.child(t.Context(), name); !apierrors.IsNotFound(err) {
			t.Errorf("the Child of a Cluster that is being deleted is there, or cannot be read: %v", err)
		}
		f.release(t, name)
		late := 0
		for _, e := range p.requests(t, from) {
			switch {
			case e.Writes() && e.Received.After(deleted.Add(news)):
				late++
				t.Logf("%s: %s %s was received %.3f s after the deletion", name, e.Verb, e.RequestURI, e.Received.Sub(deleted).Seconds())
			case e.Received.After(gone) && revive == nil:
				t.Errorf("%s was asked %.3f s after its Child had gone: %s %s", name, e.Received.Sub(gone).Seconds(), e.Verb, e.RequestURI)
			}
		}
		if late > 1 {
			t.Errorf("%s was written to %d times after its deletion", name, late)
		}
		inFlight += late
	}
	t.Logf("%d deletions, the slowest Child was gone after %.1f s, %d writes were in flight", n, slowest.Seconds(), inFlight)
}

// TestRotationLeak replaces kubeconfigs, by others of the same server and by such
// of another name of it. CASCADE_LEAK_ROTATIONS says how often.
func TestRotationLeak(t *testing.T) {
	scenario.Alongside(t)
	n := times(t, "CASCADE_LEAK_ROTATIONS", 50)
	h := startHub(t, "v1beta2")
	f := h.fleet(t, "leak", map[string]string{"app/note.yaml": noteNamed("note", "version", "0")})
	p := h.plane(t, "leak")
	f.layer(t, "app", "c")
	f.declare(t, "c")
	f.report(t, "c", initialized)
	current := p.issue(t)
	f.handOver(t, "c", current.kubeconfig)
	f.ready(t, "c", "")
	rotate := func(i int) {
		next := p.issue(t)
		kubeconfig := next.kubeconfig
		if i%3 == 0 {
			kubeconfig = p.elsewhere(t, kubeconfig)
		}
		f.handOver(t, "c", kubeconfig)
		f.reconciled(t, "c")
		p.revoke(t, current)
		if i%10 == 0 {
			p.dismiss(t)
			sha := f.commit(t, map[string]string{"app/note.yaml": noteNamed("note", "version", fmt.Sprint(i+1))})
			p.has(t, "note", "version", fmt.Sprint(i+1))
			f.ready(t, "c", sha)
		}
		current = next
	}
	warm := max(10, n/10)
	for i := range warm {
		rotate(i)
	}
	before := h.size(t)
	for i := range n {
		rotate(warm + i)
	}
	f.ready(t, "c", "")
	var after agentSize
	// Connections that were given up close in their own time.
	scenario.Eventually(t, scenario.Converge, "the agent is as large as before", func(context.Context) error {
		after = h.size(t)
		if after.goroutines > before.goroutines+10 || after.files > before.files+5 || after.heap > before.heap*1.25+4e6 {
			return fmt.Errorf("it was %v, it is %v", before, after)
		}
		return nil
	})
	t.Logf("%d rotations: the agent was %v, it is %v", n, before, after)
}

// elsewhere is a kubeconfig with another name of the same server.
func (p *plane) elsewhere(t *testing.T, kubeconfig []byte) []byte {
	t.Helper()
	return changed(t, kubeconfig, func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
		c.Server = strings.Replace(c.Server, "127.0.0.1", "localhost", 1)
	})
}

type agentSize struct {
	goroutines, files, heap float64
}

func (s agentSize) String() string {
	return fmt.Sprintf("%.0f goroutines, %.0f open files, %.1f MB of heap", s.goroutines, s.files, s.heap/1e6)
}

// size measures the agent after a collection of garbage.
func (h *hub) size(t *testing.T) agentSize {
	t.Helper()
	if _, err := h.agent.Profile(t.Context(), "heap?gc=1"); err != nil {
		t.Fatal(err)
	}
	var s agentSize
	for name, into := range map[string]*float64{"go_goroutines": &s.goroutines, "process_open_fds": &s.files, "go_memstats_heap_alloc_bytes": &s.heap} {
		var err error
		if *into, err = h.agent.Metric(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	return s
}
