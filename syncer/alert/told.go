package alert

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"
	"github.com/fluxcd/pkg/apis/meta"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// mostTold bounds how many events are remembered. The oldest are forgotten first: that may
// tell something twice, and loses nothing.
const mostTold = 10_000

// State is what an event says of its object, as far as it makes another event news.
type State string

// States of events.
const (
	// Failing: it is an error.
	Failing State = "failing"
	// Well: it is none, and what failed before does so no more.
	Well State = "well"
	// UnderWay: it is none, and a commit is not everywhere yet.
	UnderWay State = "under way"
	// Unchanged: it says that something is tried or waits, and neither that what failed
	// is well, nor that what was well fails.
	Unchanged State = ""
)

// StateOf is what an event says of its object to those who are told what changes. Each
// attempt may have an event of what it does, and of what it takes back: if these were states, an
// object that fails at each attempt would be told each time.
func StateOf(e *eventv1.Event) State {
	switch {
	case e.Severity == eventv1.EventSeverityError:
		return Failing
	case goesOn(e.Reason), isRemedy(e.Reason), Aside(e):
		return Unchanged
	}
	return Well
}

// EndsIncident reports whether an event says that what failed of its object does so no more, be it
// for the time that it takes to fail again.
func EndsIncident(e *eventv1.Event) bool {
	return e.Severity != eventv1.EventSeverityError && !goesOn(e.Reason) && !Aside(e)
}

// Aside reports whether an event that is no error says nothing of what fails of its object: our own controllers
// tell of a failure once, and go on to tell of what else happens meanwhile.
func Aside(e *eventv1.Event) bool {
	switch e.Reason {
	case "Seeded", "Resumed", "SnapshotRecalled", "RolloutBegan", "WavePassed", "WaveApproved",
		v1alpha1.ReasonHandOverPending, v1alpha1.ReasonClusterNotReady:
		return true
	case v1alpha1.ReasonRolloutPending:
		// Of a Child it is one layer of several. A Layer says it once none of its children fails.
		return e.InvolvedObject.Kind != "Layer"
	case v1alpha1.ReasonManagedElsewhere:
		// Of a Kustomization it is one Cluster of what it applies; of a Child it is all of it.
		return e.InvolvedObject.Kind == kustomizev1.KustomizationKind
	}
	return false
}

// AspectOf is what of its object an event tells of, where that is right or wrong beside all else; empty for
// the object itself.
func AspectOf(e *eventv1.Event) string {
	if e.InvolvedObject.Kind == "Rollout" {
		// People may give their own objects metadata of any name. What comes from an agent still has the group.
		if kind := cmp.Or(e.Metadata[v1alpha1.Group+"/"+v1alpha1.MetaConditionKey], e.Metadata[v1alpha1.MetaConditionKey]); kind != "" {
			return strings.ToLower(kind)
		}
	}
	switch e.Reason {
	case v1alpha1.ReasonCredentialsExpiring, v1alpha1.ReasonCredentialsLapsed, "CredentialsRenewed":
		return "credentials"
	case v1alpha1.ReasonKubeconfigNotRenewed, "KubeconfigRenewed":
		return "kubeconfig"
	case v1alpha1.ReasonProfileNotOurs, "ProfileRecovered":
		return "profile"
	}
	return ""
}

// isRemedy reports whether a reason is that of what is done about a failure. It comes with the same
// failure again and again.
func isRemedy(reason string) bool {
	switch reason {
	case "DriftCorrected", "PendingRelease", helmv2.RollbackSucceededReason, helmv2.UninstallSucceededReason:
		return true
	}
	return false
}

// StatusOf is what an event says of a commit, for those who show nothing but the last
// state: what is tried again after a failure takes the place of that failure.
func StatusOf(e *eventv1.Event) State {
	switch {
	case AspectOf(e) != "":
		return Unchanged // it is beside the commit
	case e.Severity == eventv1.EventSeverityError:
		return Failing
	case e.Reason == meta.HealthCheckCanceledReason, e.Reason == helmv2.RollbackSucceededReason, e.Reason == helmv2.UninstallSucceededReason:
		// Nobody knows whether the commit is well, or it failed and was taken back.
		return Unchanged
	case goesOn(e.Reason):
		return UnderWay
	}
	switch e.Reason {
	case "RolloutSuperseded", "RemovalApproved", "PruneApproved", "ProofPublished", v1alpha1.ReasonHandOverPending, v1alpha1.ReasonManagedElsewhere:
		// They are about another commit, or about none, and may come with the newest.
		return Unchanged
	case v1alpha1.ReasonRolloutPending, v1alpha1.ReasonSuspended, v1alpha1.ReasonChildrenNotReady, v1alpha1.ReasonAwaitingApproval,
		"Resumed", "RolloutBegan", "RolloutResumed", "WavePassed", "WaveApproved":
		return UnderWay
	}
	return Well
}

// goesOn reports whether a reason that is no error is that of a run that goes on, waits or
// is given up for the next one.
func goesOn(reason string) bool {
	return reason == meta.ProgressingReason || reason == meta.DependencyNotReadyReason || reason == meta.HealthCheckCanceledReason
}

// Told remembers what was told within an interval, by Flux's rule: object, message and
// metadata. Unlike Flux's controllers ours tell of a failure when it begins, and not at
// each attempt. So an event is news again after another one said otherwise of its object,
// or the last state would be the one that nobody is told. It is not safe for concurrent use.
type Told struct {
	interval time.Duration
	stateOf  func(*eventv1.Event) State
	until    map[[sha256.Size]byte]time.Time
	order    []told
	objects  map[object]map[[sha256.Size]byte]State
}

// object is whose events were told.
type object struct{ kind, namespace, name string }

type told struct {
	of  object
	key [sha256.Size]byte
	at  time.Time
}

// NewTold remembers for an interval. With none, nothing is remembered. stateOf says what
// makes an event news again.
func NewTold(interval time.Duration, stateOf func(*eventv1.Event) State) *Told {
	return &Told{interval: interval, stateOf: stateOf, until: map[[sha256.Size]byte]time.Time{}, objects: map[object]map[[sha256.Size]byte]State{}}
}

// Note notes what an event says of its object, whether anybody is told of it or not: who is
// told errors alone is to be told of one that began again.
func (t *Told) Note(e *eventv1.Event) {
	of, state := objectOf(e), t.stateOf(e)
	if state == Unchanged {
		return
	}
	for key, was := range t.objects[of] {
		if was != state && was != Unchanged {
			t.forget(of, key)
		}
	}
}

// Again reports whether an event was told within the interval before now, and remembers it
// if not.
func (t *Told) Again(e *eventv1.Event, now time.Time) bool {
	if t.interval <= 0 {
		return false
	}
	t.Note(e)
	for len(t.order) > 0 && (!now.Before(t.order[0].at) || len(t.order) >= mostTold) {
		// What was forgotten and told again has a later place as well.
		if first := t.order[0]; t.until[first.key].Equal(first.at) {
			t.forget(first.of, first.key)
		}
		t.order = t.order[1:]
	}
	of, key := objectOf(e), identify(e)
	if _, ok := t.until[key]; ok {
		return true
	}
	until := now.Add(t.interval)
	t.until[key] = until
	t.order = append(t.order, told{of, key, until})
	if t.objects[of] == nil {
		t.objects[of] = map[[sha256.Size]byte]State{}
	}
	t.objects[of][key] = t.stateOf(e)
	return false
}

func (t *Told) forget(of object, key [sha256.Size]byte) {
	delete(t.until, key)
	delete(t.objects[of], key)
	if len(t.objects[of]) == 0 {
		delete(t.objects, of)
	}
}

func objectOf(e *eventv1.Event) object {
	return object{e.InvolvedObject.Kind, e.InvolvedObject.Namespace, e.InvolvedObject.Name}
}

func identify(e *eventv1.Event) (key [sha256.Size]byte) {
	h := sha256.New()
	// Lengths keep two lists of words apart that are the same when they are joined.
	write := func(text string) { fmt.Fprintf(h, "%d:%s", len(text), text) }
	for _, text := range []string{e.InvolvedObject.Kind, e.InvolvedObject.Namespace, e.InvolvedObject.Name, e.Message} {
		write(text)
	}
	for _, k := range slices.Sorted(maps.Keys(e.Metadata)) {
		write(k)
		write(e.Metadata[k])
	}
	h.Sum(key[:0])
	return key
}
