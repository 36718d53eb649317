package worker

import (
	"errors"
	"fmt"
	"strings"
)

// ErrLost: workers died while they did the job, and not by what the job does. It may
// pass by itself.
var ErrLost = errors.New("the worker was lost")

// ErrUnavailable: there can be no worker now. It may pass by itself.
var ErrUnavailable = errors.New("no worker is available")

// Exceeded: a job needs more than a worker may have. It will the next time, too, unless
// Late is set.
type Exceeded struct {
	// What was exceeded, and what to do.
	What string
	// Late: the worker was not done in time, which may be because of what else runs.
	Late bool
	// more is set if it may do with more memory or time.
	more bool
}

func (e *Exceeded) Error() string { return e.What }

// Lasting reports whether an error of Run comes again with the same input, as far as
// the worker is concerned.
func Lasting(err error) bool {
	var exceeded *Exceeded
	if errors.As(err, &exceeded) {
		return !exceeded.Late
	}
	var failed *TaskError
	return errors.As(err, &failed)
}

// TaskError is the error of the task itself.
type TaskError struct{ Text string }

func (e *TaskError) Error() string { return e.Text }

const remedy = "; make it smaller or simpler, or raise %s of the agent"

func exceedsMemory(l Limits) error {
	return &Exceeded{more: true, What: fmt.Sprintf("it needs more than %d MiB of memory"+remedy, l.Memory>>20, "--worker-memory")}
}

func exceedsTime(l Limits) error {
	return &Exceeded{more: true, What: fmt.Sprintf("it needs more than %s of a processor"+remedy, l.Time, "--worker-time")}
}

func exceedsPatience(l Limits) error {
	return &Exceeded{Late: true, more: true, What: fmt.Sprintf("it was not done within %s"+remedy, l.patience(), "--worker-time")}
}

func exceedsFrame() error {
	return &Exceeded{What: fmt.Sprintf("it makes or reads more than %d MiB at once; make it smaller", MaxFrame>>20)}
}

// lateWords are the last ones of a worker that used up its time of a processor.
const lateWords = "SIGXCPU"

// verdict is what the last words of a worker say of the job. It is nil for a death
// that is not the job's doing.
func (l Limits) verdict(words string) error {
	has := func(texts ...string) bool {
		for _, t := range texts {
			if strings.Contains(words, t) {
				return true
			}
		}
		return false
	}
	switch {
	case has(lateWords):
		return exceedsTime(l)
	case has("stack overflow", "goroutine stack exceeds"):
		return &Exceeded{What: fmt.Sprintf("it goes deeper than a stack of %d MiB; look for something that contains itself", deepestStack>>20)}
	// No room for a thread is no want of memory, unless the number says so: the pod may be at
	// its limit of processes, which passes.
	case has("out of memory", "cannot allocate memory", "failed to allocate", "errno=12)", "error code: 12", "errno: 12",
		// Go's runtime itself, which got no memory for its notes: what a task does wrong is a panic.
		"SIGSEGV: segmentation violation"):
		return exceedsMemory(l)
	}
	return nil
}
