package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
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
	source func() *client.ObjectKey
}

func newSubject(kind string, key client.ObjectKey) (*subject, error) {
	switch strings.ToLower(kind) {
	case "source", "gitrepository", "gitrepo", "git":
		o := &sourcev1.GitRepository{}
		o.Namespace, o.Name = key.Namespace, key.Name
		return &subject{object: o, state: func() (string, []metav1.Condition, string) {
			revision := ""
			if o.Status.Artifact != nil {
				revision = o.Status.Artifact.Revision
			}
			return o.Status.LastHandledReconcileAt, o.Status.Conditions, revision
		}}, nil
	case "kustomization", "ks":
		o := &kustomizev1.Kustomization{}
		o.Namespace, o.Name = key.Namespace, key.Name
		return &subject{object: o, state: func() (string, []metav1.Condition, string) {
			return o.Status.LastHandledReconcileAt, o.Status.Conditions, o.Status.LastAppliedRevision
		}, source: func() *client.ObjectKey {
			ref := o.Spec.SourceRef
			if ref.Kind != sourcev1.GitRepositoryKind {
				return nil
			}
			if ref.Namespace == "" {
				ref.Namespace = o.Namespace
			}
			return &client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}
		}}, nil
	case "layer":
		o := &v1alpha1.Layer{}
		o.Namespace, o.Name = key.Namespace, key.Name
		return &subject{object: o, state: func() (string, []metav1.Condition, string) {
			return o.Status.LastHandledReconcileAt, o.Status.Conditions, o.Status.Revision
		}, source: func() *client.ObjectKey {
			if o.Spec.SourceRef == nil {
				return nil
			}
			return &client.ObjectKey{Namespace: o.Namespace, Name: o.Spec.SourceRef.Name}
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
	}
	return nil, fmt.Errorf("cannot reconcile kind %q: use source, kustomization, layer or child", kind)
}

func (c *cli) newReconcile() *cobra.Command {
	var withSource bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "reconcile <source|kustomization|layer|child> <name>",
		Short: "Reconcile an object now and wait for the result",
		Example: "  cascade reconcile kustomization apps --with-source\n" +
			"  cascade reconcile source fleet -n cascade-system",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			key := client.ObjectKey{Namespace: c.namespace(), Name: args[1]}
			s, err := newSubject(args[0], key)
			if err != nil {
				return err
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			if err := cl.Get(ctx, key, s.object); err != nil {
				return fmt.Errorf("cannot read %s %s: %w", args[0], key, err)
			}
			if withSource {
				if s.source == nil || s.source() == nil {
					return fmt.Errorf("cannot reconcile the source of %s %s: it has none", args[0], key)
				}
				src, err := newSubject("source", *s.source())
				if err != nil {
					return err
				}
				if err := c.reconcile(ctx, cl, "source", src, "fetched revision"); err != nil {
					return err
				}
			}
			return c.reconcile(ctx, cl, strings.ToLower(args[0]), s, "applied revision")
		},
	}
	cmd.Flags().BoolVar(&withSource, "with-source", false, "reconcile the source first")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait")
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

func (c *cli) reconcile(ctx context.Context, cl client.Client, kind string, s *subject, done string) error {
	key := client.ObjectKeyFromObject(s.object)
	token := time.Now().Format(time.RFC3339Nano)
	patch := client.RawPatch("application/merge-patch+json",
		fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, fluxmeta.ReconcileRequestAnnotation, token))
	fmt.Fprintf(c.streams.ErrOut, "► annotating %s %s\n", kind, key)
	if err := cl.Patch(ctx, s.object, patch); err != nil {
		return fmt.Errorf("cannot annotate %s %s: %w", kind, key, err)
	}
	fmt.Fprintf(c.streams.ErrOut, "◎ waiting for the reconciliation\n")
	err := wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		if err := cl.Get(ctx, key, s.object); err != nil {
			return false, err
		}
		handled, conditions, _ := s.state()
		ready := meta.FindStatusCondition(conditions, fluxmeta.ReadyCondition)
		return handled == token && ready != nil && ready.Status != metav1.ConditionUnknown, nil
	})
	_, conditions, revision := s.state()
	ready := meta.FindStatusCondition(conditions, fluxmeta.ReadyCondition)
	switch {
	case err != nil && ready != nil:
		return fmt.Errorf("cannot wait for %s %s: %w; it is at: %s: %s", kind, key, err, ready.Reason, ready.Message)
	case err != nil:
		return fmt.Errorf("cannot wait for %s %s: %w", kind, key, err)
	case ready.Status != metav1.ConditionTrue:
		return fmt.Errorf("%s reconciliation failed: %s: %s", kind, ready.Reason, ready.Message)
	}
	fmt.Fprintf(c.streams.Out, "✔ %s %s\n", done, revision)
	return nil
}
