package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fault is one way in which an API server, or what is on the way to it, fails.
type fault string

// Faults of requests. Those that are lost are carried out, and only the answer is not
// seen.
const (
	noFault     fault = ""
	conflict    fault = "409"
	throttled   fault = "429"
	serverError fault = "500"
	hung        fault = "timeout"
	hungAnswer  fault = "timeout after the commit"
	cutOff      fault = "cut"
	cutAnswer   fault = "cut after the commit"
	cutWatch    fault = "watch cut"
	stale       fault = "stale list"
	gone        fault = "watch 410"
)

// FaultOptions say how an API server fails.
type FaultOptions struct {
	// Share of all requests that meet a fault, from 0 to 1.
	Share float64
	// Random chooses them; Faults is its only user.
	Random *rand.Rand
	// RetryAfter is what answers of 429 say, in whole seconds.
	RetryAfter time.Duration
	// Hang is how long a request is not answered at most, before its connection is cut.
	// Most are cut much earlier: half of them within a sixteenth.
	Hang time.Duration
	// Stale is how old a stale list is at most, if the list was asked for before.
	Stale time.Duration
	// Now is the clock.
	Now func() time.Time
}

// Faults are hooks that let a share of the requests fail.
type Faults struct {
	options FaultOptions
	ended   chan struct{}

	mu       sync.Mutex
	overload bool
	counts   map[string]int
	requests int
	lists    map[string][]list
}

// list is an answer of some time.
type list struct {
	at     time.Time
	header http.Header
	body   []byte
}

// NewFaults makes hooks.
func NewFaults(o FaultOptions) *Faults {
	return &Faults{options: o, ended: make(chan struct{}), counts: map[string]int{}, lists: map[string][]list{}}
}

// Overload lets every request fail with 429, from now on or no more.
func (f *Faults) Overload(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.overload = on
}

// Counts are how often each fault was met.
func (f *Faults) Counts() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.counts)
}

// Requests is how many there were, those that failed among them.
func (f *Faults) Requests() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.requests
}

// Before implements Hooks.
func (f *Faults) Before(r *Request) http.Handler {
	r.fault = f.draw(r)
	return f.meet(r)
}

// meet answers a request that fails before it goes on; nil if it goes on.
func (f *Faults) meet(r *Request) http.Handler {
	switch r.fault {
	case conflict:
		return refuse(http.StatusConflict, metav1.StatusReasonConflict, "the object has been modified; please apply your changes to the latest version and try again", 0)
	case throttled:
		return refuse(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "too many requests, please try again later", int(f.options.RetryAfter/time.Second))
	case serverError:
		return refuse(http.StatusInternalServerError, metav1.StatusReasonInternalError, "etcdserver: leader changed", 0)
	case hung:
		return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			f.wait(r)
			cut(r)
		})
	case cutOff:
		return Cut
	case gone:
		return http.HandlerFunc(expired)
	case stale:
		old, _ := f.oldest(r.Path)
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			maps.Copy(w.Header(), old.header)
			_, _ = w.Write(old.body) // a client that has gone
		})
	}
	return nil
}

// draw chooses whether a request fails, and how, among the faults that can meet it.
func (f *Faults) draw(r *Request) fault {
	_, listed := f.oldest(r.Path)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests++
	met := noFault
	switch {
	case f.overload:
		met = throttled
	case f.options.Random.Float64() < f.options.Share:
		can := []fault{throttled, serverError, hung, cutOff}
		switch r.Verb {
		case "watch":
			can = append(can, cutWatch, cutWatch, gone, gone)
		case "list":
			if listed {
				can = append(can, stale, stale)
			}
		case "create", "update", "patch", "delete":
			can = append(can, conflict, hungAnswer, cutAnswer)
		}
		met = can[f.options.Random.IntN(len(can))]
	}
	if met != noFault {
		f.counts[string(met)]++
	}
	return met
}

// After implements Hooks.
func (f *Faults) After(r *Request, answer *http.Response) error {
	switch r.fault {
	case hungAnswer:
		f.wait(answer.Request)
		return errCut
	case cutAnswer:
		return errCut
	case cutWatch:
		body := answer.Body
		timer := time.AfterFunc(f.time(), func() { _ = body.Close() }) // the copy of the stream ends with an error
		answer.Body = &timed{ReadCloser: body, timer: timer}
	}
	if r.Verb == "list" && answer.StatusCode == http.StatusOK {
		return f.remember(r.Path, answer)
	}
	return nil
}

// timed is a stream that a timer ends.
type timed struct {
	io.ReadCloser
	timer *time.Timer
}

func (t *timed) Close() error {
	t.timer.Stop()
	return t.ReadCloser.Close()
}

// End cuts what hangs. It is called once, when the hooks are not in use any more.
func (f *Faults) End() { close(f.ended) }

// wait until the time is over, or the client has given up.
func (f *Faults) wait(r *http.Request) {
	timer := time.NewTimer(f.time())
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-f.ended:
	case <-r.Context().Done():
	}
}

// time is how long something lasts.
func (f *Faults) time() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Duration(float64(f.options.Hang) * math.Pow(f.options.Random.Float64(), 4))
}

// remember keeps the answer of a list, and gives it to the client as well.
func (f *Faults) remember(path string, answer *http.Response) error {
	body, err := io.ReadAll(answer.Body)
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		return fmt.Errorf("cannot read list %s: %w", path, err)
	}
	answer.Body = io.NopCloser(bytes.NewReader(body))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists[path] = append(f.fresh(path), list{at: f.options.Now(), header: answer.Header.Clone(), body: body})
	return nil
}

// oldest is the list that a stale answer has.
func (f *Faults) oldest(path string) (list, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists[path] = f.fresh(path)
	if len(f.lists[path]) == 0 {
		delete(f.lists, path)
		return list{}, false
	}
	return f.lists[path][0], true
}

// fresh drops what is too old to be answered.
func (f *Faults) fresh(path string) []list {
	all := f.lists[path]
	for len(all) > 0 && f.options.Now().Sub(all[0].at) > f.options.Stale {
		all = all[1:]
	}
	return all
}

// refuse answers with a status, as the API server does.
func refuse(code int, reason metav1.StatusReason, message string, retryAfter int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if retryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
		}
		w.WriteHeader(code)
		// A client that has gone needs no answer.
		_ = json.NewEncoder(w).Encode(status(int32(code), reason, message, retryAfter))
	})
}

// expired answers a watch with the one event that it is too old.
func expired(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"type": "ERROR", "object": status(http.StatusGone, metav1.StatusReasonExpired, "too old resource version", 0),
	})
}

func status(code int32, reason metav1.StatusReason, message string, retryAfter int) metav1.Status {
	s := metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: code, Reason: reason, Message: message,
	}
	if retryAfter > 0 {
		s.Details = &metav1.StatusDetails{RetryAfterSeconds: int32(retryAfter)}
	}
	return s
}
