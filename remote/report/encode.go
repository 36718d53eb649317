package report

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// fit leaves out rows until the report is short enough, the longest first: who fills his
// fields loses his row before others lose theirs. Reports of tiers whose children tell
// the truth are short enough with all rows.
func fit(r *v1alpha1.Report) {
	size := headSize(r)
	sizes := make([]int, len(r.Tiers))
	for i := range r.Tiers {
		sizes[i] = rowSize(&r.Tiers[i])
		size += sizes[i]
	}
	for size > longest {
		fattest := 0
		for i := range sizes {
			if sizes[i] > sizes[fattest] {
				fattest = i
			}
		}
		size -= sizes[fattest]
		r.Tiers = append(r.Tiers[:fattest], r.Tiers[fattest+1:]...)
		sizes = append(sizes[:fattest], sizes[fattest+1:]...)
	}
}

// The names of fields, numbers and times of a report, a failure, an entry of a list of
// counts, a row, a cause and faults have at most so many bytes.
const (
	headFrame    = 512
	failureFrame = 48
	countFrame   = 40
	rowFrame     = 256
	causeFrame   = 64
	faultsFrame  = 160
)

// headSize is at least as much as the encoded report has without its rows.
func headSize(r *v1alpha1.Report) int {
	n := headFrame + encodedSize(r.Agent) + encodedSize(r.Revision) + encodedSize(r.Reason) + encodedSize(r.Message)
	for i := range r.Failing {
		f := &r.Failing[i]
		n += failureFrame + encodedSize(f.Name) + encodedSize(f.Reason) + encodedSize(f.Message)
	}
	n += faultsSize(r.Faults)
	if r.Children != nil {
		n += faultsSize(r.Children.Faults)
		for _, list := range [][]v1alpha1.NamedCount{r.Children.ByReason, r.Children.ByRevision} {
			for i := range list {
				n += countFrame + encodedSize(list[i].Name)
			}
		}
	}
	return n
}

// rowSize is at least as much as an encoded row has.
func rowSize(row *v1alpha1.TierRow) int {
	return rowFrame + encodedSize(row.Path) + encodedSize(row.Revision) + encodedSize(row.Reason) + encodedSize(row.Message) +
		encodedSize(row.Version) + encodedSize(row.Owner) + encodedSize(row.Provider) + encodedSize(row.Region) + causeSize(row.Cause) + faultsSize(row.Faults)
}

// causeSize is at least as much as an encoded cause has: nothing if there is none.
func causeSize(c *v1alpha1.TierCause) int {
	if c == nil {
		return 0
	}
	return causeFrame + encodedSize(c.Kind) + encodedSize(c.Namespace) + encodedSize(c.Name) + encodedSize(c.Reason)
}

// faultsSize is at least as much as encoded faults have: nothing if there are none.
func faultsSize(f *v1alpha1.ReportFaults) int {
	if f == nil {
		return 0
	}
	return faultsFrame
}

// encode writes a report. What HTML would have to be told in other letters stays as it
// is: paths are full of one of these.
func encode(r *v1alpha1.Report) (string, error) {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if err := e.Encode(r); err != nil {
		return "", fmt.Errorf("cannot encode report: %w", err)
	}
	return string(bytes.TrimSuffix(text.Bytes(), []byte("\n"))), nil
}

// Digest identifies the text of a report. An agent puts it on its lease.
func Digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}
