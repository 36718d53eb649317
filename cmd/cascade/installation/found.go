package installation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/lease"
)

// VersionAnnotation on the Deployment says which version installed it. A layer does not write it:
// the objects that it pushes are the same for every version of the parent.
const VersionAnnotation = v1alpha1.InstallLabelGroup + "/version"

// nameLabel is on all objects of an agent.
const nameLabel = "app.kubernetes.io/name"

// Found is the agent that is in a cluster.
type Found struct {
	Namespace string
	// Version that installed it, empty if none is on record.
	Version string
	// HostNetwork is where its pods are.
	HostNetwork bool
	// Ready: one of its pods works.
	Ready bool
	// Kustomization that applies it from a source, empty if none does.
	Kustomization string
	// Layer of the parent tier that pushed it, empty if none did.
	Layer string
	// Selector has the labels of the objects that it reconciles, empty for all; OwnNamespace: only those of its namespace.
	Selector     string
	OwnNamespace bool
}

// Serves reports whether the agent reconciles an object, by its labels and its namespace.
func (f *Found) Serves(o client.Object) bool {
	selector, err := labels.Parse(f.Selector)
	return err == nil && selector.Matches(labels.Set(o.GetLabels())) && (!f.OwnNamespace || o.GetNamespace() == f.Namespace)
}

// told takes what the arguments of an agent say of the objects that it reconciles.
func (f *Found) told(d *appsv1.Deployment) {
	flags, all := pflag.NewFlagSet(v1alpha1.AgentName, pflag.ContinueOnError), true
	flags.ParseErrorsAllowlist.UnknownFlags = true
	flags.StringVar(&f.Selector, "watch-label-selector", "", "")
	flags.BoolVar(&all, "watch-all-namespaces", true, "")
	if containers := d.Spec.Template.Spec.Containers; len(containers) > 0 {
		_ = flags.Parse(containers[0].Args) // an agent that cannot parse them does not start
	}
	f.OwnNamespace = !all
}

// Find looks for the agent of a cluster; nil if there is none.
func Find(ctx context.Context, c client.Client) (*Found, error) {
	agents, err := All(ctx, c)
	if err != nil || len(agents) == 0 {
		return nil, err
	}
	if len(agents) > 1 {
		var namespaces []string
		for i := range agents {
			namespaces = append(namespaces, agents[i].Namespace)
		}
		// One of them may be the platform's, whose rights and policies others need: its Deployment is not for deleting.
		return nil, fmt.Errorf("cannot tell which agent is meant: there is one in namespace %s; if one of them is for nobody any more, look at what goes with it, "+
			"cascade uninstall --dry-run -n <its namespace>, which leaves what another one needs, and take it out so. If all are needed, change each by what installed it",
			strings.Join(namespaces, " and "))
	}
	return &agents[0], nil
}

// All are the agents of a cluster. There are several where labels share its objects out among them.
func All(ctx context.Context, c client.Client) ([]Found, error) {
	list := &appsv1.DeploymentList{}
	if err := c.List(ctx, list, client.MatchingLabels{nameLabel: v1alpha1.AgentName}); err != nil {
		return nil, fmt.Errorf("cannot list Deployments to look for an agent: %w", err)
	}
	var agents []Found
	for i := range list.Items {
		d := &list.Items[i]
		if d.Name != v1alpha1.AgentName {
			continue
		}
		found := appliedBy(d)
		found.Version, found.HostNetwork, found.Ready = d.Annotations[VersionAnnotation], d.Spec.Template.Spec.HostNetwork, d.Status.ReadyReplicas > 0
		found.told(d)
		agents = append(agents, *found)
	}
	return agents, nil
}

// Undeployed reports whether an agent works in a namespace that is no Deployment, as that of `cascade mom`. One whose
// Deployment was just deleted holds its Lease for a while, and renews it no more.
func Undeployed(ctx context.Context, c client.Client, namespace string, now func() time.Time) (bool, error) {
	var first time.Time
	for {
		l := &coordinationv1.Lease{}
		err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: v1alpha1.HeartbeatLease}, l)
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("cannot read Lease %s/%s to look for an agent: %w", namespace, v1alpha1.HeartbeatLease, err)
		}
		switch {
		case err != nil || !lease.Held(l, now()):
			return false, nil
		case first.IsZero():
			first = l.Spec.RenewTime.Time
		case !l.Spec.RenewTime.Time.Equal(first):
			return true, nil
		}
		timer := time.NewTimer(heartbeatPoll)
		select {
		case <-ctx.Done():
			timer.Stop()
			return false, fmt.Errorf("cannot tell whether Lease %s/%s is renewed: %w", namespace, v1alpha1.HeartbeatLease, ctx.Err())
		case <-timer.C:
		}
	}
}

// heartbeatPoll is the pause between two looks at the heartbeat of an agent.
const heartbeatPoll = 2 * time.Second

// appliedBy is where an object of an agent is, and who applies it.
func appliedBy(o client.Object) *Found {
	found, on := &Found{Namespace: o.GetNamespace()}, o.GetLabels()
	if name := on[v1alpha1.LayerLabelGroup+"/name"]; name != "" {
		found.Layer = on[v1alpha1.LayerLabelGroup+"/namespace"] + "/" + name
	}
	if name := on[kustomizev1.GroupVersion.Group+"/name"]; name != "" {
		found.Kustomization = on[kustomizev1.GroupVersion.Group+"/namespace"] + "/" + name
	}
	return found
}

// Meant is the agent that an uninstallation is meant for: the one of a namespace, or the only one if nobody said a
// namespace. deployed is false for one of which just a part is left, by a call that did not end; found is nil if no agent
// is there, and no part that has a namespace.
func Meant(ctx context.Context, c client.Client, namespace string) (found *Found, deployed bool, err error) {
	agents, err := All(ctx, c)
	if err != nil {
		return nil, false, err
	}
	var namespaces []string
	for i := range agents {
		if agents[i].Namespace == namespace || namespace == "" && len(agents) == 1 {
			return &agents[i], true, nil
		}
		namespaces = append(namespaces, agents[i].Namespace)
	}
	switch in := strings.Join(namespaces, " and "); {
	case len(agents) == 0:
		found, err = Remains(ctx, c, namespace)
		return found, false, err
	case namespace == "":
		return nil, false, fmt.Errorf("cannot tell which agent is meant: there is one in namespace %s; say which with -n", in)
	default:
		left, err := remains(ctx, c)
		if err == nil && left[namespace] == nil {
			err = fmt.Errorf("cannot find an agent in namespace %s, nor a part of one: the agent of this cluster is in namespace %s", namespace, in)
		}
		return left[namespace], false, err
	}
}

// Beside names the namespace of an agent in another namespace than a given one; empty if there is none. One that is no
// Deployment, as that of `cascade mom`, renews its heartbeat.
func Beside(ctx context.Context, c client.Client, namespace string, now func() time.Time) (string, error) {
	agents, err := All(ctx, c)
	if err != nil {
		return "", err
	}
	for i := range agents {
		if agents[i].Namespace != namespace {
			return agents[i].Namespace, nil
		}
	}
	beats, err := leasesOf(ctx, c, []string{v1alpha1.HeartbeatLease})
	if err != nil {
		return "", err
	}
	for i := range beats {
		if beats[i].Namespace == namespace {
			continue
		}
		if works, err := Undeployed(ctx, c, beats[i].Namespace, now); works || err != nil {
			return beats[i].Namespace, err
		}
	}
	return "", nil
}

// Remains looks for what an uninstallation that did not end left of an agent without a Deployment;
// nil if nothing is there that has a namespace. The namespace says which agent is meant, empty if nobody
// said.
func Remains(ctx context.Context, c client.Client, namespace string) (*Found, error) {
	left, err := remains(ctx, c)
	namespaces := slices.Sorted(maps.Keys(left))
	switch {
	case err != nil || len(left) == 0:
		return nil, err
	case namespace == "" && len(left) == 1:
		return left[namespaces[0]], nil
	case left[namespace] != nil:
		return left[namespace], nil
	}
	return nil, fmt.Errorf("cannot tell which agent is meant: there is no Deployment of one, and its account or rights are left in namespace %s; say which with -n", strings.Join(namespaces, " and "))
}

// remains are the agents whose account or rights are there, by their namespaces.
func remains(ctx context.Context, c client.Client) (map[string]*Found, error) {
	left := map[string]*Found{}
	for _, gvk := range rights() {
		list, err := labelled(ctx, c, gvk, partLabels())
		if err != nil {
			return nil, err
		}
		for i := range list {
			if ns := list[i].GetNamespace(); ns != "" {
				left[ns] = appliedBy(&list[i])
			}
		}
	}
	return left, nil
}

// Admit is an error if a version must not be installed in a namespace over what is there.
func (f *Found) Admit(namespace, version string, downgrade bool) error {
	switch {
	case f == nil:
		return nil
	case f.Layer != "":
		return fmt.Errorf("cannot install the agent: Layer %s of the parent tier pushes it, and would undo what is installed here; change spec.agent of that Layer", f.Layer)
	case f.Namespace != namespace:
		return fmt.Errorf("cannot install the agent in namespace %s: there is one in %s; install it there, with -n %s, or uninstall it first", namespace, f.Namespace, f.Namespace)
	case Newer(f.Version, version) && !downgrade:
		return fmt.Errorf("cannot install version %s: version %s is there, which may have written what this one does not read; use that version's program, or --allow-downgrade", version, f.Version)
	}
	return nil
}

// Behind reports whether an agent may be of an earlier version than a program, so that it does not
// write all that the program reads. Of what is no release, or not on record, nobody knows.
func (f *Found) Behind(version string) bool {
	return f != nil && f.Version != version && !Newer(f.Version, version)
}

// between is what git describe, or Go, adds to a version for the commits after a release.
var between = regexp.MustCompile(`^(\d+-g[0-9a-f]+|(.+\.)?\d{14}-[0-9a-f]{12})(-dirty)?$`)

// Newer reports whether a version is a later release than another one. Of what is no release,
// nobody knows.
func Newer(version, than string) bool {
	a, aerr := parse(version)
	b, berr := parse(than)
	return aerr == nil && berr == nil && a.GreaterThan(b)
}

// OfRelease reports whether a version is one of a release.
func OfRelease(version string) bool {
	_, err := parse(version)
	return err == nil
}

func parse(version string) (*semver.Version, error) {
	v, err := semver.StrictNewVersion(strings.TrimPrefix(version, "v"))
	if err != nil {
		return nil, err
	}
	if between.MatchString(v.Prerelease()) || strings.HasSuffix(v.Prerelease(), "dirty") {
		return nil, errors.New("a build between releases")
	}
	return v, nil
}

// HostNetwork decides where the agent's pods are if nobody says: where they were, so that an
// upgrade does not move an agent that installed the CNI; in a new installation on the host's
// network unless there is a network for pods, which a node that is ready has.
func HostNetwork(asked *bool, found *Found, readyNodes int) (onHost bool, why string) {
	switch {
	case asked != nil:
		return *asked, "as asked"
	case found != nil:
		return found.HostNetwork, "as it was"
	case readyNodes > 0:
		return false, "a node is ready, so there is a network for pods"
	}
	return true, "no node is ready, so there may be no network for pods"
}

// ReadyNodes counts the nodes that are ready.
func ReadyNodes(ctx context.Context, c client.Client) (int, error) {
	list := &corev1.NodeList{}
	if err := c.List(ctx, list); err != nil {
		return 0, fmt.Errorf("cannot list nodes to decide about the host's network: %w; say --host-network true or false", err)
	}
	ready := 0
	for i := range list.Items {
		if slices.ContainsFunc(list.Items[i].Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}) {
			ready++
		}
	}
	return ready, nil
}
