package mom

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestMom brings a management cluster up from an empty directory, lets it make an environment,
// and stops it. The environment goes on without it. Another one goes on from the saved state in
// another directory, writes nothing to what is there, and makes a further environment. An old
// state over the newer fleet builds nothing a second time.
func TestMom(t *testing.T) {
	scenario.Alongside(t)
	d := newStand(t)
	began := time.Now()
	first := d.up(t, "first", append(d.keeping(), "--first-sync", "create")...)
	s := first.await(t, "the environment is ready", isReady)
	total, each := resident(t, s)
	t.Logf("ready after %.1f s, with %d MB resident: %v", time.Since(began).Seconds(), total, each)
	production := d.child(t, first.tier(), "production")
	alpha := d.child(t, production, "alpha")
	d.hasItsLayers(t, production, "alpha")
	d.mayGo(t, first)
	d.refusesSecond(t, s)

	first.down(t)
	if left := alive(s); len(left) > 0 {
		t.Errorf("after down, %v run", left)
	}
	old, err := first.status(t)
	if err != nil || old.Phase != "Stopped" || old.State.Unsaved || old.State.Error != "" {
		t.Errorf("after down it says %+v, %v", old, err)
	}
	d.sealed(t)
	running := d.controlPlanes(t)
	d.goesOn(t, production, "first")

	from := map[*stage.Tier]int64{}
	for _, tier := range []*stage.Tier{production, alpha} {
		if _, from[tier], err = tier.Audit(0); err != nil {
			t.Fatal(err)
		}
	}
	began = time.Now()
	second := d.up(t, "second", d.keeping()...)
	second.await(t, "it goes on elsewhere", isReady)
	t.Logf("elsewhere it was ready after %.1f s", time.Since(began).Seconds())
	d.same(t, running)
	for _, tier := range []*stage.Tier{production, alpha} {
		d.unwritten(t, tier, from[tier])
	}
	d.declareStaging(t)
	second.await(t, "a new environment is ready", func(s status) error {
		if got := len(d.controlPlanes(t)); got != len(running)+1 {
			return fmt.Errorf("%d control planes run", got)
		}
		return isReady(s)
	})
	running = d.controlPlanes(t)
	second.down(t)

	third := d.up(t, "third", append(d.keeping(), "--version", old.State.Version)...)
	third.await(t, "the environment that the old state does not have is held", func(s status) error {
		if !slices.ContainsFunc(s.Verdict.Held, func(line string) bool {
			return strings.Contains(line, v1alpha1.ReasonCreateHeld) && strings.Contains(line, "cascade-system/staging")
		}) {
			return fmt.Errorf("held are %q, waiting %q", s.Verdict.Held, s.Verdict.Waiting)
		}
		return nil
	})
	third.await(t, "the environment that it has is adopted", func(s status) error {
		for _, line := range s.Verdict.Waiting {
			if strings.Contains(line, "/production:") {
				return errors.New(line)
			}
		}
		return nil
	})
	d.same(t, running)
	third.down(t)
	d.same(t, running)
	for _, tier := range []*stage.Tier{production, alpha} {
		d.unwritten(t, tier, from[tier])
	}
}

// child is a tier below another one.
func (d *stand) child(t *testing.T, of *stage.Tier, name string) *stage.Tier {
	t.Helper()
	var child *stage.Tier
	scenario.Eventually(t, scenario.BringUp, name+" is there", func(ctx context.Context) (err error) {
		child, err = of.Child(ctx, name)
		return err
	})
	return child
}

// hasItsLayers waits until a parent has written to a child what it is to have.
func (d *stand) hasItsLayers(t *testing.T, parent *stage.Tier, name string) {
	t.Helper()
	c, err := parent.Client()
	if err != nil {
		t.Fatal(err)
	}
	scenario.Eventually(t, scenario.BringUp, name+" has its layers", func(ctx context.Context) error {
		child := &v1alpha1.Child{}
		if err := c.Get(ctx, client.ObjectKey{Namespace: stage.Namespace, Name: name}, child); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.ReadyCondition) {
			return fmt.Errorf("conditions are %s", scenario.Summary(child.Status.Conditions))
		}
		return nil
	})
}

// mayGo: it says so, with the table of children that people know.
func (d *stand) mayGo(t *testing.T, p *process) {
	t.Helper()
	scenario.Eventually(t, patience, "it says that it may go", func(context.Context) error {
		text := p.output.String()
		if !strings.Contains(text, "this mom may go") || !strings.Contains(text, "production") {
			return fmt.Errorf("it printed\n%s", text)
		}
		return nil
	})
	out, err := d.command(t, "status", "--dir", p.dir).Output()
	if err != nil || !strings.Contains(string(out), "ready: it may go") {
		t.Errorf("status: %v\n%s", err, out)
	}
	config, err := d.command(t, "kubeconfig", "--dir", p.dir).Output()
	if err != nil || !strings.Contains(string(config), "https://127.0.0.1:") {
		t.Errorf("kubeconfig: %v", err)
	}
}

// refusesSecond: of two with one state, the second says who has it, and starts nothing.
func (d *stand) refusesSecond(t *testing.T, first status) {
	t.Helper()
	other := d.up(t, "other", d.keeping()...)
	select {
	case <-other.ended:
	case <-time.After(scenario.Converge):
		t.Fatal("a second one runs on the same state")
	}
	text := other.output.String()
	if other.err == nil || !strings.Contains(text, "cannot lock the state") || !strings.Contains(text, fmt.Sprintf("(process %d)", first.PID)) || !strings.Contains(text, "until") {
		t.Errorf("the second says: %v\n%s", other.err, text)
	}
	if _, err := os.Stat(filepath.Join(other.dir, "controlplane")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the second started a control plane: %v", err)
	}
	out, err := d.command(t, slices.Concat([]string{"up", "--dir", filepath.Join(d.run, "first"), "--image", stage.Image}, d.repository())...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "a mom runs in this folder") {
		t.Errorf("a second one in the same folder: %v\n%s", err, out)
	}
}

// sealed: nothing of the state can be read where it is kept.
func (d *stand) sealed(t *testing.T) {
	t.Helper()
	_, password := d.Git.Login()
	archives := 0
	err := filepath.WalkDir(filepath.Join(d.run, "state"), func(file string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if strings.HasSuffix(file, ".age") {
			archives++
		}
		for _, canary := range []string{password, "production", "PRIVATE KEY", "LocalCluster"} {
			if strings.Contains(string(text), canary) {
				t.Errorf("%s has %q", file, canary)
			}
		}
		return nil
	})
	if err != nil || archives == 0 {
		t.Errorf("%d archives are kept: %v", archives, err)
	}
}

// goesOn: a commit to an environment's repository arrives there.
func (d *stand) goesOn(t *testing.T, production *stage.Tier, name string) {
	t.Helper()
	_, err := d.Git.Commit(t.Context(), "env-production", "main", "A note", func(tree string) error {
		return os.WriteFile(filepath.Join(tree, "services", "note-"+name+".yaml"),
			fmt.Appendf(nil, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: note-%s, namespace: cascade-system}\n", name), 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	scenario.Eventually(t, scenario.Converge, "a commit arrives without a management cluster", func(ctx context.Context) error {
		c, err := production.Client()
		if err != nil {
			return err
		}
		return c.Get(ctx, client.ObjectKey{Namespace: stage.Namespace, Name: "note-" + name}, &corev1.ConfigMap{})
	})
}

// unwritten: no parent wrote anything there since. Who takes a child over marks its records,
// so that an old parent finds itself superseded; that is the one thing.
func (d *stand) unwritten(t *testing.T, tier *stage.Tier, from int64) {
	t.Helper()
	events, _, err := tier.Audit(from)
	if err != nil {
		t.Fatal(err)
	}
	marks := 0
	for _, e := range events {
		if !e.ByParent() || !e.Writes() {
			continue
		}
		if e.Verb == "update" && strings.HasPrefix(e.ObjectRef.Name, v1alpha1.RecordPrefix) {
			marks++
			continue
		}
		t.Errorf("%s: its parent wrote at %s: %s %s", tier.Name, e.Received.Format("15:04:05.000"), e.Verb, e.RequestURI)
	}
	t.Logf("%s: %d marks of who the parent is", tier.Name, marks)
}

func (d *stand) declareStaging(t *testing.T) {
	t.Helper()
	_, err := d.Git.Commit(t.Context(), "masters", "main", "Staging", func(tree string) error {
		text, err := os.ReadFile(scenario.Path(t, "e2e", "testdata", "repos", "masters", "clusters", "staging.yaml"))
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(tree, "clusters", "staging.yaml"), text, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestKilled: nothing outlives a management cluster that is killed, and it goes on in its
// folder.
func TestKilled(t *testing.T) {
	scenario.Alongside(t)
	d := newStand(t)
	running := func(s status) error {
		if s.Phase != "Running" || len(s.Programs) < 4 {
			return fmt.Errorf("it is %s, with %d programs", s.Phase, len(s.Programs))
		}
		return nil
	}
	first := d.up(t, "mom", "--first-sync", "adopt")
	s := first.await(t, "it runs", running)
	if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	scenario.Eventually(t, patience, "nothing of it runs", func(context.Context) error {
		if left := alive(s); len(left) > 0 {
			return fmt.Errorf("%v run", left)
		}
		return nil
	})
	said, err := first.status(t)
	if err != nil || said.Phase != "Stopped" || !strings.Contains(said.Message, "without saving") {
		t.Errorf("it says %+v, %v", said, err)
	}
	again := d.up(t, "mom", "--first-sync", "adopt")
	again.await(t, "it goes on", running)
	again.await(t, "the environment is held, as nobody said that it is new", func(s status) error {
		if len(s.Verdict.Held) == 0 {
			return fmt.Errorf("waiting for %q", s.Verdict.Waiting)
		}
		return nil
	})
	// A program that ends is started again.
	manager := 0
	for _, p := range s.Programs {
		if p.Name == "cluster-api" {
			manager = p.PID
		}
	}
	if now, err := again.status(t); err == nil {
		for _, p := range now.Programs {
			if p.Name == "cluster-api" {
				if manager = p.PID; syscall.Kill(p.PID, syscall.SIGKILL) != nil {
					t.Errorf("cannot kill process %d", p.PID)
				}
			}
		}
	}
	again.await(t, "a manager that was killed runs again", func(s status) error {
		for _, p := range s.Programs {
			if p.Name == "cluster-api" && p.PID != 0 && p.PID != manager && p.Restarts == 1 {
				return nil
			}
		}
		return fmt.Errorf("programs are %+v", s.Programs)
	})
	again.down(t)
	if got := d.controlPlanes(t); len(got) != 0 {
		t.Errorf("control planes were made: %v", got)
	}
}
