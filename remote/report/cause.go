package report

import (
	"strings"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// layerKind is that of a Layer: of all causes only these are of the tier above the cluster.
const layerKind = "Layer"

// Root is the failure that a tier is not ready for: the first that does not say that something
// else is to be looked at, or else the first; nil if none keeps it from being ready.
func Root(failing []v1alpha1.Failure) *v1alpha1.TierCause {
	var first *v1alpha1.TierCause
	for i := range failing {
		cause := causeOf(&failing[i])
		if cause == nil || cause.Kind == credentialKind || cause.Kind == backupKind {
			continue
		}
		if !Follows(cause.Reason) {
			return cause
		}
		if first == nil {
			first = cause
		}
	}
	return first
}

// Follows tells whether a reason says that something else is to be looked at.
func Follows(reason string) bool {
	switch reason {
	case v1alpha1.ReasonDependencyNotReady, v1alpha1.ReasonSourceNotReady, v1alpha1.ReasonSourceFailing, v1alpha1.ReasonChildrenNotReady,
		"SourceUnavailable", "NoSourceArtifact", "IncludeUnavailable":
		return true
	}
	return false
}

// causeOf is a failure whose name is that of an object; nil if it is not.
func causeOf(f *v1alpha1.Failure) *v1alpha1.TierCause {
	kind, rest, _ := strings.Cut(f.Name, "/")
	namespace, name, _ := strings.Cut(rest, "/")
	return confineCause(&v1alpha1.TierCause{Kind: kind, Namespace: namespace, Name: name, Reason: f.Reason})
}

// causeOfRow is what a child that is not ready for this reason is not ready for: what its agent
// reports, or the first layer that is not in place for it. Both are fields; nothing is read
// out of a message.
func causeOfRow(child *v1alpha1.Child, reason string) *v1alpha1.TierCause {
	if said := child.Status.Report; said != nil && !said.Ready && said.Reason == reason {
		if cause := Root(said.Failing); cause != nil {
			return cause
		}
	}
	for i := range child.Status.Layers {
		layer := &child.Status.Layers[i]
		if layer.Suspended && reason == v1alpha1.ReasonSuspended || !layer.Ready && layer.Reason == reason {
			return confineCause(&v1alpha1.TierCause{Kind: layerKind, Namespace: child.Namespace, Name: layer.Name, Reason: reason})
		}
	}
	return nil
}

// confineCause is a cause that names an object; nil if it does not. What it is given stays as it is.
func confineCause(c *v1alpha1.TierCause) *v1alpha1.TierCause {
	if c == nil || !isKind(c.Kind) || !isName(c.Namespace) || len(c.Namespace) > maxLabel || !isName(c.Name) || len(c.Name) > maxObjectName {
		return nil
	}
	if isReason(c.Reason) {
		return c
	}
	return &v1alpha1.TierCause{Kind: c.Kind, Namespace: c.Namespace, Name: c.Name, Reason: v1alpha1.ReasonReportInvalid}
}

// isKind tells whether a text may be the kind of an object.
func isKind(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
		case '0' <= c && c <= '9' && i > 0:
		default:
			return false
		}
	}
	return s != "" && len(s) <= maxLabel
}
