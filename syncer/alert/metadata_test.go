package alert

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	notificationv1beta3 "github.com/fluxcd/notification-controller/api/v1beta3"
)

func TestMetadata(t *testing.T) {
	type words = map[string]string
	for name, tt := range map[string]struct {
		reason    string
		event     words
		alert     words
		summary   string
		want      words
		conflicts []string
	}{
		"Controller": {reason: "the group is left out", event: words{"kustomize.toolkit.fluxcd.io/revision": "r"}, want: words{"revision": "r"}},
		"Annotation": {reason: "annotations of the object are told", event: words{"event.toolkit.fluxcd.io/env": "prod"}, want: words{"env": "prod"}},
		"Alert":      {reason: "spec.eventMetadata is told", alert: words{"cluster": "a"}, want: words{"cluster": "a"}},
		"Summary":    {reason: "spec.summary is told", summary: "down", want: words{"summary": "down"}},
		"SummaryOverMetadata": {
			reason: "spec.summary is over spec.eventMetadata", alert: words{"summary": "x"}, summary: "down", want: words{"summary": "down"},
			conflicts: []string{"summary"},
		},
		"AlertOverAnnotation": {
			reason: "the Alert is over the object", event: words{"event.toolkit.fluxcd.io/env": "dev"}, alert: words{"env": "prod"}, want: words{"env": "prod"},
			conflicts: []string{"env"},
		},
		"ControllerOverAll": {
			reason: "nobody says another revision", event: words{"event.toolkit.fluxcd.io/revision": "x", "kustomize.toolkit.fluxcd.io/revision": "r"},
			alert: words{"revision": "y"}, want: words{"revision": "r"}, conflicts: []string{"revision"},
		},
		"SameIsNoConflict": {
			reason: "both say the same", event: words{"event.toolkit.fluxcd.io/env": "prod"}, alert: words{"env": "prod"}, want: words{"env": "prod"},
		},
		"OtherGroup": {reason: "another controller's words are not this one's", event: words{"helm.toolkit.fluxcd.io/revision": "x"}, want: words{}},
		"NoGroup":    {reason: "programs beside Flux's have no group", event: words{"phase": "Failed"}, want: words{"phase": "Failed"}},
		"Token":      {reason: "a token is for nobody", event: words{"kustomize.toolkit.fluxcd.io/token": "x"}, want: words{}},
	} {
		t.Run(name, func(t *testing.T) {
			a := alertOf(func(s *notificationv1beta3.AlertSpec) { s.EventMetadata, s.Summary = tt.alert, tt.summary })
			e := eventOf("shop", "info", "x")
			e.Metadata = tt.event
			m, conflicts := MessageOf(a, e)
			if diff := cmp.Diff(tt.want, m.Event.Metadata); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
			if diff := cmp.Diff(tt.conflicts, conflicts); diff != "" {
				t.Errorf("%s: conflicts (-want +got):\n%s", tt.reason, diff)
			}
		})
	}
}

func TestStatusOnly(t *testing.T) {
	e := eventOf("shop", "info", "x")
	e.Metadata["kustomize.toolkit.fluxcd.io/commit_status"] = "update"
	if m, _ := MessageOf(alertOf(nil), e); !m.StatusOnly || len(m.Event.Metadata) != 1 {
		t.Errorf("got %v with %v", m.StatusOnly, m.Event.Metadata)
	}
	if len(e.Metadata) != 2 {
		t.Error("the event was changed")
	}
}

func FuzzCut(f *testing.F) {
	f.Add("äöü€😀", 7)
	f.Add("a\xffb", 3)
	f.Fuzz(func(t *testing.T, text string, most int) {
		if most < 0 {
			return
		}
		got := Cut(text, most)
		if len(got) > most || !utf8.ValidString(got) || !strings.HasPrefix(strings.ToValidUTF8(text, ""), strings.TrimSuffix(got, "...")) {
			t.Errorf("Cut(%q, %d) = %q", text, most, got)
		}
	})
}
