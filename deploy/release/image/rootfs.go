package image

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// User is who the agent is in its image. Kubernetes checks runAsNonRoot by the number.
const (
	User   = "65532:65532"
	userID = 65532
)

// Program is the path of the agent in its image.
const Program = "/usr/local/bin/cascade"

// certificates are where Go and OpenSSL look for roots of trust first.
const certificates = "etc/ssl/certs/ca-certificates.crt"

// rootsModule has the roots of trust: Mozilla's, as the Go project publishes them.
const rootsModule = "golang.org/x/crypto/x509roots/fallback"

// Accounts are root, nobody and the agent's. Nothing can log in.
const (
	passwd = `root:x:0:0:root:/root:/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin
nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin
`
	group = `root:x:0:
nobody:x:65534:
nonroot:x:65532:
`
)

// File is a file or a directory of the image.
type File struct {
	// Path without a slash at its beginning.
	Path string
	// Mode has permissions, and the bits of a directory.
	Mode fs.FileMode
	// Owner is the number of user and group.
	Owner int
	// Content of the file, unless it is that of the file From.
	Content []byte
	From    string
}

// Base is what the image has besides the agent. It depends on the version of the roots
// of trust alone, so that releases share its layer.
func Base() []File {
	dir := func(path string, mode fs.FileMode, owner int) File {
		return File{Path: path, Mode: fs.ModeDir | mode, Owner: owner}
	}
	return []File{
		dir("etc", 0o755, 0),
		{Path: "etc/group", Mode: 0o644, Content: []byte(group)},
		{Path: "etc/passwd", Mode: 0o644, Content: []byte(passwd)},
		dir("etc/ssl", 0o755, 0),
		dir("etc/ssl/certs", 0o755, 0),
		{Path: certificates, Mode: 0o644, Content: roots()},
		dir("home", 0o755, 0),
		dir("home/nonroot", 0o700, userID),
		dir("root", 0o700, 0),
		dir("tmp", fs.ModeSticky|0o777, 0),
		dir("usr", 0o755, 0),
		dir("usr/local", 0o755, 0),
		dir("usr/local/bin", 0o755, 0),
	}
}

// agent is the program at its place.
func agent(binary string) File {
	return File{Path: Program[1:], Mode: 0o755, From: binary}
}

// roots of trust in PEM. A root that is trusted on a condition only is left out: a file
// cannot say the condition.
func roots() []byte {
	var all bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&all, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a buffer takes everything
		}
	}
	return all.Bytes()
}

// Roots names the module that the roots of trust are from, and its version.
func Roots() (path, version string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return rootsModule, ""
	}
	for _, m := range info.Deps {
		if m.Path == rootsModule {
			return m.Path, m.Version
		}
	}
	return rootsModule, ""
}

// WriteRootfs writes what the image has, with the agent from a file, into an empty
// directory. Owners are left to who copies it into an image.
func WriteRootfs(dir, binary string) error {
	for _, f := range append(Base(), agent(binary)) {
		if err := f.write(filepath.Join(dir, filepath.FromSlash(f.Path))); err != nil {
			return fmt.Errorf("cannot write /%s: %w", f.Path, err)
		}
	}
	return nil
}

func (f File) write(path string) error {
	if f.Mode.IsDir() {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		return os.Chmod(path, f.Mode) // whatever the process's mask says
	}
	content, err := f.read()
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, content, f.Mode.Perm()); err != nil {
		return err
	}
	return os.Chmod(path, f.Mode)
}

func (f File) read() ([]byte, error) {
	if f.From == "" {
		return f.Content, nil
	}
	return os.ReadFile(f.From)
}
