package release

import (
	v2 "github.com/fluxcd/helm-controller/api/v2"
)

// Reasons that have no name in Flux's API.
const (
	reasonAwaitingTests         = "AwaitingTests"
	reasonPendingRelease        = "PendingRelease"
	reasonDriftCorrected        = "DriftCorrected"
	reasonDriftCorrectionFailed = "DriftCorrectionFailed"
)

// Keys of event metadata, with the group of the kind in front as Flux has them.
const (
	metaRevision   = "helm.toolkit.fluxcd.io/revision"
	metaToken      = "helm.toolkit.fluxcd.io/token"
	metaAppVersion = "helm.toolkit.fluxcd.io/app-version"
	metaOCIDigest  = "helm.toolkit.fluxcd.io/oci-digest"
)

func eventMetadata(revision, token, appVersion, ociDigest string) map[string]string {
	m := map[string]string{}
	for key, value := range map[string]string{metaRevision: revision, metaToken: token, metaAppVersion: appVersion, metaOCIDigest: ociDigest} {
		if value != "" {
			m[key] = value
		}
	}
	return m
}

// about is the metadata of events about a revision.
func about(s *v2.Snapshot) map[string]string {
	return eventMetadata(s.ChartVersion, s.ConfigDigest, s.AppVersion, s.OCIDigest)
}

// attempt is the metadata of events about what was attempted.
func (n *run) attempt() map[string]string {
	return eventMetadata(n.req.Chart.Version, n.obj.Status.LastAttemptedConfigDigest, n.req.Chart.AppVersion, n.obj.Status.LastAttemptedRevisionDigest)
}

// token is the metadata of events about going back to a revision, which is part
// of the attempt.
func (n *run) token(to *v2.Snapshot) map[string]string {
	return eventMetadata(to.ChartVersion, n.obj.Status.LastAttemptedConfigDigest, to.AppVersion, to.OCIDigest)
}

func (n *run) event(meta map[string]string, kind, reason, message string) {
	n.Events.AnnotatedEventf(n.obj, meta, kind, reason, "%s", message)
}
