package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/cmd/cascade/installation"
	"github.com/cascade-gitops/cascade/cmd/cascade/migration"
	"github.com/cascade-gitops/cascade/inventory"
)

// uninstall is one call of the verb.
type uninstall struct {
	*cli
	crds, dryRun, yes bool
	timeout           time.Duration
	// goesOn reports of a kind whether Flux's controllers go on with its objects.
	goesOn func(schema.GroupKind) bool
	// beside is the namespace of another agent in the cluster, empty if there is none: what has no namespace is
	// that one's as well, and stays.
	beside string
	// unrenewed are the Secrets whose Credentials go.
	unrenewed int
	// held is what the agent holds back.
	held []string
}

func (c *cli) newUninstall() *cobra.Command {
	u := &uninstall{cli: c}
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Take the agent out of this tier; what it applied, and all clusters, stay",
		Long: "Take the agent out of this tier. Its Deployment stops first, then its finalizers are taken off\n" +
			"the objects of its kinds, then its rights and the admission policies go. What it applied stays:\n" +
			"workloads, releases, Clusters and children. So do its Namespace with its records, from which a\n" +
			"later installation goes on, and the definitions of its kinds with all objects.\n\n" +
			"--crds deletes the definitions as well, with every source, Kustomization, HelmRelease, Layer and\n" +
			"Child. No Cluster goes with them.\n\n" +
			"Of several agents -n says which goes. While there is another one, only what is in the namespace goes.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), u.timeout)
			defer cancel()
			cluster, err := u.connect()
			if err != nil {
				return err
			}
			defer cluster.Close()
			return u.run(ctx, cluster)
		},
	}
	cmd.Flags().BoolVar(&u.crds, "crds", false, "delete the definitions of Flux's and of our kinds as well, with all their objects")
	cmd.Flags().BoolVar(&u.dryRun, "dry-run", false, "say what would be deleted, and delete nothing")
	cmd.Flags().BoolVar(&u.yes, "yes", false, "do not ask")
	cmd.Flags().DurationVar(&u.timeout, "timeout", 5*time.Minute, "how long to wait for the agent to end, and for definitions to go")
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

func (u *uninstall) run(ctx context.Context, c client.Client) error {
	found, deployed, err := installation.Meant(ctx, c, u.saidNamespace())
	if err != nil {
		return err
	}
	behind, namespace := deployed && found.Behind(version()), u.namespace()
	if found != nil {
		if found.Layer != "" {
			return fmt.Errorf("cannot uninstall the agent: Layer %s of the parent tier pushes it, and would push it again; take spec.agent out of that Layer", found.Layer)
		}
		namespace = found.Namespace
	}
	if !deployed {
		// The pods of one whose Deployment is deleted end.
		pods, err := installation.Running(ctx, c, namespace)
		if err != nil {
			return err
		}
		if len(pods) == 0 {
			if err := u.noProcess(ctx, c, namespace, "uninstall the agent", "it would go on without its rights and the admission policies; stop it first"); err != nil {
				return err
			}
		}
	}
	if u.beside, err = installation.Beside(ctx, c, namespace, u.now); err != nil {
		return err
	}
	if u.crds && u.beside != "" {
		return fmt.Errorf("cannot delete definitions: there is an agent in namespace %s as well, which works on objects of these kinds; nothing was deleted. Uninstall that one first, or leave --crds out", u.beside)
	}
	parts, err := installation.PartsOf(ctx, c, namespace, u.beside != "", u.crds)
	if err != nil {
		return err
	}
	works, err := installation.FluxWorks(ctx, c, u.now())
	if err != nil {
		return err
	}
	u.goesOn = func(kind schema.GroupKind) bool { return u.beside != "" || !u.crds && works[kind].Name != "" }
	objects, err := installation.Release(ctx, c, true, u.goesOn)
	if err != nil {
		return err
	}
	if u.crds {
		if u.unrenewed, err = installation.Disown(ctx, c, true); err != nil {
			return err
		}
	}
	if u.held, err = migration.Held(ctx, c, behind); err != nil {
		return err
	}
	u.tell(namespace, parts, objects, works)
	if u.dryRun {
		return nil
	}
	if u.crds && len(works) > 0 {
		// The wait for them comes when the tier has no agent any more.
		var leases []string
		for _, lease := range works {
			leases = append(leases, lease.String())
		}
		slices.Sort(leases)
		return fmt.Errorf("cannot delete definitions: Flux works on objects of these kinds, and holds Lease %s; nothing was deleted. Stop its controllers and uninstall again, or leave --crds out",
			strings.Join(slices.Compact(leases), ", "))
	}
	question := "Uninstall? Clusters are not guarded by the admission policies after that."
	if u.beside != "" {
		question = "Uninstall the agent of namespace " + namespace + "?"
	}
	if err := u.consent(ctx, question, u.yes); err != nil {
		return err
	}
	return u.remove(ctx, c, namespace, parts)
}

// tell says what goes and what stays.
func (u *uninstall) tell(namespace string, parts installation.Parts, objects []installation.Released, works map[schema.GroupKind]client.ObjectKey) {
	out := u.streams.Out
	for _, part := range []struct {
		what    string
		objects []*unstructured.Unstructured
	}{
		{"the agent", parts.Workload}, {"its rights", parts.Rights}, {"definitions, with all objects of these kinds", parts.Definitions}, {"admission policies", parts.Walls},
	} {
		if len(part.objects) == 0 {
			continue
		}
		fmt.Fprintf(out, "deletes %s:\n", part.what)
		for _, o := range part.objects {
			fmt.Fprintf(out, "  %s\n", inventory.Of(o))
		}
	}
	for _, r := range objects {
		fate := "stay, without an agent that acts on them"
		if u.crds {
			fate = "go with their definition"
		}
		fmt.Fprintf(out, "%d objects of kind %s %s; %d lose a finalizer, %d of these are being deleted and go\n", r.There, r.Kind, fate, r.Freed, r.Going)
	}
	kinds := map[string][]string{} // by the lease
	for kind, lease := range works {
		kinds[lease.String()] = append(kinds[lease.String()], kind.Kind)
	}
	for _, lease := range slices.Sorted(maps.Keys(kinds)) {
		slices.Sort(kinds[lease])
		text := "stays: each object of kind %s with its finalizer: Flux works on it, and holds Lease %s\n"
		if u.crds {
			text = "stands in the way of --crds: Flux works on objects of kind %s, and holds Lease %s\n"
		}
		fmt.Fprintf(out, text, strings.Join(kinds[lease], ", "), lease)
	}
	fmt.Fprintf(out, "stays: all that was applied, every Cluster with its machines, children and their agents, and Namespace %s with its records and Secrets\n", namespace)
	if u.beside != "" {
		fmt.Fprintf(out, "stays: what has no namespace, such as roles and admission policies, and each object with its finalizer, as there is an agent in namespace %s as well;\n"+
			"  what by its labels was for this agent alone waits until that one, or another, takes it\n", u.beside)
	}
	if u.unrenewed > 0 {
		fmt.Fprintf(out, "stays: %d Secrets that Credentials keep; nothing renews them any more, and what is in them lapses\n", u.unrenewed)
	}
	if len(u.held) > 0 {
		fmt.Fprintln(out, "! is held back by the agent, and done at once by Flux or whoever else applies these objects after it:")
		for _, text := range u.held {
			fmt.Fprintf(out, "  %s\n", text)
		}
		fmt.Fprintln(out, "  correct it in Git, or decide about it with cascade approve, before you go on")
	}
	if !u.crds {
		fmt.Fprintln(out, "stays: the definitions of Flux's and of our kinds, see --crds")
	}
}

func (u *uninstall) remove(ctx context.Context, c client.Client, namespace string, parts installation.Parts) error {
	if len(parts.Workload) > 0 {
		u.say("deleting the agent")
	}
	for _, o := range parts.Workload {
		if err := installation.Stop(ctx, c, o); err != nil {
			return err
		}
	}
	if err := u.await(ctx, "the agent's pods to end", func(ctx context.Context) (string, error) {
		pods, err := installation.Running(ctx, c, namespace)
		if err != nil || len(pods) > 0 {
			return strings.Join(pods, ", "), err
		}
		left, err := installation.Gone(ctx, c, parts.Workload)
		return strings.Join(left, ", "), err
	}); err != nil {
		return fmt.Errorf("%w; nothing but the Deployment was deleted. If the node of a pod is gone, delete the pod with --force and uninstall again", err)
	}
	if u.crds {
		// Whoever works on these objects would take the end of each as the wish to remove what
		// it applied, Clusters among it.
		if err := u.await(ctx, "others to stop work on the objects of these kinds", func(ctx context.Context) (string, error) {
			lease, err := installation.Holder(ctx, c, u.now())
			return lease, err
		}); err != nil {
			return fmt.Errorf("%w; no definition was deleted. Stop who holds this Lease and uninstall again, or leave --crds out", err)
		}
	}
	released, err := installation.Release(ctx, c, false, u.goesOn)
	if err != nil {
		return err
	}
	for _, r := range released {
		u.say("%d of %d objects of kind %s have no finalizer of the agent any more", r.Freed, r.There, r.Kind)
	}
	if err := u.delete(ctx, c, "the agent's rights", parts.Rights); err != nil {
		return err
	}
	if u.crds {
		kept, err := installation.Disown(ctx, c, false)
		if err != nil {
			return err
		}
		if kept > 0 {
			u.say("%d Secrets of Credentials stay, and nothing renews them any more", kept)
		}
	}
	if err := u.definitions(ctx, c, parts.Definitions); err != nil {
		return err
	}
	if err := u.delete(ctx, c, "admission policies", parts.Walls); err != nil {
		return err
	}
	fmt.Fprintln(u.streams.Out, "✔ the agent is uninstalled")
	return nil
}

// definitions deletes definitions and waits until they are gone, while the walls stand.
func (u *uninstall) definitions(ctx context.Context, c client.Client, crds []*unstructured.Unstructured) error {
	if len(crds) == 0 {
		return nil
	}
	for _, crd := range crds {
		if err := installation.Confirm(ctx, c, crd); err != nil {
			return err
		}
	}
	if err := u.delete(ctx, c, "definitions", crds); err != nil {
		return err
	}
	err := u.await(ctx, "definitions to go", func(ctx context.Context) (string, error) {
		left, err := installation.Gone(ctx, c, crds)
		return strings.Join(left, ", "), err
	})
	if err != nil {
		return fmt.Errorf("%w; objects of these kinds have finalizers of somebody else. The admission policies are still there: uninstall again when they are gone", err)
	}
	return nil
}

func (u *uninstall) delete(ctx context.Context, c client.Client, what string, objects []*unstructured.Unstructured) error {
	if len(objects) == 0 {
		return nil
	}
	u.say("deleting %s", what)
	for _, o := range objects {
		if err := installation.Remove(ctx, c, o); err != nil {
			return err
		}
	}
	return nil
}

// await waits until nothing is left of something.
func (u *uninstall) await(ctx context.Context, what string, left func(context.Context) (string, error)) error {
	said, last := "", ""
	err := wait.PollUntilContextCancel(ctx, causePause, true, func(ctx context.Context) (bool, error) {
		found, err := left(ctx)
		if err != nil {
			last = err.Error()
			return false, nil
		}
		if last = found; last != "" && last != said {
			said = last
			u.say("waiting for %s: %s", what, last)
		}
		return last == "", nil
	})
	if err != nil {
		return fmt.Errorf("cannot wait for %s: %w: %s", what, err, last)
	}
	return nil
}
