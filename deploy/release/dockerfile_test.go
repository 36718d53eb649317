package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cascade-gitops/cascade/deploy/release/image"
)

// TestDockerfile: who builds with an engine gets an image that says and does the same. Its
// files are the same because the same program writes them.
func TestDockerfile(t *testing.T) {
	text, err := os.ReadFile("../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	_, last, ok := strings.Cut(strings.ReplaceAll(string(text), "\\\n", " "), "FROM scratch\n")
	if !ok {
		t.Fatal("the image is not made from scratch")
	}
	d := image.Description{
		Version: "v1.2.0", Revision: "0123456789abcdef", Source: "https://github.com/cascade-gitops/cascade",
		Created: time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC),
	}
	last = strings.NewReplacer("${VERSION}", d.Version, "${REVISION}", d.Revision, "${CREATED}", "2026-09-01T12:00:00Z").Replace(last)
	binary := filepath.Join(t.TempDir(), "cascade")
	if err := os.WriteFile(binary, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := d.Build("amd64", binary)
	if err != nil {
		t.Fatal(err)
	}
	config, err := p.Image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	got := config.Config
	got.Labels, got.Env, got.User, got.WorkingDir, got.Entrypoint = map[string]string{}, nil, "", "", nil
	for line := range strings.Lines(last) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "LABEL":
			for _, m := range regexp.MustCompile(`(\S+)="([^"]*)"`).FindAllStringSubmatch(rest, -1) {
				got.Labels[m[1]] = m[2]
			}
		case "ENV":
			got.Env = append(got.Env, rest)
		case "USER":
			got.User = rest
		case "WORKDIR":
			got.WorkingDir = rest
		case "ENTRYPOINT":
			if err := json.Unmarshal([]byte(rest), &got.Entrypoint); err != nil {
				t.Errorf("cannot read entry point %q: %v", rest, err)
			}
		}
	}
	if diff := cmp.Diff(config.Config, got); diff != "" {
		t.Errorf("-make image, +Dockerfile:\n%s", diff)
	}
	if !strings.Contains(last, "COPY --from=build /src/bin/rootfs/ /\n") {
		t.Error("the files are not those of make rootfs")
	}
	// COPY gives all files to root, so each other owner has a line.
	for path, owner := range owners() {
		if line := "COPY --from=build --chown=" + owner + " /src/bin/rootfs/" + path + " /" + path + "\n"; !strings.Contains(last, line) {
			t.Errorf("there is no line %q", line)
		}
	}
}

// owners of files that are not root's.
func owners() map[string]string {
	found := map[string]string{}
	for _, f := range image.Base() {
		if f.Owner != 0 {
			found[f.Path] = image.User
		}
	}
	return found
}

// TestToolchain: the image of the Dockerfile is built by the toolchain of go.mod.
func TestToolchain(t *testing.T) {
	var found []string
	for file, pattern := range map[string]string{
		"../Dockerfile": `(?m)^ARG GO_VERSION=(\S+)$`, "../../go.mod": `(?m)^toolchain go(\S+)$`, "go.mod": `(?m)^toolchain go(\S+)$`,
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(pattern).FindSubmatch(text)
		if m == nil {
			t.Fatalf("%s names no version of Go", file)
		}
		found = append(found, string(m[1]))
	}
	if found[0] != found[1] || found[1] != found[2] {
		t.Errorf("versions of Go are %q", found)
	}
}
