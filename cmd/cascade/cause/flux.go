package cause

import (
	"fmt"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	autov1 "github.com/fluxcd/image-automation-controller/api/v1"
	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/held"
	"github.com/cascade-gitops/cascade/inventory"
)

const (
	kustomizationKind = kustomizev1.KustomizationKind
	releaseKind       = helmv2.HelmReleaseKind
)

// synced is what Flux's kinds have in common.
type synced struct {
	object     Object
	suspended  bool
	silent     bool // its kind has no status
	observed   bool
	created    metav1.Time
	revision   string
	conditions []metav1.Condition
	// refers are the objects that it reads, dependsOn those that come first, and inventory
	// what it applied.
	refers, dependsOn []Object
	// madeBy is what writes its conditions.
	madeBy    []Object
	inventory []string
	// reads are the Secrets without which it fails.
	reads     []Object
	held      v1alpha1.Held
	heldKnown bool
}

// reconciled adds what is wrong with an object of Flux.
func (b *builder) reconciled(s synced) {
	o := s.object
	if s.silent {
		return
	}
	c := ready(s.conditions, s.observed)
	if s.suspended {
		message := ""
		if c != nil && c.Status == metav1.ConditionFalse {
			message = "before that it was " + c.Reason + ": " + c.Message
		}
		b.add(b.node(o, "", Suspended, v1alpha1.ReasonSuspended, message, metav1.Time{}))
		return
	}
	main := ""
	switch {
	case c == nil:
		n := b.node(o, "", Progressing, v1alpha1.ReasonProgressing, "waiting to be reconciled", s.created)
		n.made(s)
		b.add(n)
	case c.Status != metav1.ConditionTrue:
		main = c.Reason
		n := b.node(o, "", stateOf(c.Reason), c.Reason, c.Message, c.LastTransitionTime)
		if c.Status == metav1.ConditionUnknown {
			n.link.State = Progressing
		}
		b.because(n, s)
		b.add(n)
	}
	for _, c := range s.conditions {
		if c.Status != metav1.ConditionTrue || !besides(c.Type) || c.Reason == main || c.Type == main {
			continue
		}
		n := b.node(o, c.Type, stateOf(c.Type), c.Reason, c.Message, c.LastTransitionTime)
		if n.link.Page == "" || c.Type == v1alpha1.PruneBlockedCondition || c.Type == v1alpha1.CreateHeldCondition {
			n = b.node(o, c.Type, stateOf(c.Type), c.Type, c.Message, c.LastTransitionTime)
		}
		b.because(n, s)
		b.add(n)
	}
}

// besides reports whether a condition that is True says what is not as it should be
// although the object may be ready.
func besides(condition string) bool {
	switch condition {
	case v1alpha1.PruneBlockedCondition, v1alpha1.CreateHeldCondition, v1alpha1.HandOverPendingCondition, v1alpha1.SourceFailingCondition,
		v1alpha1.AccountMissingCondition, v1alpha1.RolloutPendingCondition, v1alpha1.DriftedCondition:
		return true
	}
	return false
}

// because fills in what may cause a finding, and what decides about it.
func (b *builder) because(n *node, s synced) {
	n.link.Revision = plain(s.revision)
	var held v1alpha1.Held
	if s.heldKnown {
		held = s.held
	}
	n.made(s)
	b.without(n, s.reads)
	switch n.link.Reason {
	case v1alpha1.ReasonCredentialLapsing, v1alpha1.ReasonCredentialLapsed:
		n.because = append(n.because, key{n.Object, v1alpha1.SourceFailingCondition})
	case generatorv1.SourceFetchFailedReason, autov1.SourceManagerFailedReason:
		b.refer(n, s.refers...)
	case "ArtifactFailed", v1alpha1.ReasonSourceNotReady, "SourceUnavailable", "NoSourceArtifact", v1alpha1.ReasonSourceFailing, "IncludeUnavailable", "InvalidChartReference":
		b.refer(n, s.refers...)
	case v1alpha1.ReasonDependencyNotReady:
		b.refer(n, s.dependsOn...)
	case v1alpha1.ReasonHealthCheckFailed, v1alpha1.ReasonProgressing, fluxmeta.ProgressingWithRetryReason, "DependencyNotHealthy":
		b.applied(n, s.inventory)
	case fluxmeta.ReconciliationFailedReason:
		// What the name of an account that is missing may not do is refused as for one that is there.
		n.because = append(n.because, key{n.Object, v1alpha1.AccountMissingCondition})
	case v1alpha1.ReasonPruneBlocked:
		n.link.Command = plain(pruneCommand(n.Object, held.Prune))
		if held.Prune != nil && held.Prune.Holding > 0 { // Layers below ask for themselves; nothing else that it applied holds a prune
			n.holding(s.inventory)
		}
	case v1alpha1.ReasonCreateHeld:
		n.link.Command = createCommand(held.Create)
	case v1alpha1.ReasonRolloutPending, v1alpha1.ReasonRevisionMissing, v1alpha1.ReasonRolloutConflict:
		for i := range b.facts.Rollouts {
			r := &b.facts.Rollouts[i]
			if ref := r.Spec.Moves.KustomizationRef; ref != nil && r.Namespace == n.Namespace && ref.Name == n.Name && n.Kind == kustomizationKind {
				n.because = append(n.because, key{rolloutOf(r), ""})
			}
		}
	}
}

// made adds what makes an object as a cause.
func (n *node) made(s synced) {
	for _, o := range s.madeBy {
		n.because = append(n.because, key{o, ""})
	}
}

// refer adds objects as causes, and those that are missing to the graph.
func (b *builder) refer(n *node, to ...Object) {
	for _, o := range to {
		if o.Name == "" {
			continue
		}
		b.wanted = append(b.wanted, o)
		n.because = append(n.because, key{o, ""})
	}
}

// holding adds the Layers of an inventory as causes, of which one waits for a person, or for its
// children. Others that it applied may depend on it.
func (n *node) holding(ids []string) {
	for _, id := range ids {
		if e, err := inventory.Parse(id, ""); err == nil && e.GroupKind() == (schema.GroupKind{Group: v1alpha1.Group, Kind: layerKind}) {
			o := Object{Kind: e.Kind, Namespace: e.Namespace, Name: e.Name}
			n.because = append(n.because, key{o, v1alpha1.RemovalHeldCondition}, key{o, ""})
		}
	}
}

// applied adds objects of an inventory as causes, of the kinds that are facts. The root
// Kustomization of a repository has itself in there, and does not wait for itself.
func (b *builder) applied(n *node, ids []string) {
	for _, id := range ids {
		e, err := inventory.Parse(id, "")
		if err != nil {
			continue
		}
		o := Object{Kind: e.Kind, Namespace: e.Namespace, Name: e.Name}
		if o != n.Object && (clusterapi.IsCluster(e.GroupKind()) || ours(e.Group)) {
			n.because = append(n.because, key{o, ""})
		}
	}
}

func ours(group string) bool {
	switch group {
	case v1alpha1.Group, sourcev1.GroupVersion.Group, kustomizev1.GroupVersion.Group, helmv2.GroupVersion.Group:
		return true
	}
	return false
}

// in is a reference whose namespace may be left out.
func in(kind, namespace, name, own string) Object {
	if namespace == "" {
		namespace = own
	}
	return Object{Kind: kind, Namespace: namespace, Name: name}
}

func of(kind string, o client.Object) Object {
	return Object{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName()}
}

func (b *builder) sources() {
	for _, o := range b.facts.Sources {
		if s, ok := sourceOf(o); ok {
			b.known[s.object] = true
			b.reconciled(s)
		}
	}
}

// seen is an object of a kind that says which generation its conditions are about.
func seen(kind string, o client.Object, suspended bool, observed int64, conditions []metav1.Condition) synced {
	return synced{
		object: of(kind, o), created: o.GetCreationTimestamp(), suspended: suspended, conditions: conditions, observed: observed == o.GetGeneration(),
	}
}

func sourceOf(o client.Object) (s synced, ok bool) {
	switch o := o.(type) {
	case *sourcev1.GitRepository:
		s = seen(sourcev1.GitRepositoryKind, o, o.Spec.Suspend, o.Status.ObservedGeneration, o.Status.Conditions)
		s.read(o.Spec.SecretRef, o.Spec.ProxySecretRef)
		for _, i := range o.Spec.Include {
			s.refers = append(s.refers, Object{Kind: sourcev1.GitRepositoryKind, Namespace: o.Namespace, Name: i.GitRepositoryRef.Name})
		}
	case *sourcev1.OCIRepository:
		s = seen(sourcev1.OCIRepositoryKind, o, o.Spec.Suspend, o.Status.ObservedGeneration, o.Status.Conditions)
		s.read(o.Spec.SecretRef, o.Spec.CertSecretRef, o.Spec.ProxySecretRef)
	case *sourcev1.Bucket:
		s = seen(sourcev1.BucketKind, o, o.Spec.Suspend, o.Status.ObservedGeneration, o.Status.Conditions)
		s.read(o.Spec.SecretRef, o.Spec.CertSecretRef, o.Spec.ProxySecretRef)
	case *sourcev1.HelmRepository:
		s = seen(sourcev1.HelmRepositoryKind, o, o.Spec.Suspend, o.Status.ObservedGeneration, o.Status.Conditions)
		s.read(o.Spec.SecretRef, o.Spec.CertSecretRef)
		s.silent = o.Spec.Type == sourcev1.HelmRepositoryTypeOCI && !o.Spec.Suspend
	case *sourcev1.HelmChart:
		s = seen(sourcev1.HelmChartKind, o, o.Spec.Suspend, o.Status.ObservedGeneration, o.Status.Conditions)
		s.refers = []Object{{Kind: o.Spec.SourceRef.Kind, Namespace: o.Namespace, Name: o.Spec.SourceRef.Name}}
	case *sourcev1.ExternalArtifact:
		// Whoever makes it writes its conditions, which do not name a generation.
		s = seen(sourcev1.ExternalArtifactKind, o, false, o.GetGeneration(), o.Status.Conditions)
		if ref := o.Spec.SourceRef; ref != nil {
			s.madeBy = append(s.madeBy, in(ref.Kind, ref.Namespace, ref.Name, o.Namespace))
		}
	default:
		return s, false
	}
	return s, true
}

func (b *builder) others() {
	for _, o := range b.facts.Others {
		if s, ok := otherOf(o); ok {
			b.known[s.object] = true
			b.reconciled(s)
		}
	}
}

func otherOf(o client.Object) (s synced, ok bool) {
	switch o := o.(type) {
	case *generatorv1.ArtifactGenerator:
		s = seen(generatorv1.ArtifactGeneratorKind, o, o.IsDisabled(), o.GetGeneration(), o.Status.Conditions)
		for _, ref := range o.Spec.Sources {
			s.refers = append(s.refers, in(ref.Kind, ref.Namespace, ref.Name, o.Namespace))
		}
	case *imagev1.ImageRepository:
		s = seen(imagev1.ImageRepositoryKind, o, o.Spec.Suspend, o.Status.ObservedGeneration, o.Status.Conditions)
		s.read(o.Spec.SecretRef, o.Spec.CertSecretRef, o.Spec.ProxySecretRef)
	case *imagev1.ImagePolicy:
		s = seen(imagev1.ImagePolicyKind, o, o.Spec.Suspend, o.Status.ObservedGeneration, o.Status.Conditions)
		ref := o.Spec.ImageRepositoryRef
		s.dependsOn = []Object{in(imagev1.ImageRepositoryKind, ref.Namespace, ref.Name, o.Namespace)}
	case *autov1.ImageUpdateAutomation:
		s = seen(autov1.ImageUpdateAutomationKind, o, o.Spec.Suspend, o.Status.ObservedGeneration, o.Status.Conditions)
		ref := o.Spec.SourceRef
		s.refers = []Object{in(ref.Kind, ref.Namespace, ref.Name, o.Namespace)}
	case *notificationv1.Receiver:
		s = seen(notificationv1.ReceiverKind, o, o.Spec.Suspend, o.Status.ObservedGeneration, o.Status.Conditions)
	default:
		return s, false
	}
	return s, true
}

func (b *builder) kustomizations() {
	for i := range b.facts.Kustomizations {
		k := &b.facts.Kustomizations[i]
		s := synced{
			object: of(kustomizationKind, k), suspended: k.Spec.Suspend, observed: k.Status.ObservedGeneration == k.Generation,
			created: k.CreationTimestamp, revision: k.Status.LastAttemptedRevision, conditions: k.Status.Conditions,
			refers: []Object{in(k.Spec.SourceRef.Kind, k.Spec.SourceRef.Namespace, k.Spec.SourceRef.Name, k.Namespace)},
		}
		for _, d := range k.Spec.DependsOn {
			s.dependsOn = append(s.dependsOn, in(kustomizationKind, d.Namespace, d.Name, k.Namespace))
		}
		if k.Status.Inventory != nil {
			for _, e := range k.Status.Inventory.Entries {
				s.inventory = append(s.inventory, e.ID)
			}
		}
		s.held, s.heldKnown = v1alpha1.HeldOf(k)
		b.known[s.object] = true
		b.reconciled(s)
	}
}

func (b *builder) releases() {
	for i := range b.facts.Releases {
		h := &b.facts.Releases[i]
		s := synced{
			object: of(releaseKind, h), suspended: h.Spec.Suspend, observed: h.Status.ObservedGeneration == h.Generation,
			created: h.CreationTimestamp, revision: h.Status.LastAttemptedRevision, conditions: h.Status.Conditions,
		}
		switch {
		case h.Spec.ChartRef != nil:
			s.refers = []Object{in(h.Spec.ChartRef.Kind, h.Spec.ChartRef.Namespace, h.Spec.ChartRef.Name, h.Namespace)}
		case h.Spec.Chart != nil:
			source := in(h.Spec.Chart.Spec.SourceRef.Kind, h.Spec.Chart.Spec.SourceRef.Namespace, h.Spec.Chart.Spec.SourceRef.Name, h.Namespace)
			s.refers = []Object{{Kind: sourcev1.HelmChartKind, Namespace: source.Namespace, Name: h.GetHelmChartName()}}
		}
		for _, d := range h.Spec.DependsOn {
			s.dependsOn = append(s.dependsOn, in(releaseKind, d.Namespace, d.Name, h.Namespace))
		}
		if h.Status.Inventory != nil {
			for _, e := range h.Status.Inventory.Entries {
				s.inventory = append(s.inventory, e.ID)
			}
		}
		s.held, s.heldKnown = v1alpha1.HeldOf(h)
		b.known[s.object] = true
		b.reconciled(s)
	}
}

// rollouts adds those that wait for a person, failed, or hold something up.
func (b *builder) rollouts() {
	for i := range b.facts.Rollouts {
		r := &b.facts.Rollouts[i]
		o := rolloutOf(r)
		b.known[o] = true
		c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ReadyCondition)
		for _, failing := range r.FailingExchange() {
			if !r.Spec.Suspend && (c == nil || c.Reason != failing.Reason) {
				b.add(b.node(o, failing.Type, Failing, failing.Reason, failing.Message, failing.LastTransitionTime))
			}
		}
		run := r.Status.Run
		halted := run != nil && run.Phase == v1alpha1.RolloutHalted
		if c != nil && c.Status == metav1.ConditionTrue && !halted && !r.Spec.Suspend {
			continue
		}
		n := b.node(o, "", Progressing, v1alpha1.ReasonProgressing, "waiting to be reconciled", r.CreationTimestamp)
		if c != nil {
			n = b.node(o, "", stateOf(c.Reason), c.Reason, c.Message, c.LastTransitionTime)
		}
		if run != nil {
			n.link.Revision = plain(run.Revision)
		}
		switch {
		case r.Spec.Suspend:
			n = b.node(o, "", Suspended, v1alpha1.ReasonSuspended, n.link.Message, metav1.Time{})
			n.link.Command = ResumeCommand(r)
		case halted:
			n.link.State, n.link.Command = Held, RetryCommand(r)
			for _, f := range r.Status.Failing {
				if isName(f.Name) {
					child := Object{Kind: childKind, Namespace: r.Namespace, Name: f.Name}
					n.because = append(n.because, key{child, ""}, key{Object{Kind: clusterKind, Namespace: r.Namespace, Name: f.Name}, ""})
				}
			}
		case n.link.Reason == v1alpha1.ReasonAwaitingApproval || n.link.Reason == v1alpha1.ReasonWaveUnproven:
			n.link.State = Held
			if waves := held.Approvals(r); len(waves) > 0 {
				n.link.Command = plain(held.ApproveCommand(r, waves[0]))
			}
		case n.link.State == Progressing:
			n.quiet, n.link.Command = true, held.StatusCommand(r)
		case n.link.Reason == v1alpha1.ReasonSourceNotReady:
			if ref := r.Spec.SourceRef; ref != nil {
				b.refer(n, Object{Kind: ref.Kind, Namespace: r.Namespace, Name: ref.Name})
			}
		}
		b.add(n)
	}
}

func rolloutOf(r *v1alpha1.Rollout) Object { return of(rolloutKind, r) }

// stateOf is how something stands that has a reason.
func stateOf(reason string) State {
	switch reason {
	case v1alpha1.ReasonPruneBlocked, v1alpha1.ReasonCreateHeld, v1alpha1.ReasonRemovalHeld, v1alpha1.ReasonAwaitingApproval, v1alpha1.ReasonWaveUnproven,
		v1alpha1.ReasonRolloutHalted, v1alpha1.ReasonCredentialsExpiring, v1alpha1.ReasonCredentialLapsing, v1alpha1.ReasonHandOverPending, v1alpha1.ReasonSuperseded:
		return Held
	case v1alpha1.ReasonSuspended, v1alpha1.ReasonPaused:
		return Suspended
	case v1alpha1.ReasonProgressing, v1alpha1.ReasonSoaking, v1alpha1.ReasonOutsideWindow, v1alpha1.ReasonReverting, v1alpha1.ReasonRollingOut,
		v1alpha1.ReasonRolloutPending, v1alpha1.ReasonClusterDeleting, v1alpha1.ReasonClusterNotReady, v1alpha1.ReasonNoLayer, fluxmeta.ProgressingWithRetryReason:
		return Progressing
	}
	return Failing
}

// suspendedLayer and others say which Layer it is about.
func aboutLayer(name, message string) string {
	if message == "" {
		return ""
	}
	return fmt.Sprintf("layer %s: %s", name, message)
}
