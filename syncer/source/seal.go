package source

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// sealUser is the user of the logins in URLs of artifacts.
const sealUser = "artifact"

// sealSize is the number of bytes of a seal's key.
const sealSize = sha256.Size

// Seal gives each artifact a password of its own, which stands in its URL. Whoever may read
// the status of a source has the URL, and whoever merely reaches the port has not. The zero
// value is of no use.
type Seal struct{ key []byte }

// OpenSeal reads the key of a seal from a file, or makes one of random bytes and keeps it
// there: URLs stay as they are for as long as what they lead to.
func OpenSeal(file string, random io.Reader) (Seal, error) {
	key, err := os.ReadFile(file)
	switch {
	case err == nil && len(key) == sealSize:
		return Seal{key}, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return Seal{}, fmt.Errorf("cannot read the key of artifacts: %w", err)
	}
	key = make([]byte, sealSize)
	if _, err := io.ReadFull(random, key); err != nil {
		return Seal{}, fmt.Errorf("cannot make a key of artifacts: %w", err)
	}
	if err := keepKey(file, key); err != nil {
		return Seal{}, fmt.Errorf("cannot keep the key of artifacts; --storage-path must be writable: %w", err)
	}
	return Seal{key}, nil
}

// keepKey writes a file that is there with all of its content or not at all, and that nobody
// else reads.
func keepKey(file string, key []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".key-")
	if err != nil {
		return err
	}
	_, err = f.Write(key)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// password of the artifact at a path.
func (s Seal) password(at string) string {
	mac := hmac.New(sha256.New, s.key)
	mac.Write([]byte(at))
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// admits reports whether a login is that of the artifact at a path.
func (s Seal) admits(at, user, password string) bool {
	return user == sealUser && hmac.Equal([]byte(password), []byte(s.password(at)))
}
