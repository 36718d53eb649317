package main

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	autov1 "github.com/fluxcd/image-automation-controller/api/v1"
	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	notificationv1beta3 "github.com/fluxcd/notification-controller/api/v1beta3"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

func laterKinds() []client.Object {
	named := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "team", Name: name, CreationTimestamp: metav1.NewTime(noon.Add(-time.Hour))}
	}
	ready := func(message string) []metav1.Condition {
		return []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Succeeded", Message: message}}
	}
	ago := func(d time.Duration) *metav1.Time { t := metav1.NewTime(noon.Add(-d)); return &t }
	return []client.Object{
		&imagev1.ImageRepository{ObjectMeta: named("web"), Spec: imagev1.ImageRepositorySpec{Image: "registry.example/web"}, Status: imagev1.ImageRepositoryStatus{
			Conditions: ready("successful scan: found 7 tags"), LastScanResult: &imagev1.ScanResult{TagCount: 7, ScanTime: *ago(time.Minute), Revision: "sha256:1234"},
		}},
		&imagev1.ImagePolicy{ObjectMeta: named("web"), Spec: imagev1.ImagePolicySpec{ImageRepositoryRef: fluxmeta.NamespacedObjectReference{Name: "web"}}, Status: imagev1.ImagePolicyStatus{
			Conditions: ready("resolved to 1.2.3"), LatestRef: &imagev1.ImageRef{Name: "registry.example/web", Tag: "1.2.3"},
		}},
		&imagev1.ImagePolicy{ObjectMeta: named("fresh"), Spec: imagev1.ImagePolicySpec{ImageRepositoryRef: fluxmeta.NamespacedObjectReference{Namespace: "images", Name: "web"}}},
		&autov1.ImageUpdateAutomation{ObjectMeta: named("apps"), Spec: autov1.ImageUpdateAutomationSpec{
			SourceRef: autov1.CrossNamespaceSourceReference{Kind: "GitRepository", Name: "apps"}, Suspend: true,
		}, Status: autov1.ImageUpdateAutomationStatus{
			Conditions: ready("repository up-to-date"), LastAutomationRunTime: ago(2 * time.Minute), LastPushCommit: "0123456789abcdef0123456789abcdef01234567",
		}},
		&notificationv1.Receiver{ObjectMeta: named("hook"), Spec: notificationv1.ReceiverSpec{Type: "github"}, Status: notificationv1.ReceiverStatus{
			Conditions: ready("Receiver initialized for path: /hook/0123"), WebhookPath: "/hook/0123",
		}},
		&notificationv1beta3.Alert{ObjectMeta: named("all"), Spec: notificationv1beta3.AlertSpec{ProviderRef: fluxmeta.LocalObjectReference{Name: "chat"}, EventSeverity: "error"}},
		&notificationv1beta3.Provider{ObjectMeta: named("chat"), Spec: notificationv1beta3.ProviderSpec{Type: "slack", Channel: "ops"}},
		&generatorv1.ArtifactGenerator{ObjectMeta: named("parts"), Spec: generatorv1.ArtifactGeneratorSpec{Sources: []generatorv1.SourceReference{{Alias: "git"}}}, Status: generatorv1.ArtifactGeneratorStatus{
			Conditions: ready("reconciliation succeeded, generated 1 artifact(s)"), Inventory: []generatorv1.ExternalArtifactReference{{Name: "part"}},
		}},
		&sourcev1.ExternalArtifact{ObjectMeta: named("part"), Spec: sourcev1.ExternalArtifactSpec{SourceRef: &fluxmeta.NamespacedObjectKindReference{Kind: "ArtifactGenerator", Name: "parts"}},
			Status: sourcev1.ExternalArtifactStatus{Conditions: ready("Artifact is ready"), Artifact: &fluxmeta.Artifact{Revision: "latest@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}}},
	}
}

// TestGetLaterKinds prints the kinds that came to Flux later; those without a status have no
// column for it.
func TestGetLaterKinds(t *testing.T) {
	cl := indexed().WithObjects(laterKinds()...).Build()
	var all strings.Builder
	for _, args := range [][]string{{"all", ""}, {"images", "wide"}, {"receivers", "wide"}, {"alerts", "wide"}, {"alert-providers", "wide"}, {"ag", "wide"}, {"ea", "wide"}, {"imagepolicy", "name"}} {
		chosen, err := choose(args[0])
		if err != nil {
			t.Fatal(err)
		}
		c, out := newCLI(t)
		c.now = func() time.Time { return noon }
		o := newGetOptions()
		o.namespace, *o.print.OutputFormat = "team", args[1]
		if err := c.get(t.Context(), cl, chosen, o); err != nil {
			t.Fatal(err)
		}
		all.WriteString("$ cascade get " + strings.TrimSuffix(strings.Join(args, " -o "), " -o ") + "\n" + out.String() + "\n")
	}
	golden(t, "get-later-kinds.txt", all.String())
	chosen, err := choose("alerts")
	if err != nil {
		t.Fatal(err)
	}
	c, out := newCLI(t)
	o := newGetOptions()
	o.namespace, o.status = "team", "ready=false"
	if err := c.get(t.Context(), cl, chosen, o); err != nil || strings.Contains(out.String(), "chat") {
		t.Errorf("an Alert does not say how it is, and is taken for not ready: %v\n%s", err, out)
	}
}

// TestGetLookedUp: a HelmRepository of type oci has no conditions, and none fails.
func TestGetLookedUp(t *testing.T) {
	repository := func(name, kind string) *sourcev1.HelmRepository {
		return &sourcev1.HelmRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}, Spec: sourcev1.HelmRepositorySpec{Type: kind}}
	}
	cl := indexed().WithObjects(repository("charts", sourcev1.HelmRepositoryTypeOCI), repository("other", sourcev1.HelmRepositoryTypeDefault)).Build()
	chosen, err := choose("helmrepositories")
	if err != nil {
		t.Fatal(err)
	}
	for status, want := range map[string][]string{
		"":            {"charts True charts are fetched from it when they are needed", "other False waiting to be reconciled"},
		"ready=false": {"other False waiting to be reconciled"},
		"ready=true":  {"charts True charts are fetched from it when they are needed"},
	} {
		c, out := newCLI(t)
		o := newGetOptions()
		o.namespace, o.status, o.noHeader = "team", status, true
		if err := c.get(t.Context(), cl, chosen, o); err != nil {
			t.Fatal(err)
		}
		var got []string
		for line := range strings.Lines(out.String()) {
			words := strings.Fields(line)
			got = append(got, strings.Join(append(words[:1:1], words[2:]...), " "))
		}
		if !slices.Equal(got, want) {
			t.Errorf("--status-selector %q: %q, want %q", status, got, want)
		}
	}
}

// TestReconcileStill: nobody reconciles these kinds, so that to wait for it would not end.
func TestReconcileStill(t *testing.T) {
	for _, kind := range []string{"alert", "alert-provider", "externalartifact"} {
		s, err := newSubject(kind, client.ObjectKey{})
		if err != nil || !s.still {
			t.Errorf("%s: %+v, %v", kind, s, err)
		}
	}
	for _, word := range reconcilable() {
		if strings.HasPrefix(word, "alert") || word == "externalartifacts" {
			t.Errorf("%s is offered", word)
		}
	}
}

// TestReconcileSuspended: what is suspended is not asked, and so is nothing for it.
func TestReconcileSuspended(t *testing.T) {
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "team", Name: name} }
	ready := conditions("Ready", metav1.ConditionTrue, "Succeeded", "", time.Hour)
	running, still := &sourcev1.GitRepository{ObjectMeta: named("running")}, &sourcev1.GitRepository{ObjectMeta: named("still"), Spec: sourcev1.GitRepositorySpec{Suspend: true}}
	of := func(name, source string, suspend bool) *kustomizev1.Kustomization {
		k := &kustomizev1.Kustomization{ObjectMeta: named(name)}
		k.Spec.Suspend, k.Spec.SourceRef, k.Status.Conditions = suspend, kustomizev1.CrossNamespaceSourceReference{Kind: "GitRepository", Name: source}, ready
		return k
	}
	chart := &sourcev1.HelmChart{ObjectMeta: named("chart"), Spec: sourcev1.HelmChartSpec{SourceRef: sourcev1.LocalHelmChartSourceReference{Kind: "GitRepository", Name: "still"}}}
	registry := &sourcev1.HelmRepository{ObjectMeta: named("registry"), Spec: sourcev1.HelmRepositorySpec{Type: sourcev1.HelmRepositoryTypeOCI}}
	parts := &generatorv1.ArtifactGenerator{ObjectMeta: named("parts")}
	part, foreign := &sourcev1.ExternalArtifact{ObjectMeta: named("part")}, &sourcev1.ExternalArtifact{ObjectMeta: named("foreign")}
	part.Spec.SourceRef = &fluxmeta.NamespacedObjectKindReference{Kind: "ArtifactGenerator", Name: "parts"}
	foreign.Spec.SourceRef = &fluxmeta.NamespacedObjectKindReference{Kind: "Builder", Name: "builder"}
	ofPart, ofForeign := of("of-part", "part", false), of("of-foreign", "foreign", false)
	ofPart.Spec.SourceRef.Kind, ofForeign.Spec.SourceRef.Kind = "ExternalArtifact", "ExternalArtifact"
	rollout := &v1alpha1.Rollout{ObjectMeta: named("rollout"), Spec: v1alpha1.RolloutSpec{Suspend: true}}
	for name, tc := range map[string]struct {
		reason, kind, name string
		withSource         bool
		want               string
		asked              []string
	}{
		"Kustomization": {"it is ready by an old revision", "ks", "still", false, "cannot reconcile ks team/still: it is suspended; run: cascade resume kustomization still -n team", nil},
		"First":         {"its source would be asked for nothing", "kustomization", "still", true, "kustomization team/still: it is suspended", nil},
		"Source":        {"nobody answers", "source", "still", false, "cascade resume gitrepository still -n team", nil},
		"WithSource":    {"what it is made of stands still", "kustomization", "of-still", true, "gitrepository team/still: it is suspended", nil},
		"Below":         {"a chart is made of a source", "helmchart", "chart", true, "gitrepository team/still: it is suspended", nil},
		"Without":       {"the source may stand still", "kustomization", "of-still", false, "", []string{"of-still"}},
		"Both":          {"nothing is suspended", "kustomization", "of-running", true, "", []string{"running", "of-running"}},
		"Made":          {"nobody reconciles the source, but what makes it", "kustomization", "of-part", true, "", []string{"parts", "of-part"}},
		"Foreign":       {"nor what makes it", "kustomization", "of-foreign", true, "", []string{"of-foreign"}},
		"LookedUp":      {"nobody reconciles it, and so nobody would answer", "helmrepository", "registry", false, "", nil},
		"Rollout":       {"it looks at what is there, and begins nothing", "rollout", "rollout", false, "", []string{"rollout"}},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []string
			cl := fake.NewClientBuilder().WithScheme(newScheme()).
				WithObjects(running, still, of("still", "running", true), of("of-still", "still", false), of("of-running", "running", false), chart, rollout, registry, parts, part, foreign, ofPart, ofForeign).
				WithInterceptorFuncs(interceptor.Funcs{
					Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
						asked = append(asked, o.GetName())
						return c.Patch(ctx, o, patch, opts...)
					},
					Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
						err := c.Get(ctx, key, o, opts...)
						token := o.GetAnnotations()[fluxmeta.ReconcileRequestAnnotation]
						switch o := o.(type) {
						case *sourcev1.GitRepository:
							o.Status.LastHandledReconcileAt, o.Status.Conditions = token, ready
						case *kustomizev1.Kustomization:
							o.Status.LastHandledReconcileAt = token
						case *generatorv1.ArtifactGenerator:
							o.Status.LastHandledReconcileAt, o.Status.Conditions = token, ready
						case *v1alpha1.Rollout:
							o.Status.LastHandledReconcileAt = token
						}
						return err
					},
				}).Build()
			s, err := newSubject(tc.kind, client.ObjectKey{Namespace: "team", Name: tc.name})
			if err != nil {
				t.Fatal(err)
			}
			c, _ := newCLI(t)
			err = c.reconcileObject(t.Context(), cl, tc.kind, s, tc.withSource)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %v, want %q", tc.reason, err, tc.want)
			}
			if !slices.Equal(asked, tc.asked) {
				t.Errorf("%s: asks %v, want %v", tc.reason, asked, tc.asked)
			}
		})
	}
}
