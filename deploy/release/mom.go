package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/mod/modfile"

	"github.com/cascade-gitops/cascade/deploy/release/archive"
	"github.com/cascade-gitops/cascade/deploy/release/sbom"
)

// momProgram is the program that has a management cluster within.
const momProgram = "cascade-mom"

// ourModule is the module of the product; those of its other programs are below it.
const ourModule = "github.com/cascade-gitops/cascade"

// mom adds cascade-mom to the files of a release.
type mom struct {
	assets
	revision string
	// built has, by architecture, a directory with the program, the index of those that are
	// packed in it, and these below "programs".
	built map[string]string
}

func newMom() *cobra.Command {
	var m mom
	var seconds int64
	cmd := &cobra.Command{
		Use: "mom", Short: "Add cascade-mom to the files of a release, and to its checksums", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if m.created, err = dated(seconds); err != nil {
				return err
			}
			return m.add(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&m.version, "version", "", "the version, such as v1.2.0")
	f.StringVar(&m.revision, "revision", "", "the commit")
	f.Int64Var(&seconds, "created", 0, "the time of the commit, in seconds")
	f.StringVar(&m.dir, "to", "", "the directory of the release, which has its other files")
	f.StringVar(&m.sources, "sources", "", "the checkout")
	f.StringVar(&m.source, "source", "", "the address of the repository")
	f.StringToStringVar(&m.built, "built", nil, "architecture=directory of the program, and of those within it below programs; once for each architecture")
	f.StringVar(&m.key, "key", "", "file of the private key that signs the checksums; none, and they are not signed")
	required(cmd, "version", "revision", "to", "sources", "source", "built")
	return cmd
}

// add writes the files of each architecture, and the checksums anew.
func (m mom) add(ctx context.Context) error {
	if err := m.sameRelease(); err != nil {
		return err
	}
	for _, architecture := range slices.Sorted(maps.Keys(m.built)) {
		if err := m.architecture(architecture, m.built[architecture]); err != nil {
			return err
		}
	}
	return m.checksums(ctx)
}

// sameRelease refuses a directory that has no release, another one, or one that is not as it
// was made; and to leave a signature of checksums that are not there any more.
func (m mom) sameRelease() error {
	text, err := os.ReadFile(filepath.Join(m.dir, checksumsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot add to the release in %s: there is none; run make release VERSION=%s first", m.dir, m.version)
	}
	if err != nil {
		return fmt.Errorf("cannot read checksums: %w", err)
	}
	same := false
	for line := range strings.Lines(string(text)) {
		want, name, ok := strings.Cut(strings.TrimSpace(line), "  ")
		if !ok || filepath.Base(name) != name {
			return fmt.Errorf("cannot use checksums: %q is no line of them", line)
		}
		same = same || strings.HasPrefix(name, "cascade_"+m.version+"_")
		if strings.HasPrefix(name, momProgram) {
			continue // of an earlier run, and written anew
		}
		sum, err := sumOf(filepath.Join(m.dir, name))
		if err != nil {
			return err
		}
		if sum != want {
			return fmt.Errorf("cannot add to the release in %s: %s is not what was released", m.dir, name)
		}
	}
	if !same {
		return fmt.Errorf("cannot add %s to the release in %s: that is of another version", m.version, m.dir)
	}
	if _, err := os.Stat(filepath.Join(m.dir, signatureFile)); err == nil && m.key == "" {
		return errors.New("cannot add to the release: its checksums are signed; say with which key they are to be signed again")
	}
	return nil
}

// architecture writes the archive and the documents of one.
func (m mom) architecture(architecture, dir string) error {
	name := fmt.Sprintf("%s_%s_linux_%s", momProgram, m.version, architecture)
	about, err := m.describe(architecture, dir)
	if err != nil {
		return err
	}
	spdx, err1 := about.SPDX()
	cyclonedx, err2 := about.CycloneDX()
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	files := []archive.File{
		{Name: momProgram, Mode: 0o755, From: filepath.Join(dir, momProgram)},
		{Name: "LICENSE", Mode: 0o644, From: filepath.Join(m.sources, "LICENSE")},
	}
	return errors.Join(archive.Write(filepath.Join(m.dir, name+".tar.gz"), files, m.created), m.save(name+".spdx.json", spdx), m.save(name+".cdx.json", cyclonedx))
}

// describe reads what the program and those within it are made of, from themselves.
func (m mom) describe(architecture, dir string) (sbom.Download, error) {
	d := sbom.Download{
		Name: momProgram, Version: m.version, Source: m.source, Revision: m.revision, Architecture: architecture, Created: m.created, Package: "cmd/" + momProgram,
	}
	var err error
	if d.Program, err = sbom.ReadProgram(filepath.Join(dir, momProgram)); err != nil {
		return d, err
	}
	text, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		return d, fmt.Errorf("cannot list the programs within: %w", err)
	}
	// As package payload writes it, which has all that is packed within and is not imported.
	var index struct {
		Programs []struct{ Name, SHA256 string }
	}
	if err := json.Unmarshal(text, &index); err != nil {
		return d, fmt.Errorf("cannot list the programs within: %w", err)
	}
	required, err := m.required()
	if err != nil {
		return d, err
	}
	for _, p := range index.Programs {
		program, err := sbom.ReadProgram(filepath.Join(dir, "programs", filepath.Base(p.Name)))
		if err != nil {
			return d, err
		}
		if program.SHA256 != p.SHA256 {
			return d, fmt.Errorf("cannot describe %s: it is not the one that was packed", p.Name)
		}
		version := required[program.Main.Path]
		if path := program.Main.Path; path == ourModule || strings.HasPrefix(path, ourModule+"/") {
			version = m.version
		}
		if version == "" {
			return d, fmt.Errorf("cannot tell the version of %s: no go.mod below mom/providers requires %s", p.Name, program.Main.Path)
		}
		d.Within = append(d.Within, sbom.Within{Name: p.Name, Version: version, Program: program})
	}
	return d, nil
}

// required are the modules whose programs are packed, each built by itself, with their
// versions.
func (m mom) required() (map[string]string, error) {
	files, err := filepath.Glob(filepath.Join(m.sources, "mom", "providers", "*", "go.mod"))
	if err != nil {
		return nil, fmt.Errorf("cannot list providers: %w", err)
	}
	versions := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("cannot read the version of a provider: %w", err)
		}
		parsed, err := modfile.ParseLax(file, text, nil)
		if err != nil {
			return nil, fmt.Errorf("cannot read the version of a provider: %w", err)
		}
		for _, r := range parsed.Require {
			if !r.Indirect {
				versions[r.Mod.Path] = r.Mod.Version
			}
		}
	}
	return versions, nil
}
