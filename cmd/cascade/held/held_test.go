package held

import (
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

func TestOf(t *testing.T) {
	at := metav1.NewTime(time.Unix(1000, 0))
	meta := metav1.ObjectMeta{Namespace: "fleet", Name: "a"}
	held := func(kind string) []metav1.Condition {
		return []metav1.Condition{{Type: kind, Status: metav1.ConditionTrue, Message: "m", LastTransitionTime: at}}
	}
	kustomization := func(kind string, h v1alpha1.Held, suspended bool) Facts {
		k := kustomizev1.Kustomization{ObjectMeta: *meta.DeepCopy()}
		k.Spec.Suspend, k.Status.Conditions = suspended, held(kind)
		v1alpha1.SetHeld(&k, h)
		return Facts{Kustomizations: []kustomizev1.Kustomization{k}}
	}
	release := helmv2.HelmRelease{ObjectMeta: meta}
	release.Status.Conditions = held(v1alpha1.PruneBlockedCondition)
	v1alpha1.SetHeld(&release, v1alpha1.Held{Prune: &v1alpha1.HeldPrune{Protected: 1}})
	layer := v1alpha1.Layer{ObjectMeta: meta}
	layer.Status.Removal = &v1alpha1.Removal{Held: true, Hash: "h", Waiting: 2, Names: []string{"x"}, Since: &at}
	child := func(l v1alpha1.ChildLayer) Facts {
		c := v1alpha1.Child{ObjectMeta: meta}
		c.Status.Layers = []v1alpha1.ChildLayer{l}
		return Facts{Children: []v1alpha1.Child{c}}
	}
	superseded := v1alpha1.Child{ObjectMeta: meta}
	superseded.Status.SupersededBy = &v1alpha1.Epoch{Number: 3, Holder: "other"}
	for name, tc := range map[string]struct {
		reason   string
		facts    Facts
		held     string
		commands []string
	}{
		"Nothing":      {"a tier without anything", Facts{}, "", nil},
		"Prune":        {"a plan with its hash", kustomization(v1alpha1.PruneBlockedCondition, v1alpha1.Held{Prune: &v1alpha1.HeldPrune{Hash: "h"}}, false), "PruneBlocked", []string{"cascade approve prune a -n fleet --hash h"}},
		"PruneUnknown": {"an agent that recorded none: the command shows it", kustomization(v1alpha1.PruneBlockedCondition, v1alpha1.Held{}, false), "PruneBlocked", []string{"cascade approve prune a -n fleet"}},
		"Protected":    {"what is protected is confirmed in Git, not by a command", kustomization(v1alpha1.PruneBlockedCondition, v1alpha1.Held{Prune: &v1alpha1.HeldPrune{Protected: 1}}, false), "PruneBlocked", nil},
		"Suspended":    {"a person decided that", kustomization(v1alpha1.PruneBlockedCondition, v1alpha1.Held{Prune: &v1alpha1.HeldPrune{Hash: "h"}}, true), "", nil},
		"Create":       {"Clusters by their names", kustomization(v1alpha1.CreateHeldCondition, v1alpha1.Held{Create: &v1alpha1.HeldCreate{Clusters: []string{"fleet/x", "fleet/y"}}}, false), "CreateHeld", []string{"cascade approve create fleet/x fleet/y"}},
		"Hostile":      {"a shell carries nothing out", kustomization(v1alpha1.CreateHeldCondition, v1alpha1.Held{Create: &v1alpha1.HeldCreate{Clusters: []string{"a;reboot"}}}, false), "CreateHeld", []string{"cascade approve create 'a;reboot'"}},
		"Elsewhere":    {"it is decided in another tier", kustomization(v1alpha1.CreateHeldCondition, v1alpha1.Held{Create: &v1alpha1.HeldCreate{Elsewhere: true}}, false), "CreateHeld", nil},
		"Release":      {"a release with protected objects", Facts{HelmReleases: []helmv2.HelmRelease{release}}, "PruneBlocked", nil},
		"Removal":      {"a layer's removal from children", Facts{Layers: []v1alpha1.Layer{layer}}, "RemovalHeld", []string{"cascade approve removal a -n fleet --hash h"}},
		"Child":        {"a plan in a child", child(v1alpha1.ChildLayer{Reason: v1alpha1.ReasonPruneBlocked, Held: &v1alpha1.Held{Prune: &v1alpha1.HeldPrune{Hash: "h"}}}), "PruneBlocked", []string{"cascade approve prune a -n fleet --kind Child --hash h"}},
		"ChildBeside":  {"it fails for something else by now", child(v1alpha1.ChildLayer{Reason: v1alpha1.ReasonHealthCheckFailed, Held: &v1alpha1.Held{Prune: &v1alpha1.HeldPrune{Hash: "h"}}}), "PruneBlocked", []string{"cascade approve prune a -n fleet --kind Child --hash h"}},
		"Failed":       {"what fails is not held", child(v1alpha1.ChildLayer{Reason: v1alpha1.ReasonBuildFailed}), "", nil},
		"TakenOver":    {"another process has the child", Facts{Children: []v1alpha1.Child{superseded}}, "Superseded", []string{"cascade approve take-over a -n fleet"}},
	} {
		t.Run(name, func(t *testing.T) {
			items := Of(tc.facts)
			if tc.held == "" {
				if len(items) > 0 {
					t.Errorf("%s: %v", tc.reason, items)
				}
				return
			}
			if len(items) != 1 || items[0].Reason != tc.held {
				t.Fatalf("%s: %v, want %s", tc.reason, items, tc.held)
			}
			if diff := cmp.Diff(tc.commands, items[0].Commands); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}
