package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
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
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/agent"
	"github.com/cascade-gitops/cascade/cmd/cascade/lease"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/remote/report"
	"github.com/cascade-gitops/cascade/remote/tenure"
	"github.com/cascade-gitops/cascade/syncer/alert/payload"
)

// Reader reads the facts of a cluster.
type Reader struct {
	Client    client.Client
	Discovery discovery.ServerVersionInterface
	// Namespace of the agent.
	Namespace string
	// Program is the version of this program.
	Program string
	// Before: the cluster is checked before an installation.
	Before bool
}

// Read reads all facts. The context bounds each request. What could not be read is in
// Unread; the error is that of the API server when it does not answer at all.
func (r *Reader) Read(ctx context.Context) (*Facts, error) {
	f := &Facts{Program: r.Program, Before: r.Before, FluxVersion: deploy.FluxVersion, Shards: map[int]Lease{}, Unread: map[Subject]error{}}
	info, err := r.Discovery.ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("cannot reach the API server: %w", err)
	}
	f.Kubernetes = info.GitVersion
	for subject, read := range map[Subject]func(context.Context, *Facts) error{
		Rights: r.rights, Definitions: r.definitions, Controllers: r.controllers, Agent: r.agent, Walls: r.policies,
		Providers: r.providers, Sources: r.sources, Objects: r.objects, Children: r.children,
	} {
		if err := read(ctx, f); err != nil {
			f.Unread[subject] = err
		}
	}
	return f, nil
}

// rights asks for what an installation writes.
func (r *Reader) rights(ctx context.Context, f *Facts) error {
	for _, on := range []authorizationv1.ResourceAttributes{
		{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"},
		{Resource: "namespaces"},
		{Resource: "resourcequotas", Namespace: r.Namespace},
		{Resource: "serviceaccounts", Namespace: r.Namespace},
		{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
		{Group: "rbac.authorization.k8s.io", Resource: "clusterrolebindings"},
		{Group: "apps", Resource: "deployments", Namespace: r.Namespace},
		{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicies"},
		{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicybindings"},
	} {
		for _, verb := range []string{"create", "patch"} {
			on.Verb = verb
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: on.DeepCopy()}}
			if err := r.Client.Create(ctx, review); err != nil {
				return fmt.Errorf("cannot ask what this user may do: %w", err)
			}
			if !review.Status.Allowed {
				f.Denied = append(f.Denied, strings.TrimSuffix(verb+" "+on.Resource+"."+on.Group, "."))
			}
		}
	}
	return nil
}

func (r *Reader) definitions(ctx context.Context, f *Facts) error {
	crds, err := deploy.CRDs()
	if err != nil {
		return err
	}
	f.Needed = map[string]string{}
	for _, u := range crds {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, crd); err != nil {
			return fmt.Errorf("cannot read definition %s: %w", u.GetName(), err)
		}
		for _, v := range crd.Spec.Versions {
			if v.Storage {
				f.Needed[crd.Name] = v.Name
			}
		}
	}
	list := &apiextensionsv1.CustomResourceDefinitionList{}
	if err := r.Client.List(ctx, list); err != nil {
		return fmt.Errorf("cannot list definitions: %w", err)
	}
	for i := range list.Items {
		crd := &list.Items[i]
		if _, ours := f.Needed[crd.Name]; !ours && !clusterapi.IsGroup(crd.Spec.Group) {
			continue
		}
		f.Definitions = append(f.Definitions, definitionOf(crd))
	}
	return nil
}

func definitionOf(crd *apiextensionsv1.CustomResourceDefinition) Definition {
	d := Definition{Name: crd.Name, Group: crd.Spec.Group, Stored: crd.Status.StoredVersions}
	if v1alpha1.IsFluxGroup(crd.Spec.Group) {
		d.Flux = crd.Labels["app.kubernetes.io/version"]
	}
	for _, v := range crd.Spec.Versions {
		if v.Served {
			d.Served = append(d.Served, v.Name)
		}
	}
	for _, c := range crd.Status.Conditions {
		if c.Type == apiextensionsv1.Established {
			d.Established = c.Status == apiextensionsv1.ConditionTrue
		}
	}
	for label := range crd.Labels {
		if contract, ok := strings.CutPrefix(label, clusterapi.Group+"/v"); ok {
			d.Contracts = append(d.Contracts, "v"+contract)
		}
	}
	slices.Sort(d.Contracts)
	return d
}

func (r *Reader) controllers(ctx context.Context, f *Facts) error {
	var err error
	f.FluxLeases, err = r.leasesOf(ctx, lease.OfFlux()...)
	return err
}

// leasesOf reads the Leases of some controllers of Flux, in all namespaces.
func (r *Reader) leasesOf(ctx context.Context, controllers ...string) ([]Lease, error) {
	list := &coordinationv1.LeaseList{}
	if err := r.Client.List(ctx, list); err != nil {
		return nil, fmt.Errorf("cannot list Leases: %w", err)
	}
	var found []Lease
	for i := range list.Items {
		if l := &list.Items[i]; lease.Of(l.Name, controllers...) {
			found = append(found, leaseOf(l))
		}
	}
	return found, nil
}

func leaseOf(l *coordinationv1.Lease) Lease {
	of := Lease{Namespace: l.Namespace, Name: l.Name}
	if l.Spec.HolderIdentity != nil {
		of.Holder = *l.Spec.HolderIdentity
	}
	if l.Spec.RenewTime != nil {
		of.Renewed = l.Spec.RenewTime.Time
	}
	if l.Spec.LeaseDurationSeconds != nil {
		of.Holds = time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second
	}
	return of
}

func (r *Reader) agent(ctx context.Context, f *Facts) error {
	deployments := &appsv1.DeploymentList{}
	mine := []client.ListOption{client.InNamespace(r.Namespace), client.MatchingLabels{"app.kubernetes.io/name": v1alpha1.AgentName}}
	if err := r.Client.List(ctx, deployments, mine...); err != nil {
		return fmt.Errorf("cannot list Deployments: %w", err)
	}
	for i := range deployments.Items {
		if d := &deployments.Items[i]; d.Name == v1alpha1.AgentName {
			f.Workload = workloadOf(d)
		}
	}
	pods := &corev1.PodList{}
	if err := r.Client.List(ctx, pods, mine...); err != nil {
		return fmt.Errorf("cannot list Pods: %w", err)
	}
	for i := range pods.Items {
		if p, broken := trouble(&pods.Items[i]); broken && f.Workload != nil {
			f.Workload.Pods = append(f.Workload.Pods, p)
		}
	}
	leases := &coordinationv1.LeaseList{}
	if err := r.Client.List(ctx, leases, client.InNamespace(r.Namespace)); err != nil {
		return fmt.Errorf("cannot list Leases: %w", err)
	}
	for i := range leases.Items {
		found := leaseOf(&leases.Items[i])
		switch n, shard := tenure.ShardOf(found.Name); {
		case f.Workload != nil && found.Name == f.Workload.Lease:
			f.Leader = &found
		case found.Name == v1alpha1.HeartbeatLease:
			f.Heartbeat = &found
		case shard:
			f.Shards[n] = found
		}
	}
	return r.reported(ctx, f)
}

func workloadOf(d *appsv1.Deployment) *Workload {
	w := &Workload{Namespace: d.Namespace, Name: d.Name, Wanted: 1, Available: d.Status.AvailableReplicas, Sharding: 1, Lease: v1alpha1.LeaderLease}
	if d.Spec.Replicas != nil {
		w.Wanted = *d.Spec.Replicas
	}
	if containers := d.Spec.Template.Spec.Containers; len(containers) > 0 {
		w.Image, w.Lease = containers[0].Image, agent.LeaderLease(containers[0].Args, d.Namespace)
		for _, arg := range containers[0].Args {
			if text, ok := strings.CutPrefix(arg, "--shards="); ok {
				if n, err := strconv.Atoi(text); err == nil {
					w.Sharding = n
				}
			}
		}
	}
	if c := conditionOf(d, appsv1.DeploymentReplicaFailure); c != nil && c.Status == corev1.ConditionTrue {
		w.Pods = append(w.Pods, Pod{Name: "(none)", Reason: c.Reason, Message: c.Message}) // a quota or an admission refuses them
	}
	return w
}

func conditionOf(d *appsv1.Deployment, kind appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i := range d.Status.Conditions {
		if d.Status.Conditions[i].Type == kind {
			return &d.Status.Conditions[i]
		}
	}
	return nil
}

// trouble says why a pod does not run.
func trouble(p *corev1.Pod) (Pod, bool) {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return Pod{p.Name, c.Reason, c.Message}, true
		}
	}
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		switch {
		case s.Ready:
		case s.State.Waiting != nil:
			return Pod{p.Name, s.State.Waiting.Reason, s.State.Waiting.Message}, true
		case s.State.Terminated != nil:
			return Pod{p.Name, s.State.Terminated.Reason, fmt.Sprintf("it ended with code %d", s.State.Terminated.ExitCode)}, true
		default:
			return Pod{p.Name, "NotReady", "container " + s.Name + " does not pass its probes"}, true
		}
	}
	if p.Status.Phase == corev1.PodFailed {
		return Pod{p.Name, p.Status.Reason, p.Status.Message}, true
	}
	return Pod{}, false
}

// reported reads the version that the agent tells of itself.
func (r *Reader) reported(ctx context.Context, f *Facts) error {
	cm := &corev1.ConfigMap{}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: v1alpha1.ReportConfigMap}, cm)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read the agent's report: %w", err)
	}
	if said, err := report.Parse(cm.Data[v1alpha1.ReportKey]); err == nil { // the agent writes it anew in a moment otherwise
		f.Reported = said.Agent
	}
	return nil
}

func (r *Reader) policies(ctx context.Context, f *Facts) error {
	rights, _, err := deploy.Agent(deploy.Options{})
	if err != nil {
		return err
	}
	bindings := &admissionv1.ValidatingAdmissionPolicyBindingList{}
	if err := r.Client.List(ctx, bindings); err != nil {
		return fmt.Errorf("cannot list bindings of admission policies: %w", err)
	}
	for _, u := range rights {
		if u.GetKind() != "ValidatingAdmissionPolicy" {
			continue
		}
		p := Policy{Name: u.GetName()}
		policy := &admissionv1.ValidatingAdmissionPolicy{}
		switch err := r.Client.Get(ctx, client.ObjectKey{Name: p.Name}, policy); {
		case err == nil:
			p.Exists = true
			p.Fails = policy.Spec.FailurePolicy == nil || *policy.Spec.FailurePolicy == admissionv1.Fail
		case !apierrors.IsNotFound(err):
			return fmt.Errorf("cannot read admission policy %s: %w", p.Name, err)
		}
		p.Denies = slices.ContainsFunc(bindings.Items, func(b admissionv1.ValidatingAdmissionPolicyBinding) bool {
			return b.Spec.PolicyName == p.Name && slices.Contains(b.Spec.ValidationActions, admissionv1.Deny)
		})
		f.Policies = append(f.Policies, p)
	}
	return nil
}

func (r *Reader) providers(ctx context.Context, f *Facts) error {
	list := &appsv1.DeploymentList{}
	if err := r.Client.List(ctx, list, client.HasLabels{clusterapi.ProviderLabel}); err != nil {
		return fmt.Errorf("cannot list Deployments: %w", err)
	}
	for i := range list.Items {
		d := &list.Items[i]
		p := Provider{Label: d.Labels[clusterapi.ProviderLabel], Namespace: d.Namespace, Name: d.Name, Message: "it has no condition Available yet"}
		if c := conditionOf(d, appsv1.DeploymentAvailable); c != nil {
			p.Available, p.Message = c.Status == corev1.ConditionTrue, c.Message
		}
		if err := r.identity(ctx, d, &p); err != nil {
			return err
		}
		f.Providers = append(f.Providers, p)
	}
	return nil
}

// roles are annotations of service accounts by which clouds give roles.
var roles = []string{"eks.amazonaws.com/role-arn", "azure.workload.identity/client-id", "iam.gke.io/gcp-service-account"}

// identity reads what tells by what a provider is somebody in its cloud. Of Secrets it reads
// whether they are there.
func (r *Reader) identity(ctx context.Context, d *appsv1.Deployment, p *Provider) error {
	pod := &d.Spec.Template.Spec
	if p.Account = pod.ServiceAccountName; p.Account != "" {
		account := &corev1.ServiceAccount{}
		err := r.Client.Get(ctx, client.ObjectKey{Namespace: d.Namespace, Name: p.Account}, account)
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
			return fmt.Errorf("cannot read ServiceAccount %s/%s: %w", d.Namespace, p.Account, err)
		}
		for _, name := range roles {
			if value := account.Annotations[name]; value != "" {
				p.Roles = append(p.Roles, name+"="+value)
			}
		}
	}
	for name, needed := range secretsOf(pod) {
		given := GivenSecret{Name: name, Needed: needed}
		o := &metav1.PartialObjectMetadata{}
		o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
		switch err := r.Client.Get(ctx, client.ObjectKey{Namespace: d.Namespace, Name: name}, o); {
		case err == nil:
			given.Exists = true
		case apierrors.IsForbidden(err):
			given.Unknown = true
		case !apierrors.IsNotFound(err):
			return fmt.Errorf("cannot find Secret %s/%s: %w", d.Namespace, name, err)
		}
		p.Secrets = append(p.Secrets, given)
	}
	slices.SortFunc(p.Secrets, func(a, b GivenSecret) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

// secretsOf are the Secrets that pods are given, with whether they do not begin without them.
// Those of webhooks, which cert-manager makes, are for TLS and no identity.
func secretsOf(pod *corev1.PodSpec) map[string]bool {
	found := map[string]bool{}
	see := func(name string, optional *bool) {
		if name != "" && !strings.HasSuffix(name, "-cert") && !strings.HasSuffix(name, "-tls") {
			found[name] = found[name] || optional == nil || !*optional
		}
	}
	for _, v := range pod.Volumes {
		if v.Secret != nil {
			see(v.Secret.SecretName, v.Secret.Optional)
		}
		if v.Projected != nil {
			for _, s := range v.Projected.Sources {
				if s.Secret != nil {
					see(s.Secret.Name, s.Secret.Optional)
				}
			}
		}
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		for _, e := range c.EnvFrom {
			if e.SecretRef != nil {
				see(e.SecretRef.Name, e.SecretRef.Optional)
			}
		}
		for _, e := range c.Env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
				see(e.ValueFrom.SecretKeyRef.Name, e.ValueFrom.SecretKeyRef.Optional)
			}
		}
	}
	return found
}

func (r *Reader) sources(ctx context.Context, f *Facts) error {
	return r.synced(ctx, f, true, &sourcev1.GitRepositoryList{}, &sourcev1.OCIRepositoryList{}, &sourcev1.BucketList{}, &sourcev1.HelmRepositoryList{}, &sourcev1.HelmChartList{})
}

func (r *Reader) objects(ctx context.Context, f *Facts) error {
	return errors.Join(
		r.synced(ctx, f, false, &kustomizev1.KustomizationList{}, &helmv2.HelmReleaseList{}, &v1alpha1.LayerList{}, &v1alpha1.RolloutList{}, &v1alpha1.CredentialList{}, &v1alpha1.StateBackupList{},
			&generatorv1.ArtifactGeneratorList{}, &imagev1.ImageRepositoryList{}, &imagev1.ImagePolicyList{}, &autov1.ImageUpdateAutomationList{}, &notificationv1.ReceiverList{}),
		r.alerts(ctx, f),
	)
}

// alerts reads which Alerts tell whom. Both kinds have no status.
func (r *Reader) alerts(ctx context.Context, f *Facts) error {
	alerts, providers := &notificationv1beta3.AlertList{}, &notificationv1beta3.ProviderList{}
	for _, list := range []client.ObjectList{alerts, providers} {
		err := r.Client.List(ctx, list)
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot list %T: %w", list, err)
		}
	}
	types := map[client.ObjectKey]string{}
	for i := range providers.Items {
		types[client.ObjectKeyFromObject(&providers.Items[i])] = providers.Items[i].Spec.Type
	}
	for i := range alerts.Items {
		a := &alerts.Items[i]
		if a.Spec.Suspend {
			continue
		}
		found := Alert{Namespace: a.Namespace, Name: a.Name, Provider: a.Spec.ProviderRef.Name}
		of, there := types[client.ObjectKey{Namespace: a.Namespace, Name: found.Provider}]
		found.Missing = !there
		if there && payload.Supported(of) != nil {
			found.Type = of
		}
		f.Alerts = append(f.Alerts, found)
	}
	var err error
	f.Notifiers, err = r.leasesOf(ctx, lease.NotificationController)
	return err
}

// synced lists the objects of kinds. A kind that is not defined has none; that it is not
// defined is told as such.
func (r *Reader) synced(ctx context.Context, f *Facts, source bool, lists ...client.ObjectList) error {
	for _, list := range lists {
		err := r.Client.List(ctx, list)
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("cannot list %T: %w", list, err)
		}
		items, err := meta.ExtractList(list)
		if err != nil {
			return fmt.Errorf("cannot read %T: %w", list, err)
		}
		for _, item := range items {
			o, err := r.objectOf(item.(client.Object), source)
			if err != nil {
				return err
			}
			if o != nil {
				f.Synced = append(f.Synced, *o)
			}
		}
	}
	return nil
}

// conditioned is an object with conditions, as all of these kinds are.
type conditioned interface{ GetConditions() []metav1.Condition }

func (r *Reader) objectOf(found client.Object, source bool) (*Object, error) {
	gvk, err := r.Client.GroupVersionKindFor(found)
	with, ok := found.(conditioned)
	if err != nil || !ok {
		return nil, errors.Join(err, fmt.Errorf("cannot read conditions of %T", found))
	}
	o := &Object{
		Kind: gvk.Kind, Namespace: found.GetNamespace(), Name: found.GetName(), Source: source, Suspended: suspended(found),
		Created: found.GetCreationTimestamp().Time, Ready: meta.FindStatusCondition(with.GetConditions(), v1alpha1.ReadyCondition),
	}
	if repository, ok := found.(*sourcev1.HelmRepository); ok && repository.Spec.Type == sourcev1.HelmRepositoryTypeOCI {
		return nil, nil // nobody reconciles those: Flux neither
	}
	if rollout, ok := found.(*v1alpha1.Rollout); ok && (o.Ready == nil || o.Ready.Status != metav1.ConditionFalse) {
		if failing := rollout.FailingExchange(); len(failing) > 0 {
			o.Ready = &failing[0] // its clusters are ready, and no other revision comes to them
		}
	}
	if gvk.Kind == "Credential" {
		o.SourceFailing = meta.FindStatusCondition(with.GetConditions(), v1alpha1.SourceFailingCondition)
	}
	for _, c := range with.GetConditions() {
		if c.Status == metav1.ConditionTrue && slices.Contains([]string{v1alpha1.PruneBlockedCondition, v1alpha1.CreateHeldCondition, v1alpha1.RemovalHeldCondition}, c.Type) {
			o.Held = append(o.Held, c)
		}
	}
	return o, nil
}

func suspended(found client.Object) bool {
	switch o := found.(type) {
	case *sourcev1.GitRepository:
		return o.Spec.Suspend
	case *sourcev1.OCIRepository:
		return o.Spec.Suspend
	case *sourcev1.Bucket:
		return o.Spec.Suspend
	case *sourcev1.HelmRepository:
		return o.Spec.Suspend
	case *sourcev1.HelmChart:
		return o.Spec.Suspend
	case *kustomizev1.Kustomization:
		return o.Spec.Suspend
	case *helmv2.HelmRelease:
		return o.Spec.Suspend
	case *v1alpha1.Layer:
		return o.Spec.Suspend
	case *v1alpha1.Rollout:
		return o.Spec.Suspend
	case *v1alpha1.Credential:
		return o.Spec.Suspend
	case *v1alpha1.StateBackup:
		return o.Spec.Suspend
	case *imagev1.ImageRepository:
		return o.Spec.Suspend
	case *imagev1.ImagePolicy:
		return o.Spec.Suspend
	case *autov1.ImageUpdateAutomation:
		return o.Spec.Suspend
	case *notificationv1.Receiver:
		return o.Spec.Suspend
	case *generatorv1.ArtifactGenerator:
		return o.IsDisabled()
	}
	return false
}

func (r *Reader) children(ctx context.Context, f *Facts) error {
	list := &v1alpha1.ChildList{}
	err := r.Client.List(ctx, list)
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot list Children: %w", err)
	}
	for i := range list.Items {
		found := &list.Items[i]
		c := Child{
			Namespace: found.Namespace, Name: found.Name, Heard: found.Status.HeardAt,
			Connected: meta.FindStatusCondition(found.Status.Conditions, v1alpha1.ConnectedCondition),
			Expiring:  meta.FindStatusCondition(found.Status.Conditions, v1alpha1.CredentialsExpiringCondition),
			Static:    meta.FindStatusCondition(found.Status.Conditions, v1alpha1.StaticCredentialCondition),
		}
		if found.Status.Report != nil {
			c.Agent, c.Faults = found.Status.Report.Agent, found.Status.Report.Faults
		}
		if below := report.CountsBelow(found); below != nil {
			c.FaultsBelow = below.Faults
		}
		f.Known = append(f.Known, c)
	}
	return nil
}
