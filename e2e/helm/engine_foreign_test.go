package helm

import (
	"slices"
	"strings"
	"testing"
	"time"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/runtime/conditions"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/syncer/release"
)

// foreign makes a ConfigMap that no release has to do with.
func (r *engineRow) foreign(t *testing.T, namespace, name string) {
	t.Helper()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := r.client.Create(t.Context(), cm); err != nil {
		t.Fatal(err)
	}
}

func editedStorageDeletesNothing(t *testing.T, r *engineRow) {
	r.foreign(t, r.ns, "victim")
	r.use("1.0.0", map[string]string{"settings": settings})
	r.mustSync(t)
	edit := func() {
		rel := r.last(t)
		rel.Manifest += "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: victim}\n"
		if err := r.storage().Update(rel); err != nil {
			t.Fatal(err)
		}
	}
	edit()
	r.use("1.1.0", map[string]string{"settings": settings})
	r.mustSync(t)
	if r.there(t, "", "ConfigMap", "victim") == nil {
		t.Fatal("an upgrade deleted what somebody wrote into the manifest of the release")
	}
	edit()
	if out, err := r.releases.Uninstall(t.Context(), r.request()); err != nil || out != (release.Outcome{}) {
		t.Fatalf("Uninstall() = %+v, %v\n%s", out, err, r.tell())
	}
	if r.there(t, "", "ConfigMap", "victim") == nil || r.there(t, "", "ConfigMap", "settings") != nil {
		t.Error("an uninstall is of what the release made, and of all of it")
	}
}

func hookDeletesNothingElse(t *testing.T, r *engineRow) {
	r.foreign(t, r.ns, "init")
	before := r.there(t, "", "ConfigMap", "init").GetUID()
	hook := func(name string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", annotations: {helm.sh/hook: 'pre-install,pre-upgrade'}}\n"
	}
	r.use("1.0.0", map[string]string{"settings": settings, "init": hook("init"), "fresh": hook("fresh")})
	r.mustSync(t)
	if cm := r.there(t, "", "ConfigMap", "init"); cm == nil || cm.GetUID() != before {
		t.Error("a hook deleted an object that was nobody's")
	}
	first := r.there(t, "", "ConfigMap", "fresh").GetUID()
	r.use("1.1.0", map[string]string{"settings": settings, "fresh": hook("fresh")})
	r.mustSync(t)
	if r.there(t, "", "ConfigMap", "fresh").GetUID() == first {
		t.Error("a hook was not made anew")
	}
}

func hookEndsNoNamespace(t *testing.T, r *engineRow) {
	inner := r.ns + "-inner"
	hook := "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + inner + ", annotations: {helm.sh/hook: 'pre-install,pre-upgrade'}}\n"
	r.use("1.0.0", map[string]string{"settings": settings, "inner": hook})
	r.mustSync(t)
	r.foreign(t, inner, "guest")
	r.use("1.1.0", map[string]string{"settings": settings, "inner": hook})
	out, err := r.sync(t)
	if err == nil && !out.Stalled || !strings.Contains(conditions.GetMessage(r.obj, v2.ReleasedCondition), "Namespace/"+inner) {
		t.Errorf("Sync() = %+v, %v, want the Namespace held\n%s", out, err, r.tell())
	}
	if ns := r.there(t, "", "Namespace", inner); ns == nil || ns.GetDeletionTimestamp() != nil {
		t.Error("the Namespace of the hook is gone, with all that was in it")
	}
}

// failsEarly installs a release, and has the upgrade fail that drops two of its objects.
func failsEarly(t *testing.T, r *engineRow) {
	t.Helper()
	named := func(name string) string { return strings.ReplaceAll(settings, "settings", name) }
	kept := strings.Replace(named("kept"), "{name: kept}", "{name: kept, annotations: {helm.sh/resource-policy: keep}}", 1)
	r.use("1.0.0", map[string]string{"settings": settings, "old": named("old"), "kept": kept})
	r.mustSync(t)
	r.obj.Spec.Upgrade = &v2.Upgrade{Timeout: &metav1.Duration{Duration: 2 * time.Second}}
	// The API server refuses it, before Helm comes to what was dropped.
	r.use("1.1.0", map[string]string{"settings": settings, "wrong": named("Not_A_Name")})
	if out, err := r.sync(t); err == nil && !out.Stalled {
		t.Fatalf("Sync() = %+v\n%s", out, r.tell())
	}
	if r.there(t, "", "ConfigMap", "old") == nil {
		t.Fatal("the upgrade failed too late for this test")
	}
	if !slices.Contains(r.inventory(), r.ns+"_old__ConfigMap") {
		t.Errorf("nobody answers for what the failed upgrade left: %v", r.inventory())
	}
}

func failureForgetsNothing(t *testing.T, r *engineRow) {
	failsEarly(t, r)
	r.obj.Generation++
	r.use("1.2.0", map[string]string{"settings": settings})
	r.mustSync(t)
	if r.there(t, "", "ConfigMap", "old") != nil || r.there(t, "", "ConfigMap", "kept") == nil {
		t.Errorf("what was dropped has to go, and what the chart leaves behind to stay\n%s", r.tell())
	}
	if got, want := r.inventory(), []string{r.ns + "_settings__ConfigMap"}; !slices.Equal(got, want) {
		t.Errorf("inventory is %v, want %v", got, want)
	}
}

func uninstallLeavesKept(t *testing.T, r *engineRow) {
	failsEarly(t, r)
	if out, err := r.releases.Uninstall(t.Context(), r.request()); err != nil || out != (release.Outcome{}) {
		t.Fatalf("Uninstall() = %+v, %v\n%s", out, err, r.tell())
	}
	if r.there(t, "", "ConfigMap", "old") != nil || r.there(t, "", "ConfigMap", "settings") != nil || r.there(t, "", "ConfigMap", "kept") == nil {
		t.Errorf("all of the release has to go, and what the chart leaves behind to stay\n%s", r.tell())
	}
}
