package cause

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	autov1 "github.com/fluxcd/image-automation-controller/api/v1"
	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
)

// Tier is the cluster that facts are read from.
type Tier interface {
	client.Reader
	capibridge.Reader
}

// Reader gathers the facts of a tier from its API server, and from no other one.
type Reader struct {
	Tier Tier
	// Namespace of the agent.
	Namespace string
	// Providers tells what the objects that Clusters refer to say.
	Providers *capibridge.Providers
}

// Bounds of what is read.
const (
	// page is how many objects one request lists, and mostObjects how many there may be of a
	// kind: what comes after them is Unread.
	page, mostObjects = 500, 20_000
	// mostDescribed Clusters that are not there are asked about at their providers.
	mostDescribed = 20
	// patience with one kind.
	patience = 30 * time.Second
)

// Read lists each kind once, in pages. The error is that of the first kind if no kind could
// be listed at all; otherwise what could not be listed is in Unread.
func (r *Reader) Read(ctx context.Context) (*Facts, error) {
	f := &Facts{Unread: map[string]string{}}
	var first error
	read := 0
	try := func(kind string, list func(context.Context) error) {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		err := list(ctx)
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			err = nil // a tier without the kind has none of its objects
		}
		if err != nil {
			f.Unread[kind] = err.Error()
			first = errors.Join(first, fmt.Errorf("cannot list %s: %w", kind, err))
			return
		}
		read++
	}
	sources := func(kind string, list client.ObjectList) {
		try(kind, func(ctx context.Context) error {
			return r.each(ctx, list, func(o client.Object) { f.Sources = append(f.Sources, o) })
		})
	}
	sources(sourcev1.GitRepositoryKind, &sourcev1.GitRepositoryList{})
	if first != nil && ctx.Err() != nil {
		return nil, first
	}
	sources(sourcev1.OCIRepositoryKind, &sourcev1.OCIRepositoryList{})
	sources(sourcev1.BucketKind, &sourcev1.BucketList{})
	sources(sourcev1.HelmRepositoryKind, &sourcev1.HelmRepositoryList{})
	sources(sourcev1.HelmChartKind, &sourcev1.HelmChartList{})
	sources(sourcev1.ExternalArtifactKind, &sourcev1.ExternalArtifactList{})
	others := func(kind string, list client.ObjectList) {
		try(kind, func(ctx context.Context) error {
			return r.each(ctx, list, func(o client.Object) { f.Others = append(f.Others, o) })
		})
	}
	others(generatorv1.ArtifactGeneratorKind, &generatorv1.ArtifactGeneratorList{})
	others(imagev1.ImageRepositoryKind, &imagev1.ImageRepositoryList{})
	others(imagev1.ImagePolicyKind, &imagev1.ImagePolicyList{})
	others(autov1.ImageUpdateAutomationKind, &autov1.ImageUpdateAutomationList{})
	others(notificationv1.ReceiverKind, &notificationv1.ReceiverList{})
	try(kustomizationKind, func(ctx context.Context) error {
		return r.each(ctx, &kustomizev1.KustomizationList{}, func(o client.Object) {
			f.Kustomizations = append(f.Kustomizations, *o.(*kustomizev1.Kustomization))
		})
	})
	try(releaseKind, func(ctx context.Context) error {
		return r.each(ctx, &helmv2.HelmReleaseList{}, func(o client.Object) { f.Releases = append(f.Releases, *o.(*helmv2.HelmRelease)) })
	})
	try(layerKind, func(ctx context.Context) error {
		return r.each(ctx, &v1alpha1.LayerList{}, func(o client.Object) { f.Layers = append(f.Layers, *o.(*v1alpha1.Layer)) })
	})
	try(childKind, func(ctx context.Context) error {
		return r.each(ctx, &v1alpha1.ChildList{}, func(o client.Object) { f.Children = append(f.Children, *o.(*v1alpha1.Child)) })
	})
	try(rolloutKind, func(ctx context.Context) error {
		return r.each(ctx, &v1alpha1.RolloutList{}, func(o client.Object) { f.Rollouts = append(f.Rollouts, *o.(*v1alpha1.Rollout)) })
	})
	try(credentialKind, func(ctx context.Context) error {
		return r.each(ctx, &v1alpha1.CredentialList{}, func(o client.Object) { f.Credentials = append(f.Credentials, *o.(*v1alpha1.Credential)) })
	})
	try(backupKind, func(ctx context.Context) error {
		return r.each(ctx, &v1alpha1.StateBackupList{}, func(o client.Object) { f.Backups = append(f.Backups, *o.(*v1alpha1.StateBackup)) })
	})
	if slices.ContainsFunc(f.Credentials, unwell) {
		try(deploymentKind, func(ctx context.Context) error { return r.providers(ctx, f) })
	}
	try(clusterKind, func(ctx context.Context) error { return r.clusters(ctx, f) })
	try("Lease", func(ctx context.Context) error { return r.heartbeat(ctx, f) })
	if read == 0 {
		return nil, first
	}
	return f, nil
}

// each calls take with all objects of a kind, in pages.
func (r *Reader) each(ctx context.Context, list client.ObjectList, take func(client.Object), which ...client.ListOption) error {
	count := 0
	for more := ""; ; {
		if err := r.Tier.List(ctx, list, append(which[:len(which):len(which)], client.Limit(page), client.Continue(more))...); err != nil {
			return err
		}
		items, err := meta.ExtractList(list)
		if err != nil {
			return err
		}
		for _, item := range items {
			o, ok := item.(client.Object)
			if !ok {
				return fmt.Errorf("cannot use %T: it is no object", item)
			}
			// Of what fields who manages, nobody is told here, and it is half of an object.
			o.SetManagedFields(nil)
			take(o)
		}
		if more = list.GetContinue(); more == "" {
			return nil
		}
		if count += len(items); count >= mostObjects {
			return fmt.Errorf("there are more than %d", mostObjects)
		}
		// The next page is decoded into the list: what it lacks would stay as it is.
		if err := meta.SetList(list, nil); err != nil {
			return err
		}
		list.SetContinue("")
	}
}

// providers lists the Deployments of Cluster API and its providers.
func (r *Reader) providers(ctx context.Context, f *Facts) error {
	return r.each(ctx, &appsv1.DeploymentList{}, func(o client.Object) {
		f.Providers = append(f.Providers, *o.(*appsv1.Deployment))
	}, client.HasLabels{clusterapi.ProviderLabel})
}

// clusters lists those of Cluster API, and asks the providers of some that are not there.
func (r *Reader) clusters(ctx context.Context, f *Facts) error {
	err := r.Tier.InServed(clusterapi.ClusterKind, func(served *meta.RESTMapping) error {
		f.Clusters = nil
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(served.GroupVersionKind.GroupVersion().WithKind(served.GroupVersionKind.Kind + "List"))
		return r.each(ctx, list, func(o client.Object) {
			f.Clusters = append(f.Clusters, Cluster{Object: o.(*unstructured.Unstructured)})
		})
	})
	if err != nil {
		return err
	}
	described := 0
	for i := range f.Clusters {
		cluster := capibridge.FromObject(f.Clusters[i].Object)
		switch is, _ := cluster.State(capibridge.Facts{}); is {
		case capibridge.StateAvailable, capibridge.StateMoved, capibridge.StateDeleting, capibridge.StatePaused:
			continue
		}
		if described++; described > mostDescribed {
			break
		}
		// What a provider does not say in time is not known; the Cluster says what it knows.
		if said, err := r.Providers.Describe(ctx, r.Tier, cluster); err == nil {
			f.Clusters[i].Provider = said
		}
	}
	return nil
}

func (r *Reader) heartbeat(ctx context.Context, f *Facts) error {
	var err error
	if f.Heartbeat, err = HeartbeatIn(ctx, r.Tier, r.Namespace); f.Heartbeat == nil && err == nil && f.reconciled() {
		return fmt.Errorf("there is no Lease %s/%s: no agent works in this namespace", r.Namespace, v1alpha1.HeartbeatLease)
	}
	return err
}

// HeartbeatIn reads the heartbeat of the agent in a namespace, nil if none was there. One of an earlier version renews the
// Lease of the leader alone. Without either the report that an agent left is as old as it, and the agent is gone.
func HeartbeatIn(ctx context.Context, cl client.Reader, namespace string) (*Heartbeat, error) {
	for _, name := range []string{v1alpha1.HeartbeatLease, v1alpha1.LeaderLease} {
		lease := &coordinationv1.Lease{}
		err := cl.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, lease)
		if err == nil {
			return heartbeatOf(lease), nil
		}
		// Who may read heartbeats alone knows of present versions.
		if !apierrors.IsNotFound(err) && (name == v1alpha1.HeartbeatLease || !apierrors.IsForbidden(err)) {
			return nil, err
		}
	}
	left := &corev1.ConfigMap{}
	err := cl.Get(ctx, client.ObjectKey{Namespace: namespace, Name: v1alpha1.ReportConfigMap}, left)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	h := &Heartbeat{Namespace: namespace, Name: v1alpha1.HeartbeatLease, Absent: true, Renewed: left.CreationTimestamp.Time}
	for _, m := range left.ManagedFields {
		if m.Time != nil && m.Time.After(h.Renewed) {
			h.Renewed = m.Time.Time
		}
	}
	return h, nil
}

// heartbeatOf is what the Lease of an agent says.
func heartbeatOf(lease *coordinationv1.Lease) *Heartbeat {
	h := &Heartbeat{Namespace: lease.Namespace, Name: lease.Name}
	if lease.Spec.RenewTime != nil {
		h.Renewed = lease.Spec.RenewTime.Time
	}
	if lease.Spec.LeaseDurationSeconds != nil {
		h.Holds = time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second
	}
	return h
}
