package alert

import (
	"slices"
	"strings"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"

	notificationv1beta3 "github.com/fluxcd/notification-controller/api/v1beta3"
)

// summaryKey is the key of metadata that providers show above all others.
const summaryKey = "summary"

// metadataOf puts together what is told beside the message of an event. From the lowest
// precedence to the highest: annotations of the object in the group of events,
// spec.eventMetadata and spec.summary of the Alert, and what the controller says. Their
// keys are without the group. conflicts has the keys that several of them have, sorted.
func metadataOf(a *notificationv1beta3.Alert, e *eventv1.Event) (metadata map[string]string, conflicts []string) {
	metadata = map[string]string{}
	set := func(key, value string) {
		if was, ok := metadata[key]; ok && was != value {
			conflicts = append(conflicts, key)
		}
		metadata[key] = value
	}
	ofController := e.InvolvedObject.GroupVersionKind().Group + "/"
	for key, value := range e.Metadata {
		if key, ok := strings.CutPrefix(key, eventv1.Group+"/"); ok {
			set(key, value)
		}
	}
	for key, value := range a.Spec.EventMetadata {
		set(key, value)
	}
	if a.Spec.Summary != "" {
		set(summaryKey, a.Spec.Summary)
	}
	for key, value := range e.Metadata {
		// One without a group is of a program that is none of Flux's own.
		if own, ok := strings.CutPrefix(key, ofController); ok {
			set(own, value)
		} else if !strings.Contains(key, "/") {
			set(key, value)
		}
	}
	// It tells two events apart, and nothing to people.
	delete(metadata, eventv1.MetaTokenKey)
	slices.Sort(conflicts)
	return metadata, slices.Compact(conflicts)
}

// statusOnly reports whether an event is for commit statuses alone.
func statusOnly(metadata map[string]string) bool {
	return metadata[eventv1.MetaCommitStatusKey] == eventv1.MetaCommitStatusUpdateValue
}
