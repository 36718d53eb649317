package remote

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

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
		// long is whether that alerts.
		long bool
	}{
		"Endless": {"it does not lapse", v1alpha1.ChildCredential{}, false, false},
		"Short":   {"it lapses today, and its keeper renews it before", v1alpha1.ChildCredential{ExpiresAt: in(2 * time.Hour), RenewAt: in(time.Hour)}, false, false},
		"Due":     {"its keeper should have renewed it", v1alpha1.ChildCredential{ExpiresAt: in(2 * time.Hour), RenewAt: in(-time.Hour)}, true, false},
		"Late":    {"its keeper may renew it at three quarters of its life", v1alpha1.ChildCredential{ExpiresAt: in(6 * time.Hour), RenewAt: in(-2 * time.Hour)}, true, false},
		"Kept":    {"nobody renewed it for five sixths of its life", v1alpha1.ChildCredential{ExpiresAt: in(4 * time.Hour), RenewAt: in(-4 * time.Hour)}, true, true},
		"Unknown": {"nothing says that it should have been renewed, as of what an agent of before noted", v1alpha1.ChildCredential{ExpiresAt: in(2 * time.Hour)}, false, false},
		"Lapsed":  {"it has lapsed", v1alpha1.ChildCredential{ExpiresAt: in(-time.Second)}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := overdue(tc.of, now); got != tc.want {
				t.Errorf("%s: overdue is %t", tc.reason, got)
			}
			if got := neglected(tc.of, now); got != tc.long {
				t.Errorf("%s: neglected is %t", tc.reason, got)
			}
		})
	}
}

// TestWarn: that a credential is about to lapse is told, and that it has lapsed once more.
func TestWarn(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	now, events := noon, record.NewFakeRecorder(10)
	at := func(d time.Duration) *metav1.Time { return &metav1.Time{Time: noon.Add(d)} }
	child := &v1alpha1.Child{}
	child.Status.Credentials = []v1alpha1.ChildCredential{{Name: "a", RenewAt: at(-time.Hour), ExpiresAt: at(time.Hour)}}
	r := &run{Children: &Children{Events: events, Now: func() time.Time { return now }}, child: child}
	for range 2 {
		r.warn()
	}
	now = noon.Add(2 * time.Hour)
	for range 2 {
		r.warn()
	}
	child.Status.Credentials = nil
	for range 2 {
		r.warn()
	}
	close(events.Events)
	var told []string
	for e := range events.Events {
		told = append(told, strings.Join(strings.Fields(e)[:2], " "))
	}
	if got, want := strings.Join(told, ", "), "Warning CredentialsExpiring, Warning CredentialsLapsed, Normal CredentialsRenewed"; got != want {
		t.Errorf("told is %s, want %s", got, want)
	}
}
