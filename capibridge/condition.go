package capibridge

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// condition of contract v1beta1 or v1beta2. Only the former has a severity,
// which tells what failed, Error, from what goes on, Info and Warning.
type condition struct {
	kind     string
	status   metav1.ConditionStatus
	severity string
	reason   string
	message  string
}

func (c condition) failed() bool {
	return c.status == metav1.ConditionFalse && c.severity == "Error"
}

type conditions []condition

// conditionsOf splits the conditions of an object by the contract that they are
// of. The version of the object does not tell: a provider's v1beta2 may keep
// contract v1beta1, and while the contracts change each version has a place for
// the conditions of the other.
func conditionsOf(u *unstructured.Unstructured) (current, deprecated conditions) {
	read := func(fields ...string) (all conditions, severe bool) {
		for _, item := range listAt(u.Object, fields...) {
			m, _ := item.(map[string]any)
			c := condition{status: metav1.ConditionUnknown}
			c.kind, _ = m["type"].(string)
			if status, ok := m["status"].(string); ok {
				c.status = metav1.ConditionStatus(status)
			}
			c.severity, _ = m["severity"].(string)
			c.reason, _ = m["reason"].(string)
			c.message, _ = m["message"].(string)
			if c.kind != "" {
				all = append(all, c)
				severe = severe || c.severity != ""
			}
		}
		return all, severe
	}
	plain, severe := read("status", "conditions")
	below, _ := read("status", "v1beta2", "conditions")
	former, _ := read("status", "deprecated", "v1beta1", "conditions")
	switch {
	case len(below) > 0:
		return below, plain
	case len(former) > 0:
		return plain, former
	case severe:
		return nil, plain
	}
	return plain, plain
}

func (cs conditions) find(kind string) (condition, bool) {
	for _, c := range cs {
		if c.kind == kind {
			return c, true
		}
	}
	return condition{kind: kind, status: metav1.ConditionUnknown}, false
}

func (cs conditions) status(kind string) metav1.ConditionStatus {
	c, _ := cs.find(kind)
	return c.status
}

func (cs conditions) is(kind string) bool { return cs.status(kind) == metav1.ConditionTrue }

// failureOf is a failure that a provider of contract v1beta1 does not retry. It is in a
// field for that, or in conditions of severity Error. The conditions that are named sum
// up others, so they come last.
func failureOf(u *unstructured.Unstructured, deprecated conditions, summaries ...string) Failure {
	for _, at := range [][]string{{"status"}, {"status", "deprecated", "v1beta1"}} {
		f := Failure{
			Reason:  stringAt(u, append(append([]string{}, at...), "failureReason")...),
			Message: plainly(stringAt(u, append(append([]string{}, at...), "failureMessage")...)),
		}
		if !f.IsZero() {
			return f
		}
	}
	var summary Failure
	for _, c := range deprecated {
		if !c.failed() {
			continue
		}
		f := Failure{Reason: c.reason, Message: plainly(c.message)}
		if f.IsZero() {
			f.Reason = c.kind
		}
		if !slices.Contains(summaries, c.kind) {
			return f
		}
		if summary.IsZero() {
			summary = f
		}
	}
	return summary
}
