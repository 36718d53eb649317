package agent

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestDNSService: the API server is asked for the address now and then, and again soon
// while there is none.
func TestDNSService(t *testing.T) {
	now := time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
	asked, ip, failure := 0, "10.96.0.10", error(nil)
	s := &dnsService{now: func() time.Time { return now }, read: func(context.Context) (*corev1.Service, error) {
		asked++
		return &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: ip}}, failure
	}}
	for _, step := range []struct {
		reason string
		after  time.Duration
		ip     string
		err    error
		asked  int
		want   string
	}{
		{"it is not there yet", 0, "", errors.New("not found"), 1, ""},
		{"a name a moment later asks nobody", dnsRetry / 2, "", errors.New("not found"), 1, ""},
		{"it came, in the second in which a new cluster gets it", time.Second, "10.96.0.10", nil, 2, "10.96.0.10:53"},
		{"and is used", time.Minute, "10.96.0.10", nil, 2, "10.96.0.10:53"},
		{"it was made anew", dnsHolds, "fd00::a", nil, 3, "[fd00::a]:53"},
		{"a headless Service has no address", dnsHolds, "None", nil, 4, ""},
	} {
		now, ip, failure = now.Add(step.after), step.ip, step.err
		got, err := s.address(t.Context())
		if got != step.want || (err == nil) != (step.want != "") || asked != step.asked {
			t.Errorf("%s: %q, %v after %d questions, want %q after %d", step.reason, got, err, asked, step.want, step.asked)
		}
	}
}
