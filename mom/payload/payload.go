package payload

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// embedded is what the build packed; see Pack. It has nothing but a .gitignore otherwise.
//
//go:embed all:embedded
var embedded embed.FS

const (
	indexFile    = "index.json"
	programsDir  = "programs"
	providersDir = "providers"
	compressed   = ".zst"
)

// mostProgram bounds what one program may be unpacked to.
const mostProgram = 2 << 30

// ErrEmpty says that this build carries no programs.
var ErrEmpty = errors.New("cannot find any programs in this build: it was made by go build; make mom makes one that has them")

// Program is one program of a payload.
type Program struct {
	Name string `json:"name"`
	// SHA256 and Size are of the program, not of what it is compressed to.
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
}

// Index says what a payload has.
type Index struct {
	Programs []Program `json:"programs"`
	// Providers are directories of Manifests, in the order in which they are started.
	Providers []string `json:"providers"`
}

// Payload is a set of programs and manifests.
type Payload struct {
	Index Index

	files fs.FS
	id    string
}

// Embedded is the payload of this program, ErrEmpty if it has none.
func Embedded() (*Payload, error) {
	files, err := fs.Sub(embedded, "embedded")
	if err != nil {
		return nil, fmt.Errorf("cannot read the programs of this build: %w", err)
	}
	return Open(files)
}

// Open reads a payload that Pack wrote.
func Open(files fs.FS) (*Payload, error) {
	text, err := fs.ReadFile(files, indexFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrEmpty
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read index of programs: %w", err)
	}
	p := &Payload{files: files}
	if err := json.Unmarshal(text, &p.Index); err != nil {
		return nil, fmt.Errorf("cannot parse index of programs: %w", err)
	}
	for _, program := range p.Index.Programs {
		if err := program.check(); err != nil {
			return nil, err
		}
	}
	for _, name := range p.Index.Providers {
		if !fs.ValidPath(name) || strings.Contains(name, "/") {
			return nil, fmt.Errorf("cannot use provider %q of the index: it is no name of a directory", name)
		}
	}
	digest := sha256.Sum256(text)
	p.id = hex.EncodeToString(digest[:16])
	return p, nil
}

// check refuses what could leave the cache directory.
func (p Program) check() error {
	switch digest, err := hex.DecodeString(p.SHA256); {
	case p.Name == "" || p.Name == "." || !fs.ValidPath(p.Name) || strings.Contains(p.Name, "/"):
		return fmt.Errorf("cannot use program %q of the index: it is no name of a file", p.Name)
	case err != nil || len(digest) != sha256.Size:
		return fmt.Errorf("cannot use program %s of the index: it has no digest", p.Name)
	case p.Size < 0 || p.Size > mostProgram:
		return fmt.Errorf("cannot use program %s of the index: %d bytes are too many", p.Name, p.Size)
	}
	return nil
}

// ID names the payload by what it has.
func (p *Payload) ID() string { return p.id }

// Has reports whether a program is in the payload.
func (p *Payload) Has(program string) bool {
	return slices.ContainsFunc(p.Index.Programs, func(has Program) bool { return has.Name == program })
}

// Manifests are the directories of providers.
func (p *Payload) Manifests() (fs.FS, error) {
	files, err := fs.Sub(p.files, providersDir)
	if err != nil {
		return nil, fmt.Errorf("cannot read manifests of providers: %w", err)
	}
	return files, nil
}

// open opens a program as it is compressed.
func (p *Payload) open(program string) (io.ReadCloser, error) {
	file, err := p.files.Open(path.Join(programsDir, program+compressed))
	if err != nil {
		return nil, fmt.Errorf("cannot read program %s of this build: %w", program, err)
	}
	return file, nil
}
