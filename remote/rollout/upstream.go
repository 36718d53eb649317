package rollout

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Upstream are the facts about the Rollout of another environment that proves commits.
type Upstream struct {
	// Failure is why what it proved is not known, or cannot be used.
	Failure Hold
	// Proofs that it published, the newest first.
	Proofs []Proof
	// Revisions by the commit of a proof: what clusters would get. It is that of the candidate
	// if the commit changes nothing for them.
	Revisions map[string]v1alpha1.RolloutRevision
	// Refused is why a commit cannot be taken. One that is neither here nor in Revisions is
	// to be fetched, and Unfetched is why it could not be, if that was tried.
	Refused, Unfetched map[string]Hold
	// Taken is the revision of the proof that was taken last, nil without one.
	Taken *v1alpha1.RolloutRevision
}

// promote makes what another environment proved the candidate: the newest commit that it
// ran for long enough. What cannot be read, or is older than what was taken, moves nothing.
func (d *decision) promote() {
	wants := d.spec.Upstream
	if wants == nil {
		d.status.Upstream = nil
		return
	}
	up := d.facts.Upstream
	if up == nil {
		up = &Upstream{Failure: Hold{v1alpha1.ReasonAwaitingUpstream, fmt.Sprintf("what %s proved was not read yet", wants.Name)}}
	}
	if s := d.status.Upstream; s == nil || s.Name != wants.Name {
		// What another one proved before is no measure for this one.
		d.status.Upstream = &v1alpha1.RolloutUpstreamStatus{Name: wants.Name}
	}
	status := d.status.Upstream
	d.facts.Unread = true
	d.facts.Candidate, d.upstream = up.Taken, up.Failure
	if status.Taken == nil {
		// Something else told the candidate before.
		d.facts.Candidate, d.status.Candidate = nil, nil
	}
	if up.Failure.Reason != "" {
		return
	}
	if len(up.Proofs) == 0 {
		d.upstream = Hold{v1alpha1.ReasonUpstreamMissing, fmt.Sprintf("%s has proven nothing yet", wants.Name)}
		return
	}
	newest := up.Proofs[0]
	status.Taken = mended(status.Taken, up.Proofs)
	if status.Taken != nil && newest.Proven.Before(status.Taken.Proven.Time) {
		d.upstream = Hold{v1alpha1.ReasonUpstreamWentBack, fmt.Sprintf("the newest proof of %s is of %s, and one of %s was taken: somebody put an older state of %s back",
			wants.Name, at(newest.Proven), at(status.Taken.Proven.Time), ProofReference(wants.Name))}
		return
	}
	status.Newest = onRecord(newest)
	best := d.eligible(up, wants)
	if best == nil {
		d.facts.Unread = false
		return
	}
	revision, ok := up.Revisions[best.Commit]
	if !ok {
		d.wanted = best.Commit
		if d.upstream, ok = up.Unfetched[best.Commit]; ok {
			return
		}
		d.upstream = Hold{v1alpha1.ReasonAwaitingUpstream, fmt.Sprintf("commit %s, which %s proved, is being fetched", best.Commit, wants.Name)}
		return
	}
	status.Taken, d.facts.Candidate, d.facts.Unread = onRecord(*best), &revision, false
	if best.Commit == newest.Commit {
		d.upstream = Hold{}
	}
}

// eligible is the newest proof that may be taken, and is not yet; nil if there is none.
func (d *decision) eligible(up *Upstream, wants *v1alpha1.RolloutUpstream) *Proof {
	age := time.Duration(0)
	if wants.MinAge != nil {
		age = wants.MinAge.Duration
	}
	ends := d.now // when the next one took its place there
	for i := range up.Proofs {
		p := &up.Proofs[i]
		if taken := d.status.Upstream.Taken; taken != nil && !p.Proven.After(taken.Proven.Time) {
			return nil
		}
		ran := ends.Sub(p.Proven)
		if p.Proven.Before(ends) {
			ends = p.Proven
		}
		if ran < age || ran < 0 {
			if i == 0 {
				d.soon(age - ran)
				d.upstream = Hold{v1alpha1.ReasonAwaitingUpstream, fmt.Sprintf("%s runs commit %s since %s, and is to for %s: it is taken at %s", wants.Name, p.Commit, at(p.Proven), age, at(p.Proven.Add(age)))}
			}
			continue
		}
		why, refused := up.Refused[p.Commit]
		if !refused {
			return p
		}
		if i == 0 || d.upstream.Reason == "" {
			d.upstream = why
		}
	}
	return nil
}

// mended is the proof that was taken last, at the time that the upstream tells of it by now: that is an earlier
// one after its clock was ahead.
func mended(taken *v1alpha1.RolloutProof, proofs []Proof) *v1alpha1.RolloutProof {
	for _, p := range proofs {
		if taken != nil && p.Commit == taken.Commit && p.Run == taken.Run && p.Proven.Before(taken.Proven.Time) {
			return onRecord(p)
		}
	}
	return taken
}

func onRecord(p Proof) *v1alpha1.RolloutProof {
	return &v1alpha1.RolloutProof{Commit: p.Commit, Run: p.Run, Proven: metav1.NewTime(p.Proven)}
}

func at(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 MST") }

// Taken is the proof of the upstream that was taken last; nil without one, and where that
// was one of another upstream.
func Taken(spec *v1alpha1.RolloutSpec, status *v1alpha1.RolloutStatus) *v1alpha1.RolloutProof {
	if spec.Upstream == nil || status.Upstream == nil || status.Upstream.Name != spec.Upstream.Name {
		return nil
	}
	return status.Upstream.Taken
}

// Untaken are the proofs that may be taken now or later, given what was: no older one is
// looked at. They are few, as proofs are.
func Untaken(spec *v1alpha1.RolloutSpec, status *v1alpha1.RolloutStatus, proofs []Proof) []Proof {
	taken := mended(Taken(spec, status), proofs)
	if taken == nil {
		return proofs
	}
	for i := range proofs {
		if !proofs[i].Proven.After(taken.Proven.Time) {
			return proofs[:i]
		}
	}
	return proofs
}
