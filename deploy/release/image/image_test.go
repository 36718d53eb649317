package image

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

var described = Description{
	Version: "v1.2.0", Revision: "0123456789abcdef0123456789abcdef01234567",
	Source: "https://example.org/cascade", Created: time.Date(2026, 9, 1, 12, 0, 0, 0, time.FixedZone("somewhere", 3600)),
}

// program is a file that stands for the agent.
func program(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "cascade")
	if err := os.WriteFile(file, []byte(content), 0o700); err != nil {
		t.Fatal(err)
	}
	return file
}

// written is a layout with two architectures, and a document about each.
func written(t *testing.T, d Description) (dir string, digest v1.Hash) {
	t.Helper()
	var platforms []Platform
	for _, architecture := range []string{"arm64", "amd64"} {
		p, err := d.Build(architecture, program(t, "the agent for "+architecture))
		if err != nil {
			t.Fatal(err)
		}
		p.Documents = []Document{{Type: "application/spdx+json", Content: []byte(`{"of":"` + architecture + `"}`), Annotations: d.Annotations("x")}}
		platforms = append(platforms, p)
	}
	dir = filepath.Join(t.TempDir(), "layout")
	digest, err := Write(dir, "v1.2.0", d.Index(platforms), platforms)
	if err != nil {
		t.Fatal(err)
	}
	return dir, digest
}

func read(t *testing.T, dir string) Layout {
	t.Helper()
	l, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestSameBytes: another directory, another day, another zone, another mask of the
// process: not a byte differs.
func TestSameBytes(t *testing.T) {
	one, first := written(t, described)
	again := described
	again.Created = again.Created.UTC()
	two, second := written(t, again)
	if first != second {
		t.Errorf("digests are %s and %s", first, second)
	}
	if diff := cmp.Diff(tree(t, one), tree(t, two)); diff != "" {
		t.Errorf("layouts differ: -one, +two:\n%s", diff)
	}
	other := described
	other.Version = "v1.2.1"
	if _, third := written(t, other); third == first {
		t.Error("another version has the same digest")
	}
}

// tree is every file of a directory.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		files[strings.TrimPrefix(path, dir)] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestBaseIsShared: what does not change between releases is not pulled again.
func TestBaseIsShared(t *testing.T) {
	next := described
	next.Version, next.Created = "v1.3.0", next.Created.AddDate(0, 1, 0)
	var base []v1.Hash
	for _, d := range []Description{described, next} {
		p, err := d.Build("amd64", program(t, d.Version))
		if err != nil {
			t.Fatal(err)
		}
		m, err := p.Image.Manifest()
		if err != nil {
			t.Fatal(err)
		}
		base = append(base, m.Layers[0].Digest)
	}
	if base[0] != base[1] {
		t.Errorf("the base of two releases is %s and %s", base[0], base[1])
	}
}

func TestIndex(t *testing.T) {
	dir, digest := written(t, described)
	l := read(t, dir)
	if err := validate.Index(l.Index); err != nil {
		t.Errorf("the index is not sound: %v", err)
	}
	m, err := l.Index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := l.Index.Digest(); err != nil || got != digest || l.Tag != "v1.2.0" {
		t.Errorf("digest of %q is %s, %v; Write said %s", l.Tag, got, err, digest)
	}
	var platforms []string
	for _, d := range m.Manifests {
		platforms = append(platforms, d.Platform.String())
		if d.ArtifactType != "" || d.MediaType != types.OCIManifestSchema1 {
			t.Errorf("an image is listed as %s %q", d.MediaType, d.ArtifactType)
		}
	}
	if !slices.Equal(platforms, []string{"linux/amd64", "linux/arm64"}) {
		t.Errorf("platforms are %q", platforms)
	}
	for _, key := range []string{"title", "source", "version", "revision", "licenses", "created"} {
		if m.Annotations["org.opencontainers.image."+key] == "" {
			t.Errorf("the index has no annotation %s", key)
		}
	}
	if got := m.Annotations["org.opencontainers.image.created"]; got != "2026-09-01T11:00:00Z" {
		t.Errorf("created is %q, want the commit's time", got)
	}
}

func TestConfig(t *testing.T) {
	p, err := described.Build("arm64", program(t, "x"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := p.Image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	// The manifest of the agent says command: [cascade, agent] and runAsNonRoot.
	if c.Config.User != "65532:65532" || !slices.ContainsFunc(c.Config.Env, func(e string) bool {
		return strings.HasPrefix(e, "PATH=") && slices.Contains(strings.Split(e[5:], ":"), "/usr/local/bin")
	}) {
		t.Errorf("user is %q, environment %q", c.Config.User, c.Config.Env)
	}
	if c.Architecture != "arm64" || c.OS != "linux" || !slices.Equal(c.Config.Entrypoint, []string{"/usr/local/bin/cascade"}) {
		t.Errorf("%s/%s with entrypoint %q", c.OS, c.Architecture, c.Config.Entrypoint)
	}
	if c.Config.Labels["org.opencontainers.image.version"] != "v1.2.0" || !c.Created.Equal(described.Created) {
		t.Errorf("labels are %v, created at %s", c.Config.Labels, c.Created)
	}
}

// TestContent: what is in the image, unpacked as a runtime unpacks it.
func TestContent(t *testing.T) {
	p, err := described.Build("amd64", program(t, "the agent"))
	if err != nil {
		t.Fatal(err)
	}
	layers, err := p.Image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	files, contents := map[string]*tar.Header{}, map[string][]byte{}
	for _, l := range layers {
		body, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		for r := tar.NewReader(body); ; {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			content, err2 := io.ReadAll(r)
			if err := errors.Join(err, err2); err != nil {
				t.Fatal(err)
			}
			name := strings.TrimSuffix(h.Name, "/")
			if files[filepath.Dir(name)] == nil && filepath.Dir(name) != "." {
				t.Errorf("%s comes before its directory", name)
			}
			files[name], contents[name] = h, content
		}
	}
	for name, tc := range map[string]struct {
		reason string
		mode   int64
		owner  int
	}{
		"usr/local/bin/cascade":             {"the agent", 0o755, 0},
		"etc/passwd":                        {"who asks for a name of a user finds one", 0o644, 0},
		"etc/group":                         {"the same for groups", 0o644, 0},
		"etc/ssl/certs/ca-certificates.crt": {"HTTPS", 0o644, 0},
		"tmp":                               {"where there is no volume, everyone may write there", 0o1777, 0},
		"home/nonroot":                      {"HOME of the user", 0o700, 65532},
	} {
		h := files[name]
		if h == nil || h.Mode != tc.mode || h.Uid != tc.owner || h.Gid != tc.owner {
			t.Errorf("%s (%s): %+v", name, tc.reason, h)
		}
	}
	if string(contents["usr/local/bin/cascade"]) != "the agent" {
		t.Error("the program in the image is another")
	}
	for _, want := range []string{"root:x:0:0:", "nonroot:x:65532:65532:"} {
		if !strings.Contains(string(contents["etc/passwd"]), want) {
			t.Errorf("/etc/passwd has no %q", want)
		}
	}
	checkRoots(t, contents["etc/ssl/certs/ca-certificates.crt"])
}

// checkRoots: all are certificates of authorities, none twice, and enough of them.
func checkRoots(t *testing.T, text []byte) {
	t.Helper()
	names := map[string]bool{}
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatalf("a root of trust is no certificate: %v", err)
		}
		if !c.IsCA || names[c.Subject.String()+c.SerialNumber.String()] {
			t.Errorf("root of trust %s: is an authority: %t, or is there twice", c.Subject, c.IsCA)
		}
		names[c.Subject.String()+c.SerialNumber.String()] = true
	}
	if len(bytes.TrimSpace(text)) > 0 || len(names) < 100 {
		t.Errorf("%d roots of trust, and %d bytes that are none", len(names), len(text))
	}
}

// TestRootfs: what a Dockerfile copies is what the image has.
func TestRootfs(t *testing.T) {
	dir, binary := filepath.Join(t.TempDir(), "rootfs"), program(t, "the agent")
	if err := WriteRootfs(dir, binary); err != nil {
		t.Fatal(err)
	}
	for _, f := range append(Base(), agent(binary)) {
		stat, err := os.Stat(filepath.Join(dir, f.Path))
		if err != nil {
			t.Fatal(err)
		}
		if stat.Mode() != f.Mode {
			t.Errorf("%s has mode %s, want %s", f.Path, stat.Mode(), f.Mode)
		}
		if f.Mode.IsDir() {
			continue
		}
		want, err := f.read()
		got, err2 := os.ReadFile(filepath.Join(dir, f.Path))
		if err := errors.Join(err, err2); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s differs: %v", f.Path, err)
		}
	}
}

func TestReferrers(t *testing.T) {
	dir, _ := written(t, described)
	l := read(t, dir)
	index, err := l.Index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Referrers) != 2 {
		t.Fatalf("%d referrers, want one for each architecture", len(l.Referrers))
	}
	for i, r := range l.Referrers {
		raw, err := r.RawManifest()
		if err != nil {
			t.Fatal(err)
		}
		var m v1.Manifest
		if err := json.Unmarshal(raw, &m); err != nil {
			t.Fatal(err)
		}
		image := index.Manifests[i]
		if m.Subject == nil || m.Subject.Digest != image.Digest || m.Subject.Size != image.Size || m.Subject.MediaType != image.MediaType {
			t.Errorf("subject is %+v, want the image %+v", m.Subject, image)
		}
		if m.ArtifactType != "application/spdx+json" || m.Config.MediaType != "application/vnd.oci.empty.v1+json" || string(m.Layers[0].MediaType) != m.ArtifactType {
			t.Errorf("the artifact is %s", raw)
		}
	}
	documents, err := l.Documents()
	if err != nil {
		t.Fatal(err)
	}
	for _, architecture := range []string{"amd64", "arm64"} {
		if d := documents[architecture]; len(d) != 1 || string(d[0].Content) != `{"of":"`+architecture+`"}` {
			t.Errorf("documents of %s: %+v", architecture, d)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	if _, err := Read(t.TempDir()); err == nil || !strings.Contains(err.Error(), "make image") {
		t.Errorf("a directory that is no layout: %v", err)
	}
}
