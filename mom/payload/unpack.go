//go:build linux

package payload

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/klauspost/compress/zstd"
)

// programMode: the user may run it, and nobody may change it.
const programMode = 0o500

// Unpack makes sure that the programs are in a directory of their own below cache, each with
// the digest that the index says, and returns that directory.
func (p *Payload) Unpack(ctx context.Context, cache string) (string, error) {
	dir := filepath.Join(cache, p.id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("cannot make cache directory: %w", err)
	}
	if err := private(dir); err != nil {
		return "", err
	}
	for _, program := range p.Index.Programs {
		if err := p.unpack(ctx, dir, program); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// private refuses a directory in which somebody else could put a program.
func private(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("cannot look at cache directory: %w", err)
	}
	stat, known := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return fmt.Errorf("cannot use cache directory %s: it is no directory", dir)
	case !known || int(stat.Uid) != os.Geteuid():
		return fmt.Errorf("cannot use cache directory %s: it belongs to somebody else", dir)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("cannot use cache directory %s: others may write there; chmod 700 it", dir)
	}
	return nil
}

// unpack makes one program be there.
func (p *Payload) unpack(ctx context.Context, dir string, program Program) error {
	file := filepath.Join(dir, program.Name)
	same, err := verified(ctx, file, program)
	if err != nil || same {
		return err
	}
	packed, err := p.open(program.Name)
	if err != nil {
		return err
	}
	defer packed.Close()
	reader, err := zstd.NewReader(packed, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
	if err != nil {
		return fmt.Errorf("cannot unpack program %s: %w", program.Name, err)
	}
	defer reader.Close()
	temporary, err := os.CreateTemp(dir, "."+program.Name+"-*")
	if err != nil {
		return fmt.Errorf("cannot unpack program %s: %w", program.Name, err)
	}
	defer os.Remove(temporary.Name()) // fails after the rename, which is what is wanted
	digest := sha256.New()
	size, err := io.Copy(io.MultiWriter(temporary, digest), io.LimitReader(&stopping{ctx, reader}, program.Size+1))
	if err == nil {
		err = temporary.Chmod(programMode)
	}
	if closed := temporary.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return fmt.Errorf("cannot unpack program %s: %w", program.Name, err)
	}
	if size != program.Size || hex.EncodeToString(digest.Sum(nil)) != program.SHA256 {
		return fmt.Errorf("cannot unpack program %s: it is not what the index says; this build is damaged", program.Name)
	}
	if err := os.Rename(temporary.Name(), file); err != nil {
		return fmt.Errorf("cannot unpack program %s: %w", program.Name, err)
	}
	return nil
}

// verified reports whether a file is the program, as it is on the disk now.
func verified(ctx context.Context, file string, program Program) (bool, error) {
	info, err := os.Lstat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot look at program %s: %w", program.Name, err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm() != programMode || info.Size() != program.Size {
		return false, nil
	}
	opened, err := os.Open(file)
	if err != nil {
		return false, fmt.Errorf("cannot read program %s: %w", program.Name, err)
	}
	defer opened.Close()
	digest := sha256.New()
	if _, err := io.Copy(digest, &stopping{ctx, opened}); err != nil {
		return false, fmt.Errorf("cannot read program %s: %w", program.Name, err)
	}
	return hex.EncodeToString(digest.Sum(nil)) == program.SHA256, nil
}

// stopping reads until its context ends.
type stopping struct {
	ctx  context.Context
	from io.Reader
}

func (s *stopping) Read(into []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	return s.from.Read(into)
}
