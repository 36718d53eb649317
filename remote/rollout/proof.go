package rollout

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Proof is the word of a Rollout that a commit passed all of its waves.
type Proof struct {
	Commit string `json:"commit"`
	// Run in which it passed them.
	Run int64 `json:"run"`
	// Proven is when it had passed them, by the clock of that Rollout's tier.
	Proven time.Time `json:"proven"`
}

// Equal reports whether two proofs say the same.
func (p Proof) Equal(other Proof) bool {
	return p.Commit == other.Commit && p.Run == other.Run && p.Proven.Equal(other.Proven)
}

// Proofs are what one Rollout proved, as the tag of refs/cascade/proven/<name> has it.
type Proofs struct {
	// Name that they are published under.
	Name string `json:"name"`
	// Rollout as namespace/name, and its UID.
	Rollout string `json:"rollout"`
	UID     string `json:"uid"`
	// Proofs, the newest first.
	Proofs []Proof `json:"proofs"`
}

const (
	// mostProofs are published. A reader takes as many.
	mostProofs = 32
	// mostProofBytes bounds the message that is read.
	mostProofBytes = 64 << 10
)

// ProofReference is the reference of what is published under a name, and ProofTag the name in
// the tag that it points to.
func ProofReference(name string) string { return "refs/" + ProofTag(name) }

// ProofTag is the name in the tag.
func ProofTag(name string) string { return "cascade/proven/" + name }

// ErrOthers: another Rollout publishes under the name.
var ErrOthers = errors.New("another Rollout publishes under this name")

// Publishable is what a Rollout is to publish: the runs on record that passed all waves. It
// is nil if there are none, or if just that is what is published. before is what is published
// under the name; nil if nothing is. Somebody else may have written it, so that nothing of
// it is published again. That of another Rollout is not replaced: one of another name, or
// one with the same name but another UID that proved something later. The latter is of
// another tier, rather than of this one before it was built again.
func Publishable(o *v1alpha1.Rollout, before *Proofs) (*Proofs, error) {
	good := o.Status.LastGood
	if good == nil {
		return nil, nil
	}
	p := &Proofs{Name: o.Spec.Publish.Name, Rollout: o.Namespace + "/" + o.Name, UID: string(o.UID)}
	add := func(revision string, run int64, proven time.Time) error {
		commit, err := Commit(revision)
		if err == nil {
			p.Proofs = append(p.Proofs, Proof{Commit: commit, Run: run, Proven: proven.UTC().Truncate(time.Second)})
		}
		return err
	}
	if err := add(good.Revision, good.Run, good.At.Time); err != nil {
		return nil, err
	}
	for _, h := range o.Status.History {
		if h.Phase == v1alpha1.RolloutCompleted && h.Number < good.Run {
			if err := add(h.Revision, h.Number, h.Ended.Time); err != nil {
				return nil, err
			}
		}
	}
	// A clock may have been set back; the order is that of the runs.
	for i := len(p.Proofs) - 2; i >= 0; i-- {
		if one, older := &p.Proofs[i], p.Proofs[i+1]; !one.Proven.After(older.Proven) {
			one.Proven = older.Proven.Add(time.Second)
		}
	}
	if before == nil {
		return p, nil
	}
	switch newest := before.Proofs[0]; {
	case before.Rollout != p.Rollout:
		return nil, fmt.Errorf("%w: %.200q", ErrOthers, before.Rollout)
	case before.UID != p.UID && newest.Proven.After(p.Proofs[0].Proven):
		return nil, fmt.Errorf("%w: %s with another UID proved %s at %s, after the last good revision of this one", ErrOthers, p.Rollout, newest.Commit, newest.Proven.Format(time.RFC3339))
	case before.UID == p.UID && len(before.Proofs) >= len(p.Proofs) && slices.EqualFunc(before.Proofs[:len(p.Proofs)], p.Proofs, Proof.Equal):
		return nil, nil // what the status forgot since may follow
	}
	return p, nil
}

// Message is the text of the tag.
func (p *Proofs) Message() (string, error) {
	text, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return "", fmt.Errorf("cannot write proofs: %w", err)
	}
	return fmt.Sprintf("Rollout %s proved %s\n\n%s\n", p.Rollout, p.Proofs[0].Commit, text), nil
}

// ParseProofs reads the text of a tag that was published under a name and is on a commit.
// Somebody else wrote it.
func ParseProofs(name, commit, message string) (*Proofs, error) {
	if len(message) > mostProofBytes {
		return nil, fmt.Errorf("it has %d bytes, more than %d", len(message), mostProofBytes)
	}
	_, body, _ := strings.Cut(message, "\n\n")
	p := &Proofs{}
	if err := json.Unmarshal([]byte(body), p); err != nil {
		return nil, errors.New("it has no proofs in JSON after the first line")
	}
	switch {
	case p.Name != name:
		return nil, fmt.Errorf("it is of %.63q, not of %q", p.Name, name)
	case len(p.Proofs) == 0:
		return nil, errors.New("it has no proofs")
	case p.Proofs[0].Commit != commit:
		return nil, errors.New("its newest proof is of another commit than the one that the tag is on")
	}
	p.Proofs = p.Proofs[:min(len(p.Proofs), mostProofs)]
	for i, one := range p.Proofs {
		if _, err := hex.DecodeString(one.Commit); err != nil || len(one.Commit) != 40 {
			return nil, fmt.Errorf("proof %d names no commit", i)
		}
		if i > 0 && one.Proven.After(p.Proofs[i-1].Proven) {
			return nil, fmt.Errorf("proof %d is later than the one that follows it", i)
		}
	}
	return p, nil
}
