package store

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"github.com/cascade-gitops/cascade/state/archive"
)

// directory is a place in a file system, without locks of it: those of network file systems
// are not to be relied on. A file is made under another name, then linked to its own, which
// fails if that is there.
//
// The record has a number in its name, and the highest counts. Of two processes that read
// the same record one makes the next. Records of before are deleted, so that a process that
// was stopped for long may make one that was deleted. It is not the highest then; each
// record has a trail of who made those before it, which tells the process so.
type directory struct {
	dir string
}

const (
	// mostTrail bounds the trail, leftBehind is how many records are kept.
	mostTrail  = 64
	leftBehind = 8
)

// numbered is a record in a directory.
type numbered struct {
	Number int64 `json:"number"`
	// Trail names who made this record and those before it, the last one last.
	Trail  []string        `json:"trail"`
	Record json.RawMessage `json:"record"`
}

// maker of a record, if that is known.
func (n *numbered) maker(number int64) (string, bool) {
	i := int64(len(n.Trail)) - 1 - (n.Number - number)
	if i < 0 || i >= int64(len(n.Trail)) {
		return "", false
	}
	return n.Trail[i], true
}

func openDirectory(dir string) (place, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot make directory %s: %w", dir, err)
	}
	return &directory{dir: dir}, nil
}

func (d *directory) String() string { return d.dir }

func (d *directory) close() error { return nil }

var recordName = regexp.MustCompile(`^record-([0-9]{18})\.json$`)

func nameOf(number int64) string { return fmt.Sprintf("record-%018d.json", number) }

// numbers of the records that there are, in order.
func (d *directory) numbers() ([]int64, error) {
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return nil, err
	}
	var out []int64
	for _, e := range entries {
		if m := recordName.FindStringSubmatch(e.Name()); m != nil {
			n, err := strconv.ParseInt(m[1], 10, 64)
			if err == nil {
				out = append(out, n)
			}
		}
	}
	slices.Sort(out)
	return out, nil
}

// newest record, nil if there is none.
func (d *directory) newest(ctx context.Context) (*numbered, error) {
	for {
		all, err := d.numbers()
		if err != nil {
			return nil, err
		}
		if len(all) == 0 {
			return nil, nil
		}
		n, err := d.numbered(all[len(all)-1])
		// Many were made since it was listed.
		if errors.Is(err, fs.ErrNotExist) && ctx.Err() == nil {
			continue
		}
		return n, err
	}
}

func (d *directory) numbered(number int64) (*numbered, error) {
	content, err := readFile(filepath.Join(d.dir, nameOf(number)), 2*mostRecordBytes)
	if err != nil {
		return nil, err
	}
	n := &numbered{}
	if err := json.Unmarshal(content, n); err != nil || n.Number != number {
		return nil, fmt.Errorf("%w: %s is no record", ErrDamaged, nameOf(number))
	}
	return n, nil
}

// readFile reads a file of a bounded size.
func readFile(name string, most int64) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > most {
		return nil, fmt.Errorf("%w: %s is no file of at most %d bytes", ErrDamaged, filepath.Base(name), most)
	}
	return os.ReadFile(name)
}

func (d *directory) record(ctx context.Context) ([]byte, string, error) {
	n, err := d.newest(ctx)
	if err != nil || n == nil {
		return nil, "", err
	}
	return n.Record, strconv.FormatInt(n.Number, 10), nil
}

func (d *directory) swap(ctx context.Context, tag string, record []byte, _ string, _ []byte) error {
	next := &numbered{Number: 1, Record: record}
	if tag != "" {
		before, err := strconv.ParseInt(tag, 10, 64)
		if err != nil {
			return err
		}
		last, err := d.numbered(before)
		if errors.Is(err, fs.ErrNotExist) {
			return errMoved
		}
		if err != nil {
			return err
		}
		next.Number, next.Trail = before+1, last.Trail
	}
	own := rand.Text()
	next.Trail = append(slices.Clone(next.Trail), own)
	next.Trail = next.Trail[max(0, len(next.Trail)-mostTrail):]
	text, err := json.Marshal(next)
	if err != nil {
		return err
	}
	if err := d.link(nameOf(next.Number), text); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return errMoved
		}
		return err
	}
	return d.settle(ctx, next.Number, own)
}

// settle finds out whether a record that was made is the one that followed its predecessor,
// and deletes those of long before.
func (d *directory) settle(ctx context.Context, number int64, own string) error {
	highest, err := d.newest(ctx)
	if err != nil {
		return err
	}
	if highest == nil || highest.Number < number {
		return fmt.Errorf("%w: record %d is gone", ErrDamaged, number)
	}
	switch maker, known := highest.maker(number); {
	case !known:
		return fmt.Errorf("cannot tell whether record %d counts: there are %d since", number, highest.Number-number)
	case maker != own:
		_ = os.Remove(filepath.Join(d.dir, nameOf(number)))
		return errMoved
	}
	all, err := d.numbers()
	if err != nil {
		return nil // it is written
	}
	for _, n := range all {
		if n <= number-leftBehind {
			_ = os.Remove(filepath.Join(d.dir, nameOf(n)))
		}
	}
	return nil
}

// put writes a file. One of the name was left by a save that did not come to its end, as
// nobody but the holder of the lock writes it; it is replaced.
func (d *directory) put(_ context.Context, name string, content []byte) (apart bool, err error) {
	temporary, err := d.write(content)
	if err != nil {
		return true, err
	}
	defer os.Remove(temporary)
	if err := os.Rename(temporary, filepath.Join(d.dir, name)); err != nil {
		return true, err
	}
	return true, d.sync()
}

// link writes a file that must not be there.
func (d *directory) link(name string, content []byte) error {
	temporary, err := d.write(content)
	if err != nil {
		return err
	}
	defer os.Remove(temporary)
	if err := os.Link(temporary, filepath.Join(d.dir, name)); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return err
		}
		return fmt.Errorf("cannot link a file, which the file system has to be able to do: %w", err)
	}
	return d.sync()
}

// write makes a file with another name, whose content is on disk.
func (d *directory) write(content []byte) (_ string, err error) {
	f, err := os.CreateTemp(d.dir, ".writing-*")
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	return f.Name(), errors.Join(err, f.Close())
}

// sync has the names on disk.
func (d *directory) sync() error {
	f, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (d *directory) read(_ context.Context, name string) ([]byte, error) {
	content, err := readFile(filepath.Join(d.dir, name), archive.MaxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errAbsent
	}
	return content, err
}

func (d *directory) list(context.Context) (map[string]int64, error) {
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return nil, err
	}
	files := map[string]int64{}
	for _, e := range entries {
		if _, ok := parseFile(e.Name()); !ok {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		files[e.Name()] = info.Size()
	}
	return files, nil
}

func (d *directory) remove(_ context.Context, names []string) error {
	for _, name := range names {
		if err := os.Remove(filepath.Join(d.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// try finds out whether files can be linked.
func (d *directory) try(context.Context) error {
	name := ".trying-" + rand.Text()
	defer os.Remove(filepath.Join(d.dir, name))
	if err := d.link(name, nil); err != nil {
		return err
	}
	if err := d.link(name, nil); !errors.Is(err, fs.ErrExist) {
		return errors.New("the file system links a file to a name that is there")
	}
	return nil
}
