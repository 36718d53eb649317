package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// mostSteps bounds a trace: what is longer goes in a circle.
const mostSteps = 16

// step is an object on the way from what runs to the commit that declares it.
type step struct {
	kind, namespace, name string
	// lines are pairs of a word and what is said.
	lines [][2]string
}

func (s *step) say(word, text string) {
	if text != "" {
		s.lines = append(s.lines, [2]string{word, text})
	}
}

func (c *cli) newTrace() *cobra.Command {
	var apiVersion string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "trace <kind> <name>",
		Short: "Follow an object back to the Kustomization, HelmRelease or Layer that applies it, and to the commit",
		Long: "Follow an object back to the Kustomization, HelmRelease or Layer that applies it, and to the source and commit\n" +
			"that declare it; and from there on to what declares those, up to what nothing in this cluster declares.\n" +
			"A Child is followed to its Cluster. The kind is any of the cluster, in the words of kubectl.",
		Example: "  cascade trace deployment web -n shop\n" +
			"  cascade trace child shop -n fleet\n" +
			"  cascade trace machinedeployment shop-md-0 -n fleet",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: c.completeKindAndName(kinds),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			gvk, err := c.kindNamed(cl, args[0], apiVersion)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			steps, err := trace(ctx, cl, gvk, client.ObjectKey{Namespace: c.namespace(), Name: args[1]}, c.now())
			if err != nil {
				return err
			}
			return printTrace(c.streams.Out, steps)
		},
	}
	cmd.Flags().StringVar(&apiVersion, "api-version", "", "API version of the kind, if several groups have it")
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "how long it may take")
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

// kindNamed finds what kind a word means in the cluster.
func (c *cli) kindNamed(cl client.Client, word, apiVersion string) (schema.GroupVersionKind, error) {
	if g, ok := kindOf(word); ok && apiVersion == "" {
		return cl.GroupVersionKindFor(g.object())
	}
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return schema.GroupVersionKind{}, fmt.Errorf("cannot read --api-version: %w", err)
	}
	mapper, err := c.flags.ToRESTMapper() // it knows the short names
	if err != nil {
		return schema.GroupVersionKind{}, fmt.Errorf("cannot discover the kinds of the cluster: %w", err)
	}
	resource, group := schema.ParseResourceArg(word)
	if resource == nil {
		resource = &schema.GroupVersionResource{Group: group.Group, Resource: group.Resource}
	}
	if apiVersion != "" {
		resource.Group, resource.Version = gv.Group, gv.Version
	}
	gvk, err := mapper.KindFor(*resource)
	if err != nil {
		return gvk, fmt.Errorf("cannot find kind %q in this cluster: %w", word, err)
	}
	return gvk, nil
}

// owners by whose labels an object says who applies it.
func owners() []struct{ group, kind string } {
	return []struct{ group, kind string }{
		{kustomizev1.GroupVersion.Group, kustomizev1.KustomizationKind},
		{helmv2.GroupVersion.Group, helmv2.HelmReleaseKind},
		{v1alpha1.LayerLabelGroup, "Layer"},
		{v1alpha1.InstallLabelGroup, "install"},
	}
}

// ownerOf is who applies an object, by its labels.
func ownerOf(o client.Object) (kind string, key client.ObjectKey, ok bool) {
	for _, of := range owners() {
		if name := o.GetLabels()[of.group+"/name"]; name != "" {
			return of.kind, client.ObjectKey{Namespace: o.GetLabels()[of.group+"/namespace"], Name: name}, true
		}
	}
	return "", client.ObjectKey{}, false
}

// trace follows an object to where it comes from, step by step.
func trace(ctx context.Context, cl client.Client, gvk schema.GroupVersionKind, key client.ObjectKey, now time.Time) ([]step, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	if mapping, err := cl.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version); err == nil && mapping.Scope.Name() == meta.RESTScopeNameRoot {
		key.Namespace = ""
	}
	if err := cl.Get(ctx, key, u); err != nil {
		return nil, fmt.Errorf("cannot read %s %s: %w", gvk.Kind, key, err)
	}
	var steps []step
	seen := map[string]bool{}
	for len(steps) < mostSteps {
		at := step{kind: u.GetKind(), namespace: u.GetNamespace(), name: u.GetName()}
		if name := at.kind + "/" + at.namespace + "/" + at.name; seen[name] {
			return steps, nil // a Kustomization that declares itself is where all begins
		} else {
			seen[name] = true
		}
		describe(&at, u, now)
		steps = append(steps, at)
		last := &steps[len(steps)-1]
		next, found, err := origin(ctx, cl, u, last)
		if err != nil {
			return nil, err
		}
		if found != nil {
			steps = append(steps, *found)
		}
		if next == nil {
			return steps, nil
		}
		u = next
	}
	return steps, nil
}

// origin is the object behind one: the Cluster of a Child, the owner reference, or who applies
// it. source is the step of its source, if it has one.
func origin(ctx context.Context, cl client.Client, u *unstructured.Unstructured, at *step) (next *unstructured.Unstructured, source *step, err error) {
	if source, err = sourceOf(ctx, cl, u); err != nil {
		return nil, nil, err
	}
	kind, key, applied := ownerOf(u)
	switch {
	case applied && kind == "install":
		at.say("Applied by", "cascade install")
		return nil, source, nil
	case applied && kind == "Layer":
		at.say("Applied by", "Layer "+key.String()+" of the tier above")
		return nil, source, nil
	case applied:
		at.say("Applied by", kind+" "+key.String())
		next, err = readObject(ctx, cl, groupKindOf(kind), key)
		if next == nil && err == nil {
			at.say("Missing", "it is not in this cluster any more")
		}
		return next, source, err
	}
	for _, ref := range u.GetOwnerReferences() {
		gv, perr := schema.ParseGroupVersion(ref.APIVersion)
		if perr != nil {
			continue
		}
		at.say("Owned by", ref.Kind+" "+ref.Name)
		next, err = readObject(ctx, cl, gv.WithKind(ref.Kind), client.ObjectKey{Namespace: u.GetNamespace(), Name: ref.Name})
		return next, source, err
	}
	if name, _, _ := unstructured.NestedString(u.Object, "spec", "clusterRef", "name"); name != "" && u.GetKind() == "Child" {
		at.say("Made for", "Cluster "+u.GetNamespace()+"/"+name)
		mapping, merr := cl.RESTMapper().RESTMapping(schema.GroupKind{Group: "cluster.x-k8s.io", Kind: "Cluster"})
		if merr != nil {
			return nil, source, fmt.Errorf("cannot find kind Cluster: %w", merr)
		}
		next, err = readObject(ctx, cl, mapping.GroupVersionKind, client.ObjectKey{Namespace: u.GetNamespace(), Name: name})
		return next, source, err
	}
	at.say("Applied by", "nothing in this cluster: no owner is on it")
	return nil, source, nil
}

func groupKindOf(kind string) schema.GroupVersionKind {
	if kind == helmv2.HelmReleaseKind {
		return helmv2.GroupVersion.WithKind(kind)
	}
	return kustomizev1.GroupVersion.WithKind(kind)
}

// readObject reads an object; nil if there is none.
func readObject(ctx context.Context, cl client.Client, gvk schema.GroupVersionKind, key client.ObjectKey) (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	if mapping, err := cl.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version); err == nil && mapping.Scope.Name() == meta.RESTScopeNameRoot {
		key.Namespace = ""
	}
	err := cl.Get(ctx, key, u)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read %s %s: %w", gvk.Kind, key, err)
	}
	return u, nil
}

// sourceOf is the step of the source that an object is made of; nil if it has none.
func sourceOf(ctx context.Context, cl client.Client, u *unstructured.Unstructured) (*step, error) {
	switch u.GroupVersionKind().Group {
	case kustomizev1.GroupVersion.Group, helmv2.GroupVersion.Group, v1alpha1.Group:
	default:
		return nil, nil
	}
	s, err := newSubject(u.GetKind(), client.ObjectKeyFromObject(u))
	if err != nil || s.source == nil {
		return nil, nil
	}
	if err := cl.Get(ctx, client.ObjectKeyFromObject(u), s.object); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	ref := s.source()
	if ref == nil {
		return nil, nil
	}
	at := &step{kind: ref.kind, namespace: ref.key.Namespace, name: ref.key.Name}
	of, err := newSubject(ref.kind, ref.key)
	if err != nil {
		return at, nil // an ExternalArtifact has no spec to tell of
	}
	if err := cl.Get(ctx, ref.key, of.object); apierrors.IsNotFound(err) {
		at.say("Missing", "there is no such source")
		return at, nil
	} else if err != nil {
		return nil, fmt.Errorf("cannot read %s %s: %w", ref.kind, ref.key, err)
	}
	if g, ok := kindOf(ref.kind); ok {
		at.say("Origin", g.wide(of.object)[0])
	}
	_, conditions, revision := of.state()
	at.say("Revision", revision)
	if a := of.object.(sourcev1.Source).GetArtifact(); a != nil {
		at.say("Message of the commit", a.Metadata["org.opencontainers.image.description"])
	}
	say(at, conditions)
	return at, nil
}

// describe says of an object what matters on the way.
func describe(at *step, u *unstructured.Unstructured, now time.Time) {
	group := u.GroupVersionKind().Group
	ours := group == kustomizev1.GroupVersion.Group || group == helmv2.GroupVersion.Group || group == v1alpha1.Group
	if path, _, _ := unstructured.NestedString(u.Object, "spec", "path"); ours {
		at.say("Path", path)
	}
	for _, field := range []string{"lastAppliedRevision", "revision", "lastAttemptedRevision"} {
		if revision, _, _ := unstructured.NestedString(u.Object, "status", field); revision != "" && ours {
			at.say("Revision", revision)
			break
		}
	}
	if suspended, _, _ := unstructured.NestedBool(u.Object, "spec", "suspend"); suspended && ours {
		at.say("Suspended", "True")
	}
	list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, item := range list {
		c, ok := item.(map[string]any)
		if !ok || c["type"] != fluxmeta.ReadyCondition {
			continue
		}
		text := fmt.Sprint(c["status"])
		if when, err := time.Parse(time.RFC3339, fmt.Sprint(c["lastTransitionTime"])); err == nil {
			text += " for " + age(metav1.NewTime(when), now)
		}
		at.say("Ready", text)
		if message, _ := c["message"].(string); message != "" {
			at.say("Message", oneLine(message))
		}
	}
}

func say(at *step, conditions []metav1.Condition) {
	if c := meta.FindStatusCondition(conditions, fluxmeta.ReadyCondition); c != nil {
		at.say("Ready", string(c.Status))
		at.say("Message", oneLine(c.Message))
	}
}

func printTrace(out io.Writer, steps []step) error {
	for i, s := range steps {
		if i > 0 {
			if _, err := fmt.Fprintln(out, "---"); err != nil {
				return err
			}
		}
		rows := [][]string{{s.kind + ":", s.name}}
		if s.namespace != "" {
			rows = append(rows, []string{"Namespace:", s.namespace})
		}
		for _, line := range s.lines {
			rows = append(rows, []string{line[0] + ":", strings.TrimSpace(line[1])})
		}
		if err := table(out, nil, rows); err != nil {
			return err
		}
	}
	return nil
}
