package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"
)

// startTime is how long a worker may take until it is ready.
const startTime = 30 * time.Second

// mostWords is how much is kept of what a dying worker says.
const mostWords = 8 << 10

// process is a worker, as the program sees it. One goroutine uses it at a time; kill
// may be called by others.
type process struct {
	limits Limits
	in     io.WriteCloser
	out    io.ReadCloser
	kill   func()
	// ended is closed when the process is gone. words and err are set then.
	ended chan struct{}
	words string
	err   error
}

// start starts a worker, and waits until it is ready.
func start(ctx context.Context, program string, limits Limits) (*process, error) {
	cmd := exec.Command(program, append([]string{Command}, limitArgs(limits)...)...) //nolint:gosec // it is this program
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.SysProcAttr = attributes()
	words := &lastWords{}
	cmd.Stderr = words
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	p := &process{limits: limits, in: in, out: out, ended: make(chan struct{})}
	started := make(chan error)
	// The process dies with the thread that started it, so that one is kept.
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		p.err = cmd.Wait()
		p.words = words.String()
		close(p.ended)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("%w: cannot start it: %w", ErrUnavailable, err)
	}
	p.kill = sync.OnceFunc(func() { _ = cmd.Process.Kill() })
	if err := p.welcome(ctx); err != nil {
		return p, err
	}
	standBack(cmd.Process.Pid)
	return p, nil
}

// welcome waits for the worker's first message.
func (p *process) welcome(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	defer context.AfterFunc(ctx, p.kill)()
	kind, body, err := readFrame(p.out)
	switch {
	case err != nil:
		p.end()
		return fmt.Errorf("%w: it did not start (%s)", ErrUnavailable, p.obituary())
	case kind != frameHello:
		p.end()
		return fmt.Errorf("%w: it began with %q", ErrUnavailable, kind)
	case len(body) > 0:
		p.end()
		return fmt.Errorf("%w: it cannot be confined: %s", ErrUnavailable, body)
	}
	return nil
}

// end kills the process and waits until it is gone.
func (p *process) end() {
	p.kill()
	_ = p.in.Close()
	_ = p.out.Close()
	<-p.ended
}

// obituary says how the process ended, after end.
func (p *process) obituary() string {
	line, _, _ := strings.Cut(strings.TrimSpace(p.words), "\n")
	if p.err != nil {
		line = strings.TrimSpace(p.err.Error() + " " + line)
	}
	if line == "" {
		return "it ended"
	}
	return line
}

// do lets the worker do a job. With healthy unset it must not be used any more.
func (p *process) do(ctx context.Context, job Job) (result []byte, healthy bool, err error) {
	t := &turn{process: p, left: p.limits.patience()}
	defer context.AfterFunc(ctx, p.kill)()
	t.resume()
	defer t.pause()
	result, err = t.exchange(ctx, job)
	var failed *TaskError
	// The end of the context kills the worker, and makes its questions fail.
	if ctx.Err() == nil && (err == nil || errors.As(err, &failed)) {
		return result, true, err
	}
	t.pause()
	p.end()
	switch verdict := p.limits.verdict(p.words); {
	case ctx.Err() != nil:
		err = ctx.Err()
	case t.expired():
		err = exceedsPatience(p.limits)
	case verdict != nil:
		err = verdict
	case errors.Is(err, errFrameSize):
		err = exceedsFrame()
	default:
		err = fmt.Errorf("%w (%s): %w", ErrLost, p.obituary(), err)
	}
	return nil, false, err
}

// turn is one job at a worker. Its clock stands still while the program answers.
type turn struct {
	process *process
	left    time.Duration
	since   time.Time
	timer   *time.Timer
	mu      sync.Mutex
	late    bool
}

func (t *turn) resume() {
	t.since = time.Now()
	t.timer = time.AfterFunc(t.left, func() {
		t.mu.Lock()
		t.late = true
		t.mu.Unlock()
		t.process.kill()
	})
}

func (t *turn) pause() {
	t.timer.Stop()
	t.left = max(t.left-time.Since(t.since), time.Millisecond)
	t.since = time.Now()
}

func (t *turn) expired() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.late
}

func (t *turn) exchange(ctx context.Context, job Job) ([]byte, error) {
	p := t.process
	if err := writeFrame(p.in, frameRequest, name(job.Task), job.Request); err != nil {
		return nil, err
	}
	for {
		kind, body, err := readFrame(p.out)
		if err != nil {
			return nil, err
		}
		switch kind {
		case frameResult:
			return body, nil
		case frameFailure:
			return nil, &TaskError{Text: string(body)}
		case frameQuestion:
			t.pause()
			err := t.answer(ctx, job, body)
			t.resume()
			if err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("unexpected message %q", kind)
		}
	}
}

func (t *turn) answer(ctx context.Context, job Job, body []byte) error {
	question, body, err := cutName(body)
	if err != nil {
		return err
	}
	if job.Answer == nil {
		return fmt.Errorf("unexpected question %q", question)
	}
	answer, err := job.Answer(ctx, question, body)
	if err != nil {
		return writeFrame(t.process.in, frameRefusal, []byte(err.Error()))
	}
	return writeFrame(t.process.in, frameAnswer, answer)
}

// lastWords keeps the beginning of what is written to it.
type lastWords struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (w *lastWords) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if room := mostWords - w.buf.Len(); room > 0 {
		w.buf.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

func (w *lastWords) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}
