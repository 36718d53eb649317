package remote

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// TestOverdue: what is renewed each day is not overdue before that was due.
func TestOverdue(t *testing.T) {
	now := time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
	in := func(d time.Duration) *metav1.Time { return &metav1.Time{Time: now.Add(d)} }
	for name, tc := range map[string]struct {
		reason string
		of     v1alpha1.ChildCredential
		want   bool
	}{
		"Endless": {"it does not lapse", v1alpha1.ChildCredential{}, false},
		"Short":   {"it lapses today, and its keeper renews it before", v1alpha1.ChildCredential{ExpiresAt: in(2 * time.Hour), RenewAt: in(time.Hour)}, false},
		"Due":     {"its keeper should have renewed it", v1alpha1.ChildCredential{ExpiresAt: in(2 * time.Hour), RenewAt: in(-time.Hour)}, true},
		"Unknown": {"nothing says that it should have been renewed, as of what an agent of before noted", v1alpha1.ChildCredential{ExpiresAt: in(2 * time.Hour)}, false},
		"Lapsed":  {"it has lapsed", v1alpha1.ChildCredential{ExpiresAt: in(-time.Second)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := overdue(tc.of, now); got != tc.want {
				t.Errorf("%s: overdue is %t", tc.reason, got)
			}
		})
	}
}
