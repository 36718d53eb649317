package testbed

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

func TestSeen(t *testing.T) {
	events := make(chan watch.Event)
	seen := Follow(events, func(event watch.Event, was func(string) int) (string, int, error) {
		cm, ok := event.Object.(*corev1.ConfigMap)
		if !ok {
			return "", 0, errors.New("it is none")
		}
		return cm.Name, was(cm.Name) + 1, nil
	})
	twice := func(states map[string]int) bool { return states["a"] == 2 }
	waiting := make(chan error)
	go func() { waiting <- seen.Await(t.Context(), time.Minute, time.Millisecond, twice) }()
	for _, name := range []string{"a", "b", "a"} {
		events <- watch.Event{Type: watch.Modified, Object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}}
	}
	if err := <-waiting; err != nil {
		t.Errorf("what came is not seen: %v", err)
	}
	never := func(map[string]int) bool { return false }
	if err := seen.Await(t.Context(), time.Millisecond, 0, never); !errors.Is(err, errTooLate) {
		t.Errorf("what does not come within the limit is %v", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := seen.Await(gone, time.Minute, time.Minute, never); !errors.Is(err, context.Canceled) {
		t.Errorf("what nobody waits for any more is %v", err)
	}
	events <- watch.Event{Type: watch.Error, Object: &metav1.Status{}}
	close(events)
	if err := seen.Await(t.Context(), time.Minute, 0, never); err == nil || !strings.Contains(err.Error(), "it is none") {
		t.Errorf("the end of the watch is %v", err)
	}
}
