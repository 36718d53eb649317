package safety

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestArmour walks at random through what people and faults do to a fleet in Git,
// against a real agent, API server and Git, and holds the audit log against a small
// model of what may be deleted: a Cluster that a person confirmed, in an earlier
// commit or by hand, and that a later commit does not declare; a workload that some
// commit did not declare. In the end everything is as Git says, and nothing else is
// left.
//
// CASCADE_ARMOUR_OPERATIONS is how many operations, CASCADE_ARMOUR_SEED repeats a
// walk.
func TestArmour(t *testing.T) {
	scenario.Alongside(t)
	operations, seed := 150, time.Now().UnixNano()
	for name, set := range map[string]func(n int64){
		"CASCADE_ARMOUR_OPERATIONS": func(n int64) { operations = int(n) }, "CASCADE_ARMOUR_SEED": func(n int64) { seed = n },
	} {
		if text := os.Getenv(name); text != "" {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			set(n)
		}
	}
	t.Logf("%d operations, CASCADE_ARMOUR_SEED=%d", operations, seed)
	w := newWalk(t, startArmour(t), rand.New(rand.NewPCG(uint64(seed), 1)))
	begin := time.Now()
	for done := 0; done < operations; {
		n := min(6+w.random.IntN(8), operations-done)
		for range n {
			w.step(t)
		}
		done += n
		w.settle(t)
		if t.Failed() {
			t.Fatalf("after %d operations, the last were: %s", done, strings.Join(w.log[max(0, len(w.log)-2*n):], "; "))
		}
	}
	w.finish(t)
	t.Logf("%d operations in %s: %v; %d deletes of Cluster API's objects by the agent, all of them confirmed", operations, time.Since(begin).Round(time.Second), w.counts, w.deleted)
}

// declaration of one cluster in Git.
type declaration struct {
	// dir is of the Kustomization that applies it.
	dir string
	// confirmed: its objects carry the confirmation.
	confirmed bool
	// empty: the HelmRelease renders no Cluster.
	empty bool
	// revision of its workload.
	revision int
}

// walk is the world, and the model of it.
type walk struct {
	*scenario.Row
	a      *armour
	random *rand.Rand
	log    []string
	counts map[string]int
	tree   string
	// declared is what the last commit says, history what those before said.
	declared map[string]declaration
	history  []map[string]declaration
	// sure are clusters whose deletion a person confirmed since the last settling,
	// or that were confirmed then; missing are those that some commit since did not
	// declare, or that were not declared then.
	sure, missing map[string]bool
	// parts are clusters whose AWSCluster a person confirmed by hand. It outlives the
	// Cluster, and so does what was said of it.
	parts map[string]bool
	// byHand are confirmations that are on the live objects and not in Git.
	byHand map[string]bool
	from   int64
	// gitDown and locked are faults that settling ends.
	gitDown, locked bool
	deleted         int
}

var (
	clusterNames = []string{"c0", "c1", "c2", "c3", "c4", "c5"}
	releaseNames = []string{"r0", "r1"}
	walkDirs     = []string{"fleet", "annex"}
)

func isOfRelease(name string) bool { return name[0] == 'r' }

func newWalk(t *testing.T, a *armour, random *rand.Rand) *walk {
	t.Helper()
	w := &walk{
		Row: a.RowNamed(t, "model", map[string]string{"README": "a fleet"}), a: a, random: random, tree: t.TempDir(), counts: map[string]int{},
		declared: map[string]declaration{}, sure: map[string]bool{}, parts: map[string]bool{}, missing: map[string]bool{}, byHand: map[string]bool{},
	}
	(&scenario.HelmRow{Row: w.Row, Helm: a.HelmTier}).MakeSource(t, "HelmRepository", "charts", "{url: \""+a.Charts.URL()+"\", interval: 10m}")
	for _, name := range []string{"c0", "c1", "r0"} {
		w.declared[name] = declaration{dir: "fleet"}
	}
	w.declared["c2"] = declaration{dir: "annex"}
	w.commitTree(t, "Begin")
	for _, dir := range walkDirs {
		w.Kustomization(t, dir, "{interval: 3s}")
	}
	w.settle(t)
	return w
}

// file is the declaration of a cluster as Git has it.
func (d declaration) file(name string) string {
	annotations := ""
	if d.confirmed {
		annotations = ", annotations: {cascade.dev/deletion: confirmed}"
	}
	workload := scenario.ConfigMapWith("w-"+name, "", fmt.Sprintf("{revision: %q}", fmt.Sprint(d.revision)))
	if !isOfRelease(name) {
		return clusterOf(name, annotations) + "---\n" + awsCluster(name, annotations) + "---\n" + workload
	}
	values := fmt.Sprintf("settings: {color: %q}", fmt.Sprint(d.revision))
	if !d.empty {
		values += fmt.Sprintf(", objects: [{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, metadata: {name: %s}, spec: {clusterNetwork: {serviceDomain: cluster.local}}}]", name)
	}
	return fmt.Sprintf(`apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: %s%s}
spec:
  interval: 5s
  timeout: 1m
  chart: {spec: {chart: app, version: 1.0.0, sourceRef: {kind: HelmRepository, name: charts}}}
  values: {%s}
`, name, annotations, values) + "---\n" + workload
}

// commitTree commits what is declared and updates the model.
func (w *walk) commitTree(t *testing.T, message string) {
	t.Helper()
	for _, dir := range walkDirs {
		dir = filepath.Join(w.tree, dir)
		if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, ".keep"), nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for name, d := range w.declared {
		if err := os.WriteFile(filepath.Join(w.tree, d.dir, name+".yaml"), []byte(w.Fill(d.file(name))), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	w.git(t, "add", "--all")
	w.git(t, "commit", "--quiet", "--allow-empty", "--message="+message)
	w.Head = w.git(t, "rev-parse", "HEAD")
	w.history = append(w.history, maps.Clone(w.declared))
	for _, name := range slices.Concat(clusterNames, releaseNames) {
		d, ok := w.declared[name]
		if !ok || d.empty {
			w.missing[name] = true
		}
		if ok && d.confirmed {
			w.sure[name] = true
		}
	}
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// any name that is, or is not, declared; "" if there is none.
func (w *walk) name(declared bool) string {
	var names []string
	for _, name := range slices.Concat(clusterNames, releaseNames) {
		if _, ok := w.declared[name]; ok == declared {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return pick(w.random, names)
}

// step does one operation. One that makes no sense at the moment says so by
// nothing, and another is drawn.
func (w *walk) step(t *testing.T) {
	t.Helper()
	operations := []struct {
		what   string
		weight int
		do     func(t *testing.T) string
	}{
		{"declare", 14, w.opDeclare}, {"change", 10, w.opChange}, {"confirm", 12, w.opConfirm}, {"withdraw", 6, w.opWithdraw}, {"remove", 16, w.opRemove},
		{"delete directory", 3, w.opDeleteDirectory}, {"revert", 5, w.opRevert}, {"hand over", 6, w.opHandOver}, {"empty release", 4, w.opEmptyRelease},
		{"kill", 2, w.opKill}, {"Git down", 2, w.opGitDown}, {"API server paused", 1, w.opPause}, {"rotate", 3, w.opRotate}, {"re-create", 3, w.opRecreate},
		{"approve", 6, w.opApprove}, {"confirm by hand", 3, w.opConfirmByHand}, {"move", 2, w.opMove}, {"ask", 2, w.opAsk},
	}
	all := 0
	for _, op := range operations {
		all += op.weight
	}
	for {
		at := w.random.IntN(all)
		for _, op := range operations {
			if at -= op.weight; at >= 0 {
				continue
			}
			if said := op.do(t); said != "" {
				w.counts[op.what]++
				w.log = append(w.log, op.what+" "+said)
				return
			}
			break
		}
	}
}

// commits changes what is declared and commits it.
func (w *walk) commits(t *testing.T, name string, change func(d *declaration)) string {
	t.Helper()
	if name == "" {
		return ""
	}
	d := w.declared[name]
	change(&d)
	w.declared[name] = d
	w.commitTree(t, "Change "+name)
	return name
}

func (w *walk) opDeclare(t *testing.T) string {
	return w.commits(t, w.name(false), func(d *declaration) { d.dir = pick(w.random, walkDirs) })
}

func (w *walk) opChange(t *testing.T) string {
	return w.commits(t, w.name(true), func(d *declaration) { d.revision++ })
}

func (w *walk) opConfirm(t *testing.T) string {
	return w.commits(t, w.name(true), func(d *declaration) { d.confirmed = true })
}

func (w *walk) opWithdraw(t *testing.T) string {
	return w.commits(t, w.name(true), func(d *declaration) { d.confirmed = false })
}

// opHandOver moves a declaration to the other Kustomization. The one that it leaves
// may be there first, and sees a removal: what is protected, and what stands beside
// it, stays in any case.
func (w *walk) opHandOver(t *testing.T) string {
	name := w.name(true)
	return w.commits(t, name, func(d *declaration) {
		d.dir = walkDirs[1-slices.Index(walkDirs, d.dir)]
		w.missing[name] = w.missing[name] || d.confirmed || d.empty || w.sure[name]
	})
}

func (w *walk) opEmptyRelease(t *testing.T) string {
	name := w.name(true)
	if name == "" || !isOfRelease(name) {
		return ""
	}
	return w.commits(t, name, func(d *declaration) { d.empty = !d.empty })
}

func (w *walk) opRemove(t *testing.T) string {
	name := w.name(true)
	if name == "" {
		return ""
	}
	delete(w.declared, name)
	w.commitTree(t, "Remove "+name)
	return name
}

func (w *walk) opDeleteDirectory(t *testing.T) string {
	dir := pick(w.random, walkDirs)
	maps.DeleteFunc(w.declared, func(_ string, d declaration) bool { return d.dir == dir })
	w.commitTree(t, "Delete "+dir)
	return dir
}

func (w *walk) opRevert(t *testing.T) string {
	back := 1 + w.random.IntN(5)
	if len(w.history) <= back {
		return ""
	}
	w.declared = maps.Clone(w.history[len(w.history)-1-back])
	w.commitTree(t, "Revert")
	return fmt.Sprintf("by %d", back)
}

func (w *walk) opKill(*testing.T) string {
	pid := w.MoM.Agent()
	if pid == 0 || syscall.Kill(pid, syscall.SIGKILL) != nil {
		return ""
	}
	return "the agent"
}

func (w *walk) opGitDown(t *testing.T) string {
	if w.gitDown {
		return ""
	}
	if err := os.Rename(w.repository(), w.repository()+".down"); err != nil {
		t.Fatal(err)
	}
	w.gitDown = true
	return "until it settles"
}

// opPause stops the control plane in its tracks for a moment.
func (w *walk) opPause(t *testing.T) string {
	if err := w.MoM.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	pause := time.NewTimer(time.Duration(200+w.random.IntN(1500)) * time.Millisecond)
	select {
	case <-pause.C:
	case <-t.Context().Done():
	}
	if err := w.MoM.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	return "for a moment"
}

// opRotate changes the password of Git to a wrong one, and back.
func (w *walk) opRotate(t *testing.T) string {
	w.locked = !w.locked
	_, password := w.Git.Login()
	if w.locked {
		password = "wrong"
	}
	w.password(t, password)
	w.Ask(t, &sourcev1.GitRepository{}, "git")
	return fmt.Sprintf("to a wrong one: %t", w.locked)
}

func (w *walk) password(t *testing.T, password string) {
	t.Helper()
	w.Patch(t, &corev1.Secret{}, "git-auth", fmt.Sprintf(`{"stringData":{"password":%q}}`, password))
}

// live is a Cluster as it is; nil if there is none.
func (w *walk) live(t *testing.T, name string) client.Object {
	t.Helper()
	u := stage.Object(clusterVersion, "Cluster")
	if err := w.Load(t.Context(), u, w.Namespace, name); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		t.Fatal(err)
	}
	return u
}

// person deletes a Cluster with an annotation that lets him. Nothing of what was
// confirmed before counts for the next one of that name.
func (w *walk) person(t *testing.T, annotation, value string) string {
	t.Helper()
	name := pick(w.random, clusterNames)
	o := w.live(t, name)
	if o == nil {
		return ""
	}
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, annotation, value))
	if annotation == v1alpha1.DeletionAnnotation {
		w.sure[name] = true
	}
	if err := w.Client.Patch(t.Context(), o, patch); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	// The agent may have been there before, where nothing declares it any more.
	if err := w.Client.Delete(t.Context(), o, client.Preconditions{UID: new(o.GetUID())}); client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		t.Fatal(err)
	}
	delete(w.byHand, name)
	return name
}

func (w *walk) opRecreate(t *testing.T) string {
	return w.person(t, v1alpha1.DeletionAnnotation, v1alpha1.DeletionConfirmed)
}

// opMove deletes a Cluster as clusterctl move does. What is declared of it is not
// created again before a person says so, which settling does.
func (w *walk) opMove(t *testing.T) string {
	return w.person(t, "clusterctl.cluster.x-k8s.io/delete-for-move", "")
}

func (w *walk) opConfirmByHand(t *testing.T) string {
	name := pick(w.random, clusterNames)
	if !w.confirm(t, name) {
		return ""
	}
	return name
}

// confirm sets the confirmation on what is there of a cluster.
func (w *walk) confirm(t *testing.T, name string) (found bool) {
	t.Helper()
	objects := []client.Object{stage.Object(clusterVersion, "Cluster"), stage.Object(awsVersion, "AWSCluster")}
	if isOfRelease(name) {
		objects = []client.Object{stage.Object(clusterVersion, "Cluster"), &helmv2.HelmRelease{}}
	}
	w.sure[name], w.byHand[name], w.parts[name] = true, true, !isOfRelease(name)
	for _, o := range objects {
		o.SetNamespace(w.Namespace)
		o.SetName(name)
		err := w.Client.Patch(t.Context(), o, client.RawPatch("application/merge-patch+json",
			fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.DeletionAnnotation, v1alpha1.DeletionConfirmed)))
		if client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		found = found || err == nil
	}
	return found
}

// opApprove releases what a Kustomization holds.
func (w *walk) opApprove(t *testing.T) string {
	dir := pick(w.random, walkDirs)
	k, err := w.Read(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	hash := heldHash(k.Status.Conditions)
	if hash == "" {
		return ""
	}
	w.Patch(t, &kustomizev1.Kustomization{}, dir, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.ApprovePruneAnnotation, hash))
	return dir + " " + hash
}

func (w *walk) opAsk(t *testing.T) string {
	dir := pick(w.random, walkDirs)
	w.Ask(t, &kustomizev1.Kustomization{}, dir)
	return dir
}

func (w *walk) repository() string {
	return filepath.Join(filepath.Dir(w.MoM.Dir), "git", w.Namespace+".git")
}

func (w *walk) git(t *testing.T, args ...string) string {
	t.Helper()
	repository := w.repository()
	if w.gitDown {
		repository += ".down"
	}
	return runGit(t, append([]string{"--git-dir=" + repository, "--work-tree=" + w.tree}, args...)...)
}

// heal ends faults.
func (w *walk) heal(t *testing.T) {
	t.Helper()
	if w.gitDown {
		w.gitDown = false
		if err := os.Rename(w.repository()+".down", w.repository()); err != nil {
			t.Fatal(err)
		}
	}
	if w.locked {
		w.locked = false
		_, password := w.Git.Login()
		w.password(t, password)
	}
	w.Ask(t, &sourcev1.GitRepository{}, "git")
}

// settle ends all faults and waits until the agent has done for the last commit
// what it will do. Then the audit log is held against the model.
func (w *walk) settle(t *testing.T) {
	t.Helper()
	w.heal(t)
	scenario.Eventually(t, 2*scenario.Converge, "the last commit is dealt with", func(ctx context.Context) error {
		if err := w.dealtWith(ctx); err != nil {
			return err
		}
		return w.inPlace(ctx)
	})
	w.audit(t)
	// From here on what is known is what is so now.
	for _, name := range slices.Concat(clusterNames, releaseNames) {
		d, ok := w.declared[name]
		if w.live(t, name) == nil {
			delete(w.byHand, name)
		}
		part := stage.Object(awsVersion, "AWSCluster")
		if err := w.Client.Get(t.Context(), client.ObjectKey{Namespace: w.Namespace, Name: name}, part); apierrors.IsNotFound(err) {
			delete(w.parts, name)
		} else if err != nil {
			t.Fatal(err)
		}
		w.missing[name] = !ok || d.empty
		w.sure[name] = ok && d.confirmed || w.byHand[name] || !ok && w.sure[name]
	}
}

// dealtWith: both Kustomizations have an answer to the last commit.
func (w *walk) dealtWith(ctx context.Context) error {
	for _, dir := range walkDirs {
		k, err := w.Read(ctx, dir)
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(k.Status.Conditions, fluxmeta.ReadyCondition)
		if c != nil && c.Reason == v1alpha1.ReasonCreateHeld {
			// It may have been done by now, which is told by an error.
			_, err := w.Run(ctx, "cascade", "approve", "create", "--all", "--kubeconfig", w.MoM.Kubeconfig())
			return errors.Join(err, fmt.Errorf("%s: conditions are %s", dir, scenario.Summary(k.Status.Conditions)))
		}
		if c == nil || !strings.HasSuffix(k.Status.LastAttemptedRevision, w.Head) || c.Status != metav1.ConditionTrue && c.Reason != blocked {
			return fmt.Errorf("%s: at %s, of %s, conditions are %s", dir, k.Status.LastAttemptedRevision, w.Head, scenario.Summary(k.Status.Conditions))
		}
	}
	return nil
}

// inPlace: what is declared is there.
func (w *walk) inPlace(ctx context.Context) error {
	there, err := w.found(ctx)
	if err != nil {
		return err
	}
	for name, d := range w.declared {
		for _, object := range d.objects(name) {
			if !there[object] {
				return fmt.Errorf("%s is declared and not there", object)
			}
		}
	}
	return nil
}

// objects of a declaration.
func (d declaration) objects(name string) []string {
	objects := []string{"ConfigMap/w-" + name}
	switch {
	case !isOfRelease(name):
		objects = append(objects, "Cluster/"+name, "AWSCluster/"+name)
	case d.empty:
		objects = append(objects, "HelmRelease/"+name)
	default:
		objects = append(objects, "HelmRelease/"+name, "Cluster/"+name)
	}
	return objects
}

// found are the objects of the model's kinds.
func (w *walk) found(ctx context.Context) (map[string]bool, error) {
	found := map[string]bool{}
	for kind, version := range map[string]string{"Cluster": clusterVersion, "AWSCluster": awsVersion, "ConfigMap": "v1", "HelmRelease": "helm.toolkit.fluxcd.io/v2"} {
		l := list(version, kind)
		if err := w.Client.List(ctx, l, client.InNamespace(w.Namespace)); err != nil {
			return nil, err
		}
		for i := range l.Items {
			name := l.Items[i].GetName()
			if kind != "ConfigMap" || strings.HasPrefix(name, "w-") {
				found[kind+"/"+name] = true
			}
		}
	}
	return found, nil
}

// audit holds what the agent asked to be deleted against the model.
func (w *walk) audit(t *testing.T) {
	t.Helper()
	events, next, err := w.MoM.Audit(w.from)
	if err != nil {
		t.Fatal(err)
	}
	w.from = next
	for _, e := range events {
		of := e.ObjectRef
		if !strings.HasPrefix(e.Verb, "delete") || !e.ByAgent() || of.Namespace != w.Namespace || strings.Contains(e.RequestURI, "dryRun") {
			continue
		}
		name := strings.TrimPrefix(of.Name, "w-")
		switch ofClusterAPI := strings.HasSuffix(of.APIGroup, "cluster.x-k8s.io"); {
		case ofClusterAPI && of.Name == "":
			t.Errorf("the agent asked for %s %s", e.Verb, e.RequestURI)
		case ofClusterAPI && (!w.sure[name] && (of.Resource == "clusters" || !w.parts[name]) || !w.missing[name]):
			t.Errorf("the agent asked for %s %s (%d): confirmed %t, undeclared %t; before that: %s", e.Verb, e.RequestURI, e.ResponseStatus.Code,
				w.sure[name], w.missing[name], strings.Join(slices.DeleteFunc(slices.Clone(w.log), func(op string) bool {
					return !strings.Contains(op, name) && !strings.HasPrefix(op, "revert") && !strings.HasPrefix(op, "settle")
				}), "; "))
		case ofClusterAPI:
			w.deleted++
		case of.Resource == "configmaps" && name != of.Name && !w.missing[name]:
			t.Errorf("the agent asked for %s %s, which was declared all the time; before that: %s", e.Verb, e.RequestURI, strings.Join(w.log[max(0, len(w.log)-30):], "; "))
		}
	}
}

// finish makes the model final: what is not declared is confirmed and approved, so
// that all of it goes.
func (w *walk) finish(t *testing.T) {
	t.Helper()
	scenario.Eventually(t, 4*scenario.Converge, "everything is as Git says, and nothing else is left", func(ctx context.Context) error {
		there, err := w.found(ctx)
		if err != nil {
			return err
		}
		wanted := map[string]bool{}
		for name, d := range w.declared {
			for _, object := range d.objects(name) {
				wanted[object] = true
			}
			// What the chart always has.
			wanted["ConfigMap/"+name+"-settings"] = true
		}
		extra := slices.DeleteFunc(slices.Sorted(maps.Keys(there)), func(object string) bool { return wanted[object] })
		for _, object := range extra {
			kind, name, _ := strings.Cut(object, "/")
			if kind != "ConfigMap" {
				w.confirm(t, name)
			}
		}
		for _, dir := range walkDirs {
			k, err := w.Read(ctx, dir)
			if err != nil {
				return err
			}
			if hash := heldHash(k.Status.Conditions); hash != "" && k.Annotations[v1alpha1.ApprovePruneAnnotation] != hash {
				w.Patch(t, &kustomizev1.Kustomization{}, dir, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.ApprovePruneAnnotation, hash))
			}
		}
		if len(extra) > 0 {
			return fmt.Errorf("%v are left", extra)
		}
		if err := w.inPlace(ctx); err != nil {
			return err
		}
		for _, dir := range walkDirs {
			k, err := w.Read(ctx, dir)
			if err != nil {
				return err
			}
			if c := meta.FindStatusCondition(k.Status.Conditions, fluxmeta.ReadyCondition); c == nil || c.Status != metav1.ConditionTrue {
				return fmt.Errorf("%s: conditions are %s", dir, scenario.Summary(k.Status.Conditions))
			}
		}
		return nil
	})
	w.audit(t)
}
