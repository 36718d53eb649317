package source

import (
	"fmt"
	"net/http"
	"testing"
	"time"
)

func TestLater(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		reason, said string
		code         int
		want         time.Duration
	}{
		"Seconds":     {"it says for how long", "120", 429, 120 * time.Second},
		"Date":        {"it says until when", "Thu, 01 Jan 2026 00:05:00 GMT", 503, 5 * time.Minute},
		"Forbidden":   {"GitHub's second limit", "60", 403, time.Minute},
		"Years":       {"nobody waits for thirty years", "999999999", 429, time.Hour},
		"DateFar":     {"nor for a date", "Thu, 01 Jan 2099 00:00:00 GMT", 429, time.Hour},
		"Soon":        {"the backoff does that", "1", 503, 0},
		"Past":        {"a date that is over", "Wed, 31 Dec 2025 00:00:00 GMT", 503, 0},
		"Negative":    {"no time", "-1", 429, 0},
		"Endless":     {"no number that there is", "99999999999999999999", 429, 0},
		"Words":       {"no time", "later", 429, 0},
		"Nothing":     {"it does not say", "", 429, 0},
		"Other":       {"it refuses for another reason", "120", 404, 0},
		"Unavailable": {"it is being restarted", "30", 503, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			res := &http.Response{StatusCode: tc.code, Header: http.Header{"Retry-After": {tc.said}}}
			err := Later(res, now)
			if (err != nil) != (tc.want > 0) {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if got := After(fmt.Errorf("cannot fetch: %w", err)); got != tc.want*11/10 {
				t.Errorf("%s: after %s, want %s and a tenth", tc.reason, got, tc.want)
			}
		})
	}
}
