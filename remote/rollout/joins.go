package rollout

import "github.com/cascade-gitops/cascade/api/v1alpha1"

// joins reports whether a cluster is given its first revision. In a fleet where clusters are made all the time one of
// them always is.
func (m *member) joins() bool {
	if m.pin == nil {
		return m.New
	}
	return m.changing() && m.pin.Had == nil && (m.New || m.Has != nil && m.has(*m.Has))
}

// disturb ends the soak of a wave that waits for clusters, unless all of these came to it since: the others soak on.
func (d *decision) disturb(run *v1alpha1.RolloutRun, members []*member) {
	for _, m := range members {
		if !m.joins() && d.open(m, run.RolloutRevision) {
			run.SoakSince = nil
		}
	}
}
