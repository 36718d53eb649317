package main

import (
	"fmt"

	autov1 "github.com/fluxcd/image-automation-controller/api/v1"
	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	notificationv1beta3 "github.com/fluxcd/notification-controller/api/v1beta3"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// conditionsOf are the conditions of an object of a kind that says how it is. One that
// nobody reconciles, and so has none, is ready for those that use it.
func conditionsOf(o client.Object) []metav1.Condition {
	if isLookedUp(o) {
		return []metav1.Condition{{Type: fluxmeta.ReadyCondition, Status: metav1.ConditionTrue, Reason: fluxmeta.SucceededReason, Message: "charts are fetched from it when they are needed"}}
	}
	return o.(conditioned).GetConditions()
}

// artifactGetters list what is made of sources.
func artifactGetters() []getter {
	return []getter{{
		name: "externalartifacts", single: "externalartifact", aliases: []string{"ea"}, source: true,
		list: func() client.ObjectList { return &sourcev1.ExternalArtifactList{} }, conditions: conditionsOf,
		header: []string{"REVISION"},
		row: func(o client.Object) []string {
			revision := ""
			if a := o.(*sourcev1.ExternalArtifact).GetArtifact(); a != nil {
				revision = a.Revision
			}
			return []string{shortRevision(revision)}
		},
		wideHeader: []string{"ORIGIN"},
		wide: func(o client.Object) []string {
			ref := o.(*sourcev1.ExternalArtifact).Spec.SourceRef
			if ref == nil {
				return []string{""}
			}
			return []string{ref.Kind + "/" + ref.Name}
		},
	}, {
		name: "artifactgenerators", single: "artifactgenerator", aliases: []string{"ag"},
		list: func() client.ObjectList { return &generatorv1.ArtifactGeneratorList{} }, conditions: conditionsOf,
		header: []string{"ARTIFACTS", "SUSPENDED"},
		row: func(o client.Object) []string {
			g := o.(*generatorv1.ArtifactGenerator)
			return []string{fmt.Sprint(len(g.Status.Inventory)), truth(g.IsDisabled())}
		},
		wideHeader: []string{"SOURCES"},
		wide: func(o client.Object) []string {
			return []string{fmt.Sprint(len(o.(*generatorv1.ArtifactGenerator).Spec.Sources))}
		},
	}}
}

// imageGetters list the kinds of image updates.
func imageGetters() []getter {
	return []getter{{
		name: "imagerepositories", single: "imagerepository", aliases: []string{"imagerepo"}, image: true,
		list: func() client.ObjectList { return &imagev1.ImageRepositoryList{} }, conditions: conditionsOf,
		header: []string{"LAST SCAN", "TAGS", "SUSPENDED"},
		row: func(o client.Object) []string {
			r, scanned, tags := o.(*imagev1.ImageRepository), "-", ""
			if last := r.Status.LastScanResult; last != nil {
				scanned, tags = moment(&last.ScanTime), fmt.Sprint(last.TagCount)
			}
			return []string{scanned, tags, truth(r.Spec.Suspend)}
		},
		suspend:    func(o client.Object) *bool { return &o.(*imagev1.ImageRepository).Spec.Suspend },
		wideHeader: []string{"IMAGE"},
		wide:       func(o client.Object) []string { return []string{o.(*imagev1.ImageRepository).Spec.Image} },
	}, {
		name: "imagepolicies", single: "imagepolicy", image: true,
		list: func() client.ObjectList { return &imagev1.ImagePolicyList{} }, conditions: conditionsOf,
		header: []string{"IMAGE", "TAG", "SUSPENDED"},
		row: func(o client.Object) []string {
			p, image, tag := o.(*imagev1.ImagePolicy), "", ""
			if latest := p.Status.LatestRef; latest != nil {
				image, tag = latest.Name, latest.Tag
			}
			return []string{image, tag, truth(p.Spec.Suspend)}
		},
		suspend:    func(o client.Object) *bool { return &o.(*imagev1.ImagePolicy).Spec.Suspend },
		wideHeader: []string{"REPOSITORY"},
		wide: func(o client.Object) []string {
			p := o.(*imagev1.ImagePolicy)
			return []string{inNamespace(p.Spec.ImageRepositoryRef.Namespace, p.Namespace, p.Spec.ImageRepositoryRef.Name).String()}
		},
	}, {
		name: "imageupdateautomations", single: "imageupdateautomation", aliases: []string{"imageupdate", "iua"}, image: true,
		list: func() client.ObjectList { return &autov1.ImageUpdateAutomationList{} }, conditions: conditionsOf,
		header: []string{"LAST RUN", "LAST PUSH", "SUSPENDED"},
		row: func(o client.Object) []string {
			a := o.(*autov1.ImageUpdateAutomation)
			return []string{moment(a.Status.LastAutomationRunTime), shortRevision(pushedBy(a)), truth(a.Spec.Suspend)}
		},
		suspend:    func(o client.Object) *bool { return &o.(*autov1.ImageUpdateAutomation).Spec.Suspend },
		wideHeader: []string{"SOURCE"},
		wide: func(o client.Object) []string {
			a := o.(*autov1.ImageUpdateAutomation)
			ref := a.Spec.SourceRef
			return []string{ref.Kind + "/" + inNamespace(ref.Namespace, a.Namespace, ref.Name).String()}
		},
	}}
}

// pushedBy is the last commit of an automation, as revisions are written.
func pushedBy(a *autov1.ImageUpdateAutomation) string {
	if a.Status.LastPushCommit == "" {
		return ""
	}
	return "sha1:" + a.Status.LastPushCommit
}

// notificationGetters list what comes in and goes out. Alerts and Providers have no status:
// they are used as they are.
func notificationGetters() []getter {
	return []getter{{
		name: "receivers", single: "receiver",
		list: func() client.ObjectList { return &notificationv1.ReceiverList{} }, conditions: conditionsOf,
		header:     []string{"SUSPENDED"},
		row:        func(o client.Object) []string { return []string{truth(o.(*notificationv1.Receiver).Spec.Suspend)} },
		suspend:    func(o client.Object) *bool { return &o.(*notificationv1.Receiver).Spec.Suspend },
		wideHeader: []string{"TYPE", "PATH"},
		wide: func(o client.Object) []string {
			r := o.(*notificationv1.Receiver)
			return []string{r.Spec.Type, r.Status.WebhookPath}
		},
	}, {
		name: "alerts", single: "alert",
		list:   func() client.ObjectList { return &notificationv1beta3.AlertList{} },
		header: []string{"PROVIDER", "SUSPENDED"},
		row: func(o client.Object) []string {
			a := o.(*notificationv1beta3.Alert)
			return []string{a.Spec.ProviderRef.Name, truth(a.Spec.Suspend)}
		},
		suspend:    func(o client.Object) *bool { return &o.(*notificationv1beta3.Alert).Spec.Suspend },
		wideHeader: []string{"SEVERITY"},
		wide:       func(o client.Object) []string { return []string{o.(*notificationv1beta3.Alert).Spec.EventSeverity} },
	}, {
		name: "alert-providers", single: "alert-provider",
		list:   func() client.ObjectList { return &notificationv1beta3.ProviderList{} },
		header: []string{"TYPE", "SUSPENDED"},
		row: func(o client.Object) []string {
			p := o.(*notificationv1beta3.Provider)
			return []string{p.Spec.Type, truth(p.Spec.Suspend)}
		},
		suspend:    func(o client.Object) *bool { return &o.(*notificationv1beta3.Provider).Spec.Suspend },
		wideHeader: []string{"CHANNEL"},
		wide:       func(o client.Object) []string { return []string{o.(*notificationv1beta3.Provider).Spec.Channel} },
	}}
}
