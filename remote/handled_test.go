package remote

import (
	"testing"
	"time"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/account"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// TestHandled: what somebody asks of a layer while a process that has just begun has not fetched its
// source is not told to be done. The layer stays ready: it is in place.
func TestHandled(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		after   time.Duration
		handled bool
	}{
		"Begins":  {"nothing is known of the layer", time.Second, false},
		"Missing": {"that the source is not there is found out", sourceWait, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, map[string]string{"a.yaml": noteOf("1")})
			f.children.Now = func() time.Time { return start.Add(tc.after) }
			f.children.Snapshots, f.children.Accounts = source.NewSnapshots(), &account.Accounts{}
			f.layer.Spec.SourceRef = &v1alpha1.SourceReference{Kind: "GitRepository", Name: "fleet"}
			f.layer.Generation = 2
			f.layer.Annotations = map[string]string{fluxmeta.ReconcileRequestAnnotation: "now"}
			s := f.on(0)
			s.as, s.notes, s.snapshot = &account.Account{}, &layerNotes{}, nil
			s.run.notes = &notes{began: start.Time, layers: map[string]*layerNotes{"base": s.notes}}
			s.cluster.InfrastructureProvisioned, s.cluster.ControlPlaneInitialized = true, true
			entry := &v1alpha1.ChildLayer{Name: "base", Digest: "sha256:1", Ready: true, Reason: v1alpha1.ReasonSucceeded, ObservedGeneration: 1}
			err := s.attempt(t.Context(), s, entry, 0)
			if err == nil == tc.handled || err != nil && reason.Of(err) != v1alpha1.ReasonSourceNotReady {
				t.Fatalf("%s: the attempt ends with %v", tc.reason, err)
			}
			recordOutcome(entry, err, metav1.NewTime(start.Time))
			s.noteHandled(entry)
			if handled := entry.LastHandledReconcileAt == "now" && entry.ObservedGeneration == 2; handled != tc.handled || entry.Ready == tc.handled {
				t.Errorf("%s: the layer says %+v", tc.reason, entry)
			}
		})
	}
}
