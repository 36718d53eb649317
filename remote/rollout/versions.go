package rollout

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/directive"
)

// VersionError is a change of Kubernetes' version that a cluster must not get.
type VersionError struct {
	// Cluster is set by who knows it.
	Cluster  types.NamespacedName
	From, To string
	// Why says what is wrong with it, and what to do instead.
	Why string
}

func (e *VersionError) Error() string {
	of := ""
	if e.Cluster.Name != "" {
		of = " of Cluster " + e.Cluster.String()
	}
	return fmt.Sprintf("cannot change Kubernetes%s from %s to %s: %s", of, e.From, e.To, e.Why)
}

// Reason is the stable reason of the error.
func (e *VersionError) Reason() string { return v1alpha1.ReasonUnsupportedVersionStep }

// VersionStep refuses a change of Kubernetes' version that skips a minor version, or that
// goes back by one. Empty is a version that is not known, or left to others: nothing runs
// yet, or nothing is asked for. An error is a *VersionError.
func VersionStep(from, to string) error {
	if from == "" || to == "" || from == to {
		return nil
	}
	refuse := func(format string, args ...any) error {
		return &VersionError{From: from, To: to, Why: fmt.Sprintf(format, args...)}
	}
	a, err := version.ParseGeneric(from)
	if err != nil {
		return refuse("%q is no version of Kubernetes", from)
	}
	b, err := version.ParseGeneric(to)
	if err != nil {
		return refuse("%q is no version of Kubernetes", to)
	}
	switch {
	case a.Major() != b.Major():
		return refuse("another major version is another system")
	case b.Minor() < a.Minor():
		return refuse("a control plane does not go back to an earlier minor version; declare %d.%d again", a.Major(), a.Minor())
	case b.Minor() > a.Minor()+1:
		return refuse("a minor version must not be skipped; go to %d.%d first, in a commit of its own", a.Major(), a.Minor()+1)
	}
	return nil
}

// Versions are those of Kubernetes that objects declare for one Cluster.
type Versions struct {
	// Topology: the Cluster has a managed topology, which upgrades its workers after its
	// control plane by itself.
	Topology bool
	// Lowers: whatever version of the topology is declared, Cluster API is not in the way.
	Lowers bool
	// ControlPlane is the version of the topology, or else of the object of the control
	// plane; empty if neither declares one.
	ControlPlane string
	// Workers are the sets of machines that have a version of their own.
	Workers []Worker
}

// Worker is a set of machines.
type Worker struct {
	// Object is a MachineDeployment, MachinePool or MachineSet.
	Object  clusterapi.Reference
	Version string
}

// DeclaredVersions are those that objects declare for a Cluster: of a rendering, or of
// what is there.
func DeclaredVersions(cluster types.NamespacedName, objects []*unstructured.Unstructured) Versions {
	var v Versions
	var controlPlane clusterapi.Reference
	for _, u := range objects {
		if clusterapi.IsCluster(u.GroupVersionKind().GroupKind()) && u.GetNamespace() == cluster.Namespace && u.GetName() == cluster.Name {
			v.Topology, v.Lowers = clusterapi.ClassOf(u).Name != "", lowers(u)
			v.ControlPlane = textAt(u, "spec", "topology", "version")
			controlPlane = clusterapi.ControlPlaneOf(u)
		}
	}
	for _, u := range objects {
		if u.GetNamespace() != cluster.Namespace {
			continue
		}
		gvk := u.GroupVersionKind()
		switch {
		case !v.Topology && !controlPlane.IsZero() && gvk.GroupKind() == controlPlane.GroupKind() && u.GetName() == controlPlane.Name:
			v.ControlPlane = textAt(u, "spec", "version")
		case gvk.Group == clusterapi.Group && slices.Contains(clusterapi.WorkerKinds(), gvk.Kind) && textAt(u, "spec", "clusterName") == cluster.Name:
			if of := textAt(u, "spec", "template", "spec", "version"); of != "" {
				v.Workers = append(v.Workers, Worker{Version: of, Object: clusterapi.Reference{
					Group: gvk.Group, Kind: gvk.Kind, Namespace: u.GetNamespace(), Name: u.GetName(),
				}})
			}
		}
	}
	slices.SortFunc(v.Workers, func(a, b Worker) int { return strings.Compare(a.Object.String(), b.Object.String()) })
	return v
}

// Running is what a cluster has of Kubernetes.
type Running struct {
	// Version that it has; empty if that is not known.
	Version string
	// Topology is the version that its managed topology was told to have, whatever runs by now.
	// Cluster API admits no lower one after that. It is empty where that bounds nothing.
	Topology string
}

// RunningOf is what a cluster has. Both objects are as they are in the tier, and nil if they
// are not there.
func RunningOf(cluster, controlPlane *unstructured.Unstructured) Running {
	r := Running{Version: runningVersion(cluster, controlPlane)}
	if cluster != nil && clusterapi.ClassOf(cluster).Name != "" && !lowers(cluster) {
		r.Topology = textAt(cluster, "spec", "topology", "version")
	}
	return r
}

// Step refuses what VersionStep does, and each lower version of a managed topology, be it a
// patch, or one that its control plane still runs. An error is a *VersionError.
func (r Running) Step(declared Versions) error {
	to, err := version.ParseGeneric(declared.ControlPlane)
	if err == nil && declared.Topology && !declared.Lowers && isLater(r.Topology, to) {
		return &VersionError{
			From: r.Topology, To: declared.ControlPlane, Why: "Cluster API lets no managed topology go back, to an earlier patch neither; declare " + r.Topology + " again",
		}
	}
	return VersionStep(r.Version, declared.ControlPlane)
}

// lowers reports whether Cluster API admits a lower version of the topology of a Cluster, or is not
// asked, as the Cluster is not written again once it is there.
func lowers(cluster *unstructured.Unstructured) bool {
	_, admits := cluster.GetAnnotations()[clusterapi.AnyVersionAnnotation]
	return admits || directive.Selects(directive.IfNotPresent(), cluster) || directive.Selects(directive.Skip(), cluster)
}

// runningVersion is the version of Kubernetes that a cluster has: the one that its control
// plane reports, or else the one that it was told to have.
func runningVersion(cluster, controlPlane *unstructured.Unstructured) string {
	if controlPlane != nil {
		if v := textAt(controlPlane, "status", "version"); v != "" {
			return v
		}
	}
	if cluster != nil {
		if v := textAt(cluster, "spec", "topology", "version"); v != "" {
			return v
		}
	}
	if controlPlane != nil {
		return textAt(controlPlane, "spec", "version")
	}
	return ""
}

// Early are the workers that must not have their version before the control plane runs it: those
// of a later minor version and, while what is declared raises the patch of the control plane, those
// of a later patch. Otherwise they may be patches ahead, as where a cloud reports a minor version
// only. reported is the version that the control plane reports; nobody waits for one that reports
// none, as one that comes up for the first time.
func (v Versions) Early(reported string) []Worker {
	runs, err := version.ParseGeneric(reported)
	if v.Topology || err != nil {
		return nil
	}
	minor := version.MajorMinor(runs.Major(), runs.Minor())
	raises := isLater(v.ControlPlane, runs)
	var early []Worker
	for _, w := range v.Workers {
		if isLater(w.Version, minor) || raises && isLater(w.Version, runs) {
			early = append(early, w)
		}
	}
	return early
}

// isLater reports whether a version is later than another one, as far as that one goes. What
// cannot be read is not.
func isLater(v string, than *version.Version) bool {
	is, err := version.ParseGeneric(v)
	if err != nil {
		return false
	}
	parts := is.Components()
	return slices.Compare(parts[:min(len(parts), len(than.Components()))], than.Components()) > 0
}

func textAt(u *unstructured.Unstructured, fields ...string) string {
	text, _, _ := unstructured.NestedString(u.Object, fields...)
	return text
}
