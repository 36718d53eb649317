package report

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Parse reads the report of a child's agent. The child is another trust domain, so
// all fields are cut to their bounds.
func Parse(text string) (*v1alpha1.Report, error) {
	report := &v1alpha1.Report{}
	if len(text) > accepted {
		return nil, fmt.Errorf("cannot use report: %d bytes are more than the limit of %d", len(text), accepted)
	}
	if err := json.Unmarshal([]byte(text), report); err != nil {
		return nil, fmt.Errorf("cannot parse report: %w", err)
	}
	confine(report)
	return report, nil
}

// confine cuts a report that another trust domain wrote to what a Child may have.
func confine(r *v1alpha1.Report) {
	r.Agent, r.Revision = bounded(r.Agent, maxAgent), shortened(r.Revision)
	r.Reason, r.Message, r.Since = reasonIn(r.Reason), bounded(r.Message, maxMessage), since(r.Since)
	r.Objects, r.Suspended = max(0, r.Objects), max(0, r.Suspended)
	r.Failing = r.Failing[:min(len(r.Failing), maxFailing)]
	for i := range r.Failing {
		confineFailure(&r.Failing[i])
	}
	if r.Brought != nil {
		confineBrought(r.Brought)
	}
	if r.Children != nil {
		counts := confineCounts(*r.Children)
		r.Children = &counts
	}
	if c := r.Rollouts; c != nil {
		c.Pending, c.Failed = max(0, c.Pending), max(0, c.Failed)
	}
	r.Faults = confineFaults(r.Faults)
	rows := r.Tiers[:min(len(r.Tiers), maxTierRows)]
	r.Tiers = rows[:0]
	for _, row := range rows {
		if confineRow(&row) {
			r.Tiers = append(r.Tiers, row)
		}
	}
}

func confineBrought(b *v1alpha1.ReportBrought) {
	// What is cut off is not told either.
	cut := max(0, len(b.Objects)-maxBrought)
	b.Objects, b.More = b.Objects[:len(b.Objects)-cut], int32(min(int64(max(0, b.More))+int64(cut), math.MaxInt32))
	b.Complete = b.Complete && b.More == 0
	for i := range b.Objects {
		o := &b.Objects[i]
		o.Kind, o.Namespace = bounded(o.Kind, maxLabel), bounded(o.Namespace, maxLabel)
		o.Name, o.Revision = bounded(o.Name, maxObjectName), bounded(o.Revision, maxRevision)
	}
}

func confineFailure(f *v1alpha1.Failure) {
	f.Name, f.Reason, f.Message = bounded(f.Name, maxName), reasonIn(f.Reason), bounded(f.Message, maxRowMessage)
}

// confineCounts makes counts such as can be: none is negative, no cluster is counted as
// two things, and no list adds up to more than the total.
func confineCounts(c v1alpha1.ReportCounts) v1alpha1.ReportCounts {
	c.Total = min(max(0, c.Total), maxClusters)
	c.Ready = min(max(0, c.Ready), c.Total)
	c.Suspended = min(max(0, c.Suspended), c.Total-c.Ready)
	c.Stale = min(max(0, c.Stale), c.Total-c.Ready-c.Suspended)
	c.Updating = min(max(0, c.Updating), maxClusters)
	c.ByReason = confineNames(c.ByReason, c.Total, reasonIn)
	c.ByRevision = confineNames(c.ByRevision, c.Total, shortened)
	c.Faults = confineFaults(c.Faults)
	return c
}

// confineNames cuts a list of counts, of which each entry has a name of its own.
func confineNames(list []v1alpha1.NamedCount, total int32, name func(string) string) []v1alpha1.NamedCount {
	var out []v1alpha1.NamedCount
	for _, n := range list[:min(len(list), maxNames)] {
		if n.Name != "" {
			n.Name = name(n.Name)
		}
		n.Count = min(max(0, n.Count), total)
		if n.Count == 0 {
			continue
		}
		total -= n.Count
		if at := slices.IndexFunc(out, func(o v1alpha1.NamedCount) bool { return o.Name == n.Name }); at >= 0 {
			out[at].Count += n.Count
			continue
		}
		out = append(out, n)
	}
	return out
}

// confineRow cuts a row, and reports whether it is about a cluster at all.
func confineRow(row *v1alpha1.TierRow) bool {
	if !isPath(row.Path) {
		return false
	}
	row.Revision, row.Message = shortened(row.Revision), bounded(row.Message, maxRowMessage)
	row.Reason, row.Since = reasonIn(row.Reason), since(row.Since)
	if row.Heard != nil && row.Heard.IsZero() {
		row.Heard = nil
	}
	row.Version, row.Owner = bounded(row.Version, maxWord), bounded(row.Owner, maxWord)
	row.Provider, row.Region = bounded(row.Provider, maxWord), bounded(row.Region, maxWord)
	row.Faults = confineFaults(row.Faults)
	row.Cause = confineCause(row.Cause)
	// Nobody knows how it is, or a person wants it to stand still.
	row.Ready = row.Ready && !row.Suspended && row.Heard == nil && row.Reason != v1alpha1.ReasonStale
	if row.Ready || row.Reason == v1alpha1.ReasonStale {
		row.Cause = nil
	}
	return true
}

// isPath reports whether a text leads to a cluster below.
func isPath(path string) bool {
	if len(path) > maxPath || strings.Count(path, ">") >= maxDepth {
		return false
	}
	for segment := range strings.SplitSeq(path, ">") {
		namespace, name, _ := strings.Cut(segment, "/")
		if !isName(namespace) || !isName(name) {
			return false
		}
	}
	return true
}

// isName reports whether a text may be the name of an object or of its namespace. There
// are a hundred rows in each report: a regular expression would take most of the time.
func isName(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		case (c == '-' || c == '.') && i > 0 && i < len(s)-1:
		default:
			return false
		}
	}
	return s != ""
}

// reasonIn returns a reason that a condition may have.
func reasonIn(reason string) string {
	if !isReason(reason) {
		return v1alpha1.ReasonReportInvalid
	}
	return reason
}

// isReason reports whether a text has the form of the reason of a condition
// (metav1.Condition): what goes into one has to have it.
func isReason(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
		case ('0' <= c && c <= '9' || c == '_') && i > 0:
		case (c == ',' || c == ':') && i > 0 && i < len(s)-1:
		default:
			return false
		}
	}
	return s != "" && len(s) <= maxReason
}

// since returns a time that the API server accepts: it refuses one that is missing.
func since(t metav1.Time) metav1.Time {
	if t.IsZero() {
		return metav1.NewTime(time.Unix(0, 0).UTC())
	}
	return t
}
