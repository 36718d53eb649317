package render

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	kustypes "sigs.k8s.io/kustomize/api/types"

	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// cycle is YAML that contains itself.
const cycle = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: &d\n  x: *d\n"

// billion is YAML of a billion nodes.
var billion = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n" + laughs(9, 10)

func indented(text string, by int) string {
	margin := strings.Repeat(" ", by)
	return margin + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n"+margin) + "\n"
}

// plugin is a file of a built-in plugin with YAML in a string.
func plugin(kind, field, text string) string {
	return "apiVersion: builtin\nkind: " + kind + "\nmetadata: {name: p}\n" + field + ": |\n" + indented(text, 2)
}

// withPlugin is a directory whose kustomization file names a plugin.
func withPlugin(field, text string) tree {
	return tree{"kustomization.yaml": "resources: [a.yaml]\n" + field + ": [p.yaml]\n", "a.yaml": manifest("a"), "p.yaml": text}
}

// copies is a JSON patch that doubles what is in a field, over and over.
func copies(times int) string {
	text := "- {op: add, path: /data, value: {a: {b: \"" + strings.Repeat("x", 100) + "\"}}}\n"
	for i := range times {
		text += fmt.Sprintf("- {op: copy, from: /data, path: /data/a/c%d}\n", i)
	}
	return text
}

// large is a tree whose texts are not hashed each time that somebody looks at them.
type large struct{ tree }

func (l large) Stat(name string) (dir bool, hash string, err error) {
	if l.text(strings.TrimPrefix(name, "/")) {
		return false, name, nil
	}
	return l.small().Stat(name)
}

func (l large) text(file string) bool {
	_, ok := l.tree[file]
	return ok && strings.HasSuffix(file, ".txt")
}

// small is the tree without its texts.
func (l large) small() tree {
	small := maps.Clone(l.tree)
	maps.DeleteFunc(small, func(file, _ string) bool { return l.text(file) })
	return small
}

func (l large) ReadDir(name string) ([]source.Entry, error) {
	entries, err := l.small().ReadDir(name)
	for _, file := range slices.Sorted(maps.Keys(l.tree)) {
		if l.text(file) {
			entries = append(entries, source.Entry{Name: file})
		}
	}
	return entries, err
}

// isolated are inputs that would end this process, or never end, if they were built
// in it.
func isolated() map[string]struct {
	reason string
	files  Files
	build  Build
	want   string
} {
	target := &kustypes.Selector{}
	target.Kind = "ConfigMap"
	many := tree{"kustomization.yaml": "configMapGenerator:\n- name: g\n  files:\n"}
	content := strings.Repeat("x", 9<<20)
	for i := range 150 {
		many["kustomization.yaml"] += fmt.Sprintf("  - f%d.txt\n", i)
		many[fmt.Sprintf("f%d.txt", i)] = content
	}
	keys := "resources: [a.yaml]\nconfigMapGenerator:\n- name: g\n  files:\n"
	for i := range 200 {
		keys += fmt.Sprintf("  - k%d=big.txt\n", i)
	}
	replacements := "resources: [a.yaml]\nreplacements:\n"
	for i := range 40 {
		replacements += fmt.Sprintf("- source: {kind: ConfigMap, fieldPath: data}\n  targets: [{select: {kind: ConfigMap}, fieldPaths: [data.c%d], options: {create: true}}]\n", i)
	}
	return map[string]struct {
		reason string
		files  Files
		build  Build
		want   string
	}{
		"S1PatchCycle":       {"a string in a plugin is YAML", withPlugin("transformers", plugin("PatchTransformer", "patch", cycle)+"target: {kind: ConfigMap}\n"), Build{}, ""},
		"S1PatchLaughs":      {"aliases in a string", withPlugin("transformers", plugin("PatchTransformer", "patch", billion)+"target: {kind: ConfigMap}\n"), Build{}, ""},
		"S1StrategicCycle":   {"the same in another plugin", withPlugin("transformers", plugin("PatchStrategicMergeTransformer", "patches", cycle)), Build{}, ""},
		"S1StrategicLaughs":  {"the same", withPlugin("transformers", plugin("PatchStrategicMergeTransformer", "patches", billion)), Build{}, ""},
		"S1InlineCycle":      {"a plugin in a string has strings", tree{"kustomization.yaml": "resources: [a.yaml]\ntransformers:\n- |\n" + indented(plugin("PatchTransformer", "patch", cycle)+"target: {kind: ConfigMap}\n", 2), "a.yaml": manifest("a")}, Build{}, ""},
		"S1Validator":        {"validators are plugins", withPlugin("validators", plugin("PatchTransformer", "patch", cycle)+"target: {kind: ConfigMap}\n"), Build{}, ""},
		"S5ManyNames":        {"files add up", large{many}, Build{}, "more than 32 MiB"},
		"S5ManyKeys":         {"one file, many times", large{tree{"kustomization.yaml": keys, "a.yaml": manifest("a"), "big.txt": content}}, Build{}, ""},
		"S5Dense":            {"nodes take more memory than their text", tree{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\nx: [" + strings.Repeat("1,", 4<<20) + "1]\n"}, Build{}, "nodes"},
		"S21Copies":          {"a patch in the source", tree{"kustomization.yaml": "resources: [a.yaml]\npatches: [{path: p.yaml, target: {kind: ConfigMap}}]\n", "a.yaml": manifest("a"), "p.yaml": copies(40)}, Build{}, ""},
		"S21CopiesOfTheSpec": {"a patch in spec.patches", tree{"a.yaml": manifest("a")}, Build{Patches: []kustypes.Patch{{Patch: copies(40), Target: target}}}, ""},
		"S21Replacements":    {"a map into itself", tree{"kustomization.yaml": replacements, "a.yaml": manifest("a", "k", "v")}, Build{}, ""},
	}
}

// isolatedLimits end what is hostile soon.
func isolatedLimits() worker.Limits {
	return worker.Limits{Workers: 2, Memory: 160 << 20, Time: 3 * time.Second}
}

// mostAllocated bounds what this process may allocate while its workers do what is
// hostile.
const mostAllocated = 1 << 30

// TestIsolated: what is meant to end the agent ends as an error of its own, and good
// builds beside it go on.
func TestIsolated(t *testing.T) {
	pool := worker.New(worker.Options{Limits: isolatedLimits()})
	defer pool.Close()
	good := tree{"kustomization.yaml": "namePrefix: x-\nresources: [a.yaml]\n", "a.yaml": manifest("a")}
	for name, tt := range isolated() {
		t.Run(name, func(t *testing.T) {
			tt.build.Workers = worker.For(pool, name)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			ended := make(chan error, 1)
			go func() {
				_, err := Render(t.Context(), tt.files, tt.build)
				ended <- err
			}()
			for range 3 {
				if objects, err := objectsOf(Render(t.Context(), good, Build{Workers: worker.For(pool, "good")})); err != nil || len(objects) != 1 {
					t.Errorf("a good build beside it: %v, %v", objects, err)
				}
			}
			err := <-ended
			var exceeded *worker.Exceeded
			if tt.want == "" && !errors.As(err, &exceeded) || err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: %.500v, want a limit that is exceeded, or %q", tt.reason, err, tt.want)
			}
			var lasting *Error
			if late := exceeded != nil && exceeded.Late; !errors.As(err, &lasting) && !late {
				t.Errorf("%s: %T would be tried again at once", tt.reason, err)
			}
			runtime.ReadMemStats(&after)
			if got := after.TotalAlloc - before.TotalAlloc; got > mostAllocated {
				t.Errorf("%s: this process allocated %d MiB", tt.reason, got>>20)
			}
		})
	}
}

// TestEntered: directories that take each other again and again are refused long before a worker
// has used up its time. e2e/hostile: edit-diamond has kustomize enter 2^40 of them.
func TestEntered(t *testing.T) {
	f := newFileSystem(t.Context(), tree{"a/kustomization.yaml": "resources: [a.yaml]\n", "a/a.yaml": manifest("a")})
	for n := range 2 * MaxEntered {
		if _, err := f.ReadFile("/a/a.yaml"); err != nil {
			t.Fatalf("a file that is no kustomization is refused after %d times: %v", n, err)
		}
	}
	for n := range MaxEntered {
		if _, err := f.ReadFile("/a/kustomization.yaml"); err != nil {
			t.Fatalf("a directory is refused after it was entered %d times: %v", n, err)
		}
	}
	_, err := f.ReadFile("/a/kustomization.yaml")
	if !errors.Is(err, ErrHostile) || !errors.Is(f.failed, ErrHostile) || !f.refused {
		t.Errorf("ReadFile() = %v after %d times, want it refused for good", err, MaxEntered)
	}
}

// TestWithoutWorkers: nothing is built by kustomize in this process.
func TestWithoutWorkers(t *testing.T) {
	files := tree{"kustomization.yaml": "namePrefix: x-\nresources: [a.yaml]\n", "a.yaml": manifest("a")}
	if _, err := Render(t.Context(), files, Build{}); !errors.Is(err, errNoWorkers) {
		t.Errorf("Render() = %v, want it refused", err)
	}
}

// TestSchemaIsForgotten: a worker that was brought a schema does no other build.
func TestSchemaIsForgotten(t *testing.T) {
	spent := false
	files := tree{"kustomization.yaml": "openapi: {path: s.json}\nnamePrefix: x-\nresources: [a.yaml]\n", "a.yaml": manifest("a"), "s.json": "{}"}
	_, _ = Render(t.Context(), files, Build{Workers: watched{workers, &spent}})
	if !spent {
		t.Error("the worker is used again")
	}
	files["kustomization.yaml"] = "namePrefix: x-\nresources: [a.yaml]\n"
	if _, err := Render(t.Context(), files, Build{Workers: watched{workers, &spent}}); err != nil || spent {
		t.Errorf("a build without a schema: %v, the worker is thrown away: %t", err, spent)
	}
}

// watched notes whether a worker is not to be used again.
type watched struct {
	worker.Runner
	spent *bool
}

func (w watched) Run(ctx context.Context, job worker.Job) ([]byte, error) {
	out, err := w.Runner.Run(ctx, job)
	*w.spent = job.Spent()
	return out, err
}

// TestKilledInTheMiddle: another worker gives the right rendering.
func TestKilledInTheMiddle(t *testing.T) {
	pool := worker.New(worker.Options{Limits: worker.DefaultLimits()})
	defer pool.Close()
	files := &killing{tree: tree{"kustomization.yaml": "resources: [a.yaml, b]\n", "a.yaml": manifest("a"), "b/kustomization.yaml": "namePrefix: x-\nresources: [b.yaml]\n", "b/b.yaml": manifest("b")}}
	files.kill = func() {
		// The only child that this test's thread group has besides idle workers of
		// other tests: whichever dies is replaced.
		for _, pid := range children(t) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	objects, err := objectsOf(Render(t.Context(), files, Build{Workers: pool}))
	if err != nil || len(objects) != 2 || files.killed != 1 {
		t.Errorf("%v, %v after %d deaths, want both objects after one", namesOf(objects), err, files.killed)
	}
}

// killing ends the worker when a file of a base is read.
type killing struct {
	tree
	kill   func()
	killed int
}

func (k *killing) ReadFile(name string) ([]byte, error) {
	if strings.HasSuffix(name, "b.yaml") && k.killed == 0 {
		k.killed++
		k.kill()
	}
	return k.tree.ReadFile(name)
}

func children(t *testing.T) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, file := range files {
		data, _ := os.ReadFile(file)
		for word := range strings.FieldsSeq(string(data)) {
			pid, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}
