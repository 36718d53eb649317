package remote

import (
	"regexp"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Bounds of the fields of a report, in bytes. What a child reports goes into its Child,
// and from there into the report of its parent: one field that is too long, or that the
// API server refuses, would keep all others from being told.
const (
	maxAgent    = 128
	maxRevision = 1024
	maxName     = 512
	// maxPath is that of a row: a few names of clusters. JSON writes each `>` between
	// them in six bytes.
	maxPath = 1024
	// maxDepth is how many clusters may be above one another.
	maxDepth = 16
	// maxClusters bounds what a child says of how many clusters are below it.
	maxClusters = 1_000_000
)

var (
	// reasonForm is that of the reason of a condition (metav1.Condition), and what goes
	// into one has to have it.
	reasonForm = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]{0,254}[A-Za-z0-9_])?$`)
	// clusterForm is the namespace and name of a Child.
	clusterForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)
)

// confine cuts a report that another trust domain wrote to what a Child may have.
func confine(r *v1alpha1.Report) {
	r.Agent, r.Revision = cut(r.Agent, maxAgent), cut(r.Revision, maxRevision)
	r.Reason, r.Message, r.Since = reasonIn(r.Reason), short(r.Message), since(r.Since)
	r.Objects = max(0, r.Objects)
	r.Failing = r.Failing[:min(len(r.Failing), maxFailing)]
	for i := range r.Failing {
		r.Failing[i].Name, r.Failing[i].Reason = cut(r.Failing[i].Name, maxName), reasonIn(r.Failing[i].Reason)
		r.Failing[i].Message = cut(r.Failing[i].Message, maxRowMessage)
	}
	if c := r.Children; c != nil {
		c.Total = min(max(0, c.Total), maxClusters)
		c.Ready = min(max(0, c.Ready), c.Total)
	}
	rows := r.Tiers[:min(len(r.Tiers), maxTierRows)]
	r.Tiers = rows[:0]
	for _, row := range rows {
		if confineRow(&row) {
			r.Tiers = append(r.Tiers, row)
		}
	}
}

// confineRow cuts a row, and reports whether it is about a cluster at all.
func confineRow(row *v1alpha1.TierRow) bool {
	if !isPath(row.Path) {
		return false
	}
	row.Revision, row.Version, row.Message = cut(row.Revision, maxRevision), cut(row.Version, maxAgent), cut(row.Message, maxRowMessage)
	row.Reason, row.Since = reasonIn(row.Reason), since(row.Since)
	return true
}

// isPath reports whether a text leads to a cluster below.
func isPath(path string) bool {
	if len(path) > maxPath || strings.Count(path, ">") >= maxDepth {
		return false
	}
	for segment := range strings.SplitSeq(path, ">") {
		if !clusterForm.MatchString(segment) {
			return false
		}
	}
	return true
}

// reasonIn returns a reason that a condition may have.
func reasonIn(reason string) string {
	if !reasonForm.MatchString(reason) {
		return v1alpha1.ReasonReportInvalid
	}
	return reason
}

// since returns a time that the API server accepts: it refuses one that is missing.
func since(t metav1.Time) metav1.Time {
	if t.IsZero() {
		return metav1.NewTime(time.Unix(0, 0).UTC())
	}
	return t
}
