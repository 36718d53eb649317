package main

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/checkout"
	"github.com/cascade-gitops/cascade/cmd/cascade/installation"
	"github.com/cascade-gitops/cascade/cmd/cascade/layout"
	"github.com/cascade-gitops/cascade/cmd/cascade/migration"
)

func (c *cli) newMigrateToFlux() *cobra.Command {
	m := &migrate{bootstrap: bootstrap{install: install{cli: c}}}
	cmd := &cobra.Command{
		Use:   "to-flux",
		Short: "Move this cluster from an agent back to Flux's controllers; says what will happen, and with --yes does it",
		Long: "Move this cluster from an agent back to Flux's controllers. Without --yes it says what will happen, and\n" +
			"changes nothing. The agent ends, a commit takes it out of the repository and lets Flux's\n" +
			"controllers run again, the agent's own objects are deleted, and the controllers start. Flux's\n" +
			"definitions, all workloads and the agent's Namespace with its records stay. Each object is compared\n" +
			"by its UID in the end. A call that was ended is finished by the same one.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), m.timeout)
			defer cancel()
			return m.toFlux(ctx)
		},
	}
	m.bind(cmd, c)
	cmd.Flags().BoolVar(&m.leave.Children, "leave-children", false, "go back although there are Layers and Children, which nobody serves then")
	cmd.Flags().BoolVar(&m.leave.Credentials, "leave-credentials", false, "go back although there are Credentials, which nobody renews then")
	return cmd
}

// toFlux plans the move back and, if it is wanted, does it.
func (m *migrate) toFlux(ctx context.Context) error {
	cluster, err := m.connect()
	if err != nil {
		return err
	}
	defer cluster.Close()
	if err := m.readSync(ctx, cluster); err != nil {
		return err
	}
	facts, err := migration.Read(ctx, cluster, m.kustomization.Namespace)
	if err != nil {
		return err
	}
	if err := m.operator(ctx, cluster, facts); err != nil {
		return err
	}
	if m.found, err = installation.Find(ctx, cluster); err != nil {
		return err
	}
	left := m.found
	if left == nil { // or a part of it is left, by a call that did not end
		if left, err = installation.Remains(ctx, cluster, m.saidNamespace()); err != nil {
			return err
		}
	}
	if left != nil {
		m.namespace = left.Namespace
	}
	if left != nil && left.Layer != "" {
		return fmt.Errorf("cannot migrate: Layer %s of the parent tier pushes the agent, and would push it again; take spec.agent out of that Layer", left.Layer)
	}
	l, err := m.logInAs(ctx, cluster)
	if err != nil {
		return err
	}
	remote, err := remoteOf(m.url, m.branch, l)
	if err != nil {
		return err
	}
	if err := m.planTo(ctx, remote, facts); err != nil {
		return err
	}
	if !m.yes {
		m.say("nothing was changed; --yes does it")
		return nil
	}
	return m.doTo(ctx, cluster, remote, facts)
}

// leaves decides about the files.
func (m *migrate) leaves(files fs.FS) (*layout.Flux, layout.Changes, error) {
	flux, err := layout.FindFlux(files, m.path)
	if err != nil {
		return nil, nil, err
	}
	if flux == nil {
		flux = m.operated
	}
	if flux == nil {
		return nil, nil, fmt.Errorf("cannot find what flux bootstrap wrote below %s of the repository; use cascade uninstall, and flux bootstrap after it", m.path)
	}
	changes, err := flux.Leave(files, m.path)
	return flux, changes, err
}

// planTo says what will happen. What the cluster refuses comes before what the repository lacks:
// the advice about that is another way for Flux to begin.
func (m *migrate) planTo(ctx context.Context, remote checkout.Remote, facts migration.Facts) error {
	facts.Behind, facts.Ended = m.found.Behind(version()), m.found == nil
	if p := migration.ToFlux(facts, nil, m.leave); p.Refused != "" {
		return m.tell(p)
	}
	tree, err := checkout.Clone(ctx, remote)
	if err != nil {
		return err
	}
	defer tree.Close()
	_, changes, err := m.leaves(tree.Files())
	if err != nil {
		return err
	}
	if err := m.tell(migration.ToFlux(facts, changes.Names(), m.leave)); err != nil || !m.yes || len(changes) == 0 {
		return err
	}
	// The login of the sync may only read. Without the commit the agent would end for nothing.
	if err := tree.MayPush(ctx); err != nil {
		return fmt.Errorf("%w; nothing was changed. Say a login that may, by --username and GIT_PASSWORD or --private-key-file", err)
	}
	return nil
}

func (m *migrate) doTo(ctx context.Context, cluster client.Client, remote checkout.Remote, facts migration.Facts) error {
	parts, err := installation.PartsOf(ctx, cluster, m.namespace, false, false)
	if err != nil {
		return err
	}
	own := map[string]bool{}
	for _, u := range slices.Concat(parts.Workload, parts.Rights, parts.Walls) {
		own[u.GroupVersionKind().GroupKind().String()+" "+client.ObjectKeyFromObject(u).String()] = true
	}
	record, err := m.recorded(ctx, cluster, own)
	if err != nil {
		return err
	}
	tree, flux, err := m.pushTo(ctx, cluster, remote, &facts)
	if err != nil {
		return err
	}
	defer tree.Close()
	u := uninstall{cli: m.cli, goesOn: facts.GoesOn}
	if err := u.remove(ctx, cluster, m.namespace, parts); err != nil {
		return err
	}
	if err := m.startFlux(ctx, cluster, tree, flux, facts); err != nil {
		return fmt.Errorf("%w; the agent is gone, and nothing syncs until Flux's controllers run: try again", err)
	}
	return m.verify(ctx, cluster, record)
}

// pushTo ends the agent and pushes the commit that takes it out. Without the commit the agent
// works again as before.
func (m *migrate) pushTo(ctx context.Context, c client.Client, remote checkout.Remote, facts *migration.Facts) (tree *checkout.Tree, flux *layout.Flux, err error) {
	key := client.ObjectKey{Namespace: m.namespace, Name: v1alpha1.AgentName}
	before, err := migration.Replicas(ctx, c, key)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			err = m.goBack(ctx, c, key, before, err)
		}
	}()
	if err := m.stopAgent(ctx, c); err != nil {
		return nil, nil, err
	}
	// What it held back in its last moments counts as well.
	if *facts, err = migration.Read(ctx, c, facts.Namespace); err != nil {
		return nil, nil, err
	}
	facts.Ended = m.found == nil
	if refused := migration.ToFlux(*facts, nil, m.leave).Refused; refused != "" {
		return nil, nil, fmt.Errorf("cannot migrate: %s", refused)
	}
	tree, err = m.push(ctx, remote, "Flux's controllers take the place of Cascade in "+m.path, func(files fs.FS) (layout.Changes, error) {
		left, changes, err := m.leaves(files)
		flux = left
		return changes, err
	})
	return tree, flux, err
}

// goingBack is how long it may take to start the agent again.
const goingBack = 30 * time.Second

// goBack starts an agent again that was stopped for nothing, and adds to why what became of it.
func (m *migrate) goBack(ctx context.Context, c client.Client, key client.ObjectKey, replicas int32, why error) error {
	if replicas == 0 { // it was stopped before, or there is none
		return fmt.Errorf("%w; the agent is scaled to zero, as it was, and nothing else was changed. Try again, or go back: scale Deployment %s in namespace %s to 1", why, key.Name, key.Namespace)
	}
	// The call may have run out of time, or a person may have ended it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goingBack)
	defer cancel()
	if err := migration.Scale(ctx, c, key, replicas); err != nil {
		return fmt.Errorf("%w; the agent is scaled to zero, and nothing else was changed: %w. Try again, or go back: scale Deployment %s in namespace %s to %d",
			why, err, key.Name, key.Namespace, replicas)
	}
	return fmt.Errorf("%w; the agent works again, scaled to %d as before. Try again", why, replicas)
}

// stopAgent ends the agent, and returns when it works no more.
func (m *migrate) stopAgent(ctx context.Context, c client.Client) error {
	if m.found == nil {
		return nil
	}
	key := client.ObjectKey{Namespace: m.namespace, Name: v1alpha1.AgentName}
	m.say("scaling %s to zero", key)
	if err := migration.Scale(ctx, c, key, 0); err != nil {
		return err
	}
	if err := m.gone(ctx, "the agent's pods to end", func(ctx context.Context) (string, error) { return migration.Pods(ctx, c, key) }); err != nil {
		return err
	}
	return m.gone(ctx, "the agent to give back its leases", func(ctx context.Context) (string, error) {
		return installation.SyncHolder(ctx, c, m.now())
	})
}

// startFlux starts Flux's controllers as the repository declares them.
func (m *migrate) startFlux(ctx context.Context, c client.Client, tree *checkout.Tree, flux *layout.Flux, facts migration.Facts) error {
	if flux.Dir == "" {
		m.say("take the patch out of FluxInstance %s, where it is declared: it scales its controllers up then", facts.Instance)
		return nil
	}
	built, err := flux.Build(tree.Files())
	if err != nil {
		return err
	}
	// Who fetches starts before who applies.
	for _, controller := range slices.Backward(facts.Replaced) {
		key := client.ObjectKey{Namespace: facts.Namespace, Name: controller.Name}
		replicas := replicasIn(built, key)
		m.say("scaling %s to %d", key, replicas)
		if err := migration.Scale(ctx, c, key, replicas); err != nil {
			return err
		}
	}
	for _, controller := range facts.Replaced {
		key := client.ObjectKey{Namespace: facts.Namespace, Name: controller.Name}
		if err := m.gone(ctx, controller.Name, func(ctx context.Context) (string, error) { return migration.Unready(ctx, c, key) }); err != nil {
			return err
		}
	}
	return nil
}

// replicasIn are those that a Deployment is declared with.
func replicasIn(objects []*unstructured.Unstructured, key client.ObjectKey) int32 {
	for _, u := range objects {
		if u.GetKind() == "Deployment" && client.ObjectKeyFromObject(u) == key {
			if n, found, err := unstructured.NestedInt64(u.Object, "spec", "replicas"); found && err == nil {
				return int32(n)
			}
		}
	}
	return 1
}
