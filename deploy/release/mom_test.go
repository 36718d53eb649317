package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/sigstore/cosign/v3/pkg/cosign"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"

	"github.com/cascade-gitops/cascade/deploy/release/signature"
)

// momBench is a release with what the Makefile has built of cascade-mom. One small program of
// Go stands for all: two are of the product, by their module.
func momBench(t *testing.T) mom {
	t.Helper()
	m := mom{assets: bench(t), revision: "0123", built: map[string]string{}}
	if err := m.write(t.Context()); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(payload(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, architecture := range []string{"amd64", "arm64"} {
		dir := filepath.Join(m.sources, "bin", "mom-release", "linux-"+architecture)
		m.built[architecture] = dir
		// Programs of two architectures differ.
		content := append(slices.Clone(program), architecture...)
		file := filepath.Join(m.sources, architecture)
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		sum, err := sumOf(file)
		if err != nil {
			t.Fatal(err)
		}
		index := `{"programs":[{"name":"cascade","sha256":"` + sum + `"},{"name":"controlplane","sha256":"` + sum + `"}],"providers":[]}`
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "programs"), 0o755),
			os.WriteFile(filepath.Join(dir, "index.json"), []byte(index), 0o600),
			os.WriteFile(filepath.Join(dir, "cascade-mom"), content, 0o700),
			os.WriteFile(filepath.Join(dir, "programs", "cascade"), content, 0o700),
			os.WriteFile(filepath.Join(dir, "programs", "controlplane"), content, 0o700),
			os.WriteFile(filepath.Join(dir, "programs", "left"), []byte("of another build, and not packed"), 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// TestMom: the files of cascade-mom are added to those of the release, which stay as they are,
// and twice the same.
func TestMom(t *testing.T) {
	m := momBench(t)
	before, names := m.content(t, checksumsFile), m.names(t)
	for range 2 {
		if err := m.add(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var want []string
	for _, architecture := range []string{"amd64", "arm64"} {
		for _, suffix := range []string{"cdx.json", "spdx.json", "tar.gz"} {
			want = append(want, "cascade-mom_v1.2.0_linux_"+architecture+"."+suffix)
		}
	}
	added := slices.DeleteFunc(m.names(t), func(name string) bool { return slices.Contains(names, name) })
	if diff := cmp.Diff(want, added); diff != "" {
		t.Errorf("files that are added: -want, +got:\n%s", diff)
	}
	after := m.content(t, checksumsFile)
	for line := range strings.Lines(before) {
		if !strings.Contains(after, line) {
			t.Errorf("%q is no checksum any more", line)
		}
	}
	if strings.Count(after, "\n") != strings.Count(before, "\n")+len(want) {
		t.Errorf("checksums are\n%s", after)
	}
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--quiet", "--strict", checksumsFile)
	check.Dir = m.dir
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("sha256sum: %v\n%s", err, out)
	}
	list := exec.CommandContext(t.Context(), "tar", "-tvzf", filepath.Join(m.dir, "cascade-mom_v1.2.0_linux_arm64.tar.gz"))
	out, err := list.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "-rwxr-xr-x") || !strings.Contains(string(out), " cascade-mom\n") || !strings.Contains(string(out), " LICENSE\n") {
		t.Errorf("the archive has %v\n%s", err, out)
	}
}

// TestMomDocuments: they name the program, each that is packed in it, and the modules of all,
// and are read by the libraries that others read them with.
func TestMomDocuments(t *testing.T) {
	m := momBench(t)
	if err := m.add(t.Context()); err != nil {
		t.Fatal(err)
	}
	doc, err := spdxjson.Read(strings.NewReader(m.content(t, "cascade-mom_v1.2.0_linux_amd64.spdx.json")))
	if err != nil {
		t.Fatal(err)
	}
	contained, modules := 0, 0
	for _, r := range doc.Relationships {
		switch r.Relationship {
		case common.TypeRelationshipContains:
			contained++
		case common.TypeRelationshipDependsOn:
			modules++
		}
	}
	ids := map[common.ElementID]bool{}
	for _, p := range doc.Packages {
		if ids[p.PackageSPDXIdentifier] {
			t.Errorf("%s is listed twice", p.PackageSPDXIdentifier)
		}
		ids[p.PackageSPDXIdentifier] = true
	}
	if contained != 2 || modules < 3*3 || !ids["Within-controlplane"] || ids["Within-left"] {
		t.Errorf("%d programs within, %d modules: %v", contained, modules, ids)
	}
	var bom struct {
		Metadata struct {
			Component struct{ Name, Version, Purl string }
		}
		Components []struct {
			Ref string `json:"bom-ref"`
		}
	}
	if err := json.Unmarshal([]byte(m.content(t, "cascade-mom_v1.2.0_linux_amd64.cdx.json")), &bom); err != nil {
		t.Fatal(err)
	}
	if c := bom.Metadata.Component; c.Name != "cascade-mom" || c.Version != "v1.2.0" || !strings.HasSuffix(c.Purl, "@v1.2.0#cmd/cascade-mom") {
		t.Errorf("it is about %+v", c)
	}
	refs := map[string]bool{}
	for _, c := range bom.Components {
		if refs[c.Ref] {
			t.Errorf("%s is listed twice", c.Ref)
		}
		refs[c.Ref] = true
	}
}

// TestMomRefuses: nothing is added to what is no release, another one, or one that was changed.
func TestMomRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(*mom) error
		want   string
	}{
		"None":    {"there is no release", func(m *mom) error { return os.RemoveAll(m.dir) }, "run make release VERSION=v1.2.0 first"},
		"Version": {"of another version", func(m *mom) error { m.version = "v1.3.0"; return nil }, "of another version"},
		"Changed": {"a file is not as it was", func(m *mom) error { return os.WriteFile(filepath.Join(m.dir, "notes.md"), []byte("x"), 0o600) }, "notes.md is not what was released"},
		"Gone":    {"a file is not there", func(m *mom) error { return os.Remove(filepath.Join(m.dir, "krew.yaml")) }, "krew.yaml"},
		"Outside": {"a checksum of a file elsewhere", func(m *mom) error {
			return os.WriteFile(filepath.Join(m.dir, checksumsFile), []byte("00  ../notes.md\n"), 0o600)
		}, "is no line of them"},
		"Signed": {"the signature would be of other checksums", func(m *mom) error { return os.WriteFile(filepath.Join(m.dir, signatureFile), nil, 0o600) }, "say with which key"},
		"Packed": {"a program is not the one that was packed", func(m *mom) error {
			return os.WriteFile(filepath.Join(m.built["arm64"], "index.json"), []byte(`{"programs":[{"name":"cascade","sha256":"00"}]}`), 0o600)
		}, "is not the one that was packed"},
		"Index": {"nothing says what is packed", func(m *mom) error { return os.Remove(filepath.Join(m.built["amd64"], "index.json")) }, "cannot list the programs within"},
		"Empty": {"nothing is packed", func(m *mom) error {
			return os.WriteFile(filepath.Join(m.built["amd64"], "index.json"), []byte(`{}`), 0o600)
		}, "no programs within"},
	} {
		t.Run(name, func(t *testing.T) {
			m := momBench(t)
			if err := tc.change(&m); err != nil {
				t.Fatal(err)
			}
			if err := m.add(t.Context()); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %v", tc.reason, err)
			}
		})
	}
}

// TestMomSigned: checksums that were signed are signed again.
func TestMomSigned(t *testing.T) {
	m := momBench(t)
	keys, err := cosign.GenerateKeyPair(func(bool) ([]byte, error) { return []byte("s3cret"), nil })
	if err != nil {
		t.Fatal(err)
	}
	m.key = filepath.Join(m.sources, "cosign.key")
	public := filepath.Join(m.sources, "cosign.pub")
	if err := errors.Join(os.WriteFile(m.key, keys.PrivateBytes, 0o600), os.WriteFile(public, keys.PublicBytes, 0o600), os.WriteFile(filepath.Join(m.dir, signatureFile), []byte("old"), 0o600)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("COSIGN_PASSWORD", "s3cret")
	if err := m.add(t.Context()); err != nil {
		t.Fatal(err)
	}
	key, err := signature.PublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(m.content(t, checksumsFile), signatureFile) {
		t.Error("the signature is among what is signed")
	}
	if err := signature.VerifyFile(t.Context(), filepath.Join(m.dir, checksumsFile), []byte(m.content(t, signatureFile)), key); err != nil {
		t.Error(err)
	}
}

// TestMomVersions: the version of a program within is that which a go.mod of the providers
// requires.
func TestMomVersions(t *testing.T) {
	m := mom{assets: assets{sources: filepath.Join("..", "..")}}
	versions, err := m.required()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"sigs.k8s.io/cluster-api", "sigs.k8s.io/cluster-api-provider-aws/v2", "sigs.k8s.io/cluster-api-provider-azure", "github.com/Azure/azure-service-operator/v2"} {
		if !strings.HasPrefix(versions[path], "v") {
			t.Errorf("%s has version %q", path, versions[path])
		}
	}
}
