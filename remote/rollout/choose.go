package rollout

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// choose begins a run for the candidate, if it is to have one.
func (d *decision) choose() {
	if d.facts.Candidate == nil {
		return
	}
	newest := *d.facts.Candidate
	d.status.Candidate = &newest
	run := d.status.Run
	if r := d.active(); r != nil {
		if r.RolloutRevision == newest || !d.yields(r) {
			return
		}
		d.end(v1alpha1.RolloutSuperseded)
	} else if run != nil && run.RolloutRevision == newest && (run.Phase == v1alpha1.RolloutAborted || run.Phase == v1alpha1.RolloutReverted) {
		return // a person or its failures ended it
	} else if good := d.status.LastGood; good != nil && good.RolloutRevision == newest && (d.facts.Unread || !d.strayed(good)) {
		return
	}
	if d.selectsNone() {
		d.hold = d.nobody() // it would pass all waves with nobody to prove it
		return
	}
	number := int64(1)
	if run != nil {
		number = run.Number + 1
	}
	for _, m := range d.all {
		if m.pin != nil {
			number = max(number, m.pin.Run+1) // of a Rollout of this name that was made again
		}
	}
	at := metav1.NewTime(d.now)
	d.status.Run = &v1alpha1.RolloutRun{
		Number: number, RolloutRevision: newest, Phase: v1alpha1.RolloutProgressing, Terms: termsOf(d.spec), Began: at, Since: at,
		Retried: d.facts.Requests.Retry, StaleAbort: d.facts.Requests.Abort, StaleRevert: d.facts.Requests.Revert,
	}
	d.assign() // by the waves of these terms
}

// yields reports whether a newer revision may take the place of the run. One that clusters were taken past
// would take them back, to bring them the newer one after that, and one that the tier may not bring would wait for
// good.
func (d *decision) yields(r *v1alpha1.RolloutRun) bool {
	switch r.Phase {
	case v1alpha1.RolloutHalted:
		return true
	case v1alpha1.RolloutProgressing:
		return !r.Begun || d.spec.Preempt || d.facts.TooNew[r.Image] != "" || d.overtaken() || d.deserted(r)
	}
	return false
}
