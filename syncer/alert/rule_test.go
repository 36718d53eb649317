package alert

import (
	"slices"
	"strings"
	"testing"

	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	notificationv1beta3 "github.com/fluxcd/notification-controller/api/v1beta3"
	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type reference = notificationv1.CrossNamespaceObjectReference

func alertOf(change func(*notificationv1beta3.AlertSpec), sources ...reference) *notificationv1beta3.Alert {
	a := &notificationv1beta3.Alert{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "all"}}
	a.Spec.ProviderRef.Name = "chat"
	a.Spec.EventSources = sources
	if len(sources) == 0 {
		a.Spec.EventSources = []reference{{Kind: "Kustomization", Name: "*"}}
	}
	if change != nil {
		change(&a.Spec)
	}
	return a
}

func eventOf(name, severity, message string) *Event {
	return &Event{
		Labels: map[string]string{"team": "shop", "stage": "prod"},
		Event: eventv1.Event{
			InvolvedObject: corev1.ObjectReference{
				APIVersion: "kustomize.toolkit.fluxcd.io/v1", Kind: "Kustomization", Namespace: "apps", Name: name, UID: "7d0cdc51",
			},
			Severity: severity, Message: message, Reason: "ReconciliationFailed", ReportingController: "kustomize-controller",
			Metadata: map[string]string{"kustomize.toolkit.fluxcd.io/revision": "main@sha1:1"},
		},
	}
}

func TestWants(t *testing.T) {
	type spec = notificationv1beta3.AlertSpec
	costly := slices.Repeat([]string{`(?s)(?:.?.?){999}\x00b`}, 5)
	long := strings.Repeat("a", 38_000) + "\x00b"
	elsewhere := eventOf("shop", "info", "applied")
	elsewhere.InvolvedObject.Namespace = "others"
	for name, tt := range map[string]struct {
		reason  string
		sources []reference
		change  func(*spec)
		event   *Event
		no      bool // --no-cross-namespace-refs
		want    bool
	}{
		"AllNames":     {reason: "* is every name", event: eventOf("shop", "info", "applied"), want: true},
		"Name":         {reason: "the name is the object's", sources: []reference{{Kind: "Kustomization", Name: "shop"}}, event: eventOf("shop", "info", ""), want: true},
		"OtherName":    {reason: "the name is another one", sources: []reference{{Kind: "Kustomization", Name: "shop"}}, event: eventOf("web", "info", "")},
		"OtherKind":    {reason: "the kind is another one", sources: []reference{{Kind: "HelmRelease", Name: "*"}}, event: eventOf("shop", "info", "")},
		"SecondSource": {reason: "one of the sources is enough", sources: []reference{{Kind: "HelmRelease", Name: "*"}, {Kind: "Kustomization", Name: "shop"}}, event: eventOf("shop", "info", ""), want: true},
		"OwnNamespace": {reason: "without a namespace it is the Alert's", event: elsewhere},
		"Namespace": {
			reason: "another namespace is named", sources: []reference{{Kind: "Kustomization", Name: "*", Namespace: "others"}}, event: elsewhere, want: true,
		},
		"NoCrossNamespace": {
			reason:  "the flag refuses other namespaces",
			sources: []reference{{Kind: "Kustomization", Name: "*", Namespace: "others"}}, event: elsewhere, no: true,
		},
		"OwnNamespaceNamed": {
			reason:  "the flag lets the own namespace pass",
			sources: []reference{{Kind: "Kustomization", Name: "*", Namespace: "apps"}}, event: eventOf("shop", "info", ""), no: true, want: true,
		},
		"Labels": {
			reason:  "all labels are there",
			sources: []reference{{Kind: "Kustomization", Name: "*", MatchLabels: map[string]string{"team": "shop", "stage": "prod"}}},
			event:   eventOf("shop", "info", ""), want: true,
		},
		"OtherLabel": {
			reason:  "one label has another value",
			sources: []reference{{Kind: "Kustomization", Name: "*", MatchLabels: map[string]string{"team": "shop", "stage": "dev"}}},
			event:   eventOf("shop", "info", ""),
		},
		"EmptyLabel": {
			reason:  "a label that is missing is not one with an empty value",
			sources: []reference{{Kind: "Kustomization", Name: "*", MatchLabels: map[string]string{"zone": ""}}}, event: eventOf("shop", "info", ""),
		},
		"ErrorsOnly":     {reason: "info is not an error", change: func(s *spec) { s.EventSeverity = "error" }, event: eventOf("shop", "info", "")},
		"Error":          {reason: "an error is one", change: func(s *spec) { s.EventSeverity = "error" }, event: eventOf("shop", "error", ""), want: true},
		"InfoHasErrors":  {reason: "info filters nothing", change: func(s *spec) { s.EventSeverity = "info" }, event: eventOf("shop", "error", ""), want: true},
		"Trace":          {reason: "traces are for nobody", event: eventOf("shop", "trace", "")},
		"Suspended":      {reason: "spec.suspend", change: func(s *spec) { s.Suspend = true }, event: eventOf("shop", "error", "")},
		"Included":       {reason: "one expression matches", change: func(s *spec) { s.InclusionList = []string{"x", ".*succeeded.*"} }, event: eventOf("shop", "info", "it succeeded"), want: true},
		"NotIncluded":    {reason: "no expression matches", change: func(s *spec) { s.InclusionList = []string{"succeeded"} }, event: eventOf("shop", "info", "failed")},
		"Excluded":       {reason: "an expression matches", change: func(s *spec) { s.ExclusionList = []string{"waiting.*socket"} }, event: eventOf("shop", "error", "waiting on socket")},
		"ExclusionWins":  {reason: "exclusion is stronger", change: func(s *spec) { s.InclusionList, s.ExclusionList = []string{"a"}, []string{"b"} }, event: eventOf("shop", "info", "ab")},
		"WrongInclusion": {reason: "what is no expression includes nothing", change: func(s *spec) { s.InclusionList = []string{"("} }, event: eventOf("shop", "info", "(")},
		"Long":           {reason: "what people write sees all of the longest message", change: func(s *spec) { s.ExclusionList = slices.Repeat([]string{"waiting.*socket", `\x00b$`}, 10) }, event: eventOf("shop", "info", long)},
		"Costly":         {reason: "what would take ten seconds sees the beginning", change: func(s *spec) { s.ExclusionList = costly }, event: eventOf("shop", "info", long), want: true},
		"CostlyShort":    {reason: "and all of what is short", change: func(s *spec) { s.ExclusionList = costly }, event: eventOf("shop", "info", "a\x00b")},
		"WrongExclusion": {reason: "what is no expression excludes nothing", change: func(s *spec) { s.ExclusionList = []string{"("} }, event: eventOf("shop", "info", "("), want: true},
	} {
		t.Run(name, func(t *testing.T) {
			rule, _ := Compile(alertOf(tt.change, tt.sources...))
			if got := rule.Wants(tt.event, tt.no); got != tt.want {
				t.Errorf("%s: got %v", tt.reason, got)
			}
		})
	}
}

func TestCompileTells(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		list   []string
		want   string
	}{
		"Fine":    {reason: "nothing is wrong", list: []string{"a.*b"}},
		"Wrong":   {reason: "the expression is none", list: []string{"a", "("}, want: "spec.exclusionList[1]"},
		"Long":    {reason: "the expression takes much memory", list: []string{strings.Repeat("a", mostExpressionBytes+1)}, want: "more than 1024 bytes"},
		"Huge":    {reason: "a repetition of repetitions takes much memory", list: []string{"((a{100}){100}){100}"}, want: "spec.exclusionList[0]"},
		"Repeats": {reason: "a short text repeats a thousand times", list: []string{"(?:" + strings.Repeat(".?", 500) + "){1000}"}, want: "repeats too much"},
		"All":     {reason: "each repeats little, and all of them much", list: slices.Repeat([]string{"a{1000}"}, 100), want: "spec.exclusionList[20]"},
		"Many":    {reason: "there are many", list: make([]string, 10_000), want: "more than 100 expressions"},
	} {
		t.Run(name, func(t *testing.T) {
			_, wrong := Compile(alertOf(func(s *notificationv1beta3.AlertSpec) { s.ExclusionList = tt.list }))
			if tt.want == "" {
				if len(wrong) > 0 {
					t.Errorf("%s: %v", tt.reason, wrong)
				}
				return
			}
			if len(wrong) != 1 || !strings.Contains(wrong[0].Error(), tt.want) {
				t.Errorf("%s: got %v, want one with %q", tt.reason, wrong, tt.want)
			}
		})
	}
}
