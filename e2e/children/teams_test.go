package children

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// deployer is the account of the team, in its clusters and in the hub.
const deployer = "system:serviceaccount:team:deployer"

// teamBase is what the platform brings into the clusters of a team: the team's account,
// which has these rights to the ConfigMaps of one namespace.
func teamBase(verbs string) string {
	return `
apiVersion: v1
kind: Namespace
metadata: {name: team}
---
apiVersion: v1
kind: Namespace
metadata: {name: apps}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: deployer, namespace: team}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: deployer, namespace: apps}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [` + verbs + `]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: deployer, namespace: apps}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: deployer}
subjects: [{kind: ServiceAccount, name: deployer, namespace: team}]
`
}

const allVerbs = "get, list, create, patch, delete"

// teamNote is a ConfigMap where the team may write.
func teamNote(name string, data ...string) string {
	return strings.Replace(noteNamed(name, data...), "namespace: default", "namespace: apps", 1)
}

// team is a namespace of a hub whose layers are pushed as an account, from a source of the
// platform.
type team struct {
	*fleet
	platform *fleet
	plane    *plane
}

// TestTeams has a team with a cluster and layers in its own namespace. Its layers come from
// a source of the platform, and are bounded by the rights of the team's account: in the
// cluster, and in the hub. Layers that name no account get the same one by default.
func TestTeams(t *testing.T) {
	scenario.Alongside(t)
	h := startHub(t, "v1beta2", "--default-service-account=deployer", "--observe-interval", observeInterval.String())
	platform := h.fleet(t, "platform", map[string]string{
		"base/base.yaml": teamBase(allVerbs), "base/moves.yaml": teamNote("moves", "by", "platform"),
		"app/a.yaml": teamNote("a", "word", "${word:=none}"), "app/b.yaml": teamNote("b", "by", "team"),
	})
	x := &team{fleet: h.fleet(t, "team", map[string]string{"note.yaml": noteNamed("note", "by", "team")}), platform: platform, plane: h.plane(t, "team")}
	x.layer(t, "base", "")
	x.layer(t, "app", "deployer")
	x.declare(t, "c")
	x.report(t, "c", initialized)
	x.handOver(t, "c", x.plane.issue(t).kubeconfig)
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"DefaultAccountIsBound", x.defaultAccountIsBound},
		{"SourceOfThePlatform", x.sourceOfThePlatform},
		{"ActsAsTheAccount", func(t *testing.T) { x.actsAsTheAccount(t, 0) }},
		{"RestAsksNothing", func(t *testing.T) { x.quiet(t, x.plane, "c") }},
		{"OutsideItsRights", x.outsideItsRights},
		{"SecretsOfTheHub", x.secretsOfTheHub},
		{"SourceWithdrawn", x.sourceWithdrawn},
		{"MovesThereAndBack", x.movesThereAndBack},
		{"AgentsAreRefused", x.agentsAreRefused},
		{"RightsShrinkBeforeAPrune", x.rightsShrinkBeforeAPrune},
		{"LostRightIsFound", x.lostRightIsFound},
		{"RemovedAsTheAccount", x.removedAsTheAccount},
		{"StillActsAsTheAccount", func(t *testing.T) { x.actsAsTheAccount(t, 0) }},
	} {
		if !t.Run(part.name, part.run) {
			return
		}
	}
}

// layer defines a layer from the platform's source, pushed as an account if one is named. No
// comparison falls into the test by chance.
func (x *team) layer(t *testing.T, name, account string, spec ...string) {
	t.Helper()
	if account != "" {
		spec = append(spec, "serviceAccountName: "+account)
	}
	x.define(t, "apiVersion: cascade.dev/v1alpha1\nkind: Layer\nmetadata:\n  name: "+name+"\nspec:\n  clusterSelector: {matchLabels: {cluster: c}}\n  "+
		"sourceRef: {kind: GitRepository, name: fleet, namespace: platform}\n  path: ./"+name+"\n  interval: 24h\n  "+strings.Join(spec, "\n  ")+"\n")
}

// permit gives the team's account a right in a namespace of the hub, by a role of a name.
func (x *team) permit(t *testing.T, in *fleet, name, rule string) {
	t.Helper()
	in.define(t, fmt.Sprintf(`{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: %s}, rules: [%s]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: %s}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: %s},
 subjects: [{kind: ServiceAccount, name: deployer, namespace: team}]}`, name, rule, name, name))
}

// withdraw takes such a right away.
func (x *team) withdraw(t *testing.T, in *fleet, name string) {
	t.Helper()
	if err := x.client.Delete(t.Context(), object("rbac.authorization.k8s.io/v1", "RoleBinding", in.name, name)); err != nil {
		t.Fatal(err)
	}
}

const (
	getFleet  = `{apiGroups: [source.toolkit.fluxcd.io], resources: [gitrepositories], resourceNames: [fleet], verbs: [get]}`
	getWords  = `{apiGroups: [""], resources: [secrets], resourceNames: [words], verbs: [get]}`
	escalates = `{apiGroups: [cascade.dev], resources: [layers], resourceNames: [base], verbs: [escalate]}`
)

// stands waits until a layer stands on the cluster with a reason, and a message that has
// the words.
func (x *team) stands(t *testing.T, within time.Duration, layer, reason string, words ...string) {
	t.Helper()
	scenario.Eventually(t, within, "layer "+layer+" is "+reason, func(ctx context.Context) error {
		child, err := x.child(ctx, "c")
		if err != nil {
			return err
		}
		for _, l := range child.Status.Layers {
			if l.Name != layer {
				continue
			}
			for _, w := range words {
				if !strings.Contains(l.Message, w) {
					return fmt.Errorf("it is %s: %s", l.Reason, l.Message)
				}
			}
			if l.Reason == reason && l.Ready == (reason == v1alpha1.ReasonSucceeded) {
				return nil
			}
			return fmt.Errorf("it is %s: %s", l.Reason, l.Message)
		}
		return fmt.Errorf("the layers are %v", child.Status.Layers)
	})
}

// note waits until a ConfigMap of the team has a value, and returns it.
func (x *team) note(t *testing.T, name, key, want string) *corev1.ConfigMap {
	t.Helper()
	cm := &corev1.ConfigMap{}
	scenario.Eventually(t, scenario.Converge, "the cluster has apps/"+name, func(ctx context.Context) error {
		err := x.plane.client.Get(ctx, client.ObjectKey{Namespace: "apps", Name: name}, cm)
		if err == nil && cm.Data[key] != want {
			err = fmt.Errorf("%s is %q, want %q", key, cm.Data[key], want)
		}
		return err
	})
	return cm
}

// gone waits until a ConfigMap of the team is gone.
func (x *team) gone(t *testing.T, name string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, "apps/"+name+" is gone", func(ctx context.Context) error {
		err := x.plane.client.Get(ctx, client.ObjectKey{Namespace: "apps", Name: name}, &corev1.ConfigMap{})
		if err == nil {
			return fmt.Errorf("it is there")
		}
		return client.IgnoreNotFound(err)
	})
}

func (x *team) defaultAccountIsBound(t *testing.T) {
	x.stands(t, scenario.Converge, "base", v1alpha1.ReasonAccessDenied, "GitRepository/platform/fleet", deployer)
	x.permit(t, x.fleet, "platform", escalates)
	x.stands(t, scenario.Converge, "base", v1alpha1.ReasonSucceeded)
	x.note(t, "moves", "by", "platform")
}

func (x *team) sourceOfThePlatform(t *testing.T) {
	x.stands(t, scenario.Converge, "app", v1alpha1.ReasonAccessDenied, "GitRepository/platform/fleet", deployer, "namespace platform")
	x.permit(t, x.platform, "team", getFleet)
	x.ready(t, "c", "")
	x.note(t, "a", "word", "none")
	// A commit wakes the clusters of the other namespace.
	sha := x.platform.commit(t, map[string]string{"app/b.yaml": teamNote("b", "by", "commit")})
	x.ready(t, "c", sha)
	x.note(t, "b", "by", "commit")
}

// actsAsTheAccount fails the test if an object of the team was touched by anybody but its
// account, or read by the parent itself.
func (x *team) actsAsTheAccount(t *testing.T, from int64) {
	t.Helper()
	seen := 0
	for _, e := range x.plane.byParent(t, from) {
		if e.ObjectRef.Namespace != "apps" || e.ObjectRef.Resource != "configmaps" || e.ObjectRef.Name == "moves" {
			continue
		}
		if e.Verb == "list" || !e.Writes() && e.ImpersonatedUser.Username == "" {
			continue // what decides whether a delete is safe
		}
		seen++
		if e.ImpersonatedUser.Username != deployer {
			t.Errorf("%s %s as %q", e.Verb, e.RequestURI, e.ImpersonatedUser.Username)
		}
	}
	if seen == 0 {
		t.Error("nothing was done")
	}
}

func (x *team) outsideItsRights(t *testing.T) {
	x.platform.commit(t, map[string]string{"app/outside.yaml": noteNamed("outside", "by", "team"), "app/b.yaml": teamNote("b", "by", "the same commit")})
	x.stands(t, scenario.Converge, "app", v1alpha1.ReasonForbidden, "outside", deployer)
	x.note(t, "b", "by", "the same commit")
	x.plane.hasNot(t, "outside")
	if role := x.refusals(t); role > 0 {
		t.Errorf("the parent renewed its own rights %d times", role)
	}
	x.platform.commit(t, map[string]string{"app/outside.yaml": ""})
	x.ready(t, "c", "")
}

// refusals are writes of the parent's role for the layer after the first.
func (x *team) refusals(t *testing.T) int {
	n := -1
	for _, e := range x.plane.writes(t, 0) {
		if e.ObjectRef.Resource == "clusterroles" && strings.HasSuffix(e.ObjectRef.Name, "team.app") {
			n++
		}
	}
	return n
}

func (x *team) secretsOfTheHub(t *testing.T) {
	x.define(t, `{apiVersion: v1, kind: Secret, metadata: {name: words}, stringData: {word: hidden}}`)
	app := layerNamed(x.fleet, "app")
	x.patch(t, app, map[string]any{"spec": map[string]any{"postBuild": map[string]any{"substituteFrom": []any{map[string]any{"kind": "Secret", "name": "words"}}}}})
	x.stands(t, scenario.Converge, "app", v1alpha1.ReasonAccessDenied, "words", deployer)
	x.note(t, "a", "word", "none")
	x.permit(t, x.fleet, "words", getWords)
	x.ready(t, "c", "")
	x.note(t, "a", "word", "hidden")
	from := x.plane.now(t)
	x.withdraw(t, x.fleet, "words")
	x.stands(t, time.Minute, "app", v1alpha1.ReasonAccessDenied, "words")
	x.plane.parentWrote(t, from)
	x.patch(t, app, map[string]any{"spec": map[string]any{"postBuild": nil, "credentials": []any{map[string]any{"name": "taken", "secretRef": map[string]any{"name": "words"}}}}})
	x.stands(t, scenario.Converge, "app", v1alpha1.ReasonAccessDenied, "words", deployer)
	x.patch(t, app, map[string]any{"spec": map[string]any{"credentials": nil}})
	x.ready(t, "c", "")
	x.note(t, "a", "word", "none")
}

func (x *team) sourceWithdrawn(t *testing.T) {
	from := x.plane.now(t)
	x.withdraw(t, x.platform, "team")
	x.stands(t, time.Minute, "app", v1alpha1.ReasonAccessDenied, "GitRepository/platform/fleet")
	// A commit is not the team's any more.
	sha := x.platform.push(t, map[string]string{"app/b.yaml": ""})
	x.request(t, object("source.toolkit.fluxcd.io/v1", "GitRepository", "platform", "fleet"))
	x.platform.fetched(t, sha)
	x.reconciled(t, "c")
	x.plane.parentWrote(t, from)
	x.note(t, "a", "word", "none")
	x.note(t, "b", "by", "the same commit")
	layer := &v1alpha1.Layer{}
	if err := x.client.Get(t.Context(), client.ObjectKeyFromObject(layerNamed(x.fleet, "app")), layer); err != nil || strings.HasSuffix(layer.Status.Revision, sha) {
		t.Errorf("the Layer tells the revision %s of a source that it may not use, %v", layer.Status.Revision, err)
	}
	x.platform.commit(t, map[string]string{"app/b.yaml": teamNote("b", "by", "team")})
	x.permit(t, x.platform, "team", getFleet)
	x.ready(t, "c", "")
}

// movesThereAndBack moves an object from the platform's layer to the team's, and back.
func (x *team) movesThereAndBack(t *testing.T) {
	before := x.note(t, "moves", "by", "platform")
	owned := func(by, layer string) {
		t.Helper()
		sha := ""
		if layer == "app" {
			sha = x.platform.commit(t, map[string]string{"base/moves.yaml": "", "app/moves.yaml": teamNote("moves", "by", by)})
		} else {
			sha = x.platform.commit(t, map[string]string{"app/moves.yaml": "", "base/moves.yaml": teamNote("moves", "by", by)})
		}
		x.ready(t, "c", sha)
		after := x.note(t, "moves", "by", by)
		if after.UID != before.UID || after.Labels["layer.cascade.dev/name"] != layer {
			t.Errorf("it has UID %s, it had %s, and labels %v", after.UID, before.UID, after.Labels)
		}
	}
	owned("team", "app")
	owned("platform", "base")
}

func (x *team) agentsAreRefused(t *testing.T) {
	for field, spec := range map[string]map[string]any{"agent": {}, "providers": {"core": map[string]any{"version": "v1.13.4"}}} {
		layer := object("cascade.dev/v1alpha1", "Layer", "team", "refused")
		layer.Object["spec"] = map[string]any{"clusterSelector": map[string]any{}, "serviceAccountName": "deployer", field: spec}
		if err := x.client.Create(t.Context(), layer); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "serviceAccountName cannot install") {
			t.Errorf("a layer with an account and spec.%s: %v", field, err)
		}
	}
	x.layer(t, "armed", "", "agent: {image: anything}")
	x.stands(t, scenario.Converge, "armed", v1alpha1.ReasonInvalidSpec, "spec.agent", deployer, "escalate")
	if err := x.plane.client.Get(t.Context(), client.ObjectKey{Namespace: stage.Namespace, Name: v1alpha1.AgentName}, object("apps/v1", "Deployment", "", "")); !apierrors.IsNotFound(err) {
		t.Errorf("there is an agent: %v", err)
	}
	if err := x.client.Delete(t.Context(), layerNamed(x.fleet, "armed")); err != nil {
		t.Fatal(err)
	}
	x.ready(t, "c", "")
}

func (x *team) rightsShrinkBeforeAPrune(t *testing.T) {
	sha := x.platform.commit(t, map[string]string{"base/base.yaml": teamBase("get, list, create, patch"), "app/b.yaml": teamNote("b", "by", "team")})
	x.ready(t, "c", sha)
	from := x.plane.now(t)
	x.platform.commit(t, map[string]string{"app/b.yaml": ""})
	x.stands(t, scenario.Converge, "app", v1alpha1.ReasonForbidden, "cannot delete", "b", deployer)
	x.note(t, "b", "by", "team")
	if owned := fmt.Sprint(x.plane.inventory(t, "team", "app")); !strings.Contains(owned, "apps/b") && !strings.Contains(owned, "apps_b") {
		t.Errorf("what could not be deleted is not answered for any more: %s", owned)
	}
	for _, e := range x.plane.byParent(t, from) {
		if e.Verb == "delete" && e.ObjectRef.Namespace == "apps" && e.ResponseStatus.Code != http.StatusForbidden {
			t.Errorf("%s %s was answered with %d", e.Verb, e.RequestURI, e.ResponseStatus.Code)
		}
	}
	sha = x.platform.commit(t, map[string]string{"base/base.yaml": teamBase(allVerbs)})
	x.gone(t, "b")
	x.ready(t, "c", sha)
}

// lostRightIsFound takes a right away while nothing else changes: the comparison with the
// cluster, which is every few seconds here, shows it.
func (x *team) lostRightIsFound(t *testing.T) {
	app := layerNamed(x.fleet, "app")
	x.patch(t, app, map[string]any{"spec": map[string]any{"interval": "5s"}})
	// The layer that declares the role corrects it at an interval of its own.
	x.patch(t, layerNamed(x.fleet, "base"), map[string]any{"spec": map[string]any{"suspend": true}})
	defer x.patch(t, layerNamed(x.fleet, "base"), map[string]any{"spec": map[string]any{"suspend": nil}})
	token := x.request(t, app)
	scenario.Eventually(t, scenario.Converge, "the layer is compared", func(ctx context.Context) error {
		layer := &v1alpha1.Layer{}
		if err := x.client.Get(ctx, client.ObjectKeyFromObject(app), layer); err != nil {
			return err
		}
		if layer.Status.LastHandledReconcileAt != token {
			return fmt.Errorf("conditions are %s", scenario.Summary(layer.Status.Conditions))
		}
		return nil
	})
	x.ready(t, "c", "")
	role := object("rbac.authorization.k8s.io/v1", "Role", "apps", "deployer")
	rules := func(verbs ...any) {
		t.Helper()
		if err := x.plane.client.Get(t.Context(), client.ObjectKeyFromObject(role), role); err != nil {
			t.Fatal(err)
		}
		role.Object["rules"] = []any{map[string]any{"apiGroups": []any{""}, "resources": []any{"configmaps"}, "verbs": verbs}}
		if err := x.plane.client.Update(t.Context(), role); err != nil {
			t.Fatal(err)
		}
	}
	rules("get", "list")
	x.stands(t, time.Minute, "app", v1alpha1.ReasonForbidden, "apps/a", deployer)
	x.note(t, "a", "word", "none")
	rules("get", "list", "create", "patch", "delete")
	x.ready(t, "c", "")
}

// removedAsTheAccount takes the layer off the cluster, with the rights of the account.
func (x *team) removedAsTheAccount(t *testing.T) {
	sha := x.platform.commit(t, map[string]string{"base/base.yaml": teamBase("get, list, create, patch")})
	x.ready(t, "c", sha)
	app := layerNamed(x.fleet, "app")
	x.patch(t, app, map[string]any{"spec": map[string]any{"deletionPolicy": "Delete"}})
	x.ready(t, "c", "")
	scenario.Eventually(t, scenario.Converge, "the layer is guarded", func(ctx context.Context) error {
		layer := &v1alpha1.Layer{}
		if err := x.client.Get(ctx, client.ObjectKeyFromObject(app), layer); err != nil {
			return err
		}
		if len(layer.Finalizers) == 0 {
			return fmt.Errorf("it has no finalizer")
		}
		return nil
	})
	if err := x.client.Delete(t.Context(), app); err != nil {
		t.Fatal(err)
	}
	x.stands(t, scenario.Converge, "app", v1alpha1.ReasonForbidden, "cannot delete", deployer)
	x.note(t, "a", "word", "none")
	x.platform.commit(t, map[string]string{"base/base.yaml": teamBase(allVerbs)})
	x.gone(t, "a")
	scenario.Eventually(t, scenario.Converge, "the layer is gone", func(ctx context.Context) error {
		err := x.client.Get(ctx, client.ObjectKeyFromObject(app), &v1alpha1.Layer{})
		if err == nil {
			return fmt.Errorf("it is there")
		}
		return client.IgnoreNotFound(err)
	})
}
