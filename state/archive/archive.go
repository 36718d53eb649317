// Package archive is the format in which the state of a tier is kept outside of it.
//
// An archive is one file of age (age-encryption.org/v1). Its content is a stream of
// Zstandard, and what that inflates to are lines of JSON: a header, then each object on a
// line of its own, with sorted keys and in the order of kind, namespace and name. The same
// snapshot has the same lines in whatever order its objects come. The header has the
// version of the format, the tier, when it was taken, how many objects there are and the
// SHA-256 of their lines.
//
// Invariants:
//
//   - nothing of an archive is readable without a key, not even whose it is;
//   - an archive without a recipient is never made;
//   - Open returns all objects of a snapshot or none;
//   - a newer format is refused, not read in part.
//
// Failure model: whoever keeps the archive may change it. age authenticates each piece, so
// what was changed, cut or appended is ErrDamaged; what is not for these keys is
// ErrWrongKey. Who has a key of a recipient may write anything: the size of an archive, of
// what it inflates to and of each object, their number, and the memory of the decoder are
// bounded.
package archive

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Format is the version that Seal writes, and the newest that Open reads.
const Format = 1

// magic is the kind of the header.
const magic = "cascade.dev/state"

// Bounds of archives.
const (
	// MaxBytes bounds the archive itself.
	MaxBytes = 256 << 20
	// MaxPlainBytes bounds what it inflates to.
	MaxPlainBytes = 1 << 30
	// MaxObjects bounds the objects.
	MaxObjects = 200_000
	// MaxObjectBytes bounds one object. An API server takes less.
	MaxObjectBytes = 8 << 20
	// window bounds what the decoder of Zstandard keeps.
	window = 8 << 20
)

var (
	// ErrWrongKey: none of the keys is one that the archive is for.
	ErrWrongKey = errors.New("the archive is not for any of the given keys")
	// ErrDamaged: it is no archive, or was changed since it was written.
	ErrDamaged = errors.New("the archive is damaged")
	// ErrNewerFormat: a newer version of this program wrote it.
	ErrNewerFormat = errors.New("a newer version of this program wrote the archive")
	// ErrTooLarge: it exceeds a bound of this package.
	ErrTooLarge = errors.New("the archive is too large")
	// ErrNoRecipient: nobody could read it.
	ErrNoRecipient = errors.New("no recipient is given, and state is never kept unencrypted")
)

// Snapshot is the state of a tier at one time.
type Snapshot struct {
	// Format of the archive that it was read from, or zero.
	Format int
	// Tier is the UID of the Namespace kube-system.
	Tier string
	// Program is the version of this program that took it.
	Program string
	// Epoch of the process that led the tier when it was taken; zero if none did.
	Epoch int64
	Taken time.Time
	// Objects in any order; Open returns them in that of the archive.
	Objects []unstructured.Unstructured
}

type header struct {
	Kind    string    `json:"kind"`
	Format  int       `json:"format"`
	Program string    `json:"program"`
	Tier    string    `json:"tier"`
	Epoch   int64     `json:"epoch"`
	Taken   time.Time `json:"taken"`
	Count   int       `json:"count"`
	Digest  string    `json:"digest"`
}

// Lines encodes the objects of a snapshot as an archive has them. Equal snapshots have
// equal lines.
func (s *Snapshot) Lines() ([]byte, error) {
	if len(s.Objects) > MaxObjects {
		return nil, fmt.Errorf("cannot encode %d objects: %w: it may have %d", len(s.Objects), ErrTooLarge, MaxObjects)
	}
	order := make([]*unstructured.Unstructured, len(s.Objects))
	for i := range s.Objects {
		order[i] = &s.Objects[i]
	}
	slices.SortFunc(order, compare)
	var out bytes.Buffer
	for i, o := range order {
		if i > 0 && compare(order[i-1], o) == 0 {
			return nil, fmt.Errorf("cannot encode %s: it is there twice", name(o))
		}
		if err := complete(o); err != nil {
			return nil, err
		}
		line, err := json.Marshal(o.Object)
		if err != nil {
			return nil, fmt.Errorf("cannot encode %s: %w", name(o), err)
		}
		if len(line) > MaxObjectBytes {
			return nil, fmt.Errorf("cannot encode %s: %w: an object may have %d bytes", name(o), ErrTooLarge, MaxObjectBytes)
		}
		if out.Len()+len(line) >= MaxPlainBytes {
			return nil, fmt.Errorf("cannot encode %s: %w: all objects may have %d bytes", name(o), ErrTooLarge, MaxPlainBytes)
		}
		out.Write(line)
		out.WriteByte('\n')
	}
	return out.Bytes(), nil
}

// compare orders objects by kind, namespace and name.
func compare(a, b *unstructured.Unstructured) int {
	return cmp.Or(
		cmp.Compare(a.GroupVersionKind().Group, b.GroupVersionKind().Group), cmp.Compare(a.GetKind(), b.GetKind()),
		cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()),
	)
}

func complete(o *unstructured.Unstructured) error {
	if o.GetAPIVersion() == "" || o.GetKind() == "" || o.GetName() == "" {
		return fmt.Errorf("cannot use an object: it has no apiVersion, kind or name (%q %q %q)", o.GetAPIVersion(), o.GetKind(), o.GetName())
	}
	return nil
}

func name(o *unstructured.Unstructured) string {
	if o.GetNamespace() == "" {
		return o.GetKind() + "/" + o.GetName()
	}
	return o.GetKind() + "/" + o.GetNamespace() + "/" + o.GetName()
}

// Seal makes an archive that any of the recipients can open.
func Seal(s *Snapshot, recipients ...age.Recipient) ([]byte, error) {
	if len(recipients) == 0 {
		return nil, fmt.Errorf("cannot seal the state: %w", ErrNoRecipient)
	}
	lines, err := s.Lines()
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(lines)
	head, err := json.Marshal(header{
		Kind: magic, Format: Format, Program: s.Program, Tier: s.Tier, Epoch: s.Epoch, Taken: s.Taken.UTC(),
		Count: len(s.Objects), Digest: "sha256:" + hex.EncodeToString(sum[:]),
	})
	if err != nil {
		return nil, fmt.Errorf("cannot encode the header of the state: %w", err)
	}
	var out bytes.Buffer
	sealed, err := age.Encrypt(&out, recipients...)
	if err != nil {
		return nil, fmt.Errorf("cannot encrypt the state: %w", err)
	}
	packed, err := zstd.NewWriter(sealed, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(window))
	if err != nil {
		return nil, fmt.Errorf("cannot compress the state: %w", err)
	}
	for _, part := range [][]byte{head, {'\n'}, lines} {
		if _, err := packed.Write(part); err != nil {
			return nil, fmt.Errorf("cannot compress the state: %w", err)
		}
	}
	if err := packed.Close(); err != nil {
		return nil, fmt.Errorf("cannot compress the state: %w", err)
	}
	if err := sealed.Close(); err != nil {
		return nil, fmt.Errorf("cannot encrypt the state: %w", err)
	}
	if out.Len() > MaxBytes {
		return nil, fmt.Errorf("cannot seal the state: %w: it may have %d bytes", ErrTooLarge, MaxBytes)
	}
	return out.Bytes(), nil
}

// Open reads an archive with the first of the identities that fits.
func Open(b []byte, identities ...age.Identity) (*Snapshot, error) {
	if len(b) > MaxBytes {
		return nil, fmt.Errorf("cannot open the state: %w: it may have %d bytes", ErrTooLarge, MaxBytes)
	}
	if len(identities) == 0 {
		return nil, fmt.Errorf("cannot open the state: %w: none is given", ErrWrongKey)
	}
	var asked tried
	plain, err := age.Decrypt(bytes.NewReader(b), asked.all(identities)...)
	var none *age.NoIdentityMatchError
	switch {
	case errors.As(err, &none):
		return nil, fmt.Errorf("cannot open the state: %w", ErrWrongKey)
	case err != nil && asked.err != nil:
		// The key service failed; the archive may be as it was.
		return nil, fmt.Errorf("cannot open the state: cannot unwrap its key: %w", asked.err)
	case err != nil:
		return nil, fmt.Errorf("cannot open the state: %w: it does not begin as one", ErrDamaged)
	}
	unpacked, err := zstd.NewReader(plain, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(MaxPlainBytes), zstd.WithDecoderMaxWindow(window))
	if err != nil {
		return nil, fmt.Errorf("cannot open the state: %w: %w", ErrDamaged, err)
	}
	defer unpacked.Close()
	return decode(unpacked)
}

// tried remembers what identities failed with, other than not being the right one.
type tried struct{ err error }

func (t *tried) all(identities []age.Identity) []age.Identity {
	out := make([]age.Identity, len(identities))
	for i, id := range identities {
		out[i] = watched{id, t}
	}
	return out
}

type watched struct {
	age.Identity
	by *tried
}

func (w watched) Unwrap(stanzas []*age.Stanza) ([]byte, error) {
	key, err := w.Identity.Unwrap(stanzas)
	if err != nil && !errors.Is(err, age.ErrIncorrectIdentity) {
		w.by.err = err
	}
	return key, err
}

// decode reads what an archive inflates to.
func decode(r io.Reader) (*Snapshot, error) {
	lines := &reader{r: bufio.NewReaderSize(r, 64<<10), left: MaxPlainBytes}
	line, err := lines.next()
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: it is empty", ErrDamaged)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the header of the state: %w", err)
	}
	var head header
	if err := json.Unmarshal(line, &head); err != nil || head.Kind != magic {
		return nil, fmt.Errorf("cannot read the header of the state: %w: it is not one", ErrDamaged)
	}
	switch {
	case head.Format > Format:
		return nil, fmt.Errorf("cannot read the state: %w: it has format %d, and %d is known (version %.40q)", ErrNewerFormat, head.Format, Format, head.Program)
	case head.Format < 1:
		return nil, fmt.Errorf("cannot read the state: %w: it has format %d", ErrDamaged, head.Format)
	case head.Count < 0 || head.Count > MaxObjects:
		return nil, fmt.Errorf("cannot read the state: %w: it says that it has %d objects", ErrTooLarge, head.Count)
	}
	s := &Snapshot{Format: head.Format, Tier: head.Tier, Program: head.Program, Epoch: head.Epoch, Taken: head.Taken}
	sum := sha256.New()
	for {
		line, err := lines.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read object %d of the state: %w", len(s.Objects)+1, err)
		}
		if len(s.Objects) == head.Count {
			return nil, fmt.Errorf("cannot read the state: %w: it has more objects than the %d that it says", ErrDamaged, head.Count)
		}
		sum.Write(line)
		sum.Write([]byte{'\n'})
		var o unstructured.Unstructured
		if err := o.UnmarshalJSON(line); err != nil {
			return nil, fmt.Errorf("cannot read object %d of the state: %w: it is no object", len(s.Objects)+1, ErrDamaged)
		}
		if err := complete(&o); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if n := len(s.Objects); n > 0 && compare(&s.Objects[n-1], &o) >= 0 {
			return nil, fmt.Errorf("cannot read the state: %w: its objects are not in order", ErrDamaged)
		}
		s.Objects = append(s.Objects, o)
	}
	switch {
	case len(s.Objects) != head.Count:
		return nil, fmt.Errorf("cannot read the state: %w: it has %d objects of %d", ErrDamaged, len(s.Objects), head.Count)
	case "sha256:"+hex.EncodeToString(sum.Sum(nil)) != head.Digest:
		return nil, fmt.Errorf("cannot read the state: %w: its objects are not those that were written", ErrDamaged)
	}
	return s, nil
}

// reader reads lines within bounds.
type reader struct {
	r    *bufio.Reader
	left int64
}

// next returns a line without its end; it is the caller's. io.EOF is at the end of a line only.
func (r *reader) next() ([]byte, error) {
	var line []byte
	for {
		part, err := r.r.ReadSlice('\n')
		if r.left -= int64(len(part)); r.left < 0 {
			return nil, fmt.Errorf("%w: it inflates to more than %d bytes", ErrTooLarge, MaxPlainBytes)
		}
		if len(line)+len(part) > MaxObjectBytes+1 {
			return nil, fmt.Errorf("%w: an object may have %d bytes", ErrTooLarge, MaxObjectBytes)
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(line) == 0:
			return nil, io.EOF
		case errors.Is(err, io.EOF):
			return nil, fmt.Errorf("%w: it ends within a line", ErrDamaged)
		case errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded), errors.Is(err, zstd.ErrWindowSizeTooSmall):
			return nil, fmt.Errorf("%w: it asks for too much memory", ErrTooLarge)
		default:
			return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
	}
}
