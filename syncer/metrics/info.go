package metrics

import (
	"context"
	"net/url"
	"strings"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	autov1 "github.com/fluxcd/image-automation-controller/api/v1"
	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	"github.com/prometheus/client_golang/prometheus"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/syncer/status"
)

// Families of information about Flux's objects, which published dashboards read: that which
// kube-state-metrics makes by the configuration of fluxcd/flux2-monitoring-example, and that of
// the Flux Operator.
const (
	Gotk = "gotk"
	Flux = "flux"
)

// listTimeout bounds a look into the cache.
const listTimeout = 5 * time.Second

// mostText bounds a label.
const mostText = 253

// Info tells of each object of Flux's kinds what it is and how it stands. It is a
// prometheus.Collector.
type Info struct {
	// Client reads from the cache. Kinds are those that this process reconciles.
	Client client.Reader
	Kinds  []string
	// Selects passes the objects of this process, where several agents share a tier by labels.
	Selects func(client.Object) bool
	// Active reports whether this process is the one that tells: replicas would tell the same.
	Active func() bool

	gotk, flux *prometheus.Desc
}

// NewInfo returns an Info of these families.
func NewInfo(c client.Reader, kinds, families []string, selects func(client.Object) bool, active func() bool) *Info {
	i := &Info{Client: c, Kinds: kinds, Selects: selects, Active: active}
	for _, family := range families {
		switch family {
		case Gotk:
			i.gotk = prometheus.NewDesc("gotk_resource_info", "The current state of an object of Flux's kinds, in the labels of kube-state-metrics as Flux configures it.", []string{
				"customresource_group", "customresource_kind", "customresource_version", "exported_namespace", "name", "ready", "suspended", "revision",
				"source_name", "chart_name", "chart_source_name", "chart_version", "url", "bucket_name",
			}, nil)
		case Flux:
			i.flux = prometheus.NewDesc("flux_resource_info", "The current state of an object of Flux's kinds, in the labels of the Flux Operator.", []string{
				"kind", "name", "exported_namespace", "uid", "ready", "reason", "suspended", "revision", "source_name", "url", "path",
			}, nil)
		}
	}
	return i
}

// Describe implements prometheus.Collector.
func (i *Info) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{i.gotk, i.flux} {
		if d != nil {
			ch <- d
		}
	}
}

// facts of an object that are labels.
type facts struct {
	suspended                                                                 bool
	revision, source, chart, chartSource, chartVersion, address, bucket, path string
}

// Collect implements prometheus.Collector.
func (i *Info) Collect(ch chan<- prometheus.Metric) {
	if !i.Active() || i.gotk == nil && i.flux == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), listTimeout)
	defer cancel()
	for _, kind := range i.Kinds {
		list := listOf(kind)
		if list == nil || i.Client.List(ctx, list, client.UnsafeDisableDeepCopy) != nil {
			continue
		}
		_ = apimeta.EachListItem(list, func(o runtime.Object) error { // the function does not fail
			if o, ok := o.(status.Object); ok && i.Selects(o) {
				i.tell(ch, kind, o)
			}
			return nil
		})
	}
}

func (i *Info) tell(ch chan<- prometheus.Metric, kind string, o status.Object) {
	f := factsOf(o)
	ready, reason := "Unknown", ""
	if c := apimeta.FindStatusCondition(o.GetConditions(), meta.ReadyCondition); c != nil {
		ready, reason = string(c.Status), c.Reason
	}
	send := func(d *prometheus.Desc, values ...string) {
		for n := range values {
			values[n] = text(values[n])
		}
		if m, err := prometheus.NewConstMetric(d, prometheus.GaugeValue, 1, values...); err == nil {
			ch <- m
		}
	}
	if i.gotk != nil {
		group, version := versionOf(kind)
		send(i.gotk, group, kind, version, o.GetNamespace(), o.GetName(), ready, lower(f.suspended), f.revision,
			f.source, f.chart, f.chartSource, f.chartVersion, f.address, f.bucket)
	}
	if i.flux != nil {
		send(i.flux, kind, o.GetName(), o.GetNamespace(), string(o.GetUID()), ready, reason, upper(f.suspended), f.revision, f.source, f.address, f.path)
	}
}

func lower(b bool) string {
	if b {
		return "true"
	}
	return "false"
}

func upper(b bool) string {
	if b {
		return "True"
	}
	return "False"
}

// text bounds a label.
func text(s string) string {
	s = strings.ToValidUTF8(s, "")
	if len(s) > mostText {
		s = strings.ToValidUTF8(s[:mostText], "")
	}
	return s
}

// public is a URL without what somebody may have put into it to log in.
func public(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}

func versionOf(kind string) (group, version string) {
	switch kind {
	case kustomizev1.KustomizationKind:
		return kustomizev1.GroupVersion.Group, kustomizev1.GroupVersion.Version
	case helmv2.HelmReleaseKind:
		return helmv2.GroupVersion.Group, helmv2.GroupVersion.Version
	case generatorv1.ArtifactGeneratorKind:
		return generatorv1.GroupVersion.Group, generatorv1.GroupVersion.Version
	case imagev1.ImageRepositoryKind, imagev1.ImagePolicyKind, autov1.ImageUpdateAutomationKind:
		return imagev1.GroupVersion.Group, imagev1.GroupVersion.Version
	}
	return sourcev1.GroupVersion.Group, sourcev1.GroupVersion.Version
}

func listOf(kind string) client.ObjectList {
	switch kind {
	case kustomizev1.KustomizationKind:
		return &kustomizev1.KustomizationList{}
	case helmv2.HelmReleaseKind:
		return &helmv2.HelmReleaseList{}
	case sourcev1.GitRepositoryKind:
		return &sourcev1.GitRepositoryList{}
	case sourcev1.OCIRepositoryKind:
		return &sourcev1.OCIRepositoryList{}
	case sourcev1.BucketKind:
		return &sourcev1.BucketList{}
	case sourcev1.HelmRepositoryKind:
		return &sourcev1.HelmRepositoryList{}
	case sourcev1.HelmChartKind:
		return &sourcev1.HelmChartList{}
	case generatorv1.ArtifactGeneratorKind:
		return &generatorv1.ArtifactGeneratorList{}
	case imagev1.ImageRepositoryKind:
		return &imagev1.ImageRepositoryList{}
	case imagev1.ImagePolicyKind:
		return &imagev1.ImagePolicyList{}
	case autov1.ImageUpdateAutomationKind:
		return &autov1.ImageUpdateAutomationList{}
	}
	return nil
}

func factsOf(o status.Object) facts {
	artifact := func(a *meta.Artifact) string {
		if a == nil {
			return ""
		}
		return a.Revision
	}
	switch o := o.(type) {
	case *kustomizev1.Kustomization:
		return facts{suspended: o.Spec.Suspend, revision: o.Status.LastAppliedRevision, source: o.Spec.SourceRef.Name, path: o.Spec.Path}
	case *helmv2.HelmRelease:
		f := facts{suspended: o.Spec.Suspend}
		if latest := o.Status.History.Latest(); latest != nil {
			f.revision = latest.ChartVersion
		}
		if o.Spec.Chart != nil {
			f.chart, f.chartSource = o.Spec.Chart.Spec.Chart, o.Spec.Chart.Spec.SourceRef.Name
			f.source = f.chartSource
		} else if o.Spec.ChartRef != nil {
			f.chartSource, f.source = o.Spec.ChartRef.Name, o.Spec.ChartRef.Name
		}
		return f
	case *sourcev1.GitRepository:
		return facts{suspended: o.Spec.Suspend, revision: artifact(o.Status.Artifact), address: public(o.Spec.URL)}
	case *sourcev1.OCIRepository:
		return facts{suspended: o.Spec.Suspend, revision: artifact(o.Status.Artifact), address: public(o.Spec.URL)}
	case *sourcev1.Bucket:
		return facts{suspended: o.Spec.Suspend, revision: artifact(o.Status.Artifact), address: public(o.Spec.Endpoint), bucket: o.Spec.BucketName}
	case *sourcev1.HelmRepository:
		return facts{suspended: o.Spec.Suspend, revision: artifact(o.Status.Artifact), address: public(o.Spec.URL)}
	case *sourcev1.HelmChart:
		return facts{suspended: o.Spec.Suspend, revision: artifact(o.Status.Artifact), source: o.Spec.SourceRef.Name, chart: o.Spec.Chart, chartVersion: o.Spec.Version}
	case *generatorv1.ArtifactGenerator:
		return facts{suspended: o.IsDisabled()}
	case *imagev1.ImageRepository:
		return facts{suspended: o.Spec.Suspend}
	case *imagev1.ImagePolicy:
		return facts{suspended: o.Spec.Suspend, source: o.Spec.ImageRepositoryRef.Name}
	case *autov1.ImageUpdateAutomation:
		return facts{suspended: o.Spec.Suspend, revision: o.Status.ObservedSourceRevision, source: o.Spec.SourceRef.Name}
	}
	return facts{}
}
