package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	autov1 "github.com/fluxcd/image-automation-controller/api/v1"
	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	notificationv1beta3 "github.com/fluxcd/notification-controller/api/v1beta3"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// subject is an object that can be asked to reconcile.
type subject struct {
	object client.Object
	// state returns what was handled last, the conditions, and the revision.
	state func() (handled string, conditions []metav1.Condition, revision string)
	// source that the object is made of, if it has one.
	source func() *sourceRef
	// still: nobody reconciles the kind; it is used as it is.
	still bool
	// lasting: what the object says of being ready is about clusters, which takes as long as
	// it takes; that it was looked at is enough.
	lasting bool
	// fails is a condition that is true if what was asked for failed, although the object may
	// be ready with what it has; empty for none.
	fails string
}

// sourceRef names a source.
type sourceRef struct {
	kind string
	key  client.ObjectKey
}

func inNamespace(namespace, otherwise, name string) client.ObjectKey {
	if namespace == "" {
		namespace = otherwise
	}
	return client.ObjectKey{Namespace: namespace, Name: name}
}

// sourceSubject is a source, of which handled returns what was handled last.
func sourceSubject(o client.Object, key client.ObjectKey, handled func() string) *subject {
	o.SetNamespace(key.Namespace)
	o.SetName(key.Name)
	return &subject{object: o, state: func() (string, []metav1.Condition, string) {
		revision := ""
		if a := o.(sourcev1.Source).GetArtifact(); a != nil {
			revision = a.Revision
		}
		return handled(), o.(conditioned).GetConditions(), revision
	}}
}

// handledSubject is an object whose conditions say how it is.
func handledSubject(o client.Object, key client.ObjectKey, handled, revision func() string) *subject {
	o.SetNamespace(key.Namespace)
	o.SetName(key.Name)
	return &subject{object: o, state: func() (string, []metav1.Condition, string) { return handled(), conditionsOf(o), revision() }}
}

// stillSubject is an object that nobody reconciles.
func stillSubject(o client.Object, key client.ObjectKey) *subject {
	o.SetNamespace(key.Namespace)
	o.SetName(key.Name)
	return &subject{object: o, still: true, state: func() (string, []metav1.Condition, string) { return "", nil, "" }}
}

// newSubject is an object of a kind, to be read.
func newSubject(kind string, key client.ObjectKey) (*subject, error) {
	switch strings.ToLower(kind) {
	case "source", "gitrepository", "gitrepo", "git":
		o := &sourcev1.GitRepository{}
		return sourceSubject(o, key, func() string { return o.Status.LastHandledReconcileAt }), nil
	case "ocirepository", "ocirepo", "oci":
		o := &sourcev1.OCIRepository{}
		return sourceSubject(o, key, func() string { return o.Status.LastHandledReconcileAt }), nil
	case "bucket":
		o := &sourcev1.Bucket{}
		return sourceSubject(o, key, func() string { return o.Status.LastHandledReconcileAt }), nil
	case "helmrepository", "helmrepo":
		o := &sourcev1.HelmRepository{}
		return sourceSubject(o, key, func() string { return o.Status.LastHandledReconcileAt }), nil
	case "helmchart", "hc", "chart":
		o := &sourcev1.HelmChart{}
		s := sourceSubject(o, key, func() string { return o.Status.LastHandledReconcileAt })
		s.source = func() *sourceRef {
			return &sourceRef{o.Spec.SourceRef.Kind, client.ObjectKey{Namespace: o.Namespace, Name: o.Spec.SourceRef.Name}}
		}
		return s, nil
	case "helmrelease", "hr":
		o := &helmv2.HelmRelease{}
		o.Namespace, o.Name = key.Namespace, key.Name
		return &subject{object: o, state: func() (string, []metav1.Condition, string) {
			return o.Status.LastHandledReconcileAt, o.Status.Conditions, o.Status.LastAttemptedRevision
		}, source: func() *sourceRef {
			if ref := o.Spec.ChartRef; ref != nil {
				return &sourceRef{ref.Kind, inNamespace(ref.Namespace, o.Namespace, ref.Name)}
			}
			namespace, name := o.Status.GetHelmChart()
			if name == "" {
				return nil
			}
			return &sourceRef{sourcev1.HelmChartKind, client.ObjectKey{Namespace: namespace, Name: name}}
		}}, nil
	case "kustomization", "ks":
		o := &kustomizev1.Kustomization{}
		o.Namespace, o.Name = key.Namespace, key.Name
		return &subject{object: o, state: func() (string, []metav1.Condition, string) {
			return o.Status.LastHandledReconcileAt, o.Status.Conditions, o.Status.LastAppliedRevision
		}, source: func() *sourceRef {
			ref := o.Spec.SourceRef
			return &sourceRef{ref.Kind, inNamespace(ref.Namespace, o.Namespace, ref.Name)}
		}}, nil
	case "layer":
		o := &v1alpha1.Layer{}
		o.Namespace, o.Name = key.Namespace, key.Name
		return &subject{object: o, state: func() (string, []metav1.Condition, string) {
			return o.Status.LastHandledReconcileAt, o.Status.Conditions, o.Status.Revision
		}, source: func() *sourceRef {
			if o.Spec.SourceRef == nil {
				return nil
			}
			ref := o.Spec.SourceRef
			return &sourceRef{ref.Kind, inNamespace(ref.Namespace, o.Namespace, ref.Name)}
		}}, nil
	case "child":
		o := &v1alpha1.Child{}
		o.Namespace, o.Name = key.Namespace, key.Name
		return &subject{object: o, state: func() (string, []metav1.Condition, string) {
			revision := ""
			if o.Status.Report != nil {
				revision = o.Status.Report.Revision
			}
			return o.Status.LastHandledReconcileAt, o.Status.Conditions, revision
		}}, nil
	case "artifactgenerator", "ag":
		o := &generatorv1.ArtifactGenerator{}
		return handledSubject(o, key, func() string { return o.Status.LastHandledReconcileAt }, func() string { return o.Status.ObservedSourcesDigest }), nil
	case "imagerepository", "imagerepo":
		o := &imagev1.ImageRepository{}
		return handledSubject(o, key, func() string { return o.Status.LastHandledReconcileAt }, func() string {
			if last := o.Status.LastScanResult; last != nil {
				return last.Revision
			}
			return ""
		}), nil
	case "imagepolicy":
		o := &imagev1.ImagePolicy{}
		s := handledSubject(o, key, func() string { return o.Status.LastHandledReconcileAt }, func() string {
			if latest := o.Status.LatestRef; latest != nil {
				return latest.Tag
			}
			return ""
		})
		s.source = func() *sourceRef {
			ref := o.Spec.ImageRepositoryRef
			return &sourceRef{imagev1.ImageRepositoryKind, inNamespace(ref.Namespace, o.Namespace, ref.Name)}
		}
		return s, nil
	case "imageupdateautomation", "imageupdate", "iua":
		o := &autov1.ImageUpdateAutomation{}
		s := handledSubject(o, key, func() string { return o.Status.LastHandledReconcileAt }, func() string { return o.Status.ObservedSourceRevision })
		s.source = func() *sourceRef {
			ref := o.Spec.SourceRef
			return &sourceRef{ref.Kind, inNamespace(ref.Namespace, o.Namespace, ref.Name)}
		}
		return s, nil
	case "receiver":
		o := &notificationv1.Receiver{}
		return handledSubject(o, key, func() string { return o.Status.LastHandledReconcileAt }, func() string { return o.Status.WebhookPath }), nil
	case "alert":
		return stillSubject(&notificationv1beta3.Alert{}, key), nil
	case "alert-provider":
		return stillSubject(&notificationv1beta3.Provider{}, key), nil
	case "externalartifact", "ea":
		o := &sourcev1.ExternalArtifact{}
		s := sourceSubject(o, key, func() string { return "" })
		s.still, s.source = true, func() *sourceRef {
			ref := o.Spec.SourceRef
			if ref == nil || ref.Kind != generatorv1.ArtifactGeneratorKind {
				return nil // somebody else makes it
			}
			return &sourceRef{ref.Kind, inNamespace(ref.Namespace, o.Namespace, ref.Name)}
		}
		return s, nil
	case "rollout":
		o := &v1alpha1.Rollout{}
		o.Namespace, o.Name = key.Namespace, key.Name
		return &subject{object: o, lasting: true, state: func() (string, []metav1.Condition, string) {
			revision := ""
			if o.Status.Candidate != nil {
				revision = o.Status.Candidate.Revision
			}
			return o.Status.LastHandledReconcileAt, o.Status.Conditions, revision
		}}, nil
	case "credential", "cred":
		o := &v1alpha1.Credential{}
		o.Namespace, o.Name = key.Namespace, key.Name
		return &subject{object: o, fails: v1alpha1.SourceFailingCondition, state: func() (string, []metav1.Condition, string) {
			until := "nothing says when"
			if ends := o.Status.ExpiresAt; ends != nil {
				until = moment(ends)
			}
			return o.Status.LastHandledReconcileAt, o.Status.Conditions, until
		}}, nil
	case "statebackup":
		o := &v1alpha1.StateBackup{}
		o.Namespace, o.Name = key.Namespace, key.Name
		return &subject{object: o, state: func() (string, []metav1.Condition, string) {
			return o.Status.LastHandledReconcileAt, o.Status.Conditions, o.Status.LastVersion
		}}, nil
	}
	return nil, fmt.Errorf("cannot reconcile kind %q: use kustomization, helmrelease, layer, child, rollout, credential, statebackup, "+
		"a kind of source: gitrepository, ocirepository, bucket, helmrepository, helmchart, artifactgenerator, "+
		"or receiver, imagerepository, imagepolicy, imageupdateautomation", kind)
}

// reconcilable are the words for what somebody reconciles.
func reconcilable() []string {
	return slices.DeleteFunc(kinds(), func(word string) bool {
		g, _ := kindOf(word)
		s, err := newSubject(g.single, client.ObjectKey{})
		return err != nil || s.still
	})
}

func (c *cli) newReconcile() *cobra.Command {
	var withSource bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "reconcile <kind> <name>",
		Short: "Reconcile an object now and wait for the result",
		Example: "  cascade reconcile kustomization apps --with-source\n" +
			"  cascade reconcile source fleet -n cascade-system",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: c.completeKindAndName(reconcilable),
		RunE: func(cmd *cobra.Command, args []string) error {
			key := client.ObjectKey{Namespace: c.namespace(), Name: args[1]}
			s, err := newSubject(args[0], key)
			if err != nil {
				return err
			}
			if s.still {
				return fmt.Errorf("cannot reconcile %s %s: nobody reconciles the kind, it is used as it is", args[0], key)
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return c.reconcileObject(ctx, cl, strings.ToLower(args[0]), s, withSource)
		},
	}
	cmd.Flags().BoolVar(&withSource, "with-source", false, "reconcile the source first")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait")
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

// reconcileObject reads an object, and reconciles it and, if that is wanted, its source before.
func (c *cli) reconcileObject(ctx context.Context, cl client.Client, kind string, s *subject, withSource bool) error {
	key := client.ObjectKeyFromObject(s.object)
	if err := cl.Get(ctx, key, s.object); err != nil {
		return fmt.Errorf("cannot read %s %s: %w", kind, key, err)
	}
	if err := s.mayReconcile(kind); err != nil {
		return err
	}
	if isLookedUp(s.object) {
		fmt.Fprintf(c.streams.Out, "✔ there is nothing to reconcile: a HelmRepository of type oci is looked up by its charts\n")
		return nil
	}
	if withSource {
		if s.source == nil || s.source() == nil {
			return fmt.Errorf("cannot reconcile the source of %s %s: it has none", kind, key)
		}
		if err := c.reconcileSource(ctx, cl, *s.source()); err != nil {
			return err
		}
	}
	return c.reconcile(ctx, cl, kind, s, s.done())
}

// isLookedUp reports whether an object is of use to others only: nobody reconciles it.
func isLookedUp(o client.Object) bool {
	r, ok := o.(*sourcev1.HelmRepository)
	return ok && r.Spec.Type == sourcev1.HelmRepositoryTypeOCI
}

// mayReconcile refuses an object that is suspended: there is nothing that could be waited for,
// and what it says of itself is old.
func (s *subject) mayReconcile(kind string) error {
	key := client.ObjectKeyFromObject(s.object)
	for _, g := range getters() {
		if g.suspend != nil && !s.lasting && reflect.TypeOf(g.object()) == reflect.TypeOf(s.object) && *g.suspend(s.object) {
			return fmt.Errorf("cannot reconcile %s %s: it is suspended; run: cascade resume %s %s -n %s", kind, key, g.single, key.Name, key.Namespace)
		}
	}
	return nil
}

// done says in words what a reconcile came to; the revision comes behind it.
func (s *subject) done() string {
	switch s.object.(type) {
	case sourcev1.Source:
		return "fetched revision"
	case *imagev1.ImageRepository:
		return "scanned tags"
	case *imagev1.ImagePolicy:
		return "chose tag"
	case *notificationv1.Receiver:
		return "serves path"
	case *autov1.ImageUpdateAutomation:
		return "looked at revision"
	case *generatorv1.ArtifactGenerator:
		return "made artifacts of sources"
	case *v1alpha1.Credential:
		return "it lapses:"
	case *v1alpha1.StateBackup:
		return "saved version"
	}
	if s.lasting {
		return "newest revision"
	}
	return "applied revision"
}

// reconcileSource reconciles a source, and before it what it is made from.
func (c *cli) reconcileSource(ctx context.Context, cl client.Client, ref sourceRef) error {
	s, err := newSubject(ref.kind, ref.key)
	if err != nil {
		return err
	}
	if err := cl.Get(ctx, ref.key, s.object); err != nil {
		return fmt.Errorf("cannot read %s %s: %w", ref.kind, ref.key, err)
	}
	if isLookedUp(s.object) {
		return nil
	}
	if err := s.mayReconcile(strings.ToLower(ref.kind)); err != nil {
		return err
	}
	if s.source != nil {
		if from := s.source(); from != nil {
			if err := c.reconcileSource(ctx, cl, *from); err != nil {
				return err
			}
		}
	}
	if s.still {
		return nil
	}
	return c.reconcile(ctx, cl, strings.ToLower(ref.kind), s, s.done())
}

func (c *cli) reconcile(ctx context.Context, cl client.Client, kind string, s *subject, done string) error {
	r, err := c.askFor(ctx, cl, kind, s, done)
	if err != nil {
		return err
	}
	return c.awaitAll(ctx, cl, r)
}

// request is a reconciliation that was asked for.
type request struct {
	*subject
	kind, done string
	// token it was asked with, and what was handled before.
	token, before string
	// patient: what it depends on was asked at the same time, and may take longer.
	patient bool
}

func (c *cli) askFor(ctx context.Context, cl client.Client, kind string, s *subject, done string) (*request, error) {
	key := client.ObjectKeyFromObject(s.object)
	r := &request{subject: s, kind: kind, done: done, token: c.now().Format(time.RFC3339Nano)}
	patch := client.RawPatch("application/merge-patch+json",
		fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, fluxmeta.ReconcileRequestAnnotation, r.token))
	fmt.Fprintf(c.streams.ErrOut, "► annotating %s %s\n", kind, key)
	if err := cl.Patch(ctx, s.object, patch); err != nil {
		return nil, fmt.Errorf("cannot annotate %s %s: %w", kind, key, err)
	}
	r.before, _, _ = s.state()
	return r, nil
}

// awaitAll waits for all that was asked for, side by side.
func (c *cli) awaitAll(ctx context.Context, cl client.Client, requests ...*request) error {
	var failed []error
	fmt.Fprintf(c.streams.ErrOut, "◎ waiting for the reconciliation\n")
	progress := c.progress("the reconciliation")
	err := wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		progress.tick(c.now())
		requests = slices.DeleteFunc(requests, func(r *request) bool {
			err := cl.Get(ctx, client.ObjectKeyFromObject(r.object), r.object)
			if ctx.Err() != nil || err == nil && !r.over() {
				return false
			}
			progress.end()
			failed = append(failed, c.outcome(r, err))
			return true
		})
		return len(requests) == 0, nil
	})
	progress.end()
	for _, r := range requests {
		failed = append(failed, c.outcome(r, err))
	}
	return errors.Join(failed...)
}

// over reports whether there is nothing to wait for any more.
func (r *request) over() bool {
	handled, conditions, _ := r.state()
	ready := meta.FindStatusCondition(conditions, fluxmeta.ReadyCondition)
	switch {
	case !answered(r.object, r.token, r.before, handled):
		return false
	case r.lasting:
		return true
	}
	return ready != nil && ready.Status != metav1.ConditionUnknown && !(r.patient && ready.Reason == fluxmeta.DependencyNotReadyReason)
}

// outcome tells what a request came to; err is why it was not waited for any longer.
func (c *cli) outcome(r *request, err error) error {
	kind, key := r.kind, client.ObjectKeyFromObject(r.object)
	_, conditions, revision := r.state()
	ready := meta.FindStatusCondition(conditions, fluxmeta.ReadyCondition)
	switch {
	case err != nil && ready != nil:
		return fmt.Errorf("cannot wait for %s %s: %w; it is at: %s: %s", kind, key, err, ready.Reason, ready.Message)
	case err != nil:
		return fmt.Errorf("cannot wait for %s %s: %w", kind, key, err)
	case r.fails != "" && meta.IsStatusConditionTrue(conditions, r.fails):
		failing := meta.FindStatusCondition(conditions, r.fails)
		return fmt.Errorf("%s reconciliation failed: %s: %s", kind, failing.Reason, failing.Message)
	case !r.lasting && ready.Status != metav1.ConditionTrue, r.lasting && refused(conditions, ready):
		return fmt.Errorf("%s reconciliation failed: %s: %s", kind, ready.Reason, ready.Message)
	}
	fmt.Fprintf(c.streams.Out, "✔ %s %s\n", r.done, revision)
	return nil
}

// refused reports whether nothing is decided about a Rollout before a person corrects something. What its clusters
// came to is no answer to who asks for a look.
func refused(conditions []metav1.Condition, ready *metav1.Condition) bool {
	if ready == nil || ready.Status != metav1.ConditionFalse || !meta.IsStatusConditionTrue(conditions, fluxmeta.StalledCondition) {
		return false
	}
	switch ready.Reason {
	case v1alpha1.ReasonRolloutHalted, v1alpha1.ReasonReverted, v1alpha1.ReasonAborted:
		return false
	}
	return true
}

// answered reports whether an object that was asked with a token was reconciled after that.
// There is room for one request: one that came later takes the place of ours, and what is
// handled for it answers both. before is what was handled when we asked.
func answered(o client.Object, token, before, handled string) bool {
	return handled == token || handled != before && handled == o.GetAnnotations()[fluxmeta.ReconcileRequestAnnotation]
}
