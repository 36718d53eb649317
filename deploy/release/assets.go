package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascade-gitops/cascade/deploy/release/archive"
	"github.com/cascade-gitops/cascade/deploy/release/changelog"
	"github.com/cascade-gitops/cascade/deploy/release/chart"
	"github.com/cascade-gitops/cascade/deploy/release/image"
	"github.com/cascade-gitops/cascade/deploy/release/krew"
	"github.com/cascade-gitops/cascade/deploy/release/sbom"
	"github.com/cascade-gitops/cascade/deploy/release/signature"
)

// assets are the files of a release, and from what they are made.
type assets struct {
	version    string
	created    time.Time
	dir        string
	sources    string // the checkout
	program    string // for this machine
	platforms  string // directory of directories such as linux-amd64
	layout     string
	repository string // where the image is published
	source     string // address of the repository
	downloads  string // address that the files will have
	key        string
}

func newAssets() *cobra.Command {
	var a assets
	var seconds int64
	cmd := &cobra.Command{
		Use: "assets", Short: "Write the files that are published beside the image", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if a.created, err = dated(seconds); err != nil {
				return err
			}
			return a.write(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&a.version, "version", "", "the version, such as v1.2.0")
	f.Int64Var(&seconds, "created", 0, "the time of the commit, in seconds")
	f.StringVar(&a.dir, "to", "", "the directory, which is written anew")
	f.StringVar(&a.sources, "sources", "", "the checkout")
	f.StringVar(&a.program, "program", "", "the program of this version, for this machine")
	f.StringVar(&a.platforms, "platforms", "", "directory with a directory for each platform, such as linux-amd64")
	f.StringVar(&a.layout, "layout", "", "the image's layout")
	f.StringVar(&a.repository, "repository", "", "where the image is published")
	f.StringVar(&a.source, "source", "", "the address of the repository")
	f.StringVar(&a.downloads, "downloads", "", "the address below which the files will be found")
	f.StringVar(&a.key, "key", "", "file of the private key that signs the checksums; none, and they are not signed")
	required(cmd, "version", "to", "sources", "program", "platforms", "layout", "repository", "source", "downloads")
	return cmd
}

// newNotes returns the command by which the Makefile asks for notes before it builds
// anything.
func newNotes() *cobra.Command {
	var a assets
	cmd := &cobra.Command{
		Use: "notes", Short: "Print the notes of a version", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			notes, err := a.notes()
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), notes)
			return err
		},
	}
	cmd.Flags().StringVar(&a.version, "version", "", "the version, such as v1.2.0")
	cmd.Flags().StringVar(&a.sources, "sources", "", "the checkout")
	required(cmd, "version", "sources")
	return cmd
}

func (a assets) notes() (string, error) {
	text, err := os.ReadFile(filepath.Join(a.sources, "CHANGELOG.md"))
	if err != nil {
		return "", fmt.Errorf("cannot read notes: %w", err)
	}
	return changelog.Notes(string(text), a.version)
}

// write writes all files. What can be refused without work comes first.
func (a assets) write(ctx context.Context) error {
	notes, err := a.notes()
	if err != nil {
		return err
	}
	if err := a.sameVersion(ctx); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(a.dir), os.MkdirAll(a.dir, 0o755)); err != nil {
		return fmt.Errorf("cannot empty the release's directory: %w", err)
	}
	if err := a.save("notes.md", []byte(notes)); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{a.documents, a.manifests, a.completions, a.chart, a.archives, a.checksums} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (a assets) save(name string, content []byte) error {
	if err := os.WriteFile(filepath.Join(a.dir, name), content, 0o644); err != nil {
		return fmt.Errorf("cannot write %s: %w", name, err)
	}
	return nil
}

// run runs the program of this machine.
func (a assets) run(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, a.program, args...).Output()
	if err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			return nil, fmt.Errorf("cannot run cascade %s: %w: %s", strings.Join(args, " "), err, failed.Stderr)
		}
		return nil, fmt.Errorf("cannot run cascade %s: %w", strings.Join(args, " "), err)
	}
	return out, nil
}

func (a assets) sameVersion(ctx context.Context) error {
	out, err := a.run(ctx, "version")
	if err != nil {
		return err
	}
	if got := strings.TrimSpace(string(out)); got != "cascade "+a.version {
		return fmt.Errorf("cannot release %s: %s is %q; build it with VERSION=%s", a.version, a.program, got, a.version)
	}
	return nil
}

// documents are those that the layout has, as files.
func (a assets) documents(context.Context) error {
	l, err := image.Read(a.layout)
	if err != nil {
		return err
	}
	documents, err := l.Documents()
	if err != nil {
		return err
	}
	suffixes := map[string]string{sbom.SPDXType: "spdx.json", sbom.CycloneDXType: "cdx.json"}
	for architecture, of := range documents {
		for _, d := range of {
			if err := a.save(fmt.Sprintf("cascade_%s_linux_%s.%s", a.version, architecture, suffixes[d.Type]), d.Content); err != nil {
				return err
			}
		}
	}
	return nil
}

// reference is the image by its digest.
func (a assets) reference() (string, error) {
	l, err := image.Read(a.layout)
	if err != nil {
		return "", err
	}
	digest, err := l.Index.Digest()
	if err != nil {
		return "", fmt.Errorf("cannot read index: %w", err)
	}
	return fmt.Sprintf("%s:%s@%s", a.repository, a.version, digest), nil
}

// manifests are those of an installation with the image by its digest.
func (a assets) manifests(ctx context.Context) error {
	reference, err := a.reference()
	if err != nil {
		return err
	}
	install, err := a.run(ctx, "install", "--export", "--image", reference)
	if err != nil {
		return err
	}
	if !strings.Contains(string(install), reference) {
		return fmt.Errorf("cannot use what cascade install --export printed: the image is not %s", reference)
	}
	crds, err := definitions(string(install))
	if err != nil {
		return err
	}
	return errors.Join(a.save("install.yaml", install), a.save("crds.yaml", []byte(crds)))
}

func (a assets) completions(ctx context.Context) error {
	for shell, name := range map[string]string{"bash": "bash", "zsh": "zsh", "fish": "fish", "powershell": "ps1"} {
		script, err := a.run(ctx, "completion", shell)
		if err != nil {
			return err
		}
		if err := a.save("cascade-completion."+name, script); err != nil {
			return err
		}
	}
	return nil
}

// chart packages the agent's chart, whose default image is that of the release.
func (a assets) chart(context.Context) error {
	dir := filepath.Join(a.sources, "deploy", "charts", "cascade")
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	reference, err := a.reference()
	if err != nil {
		return err
	}
	_, err = chart.Package(dir, a.dir, a.version, reference, a.created)
	return err
}

// archives of the program and of the plugin, and the manifest that lists the latter. A
// plugin is an archive of its own: krew unpacks no links, and a copy of the program would
// double each download.
func (a assets) archives(context.Context) error {
	license := archive.File{Name: "LICENSE", Mode: 0o644, From: filepath.Join(a.sources, "LICENSE")}
	entries, err := os.ReadDir(a.platforms)
	if err != nil {
		return fmt.Errorf("cannot list platforms: %w", err)
	}
	plugin := krew.Plugin{
		Name: "cascade", Version: a.version, Homepage: a.source, Summary: "Run a fleet of clusters from Git",
		Description: "Shows and works on what Cascade runs: sources, Kustomizations, HelmReleases,\n" +
			"and the tree of clusters below this one.\n",
	}
	for _, e := range entries {
		system, architecture, ok := strings.Cut(e.Name(), "-")
		if !ok {
			return fmt.Errorf("cannot pack %s: its name is not that of a platform, such as linux-amd64", e.Name())
		}
		suffix, program := ".tar.gz", "cascade"
		if system == "windows" {
			suffix, program = ".zip", "cascade.exe"
		}
		from := filepath.Join(a.platforms, e.Name(), program)
		name := fmt.Sprintf("_%s_%s_%s%s", a.version, system, architecture, suffix)
		files := []archive.File{{Name: program, Mode: 0o755, From: from}, license}
		if system != "windows" {
			for _, other := range []string{"kubectl-cascade", "kubectl_complete-cascade"} {
				files = append(files, archive.File{Name: other, Link: program})
			}
		}
		plug := []archive.File{{Name: "kubectl-" + program, Mode: 0o755, From: from}, license}
		err := errors.Join(archive.Write(filepath.Join(a.dir, "cascade"+name), files, a.created),
			archive.Write(filepath.Join(a.dir, "kubectl-cascade"+name), plug, a.created))
		if err != nil {
			return err
		}
		sum, err := sumOf(filepath.Join(a.dir, "kubectl-cascade"+name))
		if err != nil {
			return err
		}
		plugin.Archives = append(plugin.Archives, krew.Archive{
			System: system, Architecture: architecture, URL: a.downloads + "/kubectl-cascade" + name, SHA256: sum, Program: "kubectl-" + program,
		})
	}
	manifest, err := plugin.Manifest()
	if err != nil {
		return err
	}
	return a.save("krew.yaml", manifest)
}

// Files that are about all others.
const checksumsFile, signatureFile = "checksums.txt", "checksums.txt.sigstore.json"

// checksums of all files, in the form that sha256sum --check reads.
func (a assets) checksums(context.Context) error {
	entries, err := os.ReadDir(a.dir) // by name
	if err != nil {
		return fmt.Errorf("cannot list the release: %w", err)
	}
	var lines strings.Builder
	for _, e := range entries {
		if e.Name() == checksumsFile || e.Name() == signatureFile {
			continue
		}
		sum, err := sumOf(filepath.Join(a.dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%s  %s\n", sum, e.Name())
	}
	if err := a.save(checksumsFile, []byte(lines.String())); err != nil {
		return err
	}
	if a.key == "" {
		return nil
	}
	k, err := signature.ReadKey(a.key, []byte(os.Getenv("COSIGN_PASSWORD")))
	if err != nil {
		return err
	}
	bundle, err := k.File(filepath.Join(a.dir, checksumsFile))
	if err != nil {
		return err
	}
	return a.save(signatureFile, bundle)
}

func sumOf(file string) (string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("cannot sum up: %w", err)
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:]), nil
}
