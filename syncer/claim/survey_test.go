package claim

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/target"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// sources is what each path of the tier's repository declares, by the path.
type sources map[string]Declaration

func (s sources) Declares(_ context.Context, o client.Object, _ *source.View, whole bool) Declaration {
	d := s["chart"]
	if k, ok := o.(*kustomizev1.Kustomization); ok {
		d = s[k.Spec.Path]
	}
	if d.Settled && whole {
		d.Settled = false
	} else if d.Settled {
		return Declaration{Settled: true}
	}
	return d
}

// has declares ConfigMaps of namespace x.
func has(names ...string) Declaration {
	var d Declaration
	for _, name := range names {
		d.Entries = append(d.Entries, inventory.Entry{Namespace: "x", Name: name, Kind: "ConfigMap", Version: "v1"})
	}
	return d
}

// and adds Kustomizations of namespace apps to what is declared.
func (d Declaration) and(owners ...*kustomizev1.Kustomization) Declaration {
	for _, k := range owners {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(k)
		if err != nil {
			panic(err)
		}
		u := &unstructured.Unstructured{Object: content}
		u.SetGroupVersionKind(kustomizev1.GroupVersion.WithKind(kustomizev1.KustomizationKind))
		d.Owners = append(d.Owners, u)
		d.Entries = append(d.Entries, inventory.Of(u))
	}
	return d
}

func (d Declaration) settled() Declaration {
	d.Settled = true
	return d
}

// ahead has a Rollout hold back what is declared.
func (d Declaration) ahead() Declaration {
	d.Ahead, d.Entries = d.Entries, nil
	return d
}

func unknown(passing bool) Declaration {
	return Declaration{Unknown: errors.New("no such file"), Passing: passing}
}

// of is a Kustomization of a path, in namespace apps, applied by root, made long ago.
func of(name, path string, changes ...func(*kustomizev1.Kustomization)) *kustomizev1.Kustomization {
	k := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{
		Namespace: "apps", Name: name, UID: "uid", CreationTimestamp: metav1.NewTime(noon.Add(-24 * time.Hour)),
		Labels: map[string]string{kustomizev1.GroupVersion.Group + "/name": "root", kustomizev1.GroupVersion.Group + "/namespace": "apps"},
	}}
	k.Spec.Path = path
	k.Spec.SourceRef = kustomizev1.CrossNamespaceSourceReference{Kind: "GitRepository", Name: "git"}
	for _, change := range changes {
		change(k)
	}
	return k
}

func recording(ids ...string) func(*kustomizev1.Kustomization) {
	return func(k *kustomizev1.Kustomization) {
		k.Status.Inventory = &kustomizev1.ResourceInventory{}
		for _, id := range ids {
			k.Status.Inventory.Entries = append(k.Status.Inventory.Entries, kustomizev1.ResourceRef{ID: id, Version: "v1"})
		}
	}
}

func recordedOn(secret, cluster string) func(*kustomizev1.Kustomization) {
	return func(k *kustomizev1.Kustomization) {
		k.Annotations = map[string]string{target.Annotation: target.Ref{Kind: "Secret", Name: secret, Cluster: cluster}.Encode()}
	}
}

// annotated has one of the directives of Flux, by the end of its key.
func annotated(directive, value string) func(*kustomizev1.Kustomization) {
	return func(k *kustomizev1.Kustomization) {
		k.Annotations = map[string]string{kustomizev1.GroupVersion.Group + "/" + directive: value}
	}
}

func suspendedNow(k *kustomizev1.Kustomization) { k.Spec.Suspend = true }

func stranger(k *kustomizev1.Kustomization) {
	k.Namespace, k.Labels, k.Spec.SourceRef.Name = "others", nil, "else"
}

func madeByOld(k *kustomizev1.Kustomization) {
	k.Labels[kustomizev1.GroupVersion.Group+"/name"] = "old"
}

func failing(since time.Duration) func(*kustomizev1.Kustomization) {
	return func(k *kustomizev1.Kustomization) {
		k.Status.Conditions = []metav1.Condition{{
			Type: meta.ReadyCondition, Status: metav1.ConditionFalse, Reason: "BuildFailed", LastTransitionTime: metav1.NewTime(noon.Add(-since)),
		}}
	}
}

func readyNow(k *kustomizev1.Kustomization) {
	k.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionTrue}}
}

// moving has a kubeconfig since a moment ago, and has not left home yet.
func moving(k *kustomizev1.Kustomization) {
	k.Spec.KubeConfig = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "way"}}
	k.Annotations = map[string]string{target.Annotation: target.Ref{Cluster: "home"}.Encode()}
}

// ofChart is a HelmRelease that made Kustomizations, in namespace apps, made long ago and ready.
func ofChart(mode helmv2.DriftDetectionMode, made ...string) *helmv2.HelmRelease {
	h := &helmv2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "web", CreationTimestamp: metav1.NewTime(noon.Add(-24 * time.Hour))}}
	h.Spec.DriftDetection = &helmv2.DriftDetection{Mode: mode}
	h.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionTrue}}
	h.Status.Inventory = &helmv2.ResourceInventory{}
	for _, name := range made {
		h.Status.Inventory.Entries = append(h.Status.Inventory.Entries, helmv2.ResourceRef{ID: "apps_" + name + "_kustomize.toolkit.fluxcd.io_Kustomization", Version: "v1"})
	}
	return h
}

// noDrift has Helm leave an object as it is.
func noDrift(k *kustomizev1.Kustomization) {
	k.Annotations = map[string]string{helmv2.DriftDetectionMetadataKey: helmv2.DriftDetectionDisabledValue}
}

// TestSurvey: who will have ConfigMap x/a, that Kustomization old is about to delete.
func TestSurvey(t *testing.T) {
	old := of("old", "one", recording("x_a__ConfigMap"))
	going := of("old", "one", recording("x_a__ConfigMap"), deleting)
	way := target.Ref{Kind: "Secret", Name: "way", Cluster: "uid"}
	leaving := of("old", "one", recording("x_a__ConfigMap"), leads("way"), recordedOn("way", "uid"))
	goingAway := of("old", "one", recording("x_a__ConfigMap"), leads("way"), recordedOn("way", "uid"), deleting)
	for name, tc := range map[string]struct {
		reason     string
		self       *kustomizev1.Kustomization
		owners     []client.Object
		unseen     []client.Object
		git        sources
		superseded bool
		at         target.Ref
		want       apply.Claim
	}{
		"Nobody":         {reason: "nobody declares it", owners: []client.Object{of("new", "two")}, git: sources{"two": has("b")}},
		"Behind":         {reason: "another one declares it and has not applied it", owners: []client.Object{of("new", "two")}, git: sources{"two": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/new", Kind: apply.Declared}},
		"Suspended":      {reason: "one that does not act declares it all the same", owners: []client.Object{of("new", "two", suspendedNow)}, git: sources{"two": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/new", Kind: apply.Declared}},
		"Recorded":       {reason: "an inventory is more than a declaration", owners: []client.Object{of("new", "two", recording("x_a__ConfigMap"))}, git: sources{"two": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/new"}},
		"Settled":        {reason: "what is applied is in its inventory, or not declared", owners: []client.Object{of("new", "two", recording("x_b__ConfigMap"))}, git: sources{"two": has("b").settled()}},
		"Release":        {reason: "a release is an owner", owners: []client.Object{&helmv2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "web"}}}, git: sources{"chart": has("a")}, want: apply.Claim{Owner: "HelmRelease/apps/web", Kind: apply.Declared}},
		"NotThereYet":    {reason: "one that a parent declares and has not made yet", owners: []client.Object{of("root", "root")}, git: sources{"root": Declaration{}.and(of("new", "two")), "two": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/new", Kind: apply.Declared}},
		"TwoLevels":      {reason: "and one that that one declares", owners: []client.Object{of("root", "root")}, git: sources{"root": Declaration{}.and(of("mid", "mid")), "mid": Declaration{}.and(of("new", "two")), "two": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/new", Kind: apply.Declared}},
		"OtherPath":      {reason: "a parent gives an owner another path", owners: []client.Object{of("root", "root"), of("new", "three")}, git: sources{"root": Declaration{}.and(of("new", "two")), "two": has("a"), "three": has("b").settled()}, want: apply.Claim{Owner: "Kustomization/apps/new", Kind: apply.Declared}},
		"OwnPath":        {reason: "a parent gives the one that asks another path, where it is declared", owners: []client.Object{of("root", "root")}, git: sources{"root": Declaration{}.and(of("old", "two")), "two": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/old", Kind: apply.Again}},
		"OwnPathLate":    {reason: "a parent that is suspended gives the one that asks another path, where it is declared", owners: []client.Object{of("root", "root", suspendedNow)}, git: sources{"root": Declaration{}.and(of("old", "two")), "two": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/root", Kind: apply.Declared}},
		"OwnPathFails":   {reason: "a parent that has failed for a day may go on so", owners: []client.Object{of("root", "root", failing(24*time.Hour))}, git: sources{"root": Declaration{}.and(of("old", "two")), "two": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/root", Kind: apply.Declared}},
		"OwnPathSoon":    {reason: "a parent that fails since a moment ago may be part of the change", owners: []client.Object{of("root", "root", failing(time.Minute))}, git: sources{"root": Declaration{}.and(of("old", "two")), "two": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/old", Kind: apply.Again}},
		"OwnPathUnknown": {reason: "what the form has that a suspended parent has for it is not known", owners: []client.Object{of("root", "root", suspendedNow)}, git: sources{"root": Declaration{}.and(of("old", "two")), "two": unknown(false)}, want: apply.Claim{Owner: "Kustomization/apps/root", Kind: apply.Declared, Unsure: true}},
		"OwnPathWithout": {reason: "a parent gives the one that asks another path, where it is not declared", owners: []client.Object{of("root", "root")}, git: sources{"root": Declaration{}.and(of("old", "two")), "two": has("b")}},
		"Ahead":          {reason: "a Rollout lets another one have it later", owners: []client.Object{of("new", "two")}, git: sources{"two": has("a").ahead()}, want: apply.Claim{Owner: "Kustomization/apps/new", Kind: apply.Declared, Ahead: true}},
		"AheadBelow":     {reason: "a Rollout lets a parent have the owner later that declares it", owners: []client.Object{of("root", "root")}, git: sources{"root": Declaration{}.and(of("new", "two")).ahead(), "two": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/new", Kind: apply.Declared, Ahead: true}},
		"AheadOfSelf":    {reason: "what the one that asks may have later is nothing to it", owners: []client.Object{of("root", "root")}, git: sources{"root": Declaration{}.and(of("old", "two")), "two": has("a").ahead()}},
		"Superseded":     {reason: "a newer revision came", superseded: true, want: apply.Claim{Owner: "Kustomization/apps/old", Kind: apply.Again}},
		"Elsewhere": {reason: "it is declared for another cluster", owners: []client.Object{of("new", "two", func(k *kustomizev1.Kustomization) {
			k.Spec.KubeConfig = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "tenant"}}
		})}, git: sources{"two": has("a")}},
		"MovesToOwnKubeconfig": {reason: "a parent gives an owner whose kubeconfig leads back home another path", owners: []client.Object{of("root", "root"), of("new", "three", leads("own"))}, git: sources{"root": Declaration{}.and(of("new", "two", leads("own"))), "two": has("a"), "three": has("b").settled()}, want: apply.Claim{Owner: "Kustomization/apps/new", Kind: apply.Declared}},
		"NewOwnKubeconfig":     {reason: "a parent declares one that is to be made, whose kubeconfig leads back home", owners: []client.Object{of("root", "root")}, git: sources{"root": Declaration{}.and(of("new", "two", leads("own"))), "two": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/new", Kind: apply.Declared}},
		"BelowOwnKubeconfig":   {reason: "a parent whose kubeconfig leads back home declares one that is to be made", owners: []client.Object{of("root", "root", leads("own"))}, git: sources{"root": Declaration{}.and(of("new", "two")), "two": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/new", Kind: apply.Declared}},
		"OnRecord":             {reason: "what is on record of an owner's cluster holds for the form that its parent gives it", owners: []client.Object{of("root", "root"), of("new", "three", leads("mute"), recordedOn("mute", "home"))}, git: sources{"root": Declaration{}.and(of("new", "two", leads("mute"))), "two": has("a"), "three": has("b").settled()}, want: apply.Claim{Owner: "Kustomization/apps/new", Kind: apply.Declared}},
		"OfStranger":           {reason: "another team declares it for a cluster that says that it is this one", owners: []client.Object{of("new", "two", stranger, leads("own"), recordedOn("own", "home"))}, git: sources{"two": has("a")}, want: apply.Claim{Owner: "Kustomization/others/new", Kind: apply.Declared, Unsure: true}},
		"OfStrangerBelow":      {reason: "another team declares it for a cluster that says that it is the one below", owners: []client.Object{of("new", "two", stranger, leads("other"), recordedOn("other", "uid"))}, git: sources{"two": has("a")}, at: way, want: apply.Claim{Owner: "Kustomization/others/new", Kind: apply.Declared, Unsure: true}},
		"MovesToMute":          {reason: "one that is to leave another cluster first declares it for one that does not tell which it is", owners: []client.Object{of("new", "two", leads("mute"), recordedOn("old", "away"), recording("x_a__ConfigMap"))}, git: sources{"two": has("a").settled()}, want: apply.Claim{Owner: "Kustomization/apps/new", Kind: apply.Declared, Unsure: true}},
		"Mute":                 {reason: "it is declared for a cluster that does not tell which it is", owners: []client.Object{of("new", "two", leads("mute"))}, git: sources{"two": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/new", Kind: apply.Declared, Unsure: true}},
		"MuteSyncs":            {reason: "a settled one that has owners of its own in a cluster that does not tell which it is", owners: []client.Object{of("new", "two", leads("mute"), recording("x_b__ConfigMap", "b_c_kustomize.toolkit.fluxcd.io_Kustomization"))}, git: sources{"two": has("a").settled()}},
		"MuteWithout":          {reason: "something else is", owners: []client.Object{of("new", "two", leads("mute"))}, git: sources{"two": has("b")}},
		"Endless":              {reason: "a Kustomization that declares another form of itself for ever", owners: []client.Object{of("root", "loop")}, git: sources{"loop": Declaration{}.and(of("x", "pool")), "pool": Declaration{}.and(of("x", "loop"))}},
		"UnknownFresh":         {reason: "a new one whose content is not known may declare it", owners: []client.Object{of("new", "two", func(k *kustomizev1.Kustomization) { k.CreationTimestamp = metav1.NewTime(noon) })}, git: sources{"two": unknown(false)}, want: apply.Claim{Owner: "Kustomization/apps/new", Kind: apply.Declared, Unsure: true}},
		"UnknownOld":           {reason: "one that has failed for a day delays nobody", owners: []client.Object{of("new", "two", failing(24*time.Hour))}, git: sources{"two": unknown(false)}},
		"UnknownFails":         {reason: "one that fails since a moment ago may be part of the change", owners: []client.Object{of("new", "two", failing(time.Minute))}, git: sources{"two": unknown(false)}, want: apply.Claim{Owner: "Kustomization/apps/new", Kind: apply.Declared, Unsure: true}},
		"UnknownPassing":       {reason: "a source is fetched again after a restart", owners: []client.Object{of("new", "two")}, git: sources{"two": unknown(true)}, want: apply.Claim{Owner: "Kustomization/apps/new", Kind: apply.Declared, Unsure: true}},
		"Dropped":              {reason: "one that the one that asks made and no longer declares", owners: []client.Object{of("mid", "two", madeByOld), of("kept", "three", madeByOld)}, git: sources{"two": has("a"), "three": has("b")}},
		"Kept":                 {reason: "one that the one that asks made and declares", owners: []client.Object{of("kept", "two", madeByOld)}, git: sources{"two": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/kept", Kind: apply.Declared}},
		"MadeJustNow":          {reason: "one that the one that asks made, and that the cache does not have yet", unseen: []client.Object{of("kept", "two", madeByOld)}, git: sources{"two": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/kept", Kind: apply.Declared}},
		"Lost":                 {reason: "one that its parent applied while it went, and will make again", owners: []client.Object{of("root", "root", recording("apps_new_kustomize.toolkit.fluxcd.io_Kustomization"))}, git: sources{"root": Declaration{}.and(of("new", "two")).settled(), "two": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/new", Kind: apply.Declared}},
		"StillGoing":           {reason: "the same, while it still goes", owners: []client.Object{of("new", "two", deleting), of("root", "root", recording("apps_new_kustomize.toolkit.fluxcd.io_Kustomization"))}, git: sources{"root": Declaration{}.and(of("new", "two")).settled(), "two": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/new", Kind: apply.Declared}},
		"GoneForGood":          {reason: "one that its parent no longer declares", owners: []client.Object{of("new", "two", deleting), of("root", "root", recording("apps_new_kustomize.toolkit.fluxcd.io_Kustomization"))}, git: sources{"root": has("b").settled(), "two": has("a")}},
		"UnknownStranger":      {reason: "one of another team, source and parent delays nobody", owners: []client.Object{of("new", "two", stranger, failing(time.Minute))}, git: sources{"two": unknown(false)}},
		"Going":                {reason: "one that is deleted and declared by nobody", self: going, owners: []client.Object{of("root", "root", recording("apps_old_kustomize.toolkit.fluxcd.io_Kustomization"))}, git: sources{"root": has().settled()}},
		"ComesBack":            {reason: "one that is deleted, and declared again meanwhile", self: going, owners: []client.Object{of("root", "root")}, git: sources{"root": Declaration{}.and(of("old", "one")), "one": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/old", Kind: apply.Again}},
		"StillDeclared":        {reason: "its parent, which is settled, declares it", self: going, owners: []client.Object{of("root", "root", recording("apps_old_kustomize.toolkit.fluxcd.io_Kustomization"))}, git: sources{"root": Declaration{}.and(of("old", "one")).settled(), "one": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/old", Kind: apply.Again}},
		"GoingUnknown":         {reason: "its parent declares it, and what it has is not known: it must not go as if that had been found out", self: going, owners: []client.Object{of("root", "root", recording("apps_old_kustomize.toolkit.fluxcd.io_Kustomization"))}, git: sources{"root": Declaration{}.and(of("old", "one")).settled(), "one": unknown(false)}, want: apply.Claim{Owner: "Kustomization/apps/root", Kind: apply.Declared, Unsure: true}},
		"ComesBackElsewhere":   {reason: "one that is deleted, and declared again for a cluster that does not tell which it is", self: goingAway, owners: []client.Object{of("root", "root")}, git: sources{"root": Declaration{}.and(of("old", "one", leads("mute"))), "one": has("a")}, at: way, want: apply.Claim{Owner: "Kustomization/apps/root", Kind: apply.Declared, Unsure: true}},
		"ChangesElsewhere":     {reason: "the same of one that stays: it is applied as declared first", self: leaving, owners: []client.Object{of("root", "root")}, git: sources{"root": Declaration{}.and(of("old", "one", leads("mute"))), "one": has("a")}, at: way, want: apply.Claim{Owner: "Kustomization/apps/old", Kind: apply.Again}},
		"SwitchedOff":          {reason: "its parent declares it, and is not to apply it", self: going, owners: []client.Object{of("root", "root", recording("apps_old_kustomize.toolkit.fluxcd.io_Kustomization"))}, git: sources{"root": Declaration{}.and(of("old", "one", annotated("reconcile", "disabled"))).settled(), "one": has("a")}},
		"SwitchedOffThere":     {reason: "it was not to be changed while it was there, and is made again", self: of("old", "one", recording("x_a__ConfigMap"), deleting, annotated("reconcile", "disabled")), owners: []client.Object{of("root", "root", recording("apps_old_kustomize.toolkit.fluxcd.io_Kustomization"))}, git: sources{"root": Declaration{}.and(of("old", "one")).settled(), "one": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/old", Kind: apply.Again}},
		"MadeOnceComesBack":    {reason: "its parent makes it again, and only then", self: going, owners: []client.Object{of("root", "root", recording("apps_old_kustomize.toolkit.fluxcd.io_Kustomization"))}, git: sources{"root": Declaration{}.and(of("old", "one", annotated("ssa", "IfNotPresent"))).settled(), "one": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/old", Kind: apply.Again}},
		"NeverMade":            {reason: "a parent declares one that it is not to apply", owners: []client.Object{of("root", "root")}, git: sources{"root": Declaration{}.and(of("new", "two", annotated("ssa", "Ignore"))), "two": has("a")}},
		"NeverMadeUnknown":     {reason: "nor does it matter what that one has", owners: []client.Object{of("root", "root")}, git: sources{"root": Declaration{}.and(of("new", "two", annotated("ssa", "Ignore"))), "two": unknown(true)}},
		"OtherPathOnce":        {reason: "a parent has another path for an owner that it made once", owners: []client.Object{of("root", "root"), of("new", "three")}, git: sources{"root": Declaration{}.and(of("new", "two", annotated("ssa", "IfNotPresent"))), "two": has("a"), "three": has("b").settled()}},
		"OwnPathOnce":          {reason: "a parent has another path for the one that asks, which it made once", owners: []client.Object{of("root", "root")}, git: sources{"root": Declaration{}.and(of("old", "two", annotated("ssa", "IfNotPresent"))), "two": has("a")}},
		"OwnPathLeft":          {reason: "a person gave the one that asks another path, and has the parent leave it so", self: of("old", "one", recording("x_a__ConfigMap"), annotated("reconcile", "disabled")), owners: []client.Object{of("root", "root")}, git: sources{"root": Declaration{}.and(of("old", "two")), "two": has("a")}},
		"OwnPathOfChart":       {reason: "Helm changes it all the same", self: of("old", "one", recording("x_a__ConfigMap"), annotated("reconcile", "disabled")), owners: []client.Object{&helmv2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "web"}}}, git: sources{"chart": Declaration{}.and(of("old", "two")), "two": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/old", Kind: apply.Again}},
		"OwnPathOfOthers":      {reason: "its parent has applied it, and somebody else gave it another path", owners: []client.Object{of("root", "root", recording("apps_gone_kustomize.toolkit.fluxcd.io_Kustomization"), readyNow)}, git: sources{"root": Declaration{}.and(of("old", "two")).settled(), "two": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/root", Kind: apply.Declared}},
		"OwnPathOnTheWay":      {reason: "its parent is about to apply it", owners: []client.Object{of("root", "root", recording("apps_gone_kustomize.toolkit.fluxcd.io_Kustomization"))}, git: sources{"root": Declaration{}.and(of("old", "two")).settled(), "two": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/old", Kind: apply.Again}},
		"ParentSuspended":      {reason: "a person suspended the parent and deletes it", self: going, owners: []client.Object{of("root", "root", suspendedNow, recording("apps_old_kustomize.toolkit.fluxcd.io_Kustomization"))}, git: sources{"root": Declaration{}.and(of("old", "one")), "one": has("a")}},
		"OfChartDeleted":       {reason: "its chart has it, and the release is up to date: Helm does not make it again", self: going, owners: []client.Object{ofChart("", "old")}, git: sources{"chart": Declaration{}.and(of("old", "one")).settled(), "one": has("a")}},
		"OfChartWarned":        {reason: "that is told, and it is not made again", self: going, owners: []client.Object{ofChart("warn", "old")}, git: sources{"chart": Declaration{}.and(of("old", "one")).settled(), "one": has("a")}},
		"OfChartDrift":         {reason: "the release corrects what is gone", self: going, owners: []client.Object{ofChart("enabled", "old")}, git: sources{"chart": Declaration{}.and(of("old", "one")).settled(), "one": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/old", Kind: apply.Again}},
		"OfChartDriftNot":      {reason: "but not this one", self: going, owners: []client.Object{ofChart("enabled", "old")}, git: sources{"chart": Declaration{}.and(of("old", "one", noDrift)).settled(), "one": has("a")}},
		"OfChartComing":        {reason: "the release is about to be upgraded", self: going, owners: []client.Object{ofChart("", "old")}, git: sources{"chart": Declaration{}.and(of("old", "one")), "one": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/old", Kind: apply.Again}},
		"OfChartBelow":         {reason: "nor does Helm make the one again that it is of", self: going, owners: []client.Object{of("mid", "mid", deleting), ofChart("", "mid")}, git: sources{"chart": Declaration{}.and(of("mid", "mid")).settled(), "mid": Declaration{}.and(of("old", "one")), "one": has("a")}},
		"OfChartThere":         {reason: "the one that it is of is there, and makes it again", self: going, owners: []client.Object{of("mid", "mid"), ofChart("", "mid")}, git: sources{"chart": Declaration{}.and(of("mid", "mid")).settled(), "mid": Declaration{}.and(of("old", "one")), "one": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/old", Kind: apply.Again}},
		"OfChartStays":         {reason: "the one that asks is not deleted, and another one of the chart is lost", owners: []client.Object{ofChart("", "new")}, git: sources{"chart": Declaration{}.and(of("new", "two")).settled(), "two": has("a")}, want: apply.Claim{Owner: "Kustomization/apps/new", Kind: apply.Declared}},
		"MovesHere":            {reason: "one that is to leave home first declares it for the cluster that is asked about", owners: []client.Object{of("new", "two", moving, recording("x_b__ConfigMap"))}, git: sources{"two": has("a")}, at: way, want: apply.Claim{Owner: "Kustomization/apps/new", Kind: apply.Declared}},
		"MovesHereNow":         {reason: "the same: that it applied the revision was elsewhere", owners: []client.Object{of("new", "two", moving, recording("x_a__ConfigMap"))}, git: sources{"two": has("a").settled()}, at: way, want: apply.Claim{Owner: "Kustomization/apps/new", Kind: apply.Declared}},
		"MovesAway":            {reason: "one that is to leave declares it for another cluster", owners: []client.Object{of("new", "two", moving, recording("x_b__ConfigMap"))}, git: sources{"two": has("a")}},
		"NotLeftYet":           {reason: "one that is to leave still has it", owners: []client.Object{of("new", "two", moving, recording("x_a__ConfigMap"))}, git: sources{"two": has("b")}, want: apply.Claim{Owner: "Kustomization/apps/new"}},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			for _, add := range []func(*runtime.Scheme) error{kustomizev1.AddToScheme, helmv2.AddToScheme} {
				if err := add(scheme); err != nil {
					t.Fatal(err)
				}
			}
			self := tc.self
			if self == nil {
				self = old
			}
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(append(tc.owners, self)...).Build()
			live := fake.NewClientBuilder().WithScheme(scheme).WithObjects(slices.Concat(tc.owners, tc.unseen, []client.Object{self})...).Build()
			claims := &Claims{Client: c, Live: live, Kustomizations: tc.git, HelmReleases: tc.git, Identify: identify, Now: func() time.Time { return noon }}
			got, err := claims.Except(self, tc.at, Applied{
				Current: func(*source.View) bool { return !tc.superseded },
				Owners:  []inventory.Entry{EntryOf(of("kept", ""))},
			})(t.Context(), has("a").Entries[0], inventory.Entry{})
			// What declares it again is known, and is not compared.
			again := got.Kind == apply.Again && !tc.superseded
			if (got.Form != nil) != again || again && (EntryOf(got.Form) != EntryOf(self) || got.Form == client.Object(self)) {
				t.Errorf("%s: it is to be as %+v", tc.reason, got.Form)
			}
			got.Form = nil
			if err != nil || !reflect.DeepEqual(got, tc.want) {
				t.Errorf("%s: %+v, %v; want %+v", tc.reason, got, err, tc.want)
			}
		})
	}
}

// TestFormAgain: a HelmRelease that is being deleted, and declared again, is told how it will be, as that may be another release.
func TestFormAgain(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{kustomizev1.AddToScheme, helmv2.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	next := &helmv2.HelmRelease{TypeMeta: metav1.TypeMeta{APIVersion: helmv2.GroupVersion.String(), Kind: helmv2.HelmReleaseKind}, ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "web"}}
	self := next.DeepCopy()
	self.DeletionTimestamp, self.Finalizers = &metav1.Time{Time: noon}, []string{helmv2.HelmReleaseFinalizer}
	next.Spec.ReleaseName = "other"
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(next)
	if err != nil {
		t.Fatal(err)
	}
	git := sources{"root": DeclarationOf([]*unstructured.Unstructured{{Object: content}}, nil), "chart": has("a")}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(of("root", "root"), self).Build()
	claims := &Claims{Client: c, Live: c, Kustomizations: git, HelmReleases: git, Identify: identify, Now: func() time.Time { return noon }}
	got, err := claims.Except(self, target.Ref{}, Applied{})(t.Context(), has("a").Entries[0], inventory.Entry{})
	form, ok := got.Form.(*helmv2.HelmRelease)
	if err != nil || got.Kind != apply.Again || !ok || form.GetReleaseName() != "other" {
		t.Errorf("it is told %+v, %v", got, err)
	}
}

// busy is a repository that gets commit B as soon as somebody has looked at commit A.
type busy struct {
	commits map[string]sources
	newest  *source.Snapshot
}

func (b *busy) Declares(ctx context.Context, o client.Object, view *source.View, whole bool) Declaration {
	snapshot, _ := view.Snapshot(source.Key{Kind: "GitRepository"}, func() (*source.Snapshot, error) { return b.newest, nil })
	b.newest = &source.Snapshot{Revision: "B"}
	return b.commits[snapshot.Revision].Declares(ctx, o, view, whole)
}

// TestOneRevision: a commit comes in the middle of a survey and moves ConfigMap x/a from
// one owner to another. Kustomization old, which is about to delete it, is told of one of
// them, whichever of them is looked at first.
func TestOneRevision(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		// commits are what the paths have, by the revision. current are the revisions in which
		// the one that asks declares what it applied.
		commits map[string]sources
		current map[string]bool
		want    apply.Claim
	}{
		"Backwards": {
			reason: "it moves from the last to the first", commits: map[string]sources{"A": {"last": has("a")}, "B": {"first": has("a")}},
			current: map[string]bool{"A": true, "B": true}, want: apply.Claim{Owner: "Kustomization/apps/last", Kind: apply.Declared},
		},
		"Forwards": {
			reason: "it moves from the first to the last", commits: map[string]sources{"A": {"first": has("a")}, "B": {"last": has("a")}},
			current: map[string]bool{"A": true, "B": true}, want: apply.Claim{Owner: "Kustomization/apps/first", Kind: apply.Declared},
		},
		"Own": {
			reason: "the one that asks declares it in A only, and had it from neither", commits: map[string]sources{"A": {}, "B": {"first": has("a")}},
			current: map[string]bool{"B": true}, want: apply.Claim{Owner: "Kustomization/apps/old", Kind: apply.Again},
		},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			for _, add := range []func(*runtime.Scheme) error{kustomizev1.AddToScheme, helmv2.AddToScheme} {
				if err := add(scheme); err != nil {
					t.Fatal(err)
				}
			}
			self := of("old", "one", recording("x_a__ConfigMap"))
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(self, of("first", "first"), of("last", "last")).Build()
			git := &busy{commits: tc.commits, newest: &source.Snapshot{Revision: "A"}}
			claims := &Claims{Client: c, Kustomizations: git, Now: func() time.Time { return noon }}
			got, err := claims.Except(self, target.Ref{}, Applied{Current: func(view *source.View) bool {
				snapshot, _ := view.Snapshot(source.Key{Kind: "GitRepository"}, func() (*source.Snapshot, error) { return git.newest, nil })
				return tc.current[snapshot.Revision]
			}})(t.Context(), has("a").Entries[0], inventory.Entry{})
			if err != nil || !reflect.DeepEqual(got, tc.want) {
				t.Errorf("%s: %+v, %v; want %+v", tc.reason, got, err, tc.want)
			}
		})
	}
}

// TestSurveysTogether: while one survey lists owners, or has listed them, ConfigMap x/a
// changes hands and another survey looks. Both are told of who has it now.
func TestSurveysTogether(t *testing.T) {
	later := func(k *kustomizev1.Kustomization) { k.ResourceVersion = "1000" }
	for name, tc := range map[string]struct {
		reason string
		// before and after are what there is besides the ones that ask.
		before, after []client.Object
		// listed: it happens after the first survey listed, when it asks.
		listed bool
	}{
		"Recorded": {
			reason: "an owner recorded it", before: []client.Object{of("new", "two")}, after: []client.Object{of("new", "two", recording("x_a__ConfigMap"), later)},
		},
		"Made": {
			reason: "the owner did not exist", after: []client.Object{of("new", "two", recording("x_a__ConfigMap"), later)},
		},
		"HandedOver": {
			reason: "the owner in the list gave it to one that is not in it", listed: true,
			before: []client.Object{of("former", "three", recording("x_a__ConfigMap"))},
			after:  []client.Object{of("former", "three", later), of("new", "two", recording("x_a__ConfigMap"), later)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			for _, add := range []func(*runtime.Scheme) error{kustomizev1.AddToScheme, helmv2.AddToScheme} {
				if err := add(scheme); err != nil {
					t.Fatal(err)
				}
			}
			build := func(owners []client.Object) client.WithWatch {
				return fake.NewClientBuilder().WithScheme(scheme).WithObjects(append(owners, of("old", "one", recording("x_a__ConfigMap")))...).Build()
			}
			cache, meanwhile := build(tc.before), func() {}
			claims := &Claims{Kustomizations: sources{}, Now: func() time.Time { return noon }}
			claims.Client = interceptor.NewClient(cache, interceptor.Funcs{List: func(ctx context.Context, _ client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				err := cache.List(ctx, list, opts...)
				if _, last := list.(*helmv2.HelmReleaseList); last {
					now := meanwhile
					meanwhile = func() {}
					now()
				}
				return err
			}})
			on := func(asks apply.Claims, name string) apply.Claim {
				t.Helper()
				claim, err := asks(t.Context(), has(name).Entries[0], inventory.Entry{})
				if err != nil {
					t.Fatal(err)
				}
				return claim
			}
			ask := func() apply.Claims { return claims.Except(of("old", "one"), target.Ref{}, Applied{}) }
			first, second := ask(), ask()
			change := func() {
				cache = build(tc.after)
				on(second, "b")
			}
			if tc.listed {
				on(first, "b")
				change()
			} else {
				meanwhile = change
				on(first, "b")
			}
			want := apply.Claim{Owner: "Kustomization/apps/new"}
			if got := on(second, "a"); !reflect.DeepEqual(got, want) {
				t.Errorf("%s: the second is told %+v, want %+v", tc.reason, got, want)
			}
			if got := on(first, "a"); !reflect.DeepEqual(got, want) {
				t.Errorf("%s: the first is told %+v, want %+v", tc.reason, got, want)
			}
		})
	}
}

// TestLayers: what a commit moves to a Layer that has not applied it yet stays, if the Layer may have to do with the one
// that drops it.
func TestLayers(t *testing.T) {
	config := inventory.Entry{Namespace: "x", Name: "a", Kind: "ConfigMap", Version: "v1"}
	there := target.Ref{Kind: "Secret", Name: "tenant", Cluster: "uid"}
	for name, tc := range map[string]struct {
		reason string
		// source of the Layer, in the namespace apps, and the Kustomization that declares it.
		source, parent string
		at             target.Ref
		fails          error
		asked          string
		want           string
	}{
		"Source":     {"both are of one repository", "git", "", there, nil, "uid", "Layer/fleet/app"},
		"Parent":     {"one Kustomization declares both", "else", "root", there, nil, "uid", "Layer/fleet/app"},
		"Stranger":   {"it has nothing to do with it", "else", "other", there, nil, "uid", ""},
		"Local":      {"the cluster is the tier's own", "git", "", target.Ref{}, nil, "", "Layer/fleet/app"},
		"Identified": {"the cluster is asked which one it is", "git", "", target.Ref{Kind: "Secret", Name: "tenant"}, nil, "uid", "Layer/fleet/app"},
		"Unknown":    {"the cluster does not tell", "git", "", target.Ref{Kind: "Secret", Name: "mute"}, nil, "nobody", ""},
		"Unread":     {"nobody knows which Layers there are", "git", "", there, errors.New("the cache is away"), "uid", ""},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			for _, add := range []func(*runtime.Scheme) error{kustomizev1.AddToScheme, helmv2.AddToScheme} {
				if err := add(scheme); err != nil {
					t.Fatal(err)
				}
			}
			layer := &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "app"}}
			layer.Spec.SourceRef = &v1alpha1.SourceReference{Kind: "GitRepository", Namespace: "apps", Name: tc.source}
			if tc.parent != "" {
				layer.Labels = map[string]string{kustomizev1.GroupVersion.Group + "/name": tc.parent, kustomizev1.GroupVersion.Group + "/namespace": "apps"}
			}
			asked := "nobody"
			claims := &Claims{Client: fake.NewClientBuilder().WithScheme(scheme).Build(), Identify: identify, Now: func() time.Time { return noon }}
			claims.Layers = func(_ context.Context, cluster string, _ []*v1alpha1.Layer) ([]*v1alpha1.Layer, error) {
				asked = cluster
				return []*v1alpha1.Layer{layer}, tc.fails
			}
			got, err := claims.Except(of("old", "old"), tc.at, Applied{})(t.Context(), config, inventory.Entry{})
			if (err != nil) != (tc.fails != nil) || asked != tc.asked {
				t.Fatalf("%s: asked about %q, %v", tc.reason, asked, err)
			}
			if got.Owner != tc.want || got.Owner != "" && (got.Kind != apply.Declared || !got.Unsure) {
				t.Errorf("%s: the claim is %+v, want one of %q", tc.reason, got, tc.want)
			}
		})
	}
}

// TestLayersComing: so does what it moves to a Layer that the same commit brings, before the Kustomization that declares the
// Layer has applied that.
func TestLayersComing(t *testing.T) {
	config := inventory.Entry{Namespace: "x", Name: "a", Kind: "ConfigMap", Version: "v1"}
	layer := func(source string) Declaration {
		u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
			"sourceRef": map[string]any{"kind": "GitRepository", "namespace": "apps", "name": source}, "interval": "10m",
		}}}
		u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Layer"))
		u.SetNamespace("fleet")
		u.SetName("app")
		return DeclarationOf([]*unstructured.Unstructured{u}, nil)
	}
	off := func(d Declaration) Declaration {
		d.Layers[0].SetAnnotations(map[string]string{kustomizev1.GroupVersion.Group + "/reconcile": "disabled"})
		return d
	}
	ahead := func(d Declaration) Declaration { return DeclarationOf(nil, d.Layers) }
	for name, tc := range map[string]struct {
		reason string
		tier   []client.Object
		git    sources
		want   string
	}{
		"Source":      {"both are of one repository", []client.Object{of("tier", "tier")}, sources{"tier": layer("git")}, "Layer/fleet/app"},
		"Parent":      {"one Kustomization declares both", []client.Object{of("root", "root")}, sources{"root": layer("else")}, "Layer/fleet/app"},
		"Stranger":    {"it has nothing to do with it", []client.Object{of("tier", "tier")}, sources{"tier": layer("else")}, ""},
		"NotThereYet": {"the Kustomization that declares it is not there yet either", []client.Object{of("root", "root")}, sources{"root": Declaration{}.and(of("tier", "tier")), "tier": layer("git")}, "Layer/fleet/app"},
		"Recorded":    {"it is on record before it is applied", []client.Object{of("tier", "tier", recording("fleet_app_cascade.dev_Layer"))}, sources{"tier": layer("git").settled()}, "Layer/fleet/app"},
		"Settled":     {"it has been applied", []client.Object{of("tier", "tier", recording("fleet_app_cascade.dev_Layer"), readyNow)}, sources{"tier": layer("git").settled()}, ""},
		"Suspended":   {"nobody knows when it will be", []client.Object{of("tier", "tier", suspendedNow)}, sources{"tier": layer("git")}, ""},
		"SwitchedOff": {"nobody applies it", []client.Object{of("tier", "tier")}, sources{"tier": off(layer("git"))}, ""},
		"Ahead":       {"a Rollout lets it be applied in days", []client.Object{of("tier", "tier")}, sources{"tier": ahead(layer("git"))}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			for _, add := range []func(*runtime.Scheme) error{kustomizev1.AddToScheme, helmv2.AddToScheme} {
				if err := add(scheme); err != nil {
					t.Fatal(err)
				}
			}
			claims := &Claims{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(tc.tier...).Build(), Kustomizations: tc.git, Now: func() time.Time { return noon }}
			claims.Layers = func(_ context.Context, _ string, coming []*v1alpha1.Layer) ([]*v1alpha1.Layer, error) {
				return coming, nil
			}
			got, err := claims.Except(of("old", "old"), target.Ref{Kind: "Secret", Name: "tenant", Cluster: "uid"}, Applied{})(t.Context(), config, inventory.Entry{})
			if err != nil || got.Owner != tc.want || got.Owner != "" && (got.Kind != apply.Declared || !got.Unsure) {
				t.Errorf("%s: the claim is %+v, %v; want one of %q", tc.reason, got, err, tc.want)
			}
		})
	}
}

// TestIndex: what an owner recorded last counts, and nothing of one that is gone.
func TestIndex(t *testing.T) {
	x := &index{}
	at := func(version string, ids ...string) client.Object {
		return of("new", "two", recording(ids...), func(k *kustomizev1.Kustomization) { k.ResourceVersion = version })
	}
	owners := func(rest string) int { return len(x.owners[rest]) }
	x.update([]client.Object{at("1", "x_a__ConfigMap", "y_a__ConfigMap", "apps_k_kustomize.toolkit.fluxcd.io_Kustomization")})
	if owners("a__ConfigMap") != 2 || len(x.below(EntryOf(at("1")))) != 1 {
		t.Errorf("two namespaces and one owner below: %v", x.owners)
	}
	x.update([]client.Object{at("1")})
	if owners("a__ConfigMap") != 2 {
		t.Error("the same version is not read again")
	}
	x.update([]client.Object{at("2", "x_b__ConfigMap")})
	if owners("a__ConfigMap") != 0 || owners("b__ConfigMap") != 1 || len(x.below(EntryOf(at("1")))) != 0 {
		t.Errorf("the new inventory counts: %v", x.owners)
	}
	x.update(nil)
	if len(x.owners)+len(x.known) != 0 {
		t.Errorf("the owner is gone: %v", x.owners)
	}
}
