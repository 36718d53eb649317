package worker

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/cascade-gitops/cascade/syncer/footprint"
)

// Command is the argument that makes a program a worker.
const Command = "worker"

// Task is work of one kind, done in a worker. Its panics become errors.
type Task func(request []byte, ask Ask) ([]byte, error)

// Ask asks the program, from within a task. An error is what the program said, or
// that it is gone.
type Ask func(question string, body []byte) ([]byte, error)

// Tasks by name. A name has at most 255 bytes.
type Tasks map[string]Task

// deepestStack bounds the stack of a goroutine in a worker. Go's own bound is a
// gigabyte.
const deepestStack = 32 << 20

// Become makes a process that a Pool started its worker, and does not return then.
// Any other process goes on. It is called first thing, before the program reads its
// arguments.
func Become(args []string, tasks Tasks) {
	if len(args) < 2 || args[1] != Command {
		return
	}
	if err := serve(args[2:], tasks, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "worker: %v\n", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve does tasks until the program closes the pipe.
func serve(args []string, tasks Tasks, in io.Reader, out io.Writer) error {
	memory, cpu, err := parseLimits(args)
	if err != nil {
		return err
	}
	runtime.GOMAXPROCS(min(2, runtime.NumCPU()))
	debug.SetMaxStack(deepestStack)
	// Garbage is collected more often before the kernel refuses.
	debug.SetMemoryLimit(memory - memory/8)
	// What starting needed is not needed again, and later nothing can be opened.
	footprint.Release()
	trouble := ""
	if err := confine(memory); err != nil {
		trouble = err.Error()
	}
	endInTime()
	if err := writeFrame(out, frameHello, []byte(trouble)); err != nil {
		return err
	}
	ask := func(question string, body []byte) ([]byte, error) {
		if err := writeFrame(out, frameQuestion, name(question), body); err != nil {
			return nil, err
		}
		kind, answer, err := readFrame(in)
		switch {
		case err != nil:
			return nil, err
		case kind == frameRefusal:
			return nil, errors.New(string(answer))
		case kind != frameAnswer:
			return nil, fmt.Errorf("unexpected message %q", kind)
		}
		return answer, nil
	}
	for {
		kind, body, err := readFrame(in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot read a request: %w", err)
		}
		if kind != frameRequest {
			return fmt.Errorf("unexpected message %q", kind)
		}
		if err := allowTime(cpu); err != nil {
			return fmt.Errorf("cannot limit processor time: %w", err)
		}
		kind = frameResult
		result, err := perform(tasks, body, ask)
		if err != nil {
			kind, result = frameFailure, []byte(err.Error())
		}
		if err := writeFrame(out, kind, result); errors.Is(err, errFrameSize) {
			err = writeFrame(out, frameFailure, []byte(err.Error()))
			if err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
	}
}

func perform(tasks Tasks, request []byte, ask Ask) (result []byte, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panicked: %v", r)
		}
	}()
	task, body, err := cutName(request)
	if err != nil {
		return nil, err
	}
	f := tasks[task]
	if f == nil {
		return nil, fmt.Errorf("there is no task %q", task)
	}
	return f(body, ask)
}

func limitArgs(l Limits) []string {
	return []string{strconv.FormatInt(l.Memory, 10), l.Time.String()}
}

func parseLimits(args []string) (memory int64, cpu time.Duration, err error) {
	if len(args) != 2 {
		return 0, 0, errors.New("it is started by the agent only")
	}
	if memory, err = strconv.ParseInt(args[0], 10, 64); err != nil {
		return 0, 0, fmt.Errorf("cannot read the limit of memory: %w", err)
	}
	if cpu, err = time.ParseDuration(args[1]); err != nil {
		return 0, 0, fmt.Errorf("cannot read the limit of time: %w", err)
	}
	return memory, cpu, nil
}
