package page

import (
	"fmt"
	"strings"
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	autov1 "github.com/fluxcd/image-automation-controller/api/v1"
	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	notificationv1beta3 "github.com/fluxcd/notification-controller/api/v1beta3"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// meta of an object in the namespace of the agent.
func at(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "cascade-system", Name: name, CreationTimestamp: ago(48 * time.Hour)}
}

// withObjects is the tier of threeTiers with an object of each kind, and with what is wrong
// with credentials and backups here and below.
func withObjects() Facts {
	f := threeTiers()
	well := ready(metav1.ConditionTrue, "Succeeded", "", time.Hour)
	git := &sourcev1.GitRepository{ObjectMeta: at("fleet")}
	git.Spec.SecretRef = &fluxmeta.LocalObjectReference{Name: "git-auth"}
	git.Status.Conditions, git.Status.Artifact = ready(metav1.ConditionFalse, "AuthenticationFailed", "the server refuses the login", 20*time.Minute), &fluxmeta.Artifact{Revision: shaOne}
	registry := &sourcev1.HelmRepository{ObjectMeta: at("registry")}
	registry.Spec.Type = sourcev1.HelmRepositoryTypeOCI
	external := &sourcev1.ExternalArtifact{ObjectMeta: at("apps")}
	external.Status.Conditions, external.Status.Artifact = well, &fluxmeta.Artifact{Revision: "latest@sha256:" + strings.Repeat("ab", 32)}
	f.Sources = []client.Object{git, registry, external}
	generator := &generatorv1.ArtifactGenerator{ObjectMeta: at("parts")}
	generator.Status.Conditions, generator.Status.Inventory = well, []generatorv1.ExternalArtifactReference{{Name: "apps"}}
	images := &imagev1.ImageRepository{ObjectMeta: at("shop")}
	images.Status.Conditions, images.Status.LastScanResult = well, &imagev1.ScanResult{TagCount: 12, ScanTime: ago(3 * time.Minute)}
	policy := &imagev1.ImagePolicy{ObjectMeta: at("shop")}
	policy.Status.Conditions, policy.Status.LatestRef = well, &imagev1.ImageRef{Name: "registry.example/shop", Tag: "1.4.2"}
	automation := &autov1.ImageUpdateAutomation{ObjectMeta: at("shop")}
	automation.Spec.Suspend = true
	automation.Status.LastPushCommit, automation.Status.LastPushTime = strings.Repeat("2", 40), new(ago(5*time.Hour))
	receiver := &notificationv1.Receiver{ObjectMeta: at("push")}
	receiver.Spec.Type = "github"
	f.Others = []client.Object{generator, images, policy, automation, receiver}
	alert, off := &notificationv1beta3.Alert{ObjectMeta: at("errors")}, &notificationv1beta3.Alert{ObjectMeta: at("off")}
	alert.Spec.ProviderRef.Name, off.Spec.ProviderRef.Name, off.Spec.Suspend = "chat", "chat", true
	provider := &notificationv1beta3.Provider{ObjectMeta: at("chat")}
	provider.Spec.Type, provider.Spec.Address = "slack", "https://hooks.example/T00/B00/the-key"
	f.Notifications = []client.Object{alert, off, provider}
	release := helmv2.HelmRelease{ObjectMeta: at("mesh")}
	release.Status.Conditions, release.Status.History = well, helmv2.Snapshots{{ChartName: "mesh", ChartVersion: "1.2.3", Version: 1}}
	f.HelmReleases = []helmv2.HelmRelease{release}
	lapsed, fresh := v1alpha1.Credential{ObjectMeta: at("git-auth")}, v1alpha1.Credential{ObjectMeta: at("registry-auth")}
	lapsed.Status = v1alpha1.CredentialStatus{IssuedAt: new(ago(2 * time.Hour)), LastRenewal: new(ago(2 * time.Hour)), ExpiresAt: new(ago(25 * time.Minute)), Conditions: append(
		ready(metav1.ConditionFalse, v1alpha1.ReasonCredentialLapsed, "what Secret git-auth has lapsed", 25*time.Minute),
		metav1.Condition{Type: v1alpha1.SourceFailingCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonVaultUnreachable, Message: "no route to host", LastTransitionTime: ago(50 * time.Minute)})}
	fresh.Spec.Target.Name = "registry-login"
	fresh.Status = v1alpha1.CredentialStatus{IssuedAt: new(ago(time.Hour)), LastRenewal: new(ago(10 * time.Minute)), ExpiresAt: new(ago(-50 * time.Minute)), Conditions: well}
	f.Credentials = []v1alpha1.Credential{lapsed, fresh}
	backup := v1alpha1.StateBackup{ObjectMeta: at("tier")}
	backup.Status = v1alpha1.StateBackupStatus{LastVersion: "3-17", LastSuccess: new(ago(4 * time.Hour)), Conditions: ready(metav1.ConditionFalse, v1alpha1.ReasonBackupStale, "DestinationFailed: the last success was 4h ago", 3*time.Hour)}
	f.Backups = []v1alpha1.StateBackup{backup}
	f.Own.Faults = &v1alpha1.ReportFaults{CredentialsLapsed: 1, BackupsStale: 1}
	f.Own.Failing = append([]v1alpha1.Failure{{Name: "Credential/cascade-system/git-auth", Reason: v1alpha1.ReasonCredentialLapsed, Message: "what Secret git-auth has lapsed"}}, f.Own.Failing...)
	production := &f.Children[0]
	production.Status.Report.Faults = &v1alpha1.ReportFaults{CredentialsFailing: 2}
	production.Status.Report.Children.Faults = &v1alpha1.ReportFaults{BackupsStale: 1}
	production.Status.Report.Tiers[0].Faults = &v1alpha1.ReportFaults{BackupsStale: 1}
	return f
}

// TestObjects: each kind has its row, with the faults of page Why, and faults of credentials
// and backups are where other faults are.
func TestObjects(t *testing.T) {
	for file, tc := range map[string]struct {
		reason string
		page   Name
		facts  Facts
		query  Query
	}{
		"objects.html":             {"what is not as it should be is first", Objects, withObjects(), Query{}},
		"objects-credentials.html": {"one kind", Objects, withObjects(), Query{Kind: "Credential", Namespace: "cascade-system"}},
		"objects-none.html":        {"nothing is as the form says", Objects, withObjects(), Query{Kind: "Bucket", State: "Ready"}},
		"objects-empty.html":       {"nothing is there", Objects, Facts{At: noon}, Query{}},
		"fleet-faults.html":        {"a tier and a cluster with faults", Fleet, withObjects(), Query{Environment: "production"}},
		"cluster-faults.html":      {"a child with faults, and with some below", Cluster, withObjects(), Query{Cluster: "fleet/production"}},
		"why-credential.html":      {"a source fails for want of a credential", Why, withObjects(), Query{Object: "GitRepository/cascade-system/fleet"}},
	} {
		t.Run(strings.TrimSuffix(file, ".html"), func(t *testing.T) {
			text := render(t, tc.page, tc.facts, tc.query)
			if strings.Contains(text, "the-key") {
				t.Error("the address of a Provider is shown")
			}
			golden(t, file, text)
		})
	}
}

// TestManyObjects: a page of many objects has its bound, and the worst are on the first.
func TestManyObjects(t *testing.T) {
	f := thousand()
	for i := range 2000 {
		c := v1alpha1.Credential{ObjectMeta: at(fmt.Sprintf("a-credential-with-a-long-name-%04d", i))}
		c.Status.Conditions = ready(metav1.ConditionTrue, "Succeeded", "", time.Hour)
		if i == 1999 {
			c.Status.Conditions = ready(metav1.ConditionFalse, v1alpha1.ReasonCredentialLapsed, strings.Repeat("z", 3000), time.Hour)
		}
		f.Credentials = append(f.Credentials, c)
	}
	for _, q := range []Query{{}, {Kind: "Kustomization"}, {Page: 1 << 19}} {
		if text := render(t, Objects, f, q); len(text) > 200_000 {
			t.Errorf("%v: %d bytes", q, len(text))
		}
	}
	if text := render(t, Objects, f, Query{Kind: "Credential"}); !strings.Contains(text, "a-credential-with-a-long-name-1999") || !strings.Contains(text, "1 to 100 of 2000") {
		t.Errorf("the one that lapsed is not on the first page:\n%.2000s", text)
	}
}

// TestHostileObjects: what stands in a name or a message is text.
func TestHostileObjects(t *testing.T) {
	const evil = `"><script>alert(1)</script><img src=x onerror=alert(1)>'` + "\x1b[2J\u202e"
	f := withObjects()
	for _, list := range [][]client.Object{f.Sources, f.Others, f.Notifications, {&f.Credentials[0], &f.Credentials[1], &f.Backups[0], &f.HelmReleases[0]}} {
		for _, o := range list {
			o.SetName(evil)
			o.SetNamespace(evil)
		}
	}
	f.Credentials[0].Spec.Target.Name, f.Credentials[0].Status.Conditions[0].Message, f.Credentials[0].Status.Conditions[1].Reason = evil, evil, evil
	f.Backups[0].Status.LastVersion = evil
	f.Notifications[2].(*notificationv1beta3.Provider).Spec.Type = evil
	f.Others[2].(*imagev1.ImagePolicy).Status.LatestRef = &imagev1.ImageRef{Name: evil, Tag: evil}
	f.HelmReleases[0].Status.History[0].ChartName = evil
	for _, q := range []Query{{}, {Kind: evil, State: evil, Search: evil}} {
		text := render(t, Objects, f, q)
		if strings.ContainsAny(text, "\x1b\u202e") && q.Kind == "" {
			t.Error("it has what a terminal obeys")
		}
		wellFormed(t, Objects, text)
	}
}
