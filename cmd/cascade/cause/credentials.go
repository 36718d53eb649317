package cause

import (
	"slices"
	"strings"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

const (
	credentialKind, backupKind, deploymentKind, secretKind = "Credential", "StateBackup", "Deployment", "Secret"
)

// faultsPart is what a cluster says of its credentials and backups, beside what it syncs.
const faultsPart = "faults"

// reasonNotAvailable is that of a Deployment whose pods do not run.
const reasonNotAvailable = "ProviderNotAvailable"

// keepers finds which Secrets Credentials keep, and of which of these nothing is valid.
func (b *builder) keepers() {
	for i := range b.facts.Credentials {
		c := &b.facts.Credentials[i]
		o := of(credentialKind, c)
		secret := Object{Kind: secretKind, Namespace: c.Namespace, Name: c.SecretName()}
		b.keeps[secret] = append(b.keeps[secret], o)
		if ends := c.Status.ExpiresAt; c.Status.IssuedAt == nil || ends != nil && !ends.After(b.now) {
			b.void[o] = true
		}
	}
}

// unwell reports whether something is to be said of a Credential.
func unwell(c v1alpha1.Credential) bool {
	if r := ready(c.Status.Conditions, true); r == nil || r.Status != metav1.ConditionTrue {
		return true
	}
	return slices.ContainsFunc(c.Status.Conditions, func(c metav1.Condition) bool {
		return c.Type == v1alpha1.SourceFailingCondition && c.Status == metav1.ConditionTrue
	})
}

// credentials adds those that are not kept. One whose login is itself in a Secret that a
// Credential keeps has that for its cause.
func (b *builder) credentials() {
	for i := range b.facts.Credentials {
		c := &b.facts.Credentials[i]
		s := seen(credentialKind, c, c.Spec.Suspend, c.Status.ObservedGeneration, c.Status.Conditions)
		if v := c.Spec.Vault; v != nil {
			var refs []*v1alpha1.LocalReference
			if a := v.Auth.JWT; a != nil {
				refs = append(refs, a.SecretRef)
			}
			if a := v.Auth.AppRole; a != nil {
				refs = append(refs, &a.SecretRef)
			}
			if a := v.Auth.Cert; a != nil {
				refs = append(refs, &a.SecretRef)
			}
			s.reads = secretsIn(c.Namespace, append(refs, v.CASecretRef)...)
		}
		b.known[s.object] = true
		b.reconciled(s)
	}
}

// backups adds those that are not made.
func (b *builder) backups() {
	for i := range b.facts.Backups {
		o := &b.facts.Backups[i]
		s := seen(backupKind, o, o.Spec.Suspend, o.Status.ObservedGeneration, o.Status.Conditions)
		s.reads = secretsIn(o.Namespace, o.Spec.Destination.SecretRef, o.Spec.Destination.CertSecretRef)
		b.known[s.object] = true
		b.reconciled(s)
	}
}

// secretsIn are the Secrets that references name; nil names none.
func secretsIn(namespace string, refs ...*v1alpha1.LocalReference) []Object {
	var all []Object
	for _, ref := range refs {
		if ref != nil && ref.Name != "" {
			all = append(all, Object{Kind: secretKind, Namespace: namespace, Name: ref.Name})
		}
	}
	return all
}

// read adds the Secrets that an object of Flux names in its own namespace.
func (s *synced) read(refs ...*fluxmeta.LocalObjectReference) {
	for _, ref := range refs {
		if ref != nil && ref.Name != "" {
			s.reads = append(s.reads, Object{Kind: secretKind, Namespace: s.object.Namespace, Name: ref.Name})
		}
	}
}

// without adds the Credentials of Secrets as causes in which nothing is valid. One that is
// valid is not why something fails, whatever is wrong with its renewal.
func (b *builder) without(n *node, secrets []Object) {
	for _, secret := range secrets {
		for _, o := range b.keeps[secret] {
			if b.void[o] {
				n.because = append(n.because, key{o, ""})
			}
		}
	}
}

// credentialsOf are those that a layer hands over, of its own and of its providers.
func credentialsOf(l *v1alpha1.Layer) []v1alpha1.CredentialReference {
	all := slices.Clone(l.Spec.Credentials)
	if p := l.Spec.Providers; p != nil {
		for _, kind := range [][]v1alpha1.Provider{p.Bootstrap, p.ControlPlane, p.Infrastructure, p.IPAM, p.RuntimeExtension, p.Addon} {
			for i := range kind {
				all = append(all, kind[i].Credentials...)
			}
		}
	}
	return all
}

// secretsOf are the Secrets that a layer copies, but for those whose name is another one for
// each cluster.
func secretsOf(l *v1alpha1.Layer) []Object {
	var refs []*v1alpha1.LocalReference
	for _, ref := range credentialsOf(l) {
		if ref.SecretRef != nil && !strings.Contains(ref.SecretRef.Name, "$") {
			refs = append(refs, ref.SecretRef)
		}
	}
	return secretsIn(l.Namespace, refs...)
}

// handedOver adds the Credentials of this tier that keep what a child is given, and are not
// renewed: copies of it lapse for that.
func (b *builder) handedOver(n *node, c *v1alpha1.Child) {
	for i := range b.facts.Layers {
		l := &b.facts.Layers[i]
		if l.Namespace != c.Namespace {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(&l.Spec.ClusterSelector)
		if err != nil || selector.Empty() || !selector.Matches(labels.Set(c.Labels)) {
			continue
		}
		for _, secret := range secretsOf(l) {
			for _, o := range b.keeps[secret] {
				// That it lapses is nearer than why.
				k := key{o, ""}
				if b.nodes[k] == nil {
					k.part = v1alpha1.SourceFailingCondition
				}
				n.because = append(n.because, k)
			}
		}
	}
}

// keptThere are the Credentials in a child's tier that a layer brings there and that its
// agent reports: what the layer brings besides may wait for one.
func keptThere(c *v1alpha1.Child, layer string) []key {
	said := c.Status.Report
	if said == nil || c.Status.HeardAt != nil {
		return nil
	}
	tier := of(childKind, c).Path()
	var found []key
	for i := range said.Failing {
		o, ok := object(tier, said.Failing[i].Name)
		if !ok || o.Kind != credentialKind {
			continue
		}
		if slices.ContainsFunc(c.Status.Credentials, func(g v1alpha1.ChildCredential) bool {
			provider, name, both := strings.Cut(g.Name, "/")
			if !both {
				name = provider
			}
			return g.From == v1alpha1.CredentialFromVault && g.Layer == layer && name == o.Name && both == (o.Namespace != v1alpha1.AgentNamespace)
		}) {
			found = append(found, key{o, ""})
		}
	}
	return found
}

// unnamed adds what the agent of a child counts as wrong beside what it syncs, unless it
// names some of it.
func (b *builder) unnamed(c *v1alpha1.Child) {
	said := c.Status.Report
	if said == nil || slices.ContainsFunc(said.Failing, func(f v1alpha1.Failure) bool {
		o, ok := object("", f.Name)
		return ok && (o.Kind == credentialKind || o.Kind == backupKind) && c.Status.HeardAt == nil
	}) {
		return
	}
	b.faults(of(childKind, c), said.Faults, c.Status.HeardAt)
}

// faults adds what is counted as wrong in the tier of a cluster.
func (b *builder) faults(cluster Object, f *v1alpha1.ReportFaults, heard *metav1.Time) {
	reason := f.Reason()
	if reason == "" {
		return
	}
	state := Failing
	if reason == v1alpha1.ReasonCredentialsFailing {
		state = Held
	}
	n := b.node(cluster, faultsPart, state, reason, f.String(), metav1.Time{})
	n.link.Heard = heard
	b.add(n)
}

// providers adds the Deployments of providers that do not run for want of a Secret that a
// Credential keeps. Others are told by `cascade check`.
func (b *builder) providers() {
	for i := range b.facts.Providers {
		d := &b.facts.Providers[i]
		o := of(deploymentKind, d)
		b.known[o] = true
		available := slices.ContainsFunc(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
			return c.Type == appsv1.DeploymentAvailable && c.Status == corev1.ConditionTrue
		})
		if available {
			continue
		}
		n := b.node(o, "", Failing, reasonNotAvailable, "its pods do not run", metav1.Time{})
		if b.without(n, b.secretsFor(d)); len(n.because) > 0 {
			b.add(n)
		}
	}
}

// secretsFor are the Secrets that a Deployment reads: those of its pods, and those of
// Credentials that restart it.
func (b *builder) secretsFor(d *appsv1.Deployment) []Object {
	var refs []*v1alpha1.LocalReference
	add := func(name string) { refs = append(refs, &v1alpha1.LocalReference{Name: name}) }
	for i := range d.Spec.Template.Spec.Volumes {
		if v := d.Spec.Template.Spec.Volumes[i].Secret; v != nil {
			add(v.SecretName)
		}
	}
	for i := range d.Spec.Template.Spec.Containers {
		c := &d.Spec.Template.Spec.Containers[i]
		for _, e := range c.EnvFrom {
			if e.SecretRef != nil {
				add(e.SecretRef.Name)
			}
		}
		for _, e := range c.Env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
				add(e.ValueFrom.SecretKeyRef.Name)
			}
		}
	}
	for i := range b.facts.Credentials {
		c := &b.facts.Credentials[i]
		if c.Namespace == d.Namespace && slices.ContainsFunc(c.Spec.Restart, func(r v1alpha1.CredentialReader) bool { return r.Name == d.Name }) {
			add(c.SecretName())
		}
	}
	return secretsIn(d.Namespace, refs...)
}

// ofProvider adds, to an object of a provider that is not there, what the provider lacks: its
// Deployment, and the Credential of it.
func (b *builder) ofProvider(n *node) {
	for i := range b.facts.Providers {
		d := &b.facts.Providers[i]
		provider, is := strings.CutPrefix(d.Labels[clusterapi.ProviderLabel], "infrastructure-")
		if !is || provider == "" || !strings.HasPrefix(strings.ToLower(n.Kind), provider) {
			continue
		}
		if o := (key{of(deploymentKind, d), ""}); b.nodes[o] != nil {
			n.because = append(n.because, o)
			continue
		}
		b.without(n, b.secretsFor(d))
	}
}
