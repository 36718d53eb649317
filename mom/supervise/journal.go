//go:build linux

package supervise

import (
	"fmt"
	"os"
	"sync"
)

// journal is a file that is replaced when it gets too large. The one before it is kept.
type journal struct {
	name string
	most int64

	mu   sync.Mutex
	file *os.File
	size int64
}

func openJournal(name string, most int64) (*journal, error) {
	j := &journal{name: name, most: most}
	return j, j.open()
}

func (j *journal) open() error {
	file, err := os.OpenFile(j.name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("cannot open log: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		_ = file.Close() // nothing was written
		return fmt.Errorf("cannot open log: %w", err)
	}
	j.file, j.size = file, info.Size()
	return nil
}

// Write never fails: a program whose output nobody takes would be ended by that. What a full
// disk does not take is lost.
func (j *journal) Write(text []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.size > 0 && j.size+int64(len(text)) > j.most {
		j.rotate()
	}
	if j.file != nil {
		n, _ := j.file.Write(text)
		j.size += int64(n)
	}
	return len(text), nil
}

// rotate goes on with the old file where there can be no new one.
func (j *journal) rotate() {
	if err := os.Rename(j.name, j.name+".1"); err != nil {
		return
	}
	old := j.file
	if err := j.open(); err != nil {
		j.file, j.size = old, 0 // under its other name, for another time its size
		return
	}
	_ = old.Close() // it is complete
}

func (j *journal) Close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file != nil {
		_ = j.file.Close() // it is complete
		j.file = nil
	}
}
