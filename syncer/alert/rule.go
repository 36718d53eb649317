package alert

import (
	"fmt"
	"regexp"

	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	notificationv1beta3 "github.com/fluxcd/notification-controller/api/v1beta3"
	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"

	"github.com/cascade-gitops/cascade/syncer/pattern"
)

// Bounds of what an Alert may ask for. Each expression takes memory for as long as the Alert is
// there, some 40 bytes a step, and a pass over all of its steps for each character of a text.
const (
	mostExpressions     = 100
	mostExpressionBytes = 1 << 10
	mostSteps           = 20_000 // of all expressions of a list
	// mostWork bounds the steps times the bytes of one message, at some 10 ns: lists of 500 steps see
	// all of the longest message, and the largest ones its first 500 bytes.
	mostWork = 20_000_000
)

// Event is what happened to an object, with the labels that the object had.
type Event struct {
	eventv1.Event
	Labels map[string]string
}

// Rule is an Alert with its expressions compiled. It is safe for concurrent use.
type Rule struct {
	Alert            *notificationv1beta3.Alert
	include, exclude []*regexp.Regexp
	// steps are those of both lists.
	steps int
}

// Compile makes the rule of an Alert, which must not change after that. wrong has an error
// for each expression that is left out: one of spec.inclusionList includes nothing, and
// one of spec.exclusionList excludes nothing.
func Compile(a *notificationv1beta3.Alert) (rule *Rule, wrong []error) {
	rule = &Rule{Alert: a}
	compile := func(field string, texts []string) []*regexp.Regexp {
		var all []*regexp.Regexp
		steps := 0
		for i, text := range texts {
			if i == mostExpressions {
				wrong = append(wrong, fmt.Errorf("cannot use spec.%s: it has more than %d expressions", field, mostExpressions))
				break
			}
			if len(text) > mostExpressionBytes {
				wrong = append(wrong, fmt.Errorf("cannot use spec.%s[%d]: the expression has more than %d bytes", field, i, mostExpressionBytes))
				continue
			}
			compiled, n, err := pattern.Compile(text)
			if err != nil {
				wrong = append(wrong, fmt.Errorf("cannot use spec.%s[%d]: %w", field, i, err))
				continue
			}
			if steps += n; steps > mostSteps {
				wrong = append(wrong, fmt.Errorf("cannot use spec.%s[%d] and what follows: the expressions repeat too much: they are more than %d steps together", field, i, mostSteps))
				break
			}
			all = append(all, compiled)
			rule.steps += n
		}
		return all
	}
	rule.include = compile("inclusionList", a.Spec.InclusionList)
	rule.exclude = compile("exclusionList", a.Spec.ExclusionList)
	return rule, wrong
}

// Steps is what the expressions of an Alert have together, once they are compiled: some 40 bytes each.
func Steps(a *notificationv1beta3.Alert) int {
	all := 0
	for _, texts := range [][]string{a.Spec.InclusionList, a.Spec.ExclusionList} {
		of := 0
		for _, text := range texts[:min(len(texts), mostExpressions)] {
			if n, err := pattern.Steps(text); err == nil {
				of += n
			}
		}
		all += min(of, mostSteps)
	}
	return all
}

// Bare is the rule of an Alert whose expressions are all left out, as if each were wrong.
func Bare(a *notificationv1beta3.Alert) *Rule { return &Rule{Alert: a} }

// Wants reports whether the Alert tells of an event. With noCrossNamespaceRefs it tells of
// objects of its own namespace only.
func (r *Rule) Wants(e *Event, noCrossNamespaceRefs bool) bool {
	spec, text := &r.Alert.Spec, e.Message
	if r.steps > 0 {
		text = text[:min(len(text), mostWork/r.steps)]
	}
	switch {
	case spec.EventSeverity == eventv1.EventSeverityError && e.Severity != eventv1.EventSeverityError:
		return false
	case !r.Concerns(e, noCrossNamespaceRefs):
		return false
	case len(spec.InclusionList) > 0 && !matches(r.include, text):
		return false
	}
	return !matches(r.exclude, text)
}

// Concerns reports whether an event is about an object that the Alert tells of, be it one that it does not want.
func (r *Rule) Concerns(e *Event, noCrossNamespaceRefs bool) bool {
	switch {
	case r.Alert.Spec.Suspend, !r.Alert.DeletionTimestamp.IsZero(), e.Severity == eventv1.EventSeverityTrace:
		return false
	case noCrossNamespaceRefs && e.InvolvedObject.Namespace != r.Alert.Namespace:
		return false
	}
	return r.names(e)
}

// names reports whether one of spec.eventSources names the object.
func (r *Rule) names(e *Event) bool {
	for i := range r.Alert.Spec.EventSources {
		if selects(&r.Alert.Spec.EventSources[i], r.Alert.Namespace, e) {
			return true
		}
	}
	return false
}

// selects reports whether a reference of an Alert in a namespace names an object. Labels
// count for a reference to all names only, as the API says.
func selects(ref *notificationv1.CrossNamespaceObjectReference, namespace string, e *Event) bool {
	if ref.Namespace != "" {
		namespace = ref.Namespace
	}
	if ref.Kind != e.InvolvedObject.Kind || namespace != e.InvolvedObject.Namespace {
		return false
	}
	if ref.Name != "*" {
		return ref.Name == e.InvolvedObject.Name
	}
	for name, value := range ref.MatchLabels {
		if is, ok := e.Labels[name]; !ok || is != value {
			return false
		}
	}
	return true
}

func matches(expressions []*regexp.Regexp, text string) bool {
	for _, e := range expressions {
		if e.MatchString(text) {
			return true
		}
	}
	return false
}
