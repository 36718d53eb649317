//go:build linux

package mom

import (
	"slices"
	"sync"
	"time"

	"github.com/cascade-gitops/cascade/mom/supervise"
)

// Phase is how far a run is.
type Phase string

// Phases.
const (
	PhaseStarting Phase = "Starting"
	PhaseRunning  Phase = "Running"
	PhaseStopping Phase = "Stopping"
	PhaseStopped  Phase = "Stopped"
)

// Status is what a run says about itself, in its folder.
type Status struct {
	PID   int       `json:"pid"`
	Phase Phase     `json:"phase"`
	Since time.Time `json:"since"`
	// Looked is when a run that is up judged the management cluster last, which it does every few seconds: what else
	// is said may be of then.
	Looked time.Time `json:"looked,omitzero"`
	// Message is why it ended, if that was not asked for.
	Message    string            `json:"message,omitempty"`
	Kubeconfig string            `json:"kubeconfig"`
	Repository string            `json:"repository"`
	Branch     string            `json:"branch,omitempty"`
	Path       string            `json:"path"`
	Verdict    Verdict           `json:"verdict"`
	Programs   []supervise.State `json:"programs,omitempty"`
	State      *StateStatus      `json:"state,omitempty"`
}

// StateStatus is how the saved state is.
type StateStatus struct {
	Address string `json:"address"`
	// Version that was saved or restored last, and when.
	Version string    `json:"version,omitempty"`
	SavedAt time.Time `json:"savedAt,omitzero"`
	// Unsaved: something changed since then.
	Unsaved bool `json:"unsaved,omitempty"`
	// Error is why it could not be saved.
	Error string `json:"error,omitempty"`
	// Epoch and Until are of the lock.
	Epoch int64     `json:"epoch,omitempty"`
	Until time.Time `json:"until,omitzero"`
}

// ReadStatus reads what a run said last; ok is false if there was none.
func (f Folder) ReadStatus() (s Status, ok bool, err error) {
	ok, err = readJSON(f.status(), &s)
	return s, ok, err
}

// board keeps the status of a run in its folder.
type board struct {
	folder Folder

	mu     sync.Mutex
	status Status
}

// change changes the status and writes it. A folder that cannot be written is told by the
// next thing that needs it.
func (b *board) change(change func(*Status)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&b.status)
	_ = writeJSON(b.folder.status(), b.status)
}

// ofState changes what is said of the saved state.
func (b *board) ofState(change func(*StateStatus)) {
	b.change(func(s *Status) {
		if s.State == nil {
			s.State = &StateStatus{}
		}
		change(s.State)
	})
}

// news are the lines of one list that another does not have.
func news(before, now []string) []string {
	var added []string
	for _, line := range now {
		if !slices.Contains(before, line) {
			added = append(added, line)
		}
	}
	return added
}
