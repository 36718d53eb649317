package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	autov1 "github.com/fluxcd/image-automation-controller/api/v1"
	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	notificationv1beta3 "github.com/fluxcd/notification-controller/api/v1beta3"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/cause"
	"github.com/cascade-gitops/cascade/cmd/cascade/page"
	"github.com/cascade-gitops/cascade/remote/report"
)

const (
	// readTimeout bounds the reading of all that a page needs.
	readTimeout = 15 * time.Second
	// mostLists is how many kinds are read at a time for a page.
	mostLists = 8
	// mostEvents is how many events of a child are read.
	mostEvents = 500
	// mostClusters is how many Clusters of Cluster API are read.
	mostClusters = 5000
)

// Source is what a reader may read of a tier.
type Source struct {
	// Reader has the objects of the tier. It refuses, as the API server does, what its user
	// may not read.
	client.Reader
	// Direct reads kinds for which there are no caches. It refuses in the same way.
	Direct client.Reader
	// Namespace of the agent, whose report of the tier is there.
	Namespace string
}

// facts reads what a page needs. What is optional and may not be read is named.
func (s *Source) facts(ctx context.Context, n page.Name, q page.Query, now time.Time) (page.Facts, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	f := page.Facts{At: now, Namespace: q.Namespace, Unread: map[string]string{}}
	required, optional := page.Needs(n)
	// Which Clusters are read depends on the Children.
	withClusters := slices.Contains(optional, page.ClusterAPI)
	kinds := slices.DeleteFunc(slices.Concat(required, optional), func(k page.Kind) bool { return k == page.ClusterAPI })
	parts, failed := make([]page.Facts, len(kinds)), make([]error, len(kinds))
	group := errgroup.Group{}
	group.SetLimit(mostLists)
	for i, kind := range kinds {
		group.Go(func() error {
			failed[i] = s.read(ctx, kind, q, &parts[i])
			return nil
		})
	}
	_ = group.Wait() // what failed is told by kind
	for i := range required {
		if failed[i] != nil {
			return page.Facts{}, failed[i]
		}
	}
	for i := range parts {
		join(&f, &parts[i])
	}
	if withClusters {
		kinds, failed = append(kinds, page.ClusterAPI), append(failed, s.read(ctx, page.ClusterAPI, q, &f))
	}
	// Nobody but the agent tells of clusters, and it renews its Lease.
	i := slices.Index(kinds, page.AgentHeartbeat)
	noLease := i >= 0 && failed[i] == nil && (f.Heartbeat == nil || f.Heartbeat.Absent) && s.Direct != nil
	if noLease && (len(f.Children) > 0 || f.Own != nil) {
		failed[i] = fmt.Errorf("there is no Lease %s/%s, so that it is not known whether all of this is up to date", s.Namespace, v1alpha1.HeartbeatLease)
	}
	for i, err := range failed {
		kind := kinds[i]
		switch {
		case err == nil:
			continue
		case apierrors.IsForbidden(err):
			f.Missing = append(f.Missing, fmt.Sprintf("%s: you may not read it", named(kind, s.Namespace)))
		case ctx.Err() != nil:
			return page.Facts{}, err
		default:
			f.Missing = append(f.Missing, fmt.Sprintf("%s: %v", named(kind, s.Namespace), err))
		}
		for _, unread := range kindsOf(kind) {
			f.Unread[unread] = "not read"
		}
	}
	return f, nil
}

// join adds what was read of one kind.
func join(f, read *page.Facts) {
	f.Children, f.Layers, f.Rollouts = append(f.Children, read.Children...), append(f.Layers, read.Layers...), append(f.Rollouts, read.Rollouts...)
	f.Kustomizations, f.HelmReleases = append(f.Kustomizations, read.Kustomizations...), append(f.HelmReleases, read.HelmReleases...)
	f.Credentials, f.Backups, f.Events = append(f.Credentials, read.Credentials...), append(f.Backups, read.Backups...), append(f.Events, read.Events...)
	f.Sources, f.Others, f.Notifications = append(f.Sources, read.Sources...), append(f.Others, read.Others...), append(f.Notifications, read.Notifications...)
	f.Own, f.Heartbeat = cmp.Or(f.Own, read.Own), cmp.Or(f.Heartbeat, read.Heartbeat)
}

func named(kind page.Kind, namespace string) string {
	if kind == page.OwnReport {
		return "the report of this tier, ConfigMap " + namespace + "/" + v1alpha1.ReportConfigMap
	}
	return string(kind)
}

// kindsOf are the kinds of objects that are not known if one of a page was not read.
func kindsOf(kind page.Kind) []string {
	switch kind {
	case page.Sources:
		return []string{sourcev1.GitRepositoryKind, sourcev1.OCIRepositoryKind, sourcev1.BucketKind, sourcev1.HelmRepositoryKind, sourcev1.HelmChartKind}
	case page.Artifacts:
		return []string{sourcev1.ExternalArtifactKind, generatorv1.ArtifactGeneratorKind}
	case page.Images:
		return []string{imagev1.ImageRepositoryKind, imagev1.ImagePolicyKind, autov1.ImageUpdateAutomationKind}
	case page.Receivers:
		return []string{notificationv1.ReceiverKind}
	case page.Notifications:
		return []string{notificationv1beta3.AlertKind, notificationv1beta3.ProviderKind}
	case page.Credentials:
		return []string{"Credential"}
	case page.Backups:
		return []string{"StateBackup"}
	case page.ClusterAPI:
		return []string{clusterapi.ClusterKind.Kind}
	}
	return nil
}

func (s *Source) read(ctx context.Context, kind page.Kind, q page.Query, f *page.Facts) error {
	in := client.InNamespace(q.Namespace)
	var err error
	switch kind {
	case page.Children:
		f.Children, err = listOf(ctx, s.Reader, &v1alpha1.ChildList{}, func(l *v1alpha1.ChildList) []v1alpha1.Child { return l.Items }, in)
	case page.Layers:
		f.Layers, err = listOf(ctx, s.Reader, &v1alpha1.LayerList{}, func(l *v1alpha1.LayerList) []v1alpha1.Layer { return l.Items }, in)
	case page.RolloutKind:
		f.Rollouts, err = listOf(ctx, s.Reader, &v1alpha1.RolloutList{}, func(l *v1alpha1.RolloutList) []v1alpha1.Rollout { return l.Items }, in)
	case page.Kustomizations:
		f.Kustomizations, err = listOf(ctx, s.Reader, &kustomizev1.KustomizationList{}, func(l *kustomizev1.KustomizationList) []kustomizev1.Kustomization { return l.Items }, in)
	case page.HelmReleases:
		f.HelmReleases, err = listOf(ctx, s.Reader, &helmv2.HelmReleaseList{}, func(l *helmv2.HelmReleaseList) []helmv2.HelmRelease { return l.Items }, in)
	case page.OwnReport:
		f.Own, err = s.own(ctx)
	case page.Credentials:
		f.Credentials, err = listOf(ctx, s.Reader, &v1alpha1.CredentialList{}, func(l *v1alpha1.CredentialList) []v1alpha1.Credential { return l.Items }, in)
	case page.Backups:
		f.Backups, err = listOf(ctx, s.Reader, &v1alpha1.StateBackupList{}, func(l *v1alpha1.StateBackupList) []v1alpha1.StateBackup { return l.Items }, in)
	case page.Sources:
		err = s.add(ctx, &f.Sources, in, &sourcev1.GitRepositoryList{}, &sourcev1.OCIRepositoryList{}, &sourcev1.BucketList{}, &sourcev1.HelmRepositoryList{}, &sourcev1.HelmChartList{})
	case page.Artifacts:
		err = errors.Join(s.add(ctx, &f.Sources, in, &sourcev1.ExternalArtifactList{}), s.add(ctx, &f.Others, in, &generatorv1.ArtifactGeneratorList{}))
	case page.Images:
		err = s.add(ctx, &f.Others, in, &imagev1.ImageRepositoryList{}, &imagev1.ImagePolicyList{}, &autov1.ImageUpdateAutomationList{})
	case page.Receivers:
		err = s.add(ctx, &f.Others, in, &notificationv1.ReceiverList{})
	case page.Notifications:
		err = s.add(ctx, &f.Notifications, in, &notificationv1beta3.AlertList{}, &notificationv1beta3.ProviderList{})
	case page.ClusterAPI:
		f.Clusters, err = s.clusters(ctx, f.Children, in)
	case page.AgentHeartbeat:
		f.Heartbeat, err = s.heartbeat(ctx)
	case page.Events:
		f.Events, err = s.events(ctx, q.Cluster)
	default:
		err = fmt.Errorf("cannot read %q: there is no such kind", kind)
	}
	return err
}

// listOf lists one kind; a tier without it has none of its objects. They are only read, so that
// a cache need not copy a thousand of them for each page.
func listOf[L client.ObjectList, T any](ctx context.Context, r client.Reader, list L, items func(L) []T, options ...client.ListOption) ([]T, error) {
	if err := r.List(ctx, list, append(options, client.UnsafeDisableDeepCopy)...); err != nil {
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("cannot list %T: %w", list, err)
	}
	return items(list), nil
}

// own is the report of the tier, nil if there is none.
func (s *Source) own(ctx context.Context) (*v1alpha1.Report, error) {
	cm := &corev1.ConfigMap{}
	if err := s.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: v1alpha1.ReportConfigMap}, cm); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("cannot read the report of this tier: %w", err)
	}
	own, err := report.Parse(cm.Data[v1alpha1.ReportKey])
	if err != nil {
		return nil, errors.New("it cannot be read as a report")
	}
	return own, nil
}

// add lists several kinds. If one of them cannot be read, nothing is added: some would look
// like all.
func (s *Source) add(ctx context.Context, to *[]client.Object, in client.ListOption, lists ...client.ObjectList) error {
	var all []client.Object
	for _, list := range lists {
		found, err := listOf(ctx, s.Reader, list, objects, in)
		if err != nil {
			return err
		}
		all = append(all, found...)
	}
	*to = append(*to, all...)
	return nil
}

// objects of a list.
func objects[L client.ObjectList](list L) []client.Object {
	var all []client.Object
	_ = meta.EachListItem(list, func(o runtime.Object) error { // which fails for what is no list
		if object, ok := o.(client.Object); ok {
			all = append(all, object)
		}
		return nil
	})
	return all
}

// clusters are those of Cluster API. They are read only if a child is not connected: nothing
// else has one of them for its cause, and they are as large as they are many.
func (s *Source) clusters(ctx context.Context, children []v1alpha1.Child, in client.ListOption) ([]cause.Cluster, error) {
	if s.Direct == nil || !slices.ContainsFunc(children, func(c v1alpha1.Child) bool {
		return c.Spec.ClusterRef != nil && !meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConnectedCondition)
	}) {
		return nil, nil
	}
	for _, version := range clusterVersions() {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(schema.GroupVersionKind{Group: clusterapi.ClusterKind.Group, Version: version, Kind: clusterapi.ClusterKind.Kind + "List"})
		err := s.Direct.List(ctx, list, in, client.Limit(mostClusters))
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			continue // this version is not served
		}
		if err != nil {
			return nil, fmt.Errorf("cannot list Clusters: %w", err)
		}
		if list.GetContinue() != "" {
			return nil, fmt.Errorf("there are more than %d", mostClusters)
		}
		var all []cause.Cluster
		for i := range list.Items {
			all = append(all, cause.Cluster{Object: &list.Items[i]})
		}
		return all, nil
	}
	return nil, nil
}

// clusterVersions of Cluster API, the newest first.
func clusterVersions() []string { return []string{"v1beta2", "v1beta1"} }

// heartbeat of the agent, nil if there is none.
func (s *Source) heartbeat(ctx context.Context) (*cause.Heartbeat, error) {
	if s.Direct == nil {
		return nil, nil
	}
	beat, err := cause.HeartbeatIn(ctx, s.Direct, s.Namespace)
	if err != nil {
		return nil, fmt.Errorf("cannot read the heartbeat of the agent: %w", err)
	}
	return beat, nil
}

// events are those of the Child of this tier that a path is of, or is below.
func (s *Source) events(ctx context.Context, path string) ([]corev1.Event, error) {
	namespace, name, ok := strings.Cut(path, "/")
	if !ok || strings.Contains(path, ">") || s.Direct == nil {
		return nil, nil
	}
	return listOf(ctx, s.Direct, &corev1.EventList{}, func(l *corev1.EventList) []corev1.Event { return l.Items },
		client.InNamespace(namespace), client.Limit(mostEvents),
		client.MatchingFields{"involvedObject.kind": "Child", "involvedObject.name": name})
}
