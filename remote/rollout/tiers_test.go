package rollout_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// TestTierSoaks: what begins in a tier long after it was ready, as a commit of its own, does not come of what it was
// given, and ends no soak.
func TestTierSoaks(t *testing.T) {
	waves := canaryAndRest()
	waves[0].Soak = &metav1.Duration{Duration: 24 * time.Hour}
	s := begin(t, waves, "canary1", "rest1")
	s.commit(second)
	s.decide()
	s.takes(true, "canary1")
	s.decide()
	tier := s.cluster("canary1")
	s.after(5 * time.Minute)
	tier.Ready, tier.Busy = false, "1 of its own Rollouts are on their way" // this may
	s.decide()
	s.result("canary1", v1alpha1.ResultDegraded)
	tier.Ready, tier.Busy = true, ""
	s.decide()
	s.held(v1alpha1.ReasonSoaking)
	s.after(12 * time.Hour)
	tier.Ready, tier.Busy = false, "1 of its own Rollouts are on their way"
	s.decide()
	s.result("canary1", v1alpha1.ResultSucceeded)
	s.after(12 * time.Hour)
	s.decide()
	s.at(second, "canary1", "rest1")
}

// TestTierIsBusy: a tier may take longer than the deadline to bring what it was given to its own, which is no failure,
// and no proof.
func TestTierIsBusy(t *testing.T) {
	s := begin(t, canaryAndRest(), "canary1", "rest1")
	s.commit(second)
	s.decide()
	s.takes(true, "canary1")
	tier := s.cluster("canary1")
	tier.Ready, tier.Busy = false, "1 of its own Rollouts are on their way"
	s.decide()
	s.says(v1alpha1.ReasonRollingOut, "cluster canary1 is waited for: 1 of its own Rollouts are on their way")
	s.after(10 * time.Minute)
	s.decide()
	s.result("canary1", v1alpha1.ResultUnproven)
	s.phase(v1alpha1.RolloutProgressing)
	s.held(v1alpha1.ReasonWaveUnproven)
	s.at(second, "canary1")
	tier.Ready, tier.Busy = true, ""
	s.decide()
	s.at(second, "canary1", "rest1")
}
