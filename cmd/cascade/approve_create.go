package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/held"
	"github.com/cascade-gitops/cascade/cmd/cascade/installation"
	"github.com/cascade-gitops/cascade/pivot"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
)

func (c *cli) newApproveCreate() *cobra.Command {
	var all, pushed bool
	cmd := &cobra.Command{
		Use:   "create [<namespace>/<name>...]",
		Short: "Let Clusters be created that are held because they may run already",
		Long: "Say of Clusters that they are new, or to be built again, so that they are created. Without names it\n" +
			"shows what is held. A Cluster that runs already must not be approved: that builds it a second time.\n" +
			"Restore its saved state instead (docs/rebuild.md); then there is nothing to approve.\n\n" +
			"One that a pivot gave to another tier is approved by its name, and only if it is gone for good.\n\n" +
			"What a Layer of a parent, or a Kustomization or HelmRelease with spec.kubeConfig, applies to this\n" +
			"cluster is held where those are, and approved here, with --pushed.",
		Example: "  cascade approve create\n" +
			"  cascade approve create fleet/alpha fleet/beta\n" +
			"  cascade approve create --all\n" +
			"  cascade approve create --pushed fleet/alpha --kubeconfig <of the cluster that is pushed to>",
		RunE: func(cmd *cobra.Command, args []string) error {
			names, err := held.Clusters(args)
			if err != nil {
				return err
			}
			if all && len(names) > 0 {
				return fmt.Errorf("cannot use --all with names: it stands for all that are held")
			}
			if pushed && len(names) == 0 {
				return fmt.Errorf("cannot approve what is pushed here without names: they are in the message of who pushes it")
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			if pushed {
				return c.approvePushed(cmd.Context(), cl, c.saidNamespace(), names)
			}
			return c.approveCreate(cmd.Context(), cl, names, all)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "show the Clusters that are held, and approve each of them")
	cmd.Flags().BoolVar(&pushed, "pushed", false,
		"the named Clusters are held by a parent that pushes them here, or by another cluster with spec.kubeConfig")
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

func (c *cli) newApproveFirstSync() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "first-sync",
		Short: "End the first sync of a tier: Clusters are created without asking from then on",
		Long: "End the first sync of a tier. It ends by itself when everything that Git declares is applied and all\n" +
			"Clusters are there; this is for a tier in which that does not come about, because something is\n" +
			"suspended or fails that has nothing to do with Clusters, and for one that a person holds (state adopt\n" +
			"in its record), which does not end by itself. It is refused while Clusters are held.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			return c.approveFirstSync(cmd.Context(), cl)
		},
	}
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

// heldCreation is an owner that does not create Clusters.
type heldCreation struct {
	owner, message string
	object         client.Object
	// clusters are those that a person can decide about here. known is false if the
	// agent did not record which they are.
	clusters []types.NamespacedName
	known    bool
}

func (h heldCreation) String() string { return h.owner + ": " + h.message }

func (c *cli) approveCreate(ctx context.Context, cl client.Client, names []types.NamespacedName, all bool) error {
	held, err := heldCreations(ctx, cl)
	if err != nil {
		return err
	}
	var waiting []types.NamespacedName
	unknown := ""
	for _, h := range held {
		waiting = append(waiting, h.clusters...)
		if !h.known {
			unknown = h.owner
		}
	}
	if len(names) == 0 {
		if len(held) == 0 {
			fmt.Fprintln(c.streams.Out, "no Cluster is held in this tier")
			return nil
		}
		for _, h := range held {
			fmt.Fprintln(c.streams.Out, h)
		}
		if !all {
			return errNotReady
		}
		if unknown != "" {
			return fmt.Errorf("cannot tell which Clusters %s holds: "+
				"its agent is of a version that does not record them; name them, or upgrade the agent", unknown)
		}
		names = waiting
	}
	approvals, err := c.whoHolds(ctx, cl, held, names)
	if err != nil {
		return err
	}
	records := map[string]*corev1.ConfigMap{}
	for namespace := range approvals {
		record := &corev1.ConfigMap{}
		if err := cl.Get(ctx, types.NamespacedName{Namespace: namespace, Name: v1alpha1.FirstSyncConfigMap}, record); err != nil {
			return firstSyncError(namespace, err)
		}
		records[namespace] = record
	}
	elsewhere, err := addElsewhere(ctx, cl, names, approvals, records)
	if err != nil {
		return err
	}
	for namespace, names := range approvals {
		for _, name := range names {
			if elsewhere[name] {
				if all {
					return fmt.Errorf("cannot approve Cluster %s with --all: a pivot gave it to another tier; name it, if it is gone for good, and the others", name)
				}
				if err := gone(ctx, cl, namespace, name); err != nil {
					return err
				}
			} else if unknown == "" && !slices.Contains(waiting, name) {
				return fmt.Errorf("cannot approve Cluster %s: it is not held; look at what is with: cascade approve create", name)
			}
		}
	}
	// Of each, before the first approval: the agent that holds a Cluster may be another one than that of the record with the mark.
	for namespace, record := range records {
		if err := c.dropKept(ctx, cl, record, approvals[namespace]); err != nil {
			return err
		}
	}
	approver := approverOf(ctx, cl)
	for _, namespace := range slices.Sorted(maps.Keys(records)) {
		patch, err := firstsync.ApprovalPatch(approvals[namespace], approver)
		if err != nil {
			return err
		}
		if err := writeFirstSync(ctx, cl, namespace, patch); err != nil {
			return err
		}
	}
	c.approved(names)
	return nil
}

// addElsewhere adds the records of other agents that say of one of the Clusters that another tier manages it, for that to be
// over there as well, and returns the Clusters of which any record says so. A pivot writes it into that of one agent alone,
// and what declares the Cluster may have got another one since.
func addElsewhere(ctx context.Context, cl client.Client, names []types.NamespacedName, approvals map[string][]types.NamespacedName, records map[string]*corev1.ConfigMap) (map[types.NamespacedName]bool, error) {
	_, away, err := recordsIn(ctx, cl, names)
	if err != nil {
		return nil, err
	}
	for _, namespace := range away {
		record := &corev1.ConfigMap{}
		if err := cl.Get(ctx, types.NamespacedName{Namespace: namespace, Name: v1alpha1.FirstSyncConfigMap}, record); err != nil {
			return nil, firstSyncError(namespace, err)
		}
		for _, name := range names {
			if firstsync.ManagedBy(record, name) != "" && !slices.Contains(approvals[namespace], name) {
				records[namespace], approvals[namespace] = record, append(approvals[namespace], name)
			}
		}
	}
	elsewhere := map[types.NamespacedName]bool{}
	for namespace, record := range records {
		for _, name := range approvals[namespace] {
			elsewhere[name] = elsewhere[name] || firstsync.ManagedBy(record, name) != ""
		}
	}
	return elsewhere, nil
}

// whoHolds sorts Clusters by the namespaces of the agents that hold them, which have the records that count. Tenants may have
// an agent of their own, whose objects are told by labels; of what no agent is known to hold, that of the tier decides.
func (c *cli) whoHolds(ctx context.Context, cl client.Client, held []heldCreation, names []types.NamespacedName) (map[string][]types.NamespacedName, error) {
	usual, err := c.firstSyncIn(ctx, cl)
	if err != nil || c.saidNamespace() != "" {
		return map[string][]types.NamespacedName{usual: names}, err
	}
	agents, err := installation.All(ctx, cl)
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, err
	}
	if len(agents) < 2 {
		return map[string][]types.NamespacedName{usual: names}, nil
	}
	records, _, err := recordsIn(ctx, cl, nil)
	if err != nil {
		return nil, err
	}
	by := map[string][]types.NamespacedName{}
	for _, name := range names {
		in := map[string]bool{}
		for _, h := range held {
			for i := range agents {
				if at := agents[i].Namespace; slices.Contains(h.clusters, name) && agents[i].Serves(h.object) && slices.Contains(records, at) {
					in[at] = true
				}
			}
		}
		if len(in) == 0 {
			in[usual] = true
		}
		for namespace := range in {
			by[namespace] = append(by[namespace], name)
		}
	}
	return by, nil
}

// firstSyncIn is the namespace of the record that the agent of this tier keeps: nobody acts on another one.
func (c *cli) firstSyncIn(ctx context.Context, cl client.Client) (string, error) {
	namespace, err := c.recordsIn(ctx, cl, "")
	return cmp.Or(namespace, v1alpha1.AgentNamespace), err
}

// gone refuses a Cluster that a pivot gave to another tier, and of which it can be seen here that it is not gone.
func gone(ctx context.Context, cl client.Client, namespace string, name types.NamespacedName) error {
	journals, err := pivot.Journals(ctx, cl, namespace)
	if err != nil {
		return fmt.Errorf("cannot approve Cluster %s: %w", name, err)
	}
	for _, j := range slices.Concat(journals[pivot.Source], journals[pivot.Target]) {
		if !j.Step.Over() && j.Concerns(name) {
			return fmt.Errorf("cannot approve Cluster %s: pivot %s, which moves it, is at step %s; end it, or turn it back, with cascade pivot", name, j.ID, j.Step)
		}
	}
	children := &v1alpha1.ChildList{}
	if err := cl.List(ctx, children, client.InNamespace(name.Namespace)); err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("cannot list Children: %w", err)
	}
	for i := range children.Items {
		child := &children.Items[i]
		if ref := child.Spec.ClusterRef; ref != nil && ref.Name == name.Name && meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.ConnectedCondition) {
			return fmt.Errorf("cannot approve Cluster %s: another tier manages it, and it is not gone, as Child %s is connected: it would be built a second time; move it back instead (docs/pivot.md)",
				name, client.ObjectKeyFromObject(child))
		}
	}
	return nil
}

// dropKept deletes the kubeconfigs that a pivot left here of Clusters that another tier has by the record. The next Cluster
// of the name would have that of the one before: CAPA refuses it, as it is not its own, and KubeadmControlPlane takes it over
// as it is, so that Cluster API connects to what is gone. It is before the approval, after which nothing tells which they are.
func (c *cli) dropKept(ctx context.Context, cl client.Client, record *corev1.ConfigMap, names []types.NamespacedName) error {
	for _, name := range names {
		if firstsync.ManagedBy(record, name) == "" {
			continue
		}
		secret, key := &corev1.Secret{}, kubeconfigSecret(name)
		err := cl.Get(ctx, key, secret)
		switch {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return fmt.Errorf("cannot read Secret %s, which a pivot may have left: %w", key, err)
		case secret.Annotations[v1alpha1.PivotKeptAnnotation] == "" || len(secret.OwnerReferences) > 0:
			continue // a person's, or that of a Cluster that is here
		}
		err = cl.Delete(ctx, secret, client.Preconditions{UID: &secret.UID, ResourceVersion: &secret.ResourceVersion})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("cannot delete Secret %s, which a pivot left: %w", key, err)
		}
		fmt.Fprintf(c.streams.Out, "✔ deleted Secret %s, the kubeconfig of Cluster %s as another tier had it\n", key, name)
	}
	return nil
}

func (c *cli) approved(names []types.NamespacedName) {
	for _, name := range names {
		fmt.Fprintf(c.streams.Out, "✔ approved creation of Cluster %s\n", name)
	}
}

// approvePushed approves what nothing in this tier holds, in the record in the namespace that is said, or in those by
// which it is held, and in any other one that says that a Cluster is elsewhere. Without an agent in it there is no record yet.
func (c *cli) approvePushed(ctx context.Context, cl client.Client, said string, names []types.NamespacedName) error {
	patch, err := firstsync.ApprovalPatch(names, approverOf(ctx, cl))
	if err != nil {
		return err
	}
	found, away, err := recordsIn(ctx, cl, names)
	if err != nil {
		return err
	}
	namespaces, err := recordsThatHold(found, said)
	if err != nil {
		return err
	}
	for _, namespace := range away {
		if !slices.Contains(namespaces, namespace) {
			namespaces = append(namespaces, namespace)
		}
	}
	// Nothing is written before all of them have been asked: without its mark and its kubeconfig nobody sees that a Cluster runs.
	for _, namespace := range namespaces {
		record := &corev1.ConfigMap{}
		err := cl.Get(ctx, types.NamespacedName{Namespace: namespace, Name: v1alpha1.FirstSyncConfigMap}, record)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("cannot read ConfigMap %s/%s: %w", namespace, v1alpha1.FirstSyncConfigMap, err)
		}
		for _, name := range names {
			if firstsync.ManagedBy(record, name) == "" {
				continue
			}
			if err := gone(ctx, cl, namespace, name); err != nil {
				return err
			}
		}
	}
	for _, namespace := range namespaces {
		record := firstsync.NewRecord(namespace)
		if err := cl.Create(ctx, record); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("cannot create ConfigMap %s/%s: %w", namespace, record.Name, err)
		}
		if err := cl.Get(ctx, client.ObjectKeyFromObject(record), record); err != nil {
			return fmt.Errorf("cannot read ConfigMap %s/%s: %w", namespace, record.Name, err)
		}
		if err := c.dropKept(ctx, cl, record, names); err != nil {
			return err
		}
		if err := writeFirstSync(ctx, cl, namespace, patch); err != nil {
			return err
		}
	}
	c.approved(names)
	return nil
}

// recordsIn are the namespaces that have a record of the first sync, none if it may not be looked for; away are those of
// which it says of one of the names that it was moved away, or paused when it was last seen.
func recordsIn(ctx context.Context, cl client.Client, names []types.NamespacedName) (found, away []string, err error) {
	all := &corev1.ConfigMapList{}
	err = cl.List(ctx, all, client.MatchingLabels{"app.kubernetes.io/name": v1alpha1.AgentName})
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, nil, fmt.Errorf("cannot look for a record of the first sync: %w", err)
	}
	for i := range all.Items {
		cm := &all.Items[i]
		if cm.Name != v1alpha1.FirstSyncConfigMap {
			continue
		}
		found = append(found, cm.Namespace)
		_, gone := firstsync.Says(cm)
		if slices.ContainsFunc(names, func(name types.NamespacedName) bool { return gone[name] }) {
			away = append(away, cm.Namespace)
		}
	}
	return found, away, nil
}

// recordsThatHold are the namespaces of the records by which what is pushed here is held: the one that a person says;
// else the usual one, where there is a record or none at all; else all that have one, of which the strictest counts.
// Only the first record may be made: another one, which no agent keeps, would be without what those that are found say.
func recordsThatHold(found []string, said string) ([]string, error) {
	switch {
	case said != "" && len(found) > 0 && !slices.Contains(found, said):
		return nil, fmt.Errorf("cannot approve in namespace %s: it has no record of the first sync, and what is pushed here is held by the one in namespace %s; leave -n out, or name that one",
			said, strings.Join(found, " and in namespace "))
	case said != "":
		return []string{said}, nil
	case len(found) == 0 || slices.Contains(found, v1alpha1.AgentNamespace):
		return []string{v1alpha1.AgentNamespace}, nil
	}
	return found, nil
}

func (c *cli) approveFirstSync(ctx context.Context, cl client.Client) error {
	held, err := heldCreations(ctx, cl)
	if err != nil {
		return err
	}
	for _, h := range held {
		if len(h.clusters) > 0 || !h.known {
			return fmt.Errorf("cannot end the first sync: %s", h)
		}
	}
	namespace, err := c.firstSyncIn(ctx, cl)
	if err != nil {
		return err
	}
	cm := &corev1.ConfigMap{}
	if err := cl.Get(ctx, types.NamespacedName{Namespace: namespace, Name: v1alpha1.FirstSyncConfigMap}, cm); err != nil {
		return firstSyncError(namespace, err)
	}
	patch, err := firstsync.SettlementPatch(cm, "a person said so", c.now())
	if err != nil {
		return err
	}
	if err := writeFirstSync(ctx, cl, namespace, patch); err != nil {
		return err
	}
	fmt.Fprintln(c.streams.Out, "✔ the first sync is over: Clusters are created without asking")
	agents, err := installation.All(ctx, cl)
	for i := range agents {
		if other := agents[i].Namespace; err == nil && other != namespace {
			c.say("that is so for the agent in namespace %s; the one in %s has a first sync of its own: -n %s", namespace, other, other)
		}
	}
	return nil
}

func writeFirstSync(ctx context.Context, cl client.Client, namespace string, patch []byte) error {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.FirstSyncConfigMap}}
	if err := cl.Patch(ctx, cm, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return firstSyncError(namespace, err)
	}
	return nil
}

func firstSyncError(namespace string, err error) error {
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("cannot find ConfigMap %s/%s: no agent has run here, or it runs in another namespace (-n)",
			namespace, v1alpha1.FirstSyncConfigMap)
	}
	return fmt.Errorf("cannot write ConfigMap %s/%s: %w", namespace, v1alpha1.FirstSyncConfigMap, err)
}

// heldCreations are the Kustomizations and HelmReleases that do not create Clusters,
// in all namespaces.
func heldCreations(ctx context.Context, cl client.Client) ([]heldCreation, error) {
	var found []heldCreation
	add := func(kind string, o client.Object, conditions []metav1.Condition) error {
		c := meta.FindStatusCondition(conditions, v1alpha1.CreateHeldCondition)
		if c == nil {
			return nil
		}
		h := heldCreation{owner: kind + "/" + client.ObjectKeyFromObject(o).String(), message: c.Message, object: o}
		if record, _ := v1alpha1.HeldOf(o); record.Create != nil {
			h.known = true
			if !record.Create.Elsewhere {
				var err error
				if h.clusters, err = held.Clusters(record.Create.Clusters); err != nil {
					return fmt.Errorf("cannot read annotation %s of %s: %w", v1alpha1.HeldAnnotation, h.owner, err)
				}
			}
		}
		found = append(found, h)
		return nil
	}
	kustomizations := &kustomizev1.KustomizationList{}
	if err := cl.List(ctx, kustomizations); err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("cannot list Kustomizations: %w", err)
	}
	for i := range kustomizations.Items {
		k := &kustomizations.Items[i]
		if err := add(kustomizev1.KustomizationKind, k, k.Status.Conditions); err != nil {
			return nil, err
		}
	}
	releases := &helmv2.HelmReleaseList{}
	if err := cl.List(ctx, releases); err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("cannot list HelmReleases: %w", err)
	}
	for i := range releases.Items {
		h := &releases.Items[i]
		if err := add(helmv2.HelmReleaseKind, h, h.Status.Conditions); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(found, func(a, b heldCreation) int { return strings.Compare(a.owner, b.owner) })
	return found, nil
}

// printHeld tells, below the tree, what this tier waits for.
func printHeld(out io.Writer, held []string) error {
	if len(held) == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(out, "\nheld in this tier, for a person to decide:"); err != nil {
		return err
	}
	for _, line := range held {
		if _, err := fmt.Fprintln(out, "  "+line); err != nil {
			return err
		}
	}
	return nil
}
