package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/checkout"
	"github.com/cascade-gitops/cascade/cmd/cascade/installation"
	"github.com/cascade-gitops/cascade/cmd/cascade/layout"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// synced are the two objects that sync a tier.
type synced struct{ git, kustomization client.ObjectKey }

// start starts the agent from what the repository declares, if none works yet, and waits
// until it syncs itself.
func (b *bootstrap) start(ctx context.Context, cluster *apply.Cluster, tree *checkout.Tree, flux *layout.Flux) error {
	objects, err := declared(tree, b.path, flux)
	if err != nil {
		return err
	}
	steps, sync := installation.Steps(objects)
	pair, err := pairOf(sync, b.tierKey(), flux)
	if err != nil {
		return err
	}
	works, err := b.works(ctx, cluster, sync)
	if err != nil {
		return err
	}
	applier := apply.New(cluster, installation.SyncOwner(pair.kustomization), nil, b.now)
	if !works {
		if err := installation.HandOver(ctx, cluster, b.namespace); err != nil {
			return err
		}
		if err := b.inSteps(ctx, applier, cluster, b.namespace, steps); err != nil {
			return err
		}
		b.say("applying what syncs the tier")
		_, err := applier.Sync(ctx, []apply.Phase{{Objects: sync}}, apply.Options{
			Record: func(context.Context, []inventory.Entry) error { return nil },
		})
		if err != nil && !errors.As(err, new(*apply.WaitError)) {
			return fmt.Errorf("cannot apply what syncs the tier: %w", err)
		}
	}
	revision, err := b.awaitSync(ctx, cluster, pair, tree)
	if err != nil {
		return err
	}
	if err := b.await(ctx, applier, cluster, b.namespace, "agent", inventory.OfAll(steps[2])); err != nil {
		return err
	}
	fmt.Fprintf(b.streams.Out, "✔ the tier syncs itself, at %s\n", revision)
	return nil
}

// declared are the objects of the agent as the repository makes them, and what they need of
// Flux's.
func declared(tree *checkout.Tree, tier string, flux *layout.Flux) ([]*unstructured.Unstructured, error) {
	objects, err := layout.Build(tree.Files(), tier)
	if err != nil || flux == nil || flux.Dir == "" {
		return objects, err
	}
	theirs, err := flux.Build(tree.Files())
	if err != nil {
		return nil, err
	}
	steps, sync := installation.Steps(theirs)
	namespaces := slices.DeleteFunc(steps[1], func(u *unstructured.Unstructured) bool { return u.GetKind() != "Namespace" })
	return slices.Concat(objects, steps[0], namespaces, sync), nil
}

// pairOf finds what syncs a tier among its objects.
func pairOf(objects []*unstructured.Unstructured, own client.ObjectKey, flux *layout.Flux) (synced, error) {
	pair := synced{own, own}
	if flux != nil {
		pair = synced{client.ObjectKeyFromObject(flux.GitRepository), client.ObjectKeyFromObject(flux.Kustomization)}
	}
	if flux != nil && flux.Dir == "" {
		return pair, nil
	}
	for kind, key := range map[string]client.ObjectKey{"GitRepository": pair.git, "Kustomization": pair.kustomization} {
		if !slices.ContainsFunc(objects, func(u *unstructured.Unstructured) bool {
			return u.GetKind() == kind && client.ObjectKeyFromObject(u) == key
		}) {
			return synced{}, fmt.Errorf("cannot find %s %s in what the repository makes: a kustomization there leaves it out or gives it another name", kind, key)
		}
	}
	return pair, nil
}

// works reports whether an agent is ready that syncs this repository already, as the account
// that is declared, and so brings itself to what is committed.
func (b *bootstrap) works(ctx context.Context, c client.Client, sync []*unstructured.Unstructured) (bool, error) {
	d := &appsv1.Deployment{}
	err := c.Get(ctx, client.ObjectKey{Namespace: b.namespace, Name: v1alpha1.AgentName}, d)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot read the agent's Deployment: %w", err)
	}
	if d.Status.ReadyReplicas == 0 {
		return false, nil
	}
	for _, u := range sync {
		live := &unstructured.Unstructured{}
		live.SetGroupVersionKind(u.GroupVersionKind())
		err := c.Get(ctx, client.ObjectKeyFromObject(u), live)
		if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("cannot read %s: %w", inventory.Of(u), err)
		}
		for _, path := range [][]string{{"spec", "url"}, {"spec", "path"}, {"spec", "ref", "branch"}, {"spec", "secretRef", "name"}, {"spec", "sourceRef", "name"}, {"spec", "serviceAccountName"}} {
			want, _, _ := unstructured.NestedString(u.Object, path...)
			if is, _, _ := unstructured.NestedString(live.Object, path...); is != want {
				return false, nil
			}
		}
	}
	return true, nil
}

// commits tell a commit from those after it.
type commits interface {
	// Head is the commit that is waited for.
	Head() string
	// Precedes reports whether a commit is one before that.
	Precedes(commit string) bool
}

// awaitSync asks for the commit, and waits until it is applied. Whoever commits meanwhile is
// waited for as well.
func (c *cli) awaitSync(ctx context.Context, cl client.Client, pair synced, of commits) (revision string, err error) {
	token := c.now().Format(time.RFC3339Nano)
	git, k := &sourcev1.GitRepository{}, &kustomizev1.Kustomization{}
	for _, of := range []struct {
		object client.Object
		key    client.ObjectKey
	}{{git, pair.git}, {k, pair.kustomization}} {
		of.object.SetNamespace(of.key.Namespace)
		of.object.SetName(of.key.Name)
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, fluxmeta.ReconcileRequestAnnotation, token)
		if err := cl.Patch(ctx, of.object, client.RawPatch("application/merge-patch+json", patch)); err != nil {
			return "", fmt.Errorf("cannot ask for the commit: %w", err)
		}
	}
	before := git.Status.LastHandledReconcileAt
	c.say("waiting until the tier has synced itself")
	said, last := "", ""
	progress := c.progress("the first sync")
	defer progress.end()
	err = wait.PollUntilContextCancel(ctx, healthPause, true, func(ctx context.Context) (bool, error) {
		if err := cl.Get(ctx, pair.git, git); err != nil {
			last = err.Error()
			return false, nil
		}
		if err := cl.Get(ctx, pair.kustomization, k); err != nil {
			last = err.Error()
			return false, nil
		}
		if object, resume := suspended(git, k); object != "" {
			return false, fmt.Errorf("%s is suspended, so that nothing arrives; run %s, and try again", object, resume)
		}
		if err := arrives(pair.git, git.Spec.Reference); err != nil {
			return false, err
		}
		fetched := answered(git, token, before, git.Status.LastHandledReconcileAt) && git.Status.Artifact != nil
		early := fetched && of.Precedes(git.Status.Artifact.Revision[strings.LastIndex(git.Status.Artifact.Revision, ":")+1:])
		ready := meta.FindStatusCondition(k.Status.Conditions, fluxmeta.ReadyCondition)
		if fetched && !early && k.Status.LastAppliedRevision == git.Status.Artifact.Revision && k.Status.ObservedGeneration == k.Generation &&
			ready != nil && ready.Status == metav1.ConditionTrue {
			return true, nil
		}
		if last = troubles(git, fetched, k); last == "" && early {
			last = fmt.Sprintf("GitRepository %s has %s, which is before commit %s", pair.git, git.Status.Artifact.Revision, of.Head())
		}
		if last != "" && last != said {
			said = last
			c.say("%s", last)
		}
		progress.tick(c.now())
		return false, nil
	})
	if err != nil && ctx.Err() != nil && last != "" {
		err = fmt.Errorf("%w: %s", err, last)
	}
	if err != nil {
		return "", fmt.Errorf("cannot wait until the tier has synced itself: %w", err)
	}
	return git.Status.Artifact.Revision, nil
}

// suspended is which of the two objects that sync a tier a person suspended, with the command that
// lets it go on; empty if neither is.
func suspended(git *sourcev1.GitRepository, k *kustomizev1.Kustomization) (object, resume string) {
	for _, of := range []struct {
		kind, word string
		object     client.Object
		suspended  bool
	}{{"GitRepository", "gitrepository", git, git.Spec.Suspend}, {"Kustomization", "kustomization", k, k.Spec.Suspend}} {
		if of.suspended {
			key := client.ObjectKeyFromObject(of.object)
			return of.kind + " " + key.String(), fmt.Sprintf("cascade resume %s %s -n %s", of.word, key.Name, key.Namespace)
		}
	}
	return "", ""
}

// branchOf is the branch that a GitRepository follows, or what it is pinned to instead. Of several
// references the one counts that counts for Flux.
func branchOf(ref *sourcev1.GitRepositoryRef) (branch, pin string) {
	const unsaid = "master"
	if ref == nil {
		return unsaid, ""
	}
	named, isBranch := strings.CutPrefix(ref.Name, "refs/heads/")
	switch {
	case ref.Commit != "":
		return "", "commit " + ref.Commit
	case isBranch:
		return named, ""
	case ref.Name != "":
		return "", "name " + ref.Name
	case ref.SemVer != "":
		return "", "semver " + ref.SemVer
	case ref.Tag != "":
		return "", "tag " + ref.Tag
	}
	return cmp.Or(ref.Branch, unsaid), ""
}

// arrives refuses a GitRepository at which no commit of a branch arrives.
func arrives(key client.ObjectKey, ref *sourcev1.GitRepositoryRef) error {
	_, pin := branchOf(ref)
	if pin == "" {
		return nil
	}
	return fmt.Errorf("GitRepository %s is pinned to %s, so that a commit would not arrive; leave nothing but the branch in its spec.ref, where it is declared, and try again", key, pin)
}

// troubles are why a sync is not done, as the objects say. That there is no artifact, a
// Kustomization goes on to say for a moment after there is one.
func troubles(git *sourcev1.GitRepository, fetched bool, k *kustomizev1.Kustomization) string {
	type told struct {
		kind       string
		conditions []metav1.Condition
	}
	all := []told{{"GitRepository", git.Status.Conditions}}
	ready := meta.FindStatusCondition(k.Status.Conditions, fluxmeta.ReadyCondition)
	tried := fetched && git.Status.Artifact != nil && k.Status.LastAttemptedRevision == git.Status.Artifact.Revision
	if tried || ready != nil && ready.Reason != fluxmeta.ArtifactFailedReason {
		all = append(all, told{"Kustomization", k.Status.Conditions})
	}
	for _, of := range all {
		if ready := meta.FindStatusCondition(of.conditions, fluxmeta.ReadyCondition); ready != nil && ready.Status == metav1.ConditionFalse {
			return fmt.Sprintf("%s is not ready: %s: %s", of.kind, ready.Reason, ready.Message)
		}
	}
	return ""
}
