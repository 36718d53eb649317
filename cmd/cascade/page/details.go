package page

import (
	"fmt"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	autov1 "github.com/fluxcd/image-automation-controller/api/v1"
	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	notificationv1beta3 "github.com/fluxcd/notification-controller/api/v1beta3"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// details are what an object has: the revision of a source, the tag of a policy, the end of a
// credential. Addresses are left out: some have a key in them.
func (o *listedObject) details(now time.Time) []detailView {
	var all []detailView
	code := func(text string) {
		if text != "" {
			all = append(all, detailView{Code: text})
		}
	}
	word := func(format string, args ...any) {
		all = append(all, detailView{Text: name(fmt.Sprintf(format, args...))})
	}
	ago := func(what string, t *metav1.Time) {
		if t != nil && !t.IsZero() {
			m := until(t, now)
			all = append(all, detailView{Text: what, When: &m})
		}
	}
	switch of := o.of.(type) {
	case sourcev1.Source:
		if a := of.GetArtifact(); a != nil {
			code(revision(a.Revision))
		}
	case *kustomizev1.Kustomization:
		code(revision(of.Status.LastAppliedRevision))
	case *helmv2.HelmRelease:
		if last := of.Status.History.Latest(); last != nil {
			code(name(last.ChartName + " " + last.ChartVersion))
		}
	case *v1alpha1.Layer:
		code(revision(of.Status.Revision))
		word("%d of %d children", of.Status.Children.Current, of.Status.Children.Total)
	case *generatorv1.ArtifactGenerator:
		word("artifacts: %d", len(of.Status.Inventory))
	case *imagev1.ImageRepository:
		if last := of.Status.LastScanResult; last != nil {
			word("tags: %d", last.TagCount)
			ago("scanned", &last.ScanTime)
		}
	case *imagev1.ImagePolicy:
		if latest := of.Status.LatestRef; latest != nil {
			code(name(latest.Name + ":" + latest.Tag))
		}
	case *autov1.ImageUpdateAutomation:
		if of.Status.LastPushCommit != "" {
			code(revision("sha1:" + of.Status.LastPushCommit))
			ago("pushed", of.Status.LastPushTime)
		}
	case *notificationv1.Receiver:
		word("for %s", of.Spec.Type)
	case *notificationv1beta3.Alert:
		word("tells Provider %s", of.Spec.ProviderRef.Name)
	case *notificationv1beta3.Provider:
		word("%s", of.Spec.Type)
	case *v1alpha1.Credential:
		word("Secret %s", of.SecretName())
		if ends := of.Status.ExpiresAt; ends != nil && !ends.After(now) {
			ago("lapsed", ends)
		} else {
			ago("lapses", ends)
		}
		ago("renewed", of.Status.LastRenewal)
	case *v1alpha1.StateBackup:
		if of.Status.LastVersion != "" {
			word("version %s", of.Status.LastVersion)
		}
		ago("saved", of.Status.LastSuccess)
	}
	return all
}
