package worker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// MaxFrame bounds a request, a question, an answer and a result.
const MaxFrame = 33 << 20

// Kinds of frames.
const (
	frameHello    = 'h' // worker: it is confined, or why not
	frameRequest  = 'r' // program: the name of a task and what it is about
	frameQuestion = 'q' // worker: the name of a question and what it is about
	frameAnswer   = 'a' // program: the answer
	frameRefusal  = 'n' // program: why there is no answer
	frameResult   = 'o' // worker: what the task returned
	frameFailure  = 'e' // worker: the task's error
)

// errFrameSize is an answer or a result that is too large.
var errFrameSize = errors.New("a message is too large")

// writeFrame writes the length of what follows, the kind, and the parts.
func writeFrame(w io.Writer, kind byte, parts ...[]byte) error {
	size := 1
	for _, p := range parts {
		size += len(p)
	}
	if size > MaxFrame {
		return fmt.Errorf("%w: %d bytes, the limit is %d", errFrameSize, size, MaxFrame)
	}
	head := binary.BigEndian.AppendUint32(make([]byte, 0, 5), uint32(size)) //nolint:gosec // it is at most MaxFrame
	if _, err := w.Write(append(head, kind)); err != nil {
		return err
	}
	for _, p := range parts {
		if len(p) == 0 {
			continue
		}
		if _, err := w.Write(p); err != nil {
			return err
		}
	}
	return nil
}

func readFrame(r io.Reader) (kind byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size < 1 || size > MaxFrame {
		return 0, nil, fmt.Errorf("%w: %d bytes, the limit is %d", errFrameSize, size, MaxFrame)
	}
	body = make([]byte, size-1)
	if _, err := io.ReadFull(r, body); err != nil {
		return 0, nil, err
	}
	return head[4], body, nil
}

// name is the part of a frame that names a task or a question.
func name(s string) []byte { return append([]byte{byte(len(s))}, s...) }

func cutName(body []byte) (name string, rest []byte, err error) {
	if len(body) == 0 || len(body) < 1+int(body[0]) {
		return "", nil, errors.New("a message without a name")
	}
	n := 1 + int(body[0])
	return string(body[1:n]), body[n:], nil
}
