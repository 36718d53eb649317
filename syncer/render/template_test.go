package render

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/syncer/worker"
)

// plainly finishes an object as it is.
func plainly(u *unstructured.Unstructured) (*unstructured.Unstructured, int, error) {
	return u, 1000, nil
}

func prepared(ctx context.Context, files Files, b Build) (*Template[*unstructured.Unstructured], error) {
	if b.Workers == nil {
		b.Workers = workers
	}
	return Prepare(ctx, files, b, plainly)
}

// sameAsRender compares a Template with Render for each of the values, twice and in both
// orders, so that what was made for one is there for the others.
func sameAsRender(t *testing.T, files Files, b Build, values []map[string]string) {
	t.Helper()
	b.NoDigest, b.Workers = true, &once{Runner: workers}
	template, errPrepare := prepared(t.Context(), files, b)
	type want struct {
		objects []map[string]any
		err     error
		reads   *ReadSet
	}
	var wants []want
	for _, v := range values {
		b.Variables = v
		r, err := rendered(t.Context(), files, b)
		w := want{err: err}
		if err == nil {
			w.objects, w.reads = contents(r.Objects), r.Reads
		}
		wants = append(wants, w)
	}
	for round := range 2 {
		for n := range values {
			if round == 1 {
				n = len(values) - 1 - n
			}
			var got []*unstructured.Unstructured
			err := errPrepare
			if err == nil {
				got, err = template.Render(values[n], b.Sensitive)
			}
			w := wants[n]
			if fmt.Sprint(err) != fmt.Sprint(w.err) {
				t.Fatalf("values %q: error of the Template: %v\nerror of Render: %v\nfiles: %q", values[n], err, w.err, files)
			}
			if err != nil {
				sameFailure(t, err, w.err)
				continue
			}
			if diff := cmp.Diff(w.objects, contents(got)); diff != "" {
				t.Fatalf("values %q: -Render, +Template:\n%s\nfiles: %q", values[n], diff, files)
			}
			if diff := cmp.Diff(w.reads, template.Reads(), cmp.AllowUnexported(ReadSet{}, read{})); diff != "" {
				t.Fatalf("values %q: reads: -Render, +Template:\n%s", values[n], diff)
			}
		}
	}
}

// once lets a worker build a directory once, and then asks the same questions again:
// builds take most of the time.
type once struct {
	worker.Runner
	asked [][2]string
	out   []byte
	err   error
	built bool
}

func (o *once) Run(ctx context.Context, job worker.Job) ([]byte, error) {
	if o.built {
		for _, q := range o.asked {
			_, _ = job.Answer(ctx, q[0], []byte(q[1]))
		}
		return o.out, o.err
	}
	answer := job.Answer
	job.Answer = func(ctx context.Context, question string, body []byte) ([]byte, error) {
		o.asked = append(o.asked, [2]string{question, string(body)})
		return answer(ctx, question, body)
	}
	o.built = true
	o.out, o.err = o.Runner.Run(ctx, job)
	return o.out, o.err
}

func sameFailure(t *testing.T, err, want error) {
	t.Helper()
	var permanent, wantPermanent *Error
	if errors.As(err, &permanent) != errors.As(want, &wantPermanent) {
		t.Fatalf("%v is %T, and of Render it is %T", want, err, want)
	}
	for _, is := range []error{ErrPathNotFound, ErrHostile, errOutside, errSubstitution, errNameless} {
		if errors.Is(err, is) != errors.Is(want, is) {
			t.Errorf("%v: only one of both is %v", err, is)
		}
	}
	if permanent == nil {
		return
	}
	if diff := cmp.Diff(wantPermanent.Reads, permanent.Reads, cmp.AllowUnexported(ReadSet{}, read{})); diff != "" {
		t.Errorf("reads of %v: -Render, +Template:\n%s", err, diff)
	}
}

// TestTemplateEqualsRender is over all that is compared with Flux, and with more values.
func TestTemplateEqualsRender(t *testing.T) {
	cases := readCases(t, "testdata/*/*.txtar")
	delete(cases, "hostile/RemoteInSecondSpelling") // by chance, its error has the one spelling or the other
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		c := cases[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := buildOf(kustomizationOf(t, c.spec))
			own := b.Variables
			b.Variables = nil
			less := maps.Clone(own)
			for k := range less {
				delete(less, k)
				break
			}
			values := []map[string]string{own, {"other": "1"}, nil, less, more(own, "a", "yes"), more(own, "a", "x: {y"), more(own, "bad-name", "1")}
			sameAsRender(t, c.files, b, values)
			b.Always, b.Lenient = !b.Always, true
			sameAsRender(t, c.files, b, values)
		})
	}
}

func more(values map[string]string, name, value string) map[string]string {
	out := map[string]string{}
	for k := range values {
		out[k] = values[k]
	}
	out[name] = value
	return out
}

func TestTemplateEqualsRenderWith(t *testing.T) {
	note := func(name, text string) string { return manifest(name, "note", text) }
	secret := "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {password: \"${a}\"}\n"
	values := []map[string]string{{"a": "1", "b": "x"}, {"a": "2", "b": "x"}, {"a": "2"}, {}, nil, {"a": "a\nb", "b": "${a}"}, {"a": "'"}, {"a": "\" #"}, {"a-b": "1"}}
	for name, tc := range map[string]struct {
		reason string
		files  tree
		build  Build
	}{
		"Shared":       {"what mentions nothing beside what does", tree{"a.yaml": note("a", "x"), "b.yaml": note("b", "${a}")}, Build{}},
		"Disabled":     {"an object may say that it is left as it is", tree{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  labels: {kustomize.toolkit.fluxcd.io/substitute: disabled}\ndata: {k: \"${a}\"}\n", "b.yaml": note("b", "${a}")}, Build{}},
		"DisabledByIt": {"and not by what is put into it", tree{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  annotations: {kustomize.toolkit.fluxcd.io/substitute: \"${b}\"}\ndata: {k: \"${a}\"}\n"}, Build{}},
		"Escaped":      {"two dollars are one", tree{"a.yaml": note("a", "$${a} $$ $a")}, Build{}},
		"Default":      {"with and without a value", tree{"a.yaml": note("a", "${a:=d} ${b:-${a}}")}, Build{}},
		"Missing":      {"the first object in which one is missing is named", tree{"a.yaml": note("a", "${b}"), "b.yaml": note("b", "${gone}")}, Build{}},
		"Lenient":      {"or nothing is missing", tree{"a.yaml": note("a", "${b}"), "b.yaml": note("b", "${gone}")}, Build{Lenient: true}},
		"Always":       {"also without values", tree{"a.yaml": note("a", "${b}"), "b.yaml": note("b", "$$")}, Build{Always: true}},
		"Untamed":      {"substitution writes anew what it does not change", tree{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: 1.50, l: !!str 5}\n"}, Build{}},
		"Types":        {"a value may become a number, a boolean or nothing", tree{"a.yaml": "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {replicas: ${a}, paused: ${b}}\n"}, Build{}},
		"Names":        {"two objects must not become the same", tree{"a.yaml": manifest("a"), "b.yaml": manifest("${b:=a}"), "c.yaml": manifest("${a:=x}")}, Build{}},
		"Swap":         {"nor at any moment on the way", tree{"a.yaml": manifest("${b:=y}"), "b.yaml": manifest("x")}, Build{}},
		"Nameless":     {"an object must keep its name", tree{"a.yaml": manifest("\"${a:=}\"")}, Build{Lenient: true}},
		"List":         {"a list is several objects", tree{"a.yaml": "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: \"${a}\"}}\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: b}}\n"}, Build{}},
		"BecomesList":  {"an object may become a list, or a list of nothing", tree{"a.yaml": "apiVersion: v1\nkind: ${k:=List}\nmetadata: {name: a}\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: \"x${a}\"}}\n"}, Build{}},
		"Documents":    {"several in a file", tree{"a.yaml": note("a", "${a}") + "---\n" + note("b", "x") + "---\n" + note("c", "${b}")}, Build{}},
		"Secret":       {"its text becomes data", tree{"a.yaml": secret}, Build{}},
		"Sealed":       {"an encrypted Secret is refused after all substitution", tree{"a.yaml": secret + "sops: {mac: x}\n", "b.yaml": note("b", "${b}")}, Build{}},
		"NotNormal":    {"so is what cannot be normalised", tree{"a.yaml": secret + "sops: {mac: x}\n", "0.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: t}\nstringData: {a: \"1\"}\ndata: {b: \"${b}\"}\n"}, Build{}},
		"Metadata":     {"what all objects have", tree{"a.yaml": note("a", "${a}"), "b.yaml": note("b", "x")}, Build{CommonLabels: map[string]string{"l": "${a}"}, CommonAnnotations: map[string]string{"n": "1"}}},
		"Kustomize":    {"built by a worker", tree{"kustomization.yaml": "resources: [a.yaml, b.yaml]\nnamePrefix: p-\n", "a.yaml": note("a", "${a}"), "b.yaml": note("b", "x")}, Build{}},
		"Sensitive":    {"no error quotes a secret value", tree{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: ${long}}\n"}, Build{Sensitive: []string{"x: {secret value"}}},
		"Path":         {"errors of the build", tree{"a.yaml": note("a", "x")}, Build{Path: "nowhere"}},
		"Twice":        {"the same object twice", tree{"a.yaml": note("a", "x"), "b.yaml": note("a", "y")}, Build{}},
	} {
		t.Run(name, func(t *testing.T) {
			sameAsRender(t, tc.files, tc.build, append(slices.Clone(values), map[string]string{"long": "x: {secret value", "a": "1", "b": "b"}))
		})
	}
}

// TestTemplateProperty is over manifests and values that are put together by chance.
func TestTemplateProperty(t *testing.T) {
	chance := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same ones each time
	pick := func(from ...string) string { return from[chance.IntN(len(from))] }
	value := func() string {
		return pick("1", "yes", "~", "", "x", "a b", "a: b", "- c", "#", "'", "\"", "0x1f", "1e3", "é", "\t", "a\nb", "{}", "[]", "&a", "*a", "!!str 1", "null", "|", "2026-01-01", "1.0", "\\")
	}
	text := func() string {
		return pick("x", "${a}", "\"${a}\"", "'${b}'", "${a:=d}", "\"${c:-}\"", "$$", "${a}${b}", "|\n    line ${a}\n    ${b}", "${#a}", "\"${b//x/y}\"", "5", "true", "\"$x\"", "${gone:=1}", "[\"${a}\", ${b}]", "{k: \"${c}\"}", "1.5", "0o17", "${c")
	}
	for n := range 150 {
		files := tree{}
		for f := range 1 + chance.IntN(3) {
			o := "apiVersion: v1\nkind: " + pick("ConfigMap", "ConfigMap", "Secret", "Service", "${k:=Thing}") + "\nmetadata:\n  name: " + pick("a", "b", "n-${a}", "\"${b}\"") + fmt.Sprint(f) + "\n"
			if chance.IntN(3) == 0 {
				o += "  annotations:\n    note: " + pick("\"${a}\"", "x") + "\n"
			}
			o += pick("data", "spec", "stringData") + ":\n"
			for k := range 1 + chance.IntN(3) {
				o += fmt.Sprintf("  k%d: %s\n", k, text())
			}
			files[fmt.Sprintf("f%d.yaml", f)] = o
		}
		var values []map[string]string
		for range 4 {
			values = append(values, map[string]string{"a": value(), "b": value(), "c": value()})
		}
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			sameAsRender(t, files, Build{Lenient: n%3 == 0}, values)
		})
	}
}

// TestTemplateShares: what is the same for all values is made once, and what is the same for some
// twice. What is made for one of them alone is not kept.
func TestTemplateShares(t *testing.T) {
	made := 0
	template, err := Prepare(t.Context(), tree{
		"a.yaml": manifest("a", "k", "x"), "b.yaml": manifest("b", "k", "${region}"), "c.yaml": manifest("c", "k", "${name}"),
	}, Build{}, func(u *unstructured.Unstructured) (*unstructured.Unstructured, int, error) {
		made++
		return u, 100, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[*unstructured.Unstructured]int{}
	for n := range 10 {
		objects, err := template.Render(map[string]string{"name": fmt.Sprint("c", n), "region": fmt.Sprint("r", n%2), "uid": fmt.Sprint(n)}, nil)
		if err != nil || len(objects) != 3 {
			t.Fatalf("Render() = %d objects, %v", len(objects), err)
		}
		for _, u := range objects {
			seen[u]++
		}
	}
	if made != 1+2*2+10 || len(seen) != made {
		t.Errorf("%d objects were made, and renderings have %d; want one for all, two for each region and one for each name", made, len(seen))
	}
	if n := template.kept.Len(); n != 2 {
		t.Errorf("%d versions are kept, want those of two regions", n)
	}
}

// TestTemplateTogether: renderings do not disturb each other.
func TestTemplateTogether(t *testing.T) {
	template, err := prepared(t.Context(), tree{"a.yaml": manifest("a", "k", "${a}"), "b.yaml": manifest("b", "k", "1.50"), "c.yaml": manifest("c", "k", "x")}, Build{})
	if err != nil {
		t.Fatal(err)
	}
	var renderings sync.WaitGroup
	for n := range 50 {
		renderings.Go(func() {
			objects, err := template.Render(map[string]string{"a": fmt.Sprint("v", n%7)}, nil)
			if err != nil {
				t.Error(err)
				return
			}
			if got, _, _ := unstructured.NestedString(objects[0].Object, "data", "k"); got != fmt.Sprint("v", n%7) {
				t.Errorf("rendering %d has %q", n, got)
			}
		})
	}
	renderings.Wait()
}

// TestTemplateForgets: values of many clusters do not stay.
func TestTemplateForgets(t *testing.T) {
	large := func(u *unstructured.Unstructured) (*unstructured.Unstructured, int, error) {
		return u, keptVersions / 4, nil
	}
	template, err := Prepare(t.Context(), tree{"a.yaml": manifest("a", "k", "${a}")}, Build{}, large)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 100 {
		for range 2 {
			if _, err := template.Render(map[string]string{"a": fmt.Sprint(n)}, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := template.kept.Len(); n > 4 {
		t.Errorf("%d versions are kept, more than there is room for", n)
	}
}

// TestTemplateFinishes: what finish refuses fails the rendering.
func TestTemplateFinishes(t *testing.T) {
	refused := errors.New("no room")
	template, err := Prepare(t.Context(), tree{"a.yaml": manifest("a"), "b.yaml": manifest("b", "k", "${a}")}, Build{}, func(u *unstructured.Unstructured) (string, int, error) {
		if u.GetName() == "b" {
			return "", 0, refused
		}
		return u.GetName(), 1, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := template.Render(map[string]string{"a": "1"}, nil); !errors.Is(err, refused) {
		t.Errorf("Render() = %v, want %v", err, refused)
	}
}

func TestTemplateDecrypts(t *testing.T) {
	files := tree{
		"a.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {password: \"" + sealMark + "${a}\"}\nsops: {mac: x}\n",
		"b.yaml": manifest("b", "k", "${a}"),
	}
	values := []map[string]string{{"a": "1"}, {"a": "x"}, nil, {"b": "1"}}
	sameAsRender(t, files, Build{Decrypter: &caesar{}}, values)
	sameAsRender(t, files, Build{Decrypter: &caesar{err: errors.New("no key")}}, values)
	if _, err := prepared(t.Context(), files, Build{Decrypter: &caesar{err: errors.New("no key")}}); err == nil || !strings.Contains(err.Error(), "no key") {
		t.Errorf("Prepare() = %v", err)
	}
}
