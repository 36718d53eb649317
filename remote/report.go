package remote

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Bounds of a report.
const (
	maxTierRows = 100
	maxFailing  = 10
	// maxRowMessage bounds the message of one of many rows.
	maxRowMessage = 256
	// maxReport bounds the whole text; reports of our agents stay far below.
	maxReport = 256 << 10
)

// agentSilence is how long an agent may not renew its lease before it counts as
// dead. It renews every few seconds.
const agentSilence = 45 * time.Second

// parseReport reads the report of a child's agent. The child is another trust domain, so
// all fields are cut to their bounds.
func parseReport(text string) (*v1alpha1.Report, error) {
	report := &v1alpha1.Report{}
	if len(text) > maxReport {
		return nil, because(v1alpha1.ReasonReportMissing, fmt.Errorf("cannot use report: %d bytes are more than the limit of %d", len(text), maxReport))
	}
	if err := json.Unmarshal([]byte(text), report); err != nil {
		return nil, because(v1alpha1.ReasonReportMissing, fmt.Errorf("cannot parse report: %w", err))
	}
	confine(report)
	return report, nil
}

// Facts of a tier that its report is computed from.
type Facts struct {
	Agent          string
	Kustomizations []kustomizev1.Kustomization
	Releases       []helmv2.HelmRelease
	// Sources of any kind.
	Sources  []client.Object
	Children []v1alpha1.Child
}

// sourceFacts are what a report says of a source.
type sourceFacts struct {
	kind       string
	suspended  bool
	conditions []metav1.Condition
	// revision is empty for a source that is derived from another one.
	revision string
}

func factsOf(o client.Object) sourceFacts {
	revision := func(a *fluxmeta.Artifact) string {
		if a == nil {
			return ""
		}
		return a.Revision
	}
	switch o := o.(type) {
	case *sourcev1.GitRepository:
		return sourceFacts{sourcev1.GitRepositoryKind, o.Spec.Suspend, o.Status.Conditions, revision(o.Status.Artifact)}
	case *sourcev1.OCIRepository:
		return sourceFacts{sourcev1.OCIRepositoryKind, o.Spec.Suspend, o.Status.Conditions, revision(o.Status.Artifact)}
	case *sourcev1.Bucket:
		return sourceFacts{sourcev1.BucketKind, o.Spec.Suspend, o.Status.Conditions, revision(o.Status.Artifact)}
	case *sourcev1.HelmChart:
		return sourceFacts{sourcev1.HelmChartKind, o.Spec.Suspend, o.Status.Conditions, ""}
	case *sourcev1.HelmRepository:
		// One of a registry has no status.
		return sourceFacts{sourcev1.HelmRepositoryKind, o.Spec.Suspend || o.Spec.Type == sourcev1.HelmRepositoryTypeOCI, o.Status.Conditions, ""}
	}
	return sourceFacts{suspended: true}
}

// Compute makes a tier's report. before is the last one, whose Since is kept
// while Ready and Reason stay as they are.
func Compute(f Facts, before *v1alpha1.Report, now metav1.Time) *v1alpha1.Report {
	r := &v1alpha1.Report{Agent: f.Agent, Ready: true, Reason: v1alpha1.ReasonSucceeded, Revision: revisions(f.Sources)}
	for _, o := range f.Sources {
		if facts := factsOf(o); !facts.suspended {
			fold(r, v1alpha1.ReasonSourceFailing, facts.kind, o, facts.conditions)
		}
	}
	for _, o := range f.Kustomizations {
		if o.Status.Inventory != nil {
			r.Objects += int32(len(o.Status.Inventory.Entries))
		}
		if o.Spec.Suspend {
			continue
		}
		fold(r, v1alpha1.ReasonKustomizationFailing, "Kustomization", &o, current(o.Status.Conditions, o.Status.ObservedGeneration == o.Generation))
	}
	for _, o := range f.Releases {
		if o.Status.Inventory != nil {
			r.Objects += int32(len(o.Status.Inventory.Entries))
		}
		if !o.Spec.Suspend {
			fold(r, v1alpha1.ReasonReleaseFailing, helmv2.HelmReleaseKind, &o, current(o.Status.Conditions, o.Status.ObservedGeneration == o.Generation))
		}
	}
	rollUp(r, f.Children)
	r.Since = now
	if before != nil && before.Ready == r.Ready && before.Reason == r.Reason {
		r.Since = before.Since
	}
	return r
}

// current are the conditions, but for a success of an earlier generation.
func current(conditions []metav1.Condition, observed bool) []metav1.Condition {
	if !observed && meta.IsStatusConditionTrue(conditions, fluxmeta.ReadyCondition) {
		return nil
	}
	return conditions
}

// fold adds one object's Ready condition to the report.
func fold(r *v1alpha1.Report, reason, kind string, o client.Object, conditions []metav1.Condition) {
	c := meta.FindStatusCondition(conditions, fluxmeta.ReadyCondition)
	if c != nil && c.Status == metav1.ConditionTrue {
		return
	}
	failure := v1alpha1.Failure{Name: kind + "/" + o.GetNamespace() + "/" + o.GetName(), Reason: v1alpha1.ReasonProgressing}
	if c != nil {
		failure.Reason, failure.Message = c.Reason, short(c.Message)
	}
	if r.Ready {
		r.Ready, r.Message = false, failure.Name+": "+failure.Reason
		if failure.Message != "" {
			r.Message += ": " + failure.Message
		}
		r.Reason = reason
		if c == nil || c.Status == metav1.ConditionUnknown {
			r.Reason = v1alpha1.ReasonProgressing
		}
	}
	if len(r.Failing) < maxFailing {
		r.Failing = append(r.Failing, failure)
	}
}

// revisions of a tier's sources: one alone by itself, several by name.
func revisions(sources []client.Object) string {
	var all []string
	for _, o := range sources {
		if revision := factsOf(o).revision; revision != "" {
			all = append(all, o.GetName()+"="+revision)
		}
	}
	slices.Sort(all)
	if len(all) == 1 {
		_, revision, _ := strings.Cut(all[0], "=")
		return revision
	}
	return strings.Join(all, ",")
}

// rollUp counts the clusters below and gives each a row, those that are not
// ready first.
func rollUp(r *v1alpha1.Report, children []v1alpha1.Child) {
	if len(children) == 0 {
		return
	}
	counts := &v1alpha1.ReportCounts{}
	for i := range children {
		child := &children[i]
		name := child.Namespace + "/" + child.Name
		row := Row(child)
		counts.Total++
		if row.Ready {
			counts.Ready++
		}
		r.Tiers = append(r.Tiers, row)
		if below := child.Status.Report; below != nil {
			if below.Children != nil {
				counts.Total = min(maxClusters, counts.Total+min(maxClusters, max(0, below.Children.Total)))
				counts.Ready = min(counts.Total, counts.Ready+min(maxClusters, max(0, below.Children.Ready)))
			}
			for _, t := range below.Tiers {
				// What an older agent recorded of a child is not confined yet.
				if t.Path = name + ">" + t.Path; confineRow(&t) {
					r.Tiers = append(r.Tiers, t)
				}
			}
		}
	}
	r.Children = counts
	slices.SortStableFunc(r.Tiers, func(a, b v1alpha1.TierRow) int {
		if a.Ready != b.Ready {
			if b.Ready {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Path, b.Path)
	})
	r.Tiers = r.Tiers[:min(len(r.Tiers), maxTierRows)]
	for i := range r.Tiers {
		r.Tiers[i].Message = cut(r.Tiers[i].Message, maxRowMessage)
	}
}

// Row of one child.
func Row(child *v1alpha1.Child) v1alpha1.TierRow {
	row := v1alpha1.TierRow{
		Path: child.Namespace + "/" + child.Name, Reason: v1alpha1.ReasonProgressing,
		Since: child.CreationTimestamp, Version: child.Status.Version,
	}
	if c := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ReadyCondition); c != nil {
		row.Ready, row.Reason, row.Message, row.Since = c.Status == metav1.ConditionTrue, c.Reason, c.Message, c.LastTransitionTime
	}
	if row.Ready {
		row.Message = ""
	}
	if child.Status.Report != nil {
		row.Revision = child.Status.Report.Revision
	}
	return row
}

// Reporter keeps the tier's report in a ConfigMap, for the parent to read. It
// writes when the report changes, shortly after what changed it.
type Reporter struct {
	Client    client.Client
	Cache     ctrlcache.Cache
	Namespace string
	Agent     string
	Now       func() time.Time
	// Reconciles reports whether the objects of a kind, of which it gets one, are
	// reconciled in this tier; nil stands for all.
	Reconciles func(client.Object) bool

	// kinds that the report is computed from, once it was found out which the tier has.
	kinds []client.Object

	mu     sync.Mutex
	last   *v1alpha1.Report
	digest string
}

// Digest identifies the report that was written last; empty before the first.
func (r *Reporter) Digest() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.digest
}

// reportPause collects changes that come together.
const reportPause = 300 * time.Millisecond

// Start writes reports until the context ends. It implements
// manager.Runnable; only the leader runs it.
func (r *Reporter) Start(ctx context.Context) error {
	wake := make(chan struct{}, 1)
	poke := func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	for _, o := range r.served() {
		informer, err := r.Cache.GetInformer(ctx, o)
		if err != nil {
			return fmt.Errorf("cannot watch %T for the report: %w", o, err)
		}
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { poke() }, UpdateFunc: func(_, _ any) { poke() }, DeleteFunc: func(any) { poke() },
		})
		if err != nil {
			return fmt.Errorf("cannot watch %T for the report: %w", o, err)
		}
		defer func() { _ = informer.RemoveEventHandler(registration) }()
	}
	poke()
	pause := time.NewTicker(reportPause)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		}
		if err := r.write(ctx); err != nil {
			log.FromContext(ctx).Error(err, "cannot write report, trying again")
			poke()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
	}
}

func (r *Reporter) write(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if r.last == nil {
		cm := &corev1.ConfigMap{}
		if err := r.Client.Get(ctx, types.NamespacedName{Namespace: r.Namespace, Name: v1alpha1.ReportConfigMap}, cm); err == nil {
			r.last, _ = parseReport(cm.Data[v1alpha1.ReportKey])
		}
	}
	report, err := r.compute(ctx)
	if err != nil {
		return err
	}
	text, err := encode(report)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(text)
	digest := hex.EncodeToString(sum[:8])
	if before, _ := json.Marshal(r.last); string(before) == string(text) {
		r.wrote(report, digest)
		return nil
	}
	cm := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": v1alpha1.ReportConfigMap, "namespace": r.Namespace},
		"data":     map[string]any{v1alpha1.ReportKey: string(text)},
	}}
	if err := r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(cm), client.ForceOwnership, client.FieldOwner(statusManager)); err != nil {
		return fmt.Errorf("cannot write report: %w", err)
	}
	r.wrote(report, digest)
	return nil
}

// encode writes a report, without the last of its rows if the parent would refuse all of
// them as too long.
func encode(report *v1alpha1.Report) ([]byte, error) {
	for {
		text, err := json.Marshal(report)
		if err != nil {
			return nil, fmt.Errorf("cannot encode report: %w", err)
		}
		if len(text) <= maxReport || len(report.Tiers) == 0 {
			return text, nil
		}
		report.Tiers = report.Tiers[:len(report.Tiers)*3/4]
	}
}

// wrote remembers what stands in the ConfigMap now.
func (r *Reporter) wrote(report *v1alpha1.Report, digest string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last, r.digest = report, digest
}

// served are the kinds that the report is computed from and that the tier has. Those of
// sources and HelmReleases are Flux's, and a tier may have installed only some of
// them.
func (r *Reporter) served() []client.Object {
	if r.kinds != nil {
		return r.kinds
	}
	r.kinds = []client.Object{&kustomizev1.Kustomization{}, &sourcev1.GitRepository{}, &v1alpha1.Child{}}
	for _, o := range []client.Object{
		&sourcev1.OCIRepository{}, &sourcev1.Bucket{}, &sourcev1.HelmRepository{}, &sourcev1.HelmChart{}, &helmv2.HelmRelease{},
	} {
		if r.Reconciles == nil || r.Reconciles(o) {
			r.kinds = append(r.kinds, o)
		}
	}
	return r.kinds
}

func (r *Reporter) compute(ctx context.Context) (*v1alpha1.Report, error) {
	f := Facts{Agent: r.Agent}
	for _, o := range r.served() {
		gvk, err := r.Client.GroupVersionKindFor(o)
		if err != nil {
			return nil, fmt.Errorf("cannot list %T for the report: %w", o, err)
		}
		created, err := r.Client.Scheme().New(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		if err != nil {
			return nil, fmt.Errorf("cannot list %T for the report: %w", o, err)
		}
		list := created.(client.ObjectList)
		// Only read: a copy of each of thousands of objects would be made for a sum.
		if err := r.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("cannot list %T for the report: %w", o, err)
		}
		switch list := list.(type) {
		case *kustomizev1.KustomizationList:
			f.Kustomizations = list.Items
		case *helmv2.HelmReleaseList:
			f.Releases = list.Items
		case *v1alpha1.ChildList:
			f.Children = list.Items
		default:
			items, err := meta.ExtractList(list)
			if err != nil {
				return nil, fmt.Errorf("cannot read list of %T for the report: %w", o, err)
			}
			for _, item := range items {
				f.Sources = append(f.Sources, item.(client.Object))
			}
		}
	}
	return Compute(f, r.last, metav1.NewTime(r.Now().Truncate(time.Second))), nil
}
