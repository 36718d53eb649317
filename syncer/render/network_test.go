package render

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
)

// reference is a kustomization file that names u where kustomize fetches URLs;
// field is how the error must name the place. These are the fields of threat V3.
var references = map[string]struct {
	field string
	file  func(u string) string
}{
	"Resources":      {"resources[0]", func(u string) string { return "resources: [\"" + u + "\"]\n" }},
	"Bases":          {"bases[0]", func(u string) string { return "bases: [\"" + u + "\"]\n" }},
	"Components":     {"components[0]", func(u string) string { return "components: [\"" + u + "\"]\n" }},
	"Patches":        {"patches[0].path", func(u string) string { return "patches: [{path: \"" + u + "\"}]\n" }},
	"StrategicMerge": {"patchesStrategicMerge[0]", func(u string) string { return "patchesStrategicMerge: [\"" + u + "\"]\n" }},
	"Json6902": {"patchesJson6902[0].path", func(u string) string {
		return "patchesJson6902: [{path: \"" + u + "\", target: {version: v1, kind: X, name: y}}]\n"
	}},
	"ConfigMapFiles":  {"configMapGenerator[0]", func(u string) string { return "configMapGenerator: [{name: x, files: [\"k=" + u + "\"]}]\n" }},
	"ConfigMapBare":   {"configMapGenerator[0]", func(u string) string { return "configMapGenerator: [{name: x, files: [\"" + u + "\"]}]\n" }},
	"ConfigMapEnvs":   {"configMapGenerator[0]", func(u string) string { return "configMapGenerator: [{name: x, envs: [\"" + u + "\"]}]\n" }},
	"ConfigMapEnv":    {"configMapGenerator[0]", func(u string) string { return "configMapGenerator: [{name: x, env: \"" + u + "\"}]\n" }},
	"SecretFiles":     {"secretGenerator[0]", func(u string) string { return "secretGenerator: [{name: x, files: [\"k=" + u + "\"]}]\n" }},
	"OpenAPI":         {"openapi[0].path", func(u string) string { return "openapi: {path: \"" + u + "\"}\n" }},
	"CRDs":            {"crds[0]", func(u string) string { return "crds: [\"" + u + "\"]\n" }},
	"Configurations":  {"configurations[0]", func(u string) string { return "configurations: [\"" + u + "\"]\n" }},
	"Transformers":    {"transformers[0]", func(u string) string { return "transformers: [\"" + u + "\"]\n" }},
	"Generators":      {"generators[0]", func(u string) string { return "generators: [\"" + u + "\"]\n" }},
	"Validators":      {"validators[0]", func(u string) string { return "validators: [\"" + u + "\"]\n" }},
	"Replacements":    {"replacements[0].path", func(u string) string { return "replacements: [{path: \"" + u + "\"}]\n" }},
	"InAnotherCase":   {"resources[0]", func(u string) string { return "Resources: [\"" + u + "\"]\n" }},
	"FilesOfAnotherC": {"configMapGenerator[0]", func(u string) string { return "CONFIGMAPGENERATOR: [{Name: x, FILES: [\"k=" + u + "\"]}]\n" }},
}

// below puts a kustomization file where it is read as it is written: below the
// one that the build begins with, which is written anew.
func below(file string) tree {
	return tree{"kustomization.yaml": "resources: [base, x.yaml]\n", "x.yaml": manifest("x"), "base/kustomization.yaml": file, "base/y.yaml": manifest("y")}
}

func TestRemoteReferences(t *testing.T) {
	for name, ref := range references {
		t.Run(name, func(t *testing.T) {
			for place, files := range map[string]tree{
				"first": {"kustomization.yaml": ref.file("https://example.com/x.yaml")},
				"below": below(ref.file("https://example.com/x.yaml")),
			} {
				_, err := rendered(t.Context(), files, Build{})
				if !errors.Is(err, errRemote) || !strings.Contains(err.Error(), ref.field) {
					t.Errorf("%s: Render() = %v, want it to refuse the reference and name %s", place, err, ref.field)
				}
			}
		})
	}
}

func TestRemoteSpellings(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		value   string
		refused bool
	}{
		"HTTPS":       {"the ordinary one", "https://example.com/x.yaml", true},
		"Upper":       {"a scheme has no case", "HTTPS://example.com/x.yaml", true},
		"SSH":         {"git by ssh", "ssh://git@example.com/x", true},
		"SCP":         {"git's short form", "git@example.com:org/repo", true},
		"GitHub":      {"kustomize completes this by itself", "github.com/org/repo", true},
		"GitHubSCP":   {"and this", "github.com:org/repo", true},
		"GoGetter":    {"kept for old files", "git::https://example.com/x", true},
		"File":        {"a clone from the host's own disk", "file:///etc", true},
		"Ref":         {"only a repository has a ref", "some/repo?ref=main", true},
		"NoScheme":    {"a URL of the same scheme", "//example.com/x", true},
		"Local":       {"what is meant to be written", "base/x.yaml", false},
		"Up":          {"a base beside", "../base", false},
		"Dots":        {"names with dots are names", "my.example.com.yaml", false},
		"LikeHost":    {"a directory called like a host", "example.com/x.yaml", false},
		"Question":    {"an odd name, but a name", "what?.yaml", false},
		"EqualsInKey": {"generators name a key", "key=file.txt", false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := isRemote(tc.value); got != tc.refused {
				t.Errorf("%s\nisRemote(%q) = %t, want %t", tc.reason, tc.value, got, tc.refused)
			}
		})
	}
}

func TestInlinePatchIsNoReference(t *testing.T) {
	// A patch may have a URL in it, and stand where a path is expected.
	files := tree{
		"kustomization.yaml": "resources: [x.yaml]\npatchesStrategicMerge:\n- |\n  apiVersion: v1\n  kind: ConfigMap\n  metadata: {name: x}\n  data: {url: \"https://example.com/?a=1&b=2\"}\n",
		"x.yaml":             manifest("x"),
	}
	objects, err := objectsOf(rendered(t.Context(), files, Build{}))
	if err != nil || len(objects) != 1 {
		t.Fatalf("Render() = %d objects, %v, want the patched ConfigMap", len(objects), err)
	}
}

const bypass = "CASCADE_TEST_BYPASS_URL"

// TestNoNetwork proves that nothing reaches a server even where the static check
// does not see a reference. DenyNetwork cannot be taken back, so this runs in a
// process of its own.
func TestNoNetwork(t *testing.T) {
	if u := os.Getenv(bypass); u != "" {
		withoutNetwork(t, u)
		return
	}
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.WriteHeader(http.StatusNotFound)
	}))
	defer server.Close()
	for name, env := range map[string]string{"Denied": "", "NotDenied": "1"} {
		requests.Store(0)
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestNoNetwork$", "-test.count=1")
		cmd.Env = append(os.Environ(), bypass+"="+server.URL, "CASCADE_TEST_ALLOW="+env, "GIT_TERMINAL_PROMPT=0")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		// The counter must be able to count: without DenyNetwork kustomize does
		// call the server.
		if got := requests.Load(); (got > 0) != (name == "NotDenied") {
			t.Errorf("%s: %d requests reached the server", name, got)
		}
	}
}

// unchecked answers a build without the static check of kustomization files, as a way
// around it would.
func unchecked(ctx context.Context, files tree) asked {
	a := answers{mounted{newFileSystem(ctx, files)}}
	return asked{func(question string, body []byte) ([]byte, error) {
		if at, err := a.at(string(body)); question == askRead && err == nil {
			return files.ReadFile(at)
		}
		return a.answer(ctx, question, body)
	}}
}

func withoutNetwork(t *testing.T, url string) {
	if os.Getenv("CASCADE_TEST_ALLOW") == "" {
		if err := DenyNetwork(); err != nil {
			t.Fatal(err)
		}
	}
	for name, ref := range references {
		files := below(ref.file(url + "/x.yaml"))
		if _, err := run(unchecked(t.Context(), files), "/"); err == nil {
			t.Errorf("%s: built with a reference that cannot be followed", name)
		}
	}
	if os.Getenv("CASCADE_TEST_ALLOW") == "" {
		if _, err := exec.LookPath("git"); err == nil {
			t.Error("git is still found")
		}
	}
}
