package setter

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/cascade-gitops/cascade/syncer/render"
)

const sum = "sha256:6129bb944cada32b4662eafd13fd9904d34c77286bf2ec4523eaedb711757cb0"

func given() Policies {
	return Policies{
		"apps:web":    {Name: "ghcr.io/org/web", Tag: "2.0.0"},
		"apps:pinned": {Name: "ghcr.io/org/pinned", Tag: "3.1.4", Digest: sum},
		"apps:number": {Name: "ghcr.io/org/number", Tag: "1.10"},
		"apps:date":   {Name: "ghcr.io/org/date", Tag: "2026-01-02"},
		"apps:word":   {Name: "ghcr.io/org/word", Tag: "on"},
		"apps:evil":   {Name: "ghcr.io/org/evil", Tag: "1\nkind: Secret"},
	}
}

func TestSet(t *testing.T) {
	const mark = ` # {"$imagepolicy": "apps:web"}`
	for name, tt := range map[string]struct {
		reason, in string
		// want is empty where nothing is to change.
		want  string
		fails string
	}{
		"Plain":          {reason: "the value is replaced", in: "image: ghcr.io/org/web:1.0.0" + mark + "\n", want: "image: ghcr.io/org/web:2.0.0" + mark + "\n"},
		"Same":           {reason: "what is right stays", in: "image: ghcr.io/org/web:2.0.0" + mark + "\n"},
		"Single":         {reason: "single quotes stay", in: "image: 'it''s old'" + mark + "\n", want: "image: 'ghcr.io/org/web:2.0.0'" + mark + "\n"},
		"Double":         {reason: "double quotes stay", in: `image: "a\"b\u0041"` + mark + "\n", want: `image: "ghcr.io/org/web:2.0.0"` + mark + "\n"},
		"Name":           {reason: "the name only", in: `repository: x # {"$imagepolicy": "apps:web:name"}`, want: `repository: ghcr.io/org/web # {"$imagepolicy": "apps:web:name"}`},
		"Tag":            {reason: "the tag only", in: `tag: v1 # {"$imagepolicy": "apps:web:tag"}`, want: `tag: 2.0.0 # {"$imagepolicy": "apps:web:tag"}`},
		"Digest":         {reason: "the digest only", in: `digest: sha256:0 # {"$imagepolicy": "apps:pinned:digest"}`, want: `digest: ` + sum + ` # {"$imagepolicy": "apps:pinned:digest"}`},
		"Pinned":         {reason: "a digest belongs to the image", in: `image: x # {"$imagepolicy": "apps:pinned"}`, want: `image: ghcr.io/org/pinned:3.1.4@` + sum + ` # {"$imagepolicy": "apps:pinned"}`},
		"NoDigest":       {reason: "a digest that is not known is not written", in: `digest: sha256:0 # {"$imagepolicy": "apps:web:digest"}`},
		"Number":         {reason: "a tag that looks like a number is quoted", in: `tag: 1.9 # {"$imagepolicy": "apps:number:tag"}`, want: `tag: "1.10" # {"$imagepolicy": "apps:number:tag"}`},
		"Date":           {reason: "and a date", in: `tag: v1 # {"$imagepolicy": "apps:date:tag"}`, want: `tag: "2026-01-02" # {"$imagepolicy": "apps:date:tag"}`},
		"Word":           {reason: "and a word of YAML 1.1", in: `tag: v1 # {"$imagepolicy": "apps:word:tag"}`, want: `tag: "on" # {"$imagepolicy": "apps:word:tag"}`},
		"Item":           {reason: "in a list", in: "images:\n- old" + mark + "\n- other\n", want: "images:\n- ghcr.io/org/web:2.0.0" + mark + "\n- other\n"},
		"FirstField":     {reason: "the first field of an item", in: "images:\n- name: old" + mark + "\n  newTag: x\n", want: "images:\n- name: ghcr.io/org/web:2.0.0" + mark + "\n  newTag: x\n"},
		"Flow":           {reason: "a list of one line each", in: "args: [\n  old," + mark + "\n  b\n]\n", want: "args: [\n  ghcr.io/org/web:2.0.0," + mark + "\n  b\n]\n"},
		"Anchor":         {reason: "an anchor stays, and its alias has the new value", in: "a: &web old" + mark + "\nb: *web\n", want: "a: &web ghcr.io/org/web:2.0.0" + mark + "\nb: *web\n"},
		"Tagged":         {reason: "a tag of YAML stays", in: "a: !!str old" + mark + "\n", want: "a: !!str ghcr.io/org/web:2.0.0" + mark + "\n"},
		"CRLF":           {reason: "ends of lines stay", in: "a: b\r\nimage: old" + mark + "\r\nc: d\r\n", want: "a: b\r\nimage: ghcr.io/org/web:2.0.0" + mark + "\r\nc: d\r\n"},
		"Mark":           {reason: "a byte order mark stays", in: "\ufeffimage: old" + mark + "\n", want: "\ufeffimage: ghcr.io/org/web:2.0.0" + mark + "\n"},
		"Unicode":        {reason: "columns are characters", in: "{é: ü, image: old}" + mark + "\nzähler: 'ß'" + mark + "\n", fails: "cannot read"},
		"UnicodeKey":     {reason: "columns are characters, not bytes", in: "größe: old" + mark + "\n", want: "größe: ghcr.io/org/web:2.0.0" + mark + "\n"},
		"Breaks":         {reason: "lines of Unicode are lines", in: "a: b\u2028image: old" + mark + "\n", want: "a: b\u2028image: ghcr.io/org/web:2.0.0" + mark + "\n"},
		"Documents":      {reason: "each document of a file", in: "image: old" + mark + "\n---\n# c\nimage: old" + mark + "\n...\n", want: "image: ghcr.io/org/web:2.0.0" + mark + "\n---\n# c\nimage: ghcr.io/org/web:2.0.0" + mark + "\n...\n"},
		"Tabs":           {reason: "a tab may be before the comment", in: "image: old\t#{\"$imagepolicy\": \"apps:web\"}\n", want: "image: ghcr.io/org/web:2.0.0\t#{\"$imagepolicy\": \"apps:web\"}\n"},
		"InText":         {reason: "what looks like a marker in a text is text", in: "text: |\n  image: old" + mark + "\nquoted: 'old" + mark + "'\n"},
		"InQuotes":       {reason: "a # in quotes begins no comment", in: `image: "old # {\"$imagepolicy\": \"apps:web\"}"` + "\n"},
		"Key":            {reason: "a key is no value", in: "image:" + mark + "\n  old: x\n"},
		"Above":          {reason: "a comment above marks nothing, as in Flux's documentation", in: "# {\"$imagepolicy\": \"apps:web\"}\nimage: old\n"},
		"Unknown":        {reason: "another's policy is left alone", in: `image: old # {"$imagepolicy": "apps:other"}`},
		"UnknownPart":    {reason: "a part that there is not", in: `image: old # {"$imagepolicy": "apps:web:size"}`},
		"TooManyParts":   {reason: "not a policy", in: `image: old # {"$imagepolicy": "apps:web:tag:x"}`},
		"NotJSON":        {reason: "not a marker", in: `image: old # $imagepolicy apps:web`},
		"NotText":        {reason: "a marker names a policy", in: `image: old # {"$imagepolicy": ["apps:web"]}`},
		"OtherFields":    {reason: "other fields do not matter", in: `image: old # {"$imagepolicy": "apps:web", "a": 1}`, want: `image: ghcr.io/org/web:2.0.0 # {"$imagepolicy": "apps:web", "a": 1}`},
		"NoMarker":       {reason: "nothing to do, whatever it is", in: "{{ not yaml }}: ["},
		"Evil":           {reason: "what a registry invented is not written", in: `tag: old # {"$imagepolicy": "apps:evil:tag"}`, fails: "is not the name"},
		"Alias":          {reason: "an alias is not changed in place", in: "a: &x old\nb: *x" + mark + "\n", fails: "plain or in quotes"},
		"Block":          {reason: "nor is a text of several lines", in: "image: |" + mark + "\n  old\n", fails: "plain or in quotes"},
		"SeveralLines":   {reason: "a plain text of two lines has its marker behind the second, where no value begins", in: "image: one\n  two" + mark + "\n"},
		"Template":       {reason: "a template of Helm is no YAML", in: "image: {{ .Values.image }}" + mark + "\n{{- end }}\n", fails: "cannot read"},
		"Latin":          {reason: "not UTF-8", in: "image: \xe9" + mark, fails: "not UTF-8"},
		"Cycle":          {reason: "an alias of itself", in: "a: &a [*a]\nimage: old" + mark, fails: "refused YAML"},
		"Bomb":           {reason: "aliases of aliases", in: bomb() + "image: old" + mark + "\n", fails: "refused YAML"},
		"Deep":           {reason: "nesting has an end", in: "a: " + strings.Repeat("[", 20_000) + mark, fails: ""},
		"EmptyValue":     {reason: "no value, no place for one", in: "image: " + mark + "\n", fails: "plain or in quotes"},
		"EmptyQuotes":    {reason: "empty quotes are a place", in: `image: ""` + mark + "\n", want: `image: "ghcr.io/org/web:2.0.0"` + mark + "\n"},
		"LongMarker":     {reason: "a marker is bounded", in: `image: old # {"$imagepolicy": "apps:web", "x": "` + strings.Repeat("x", 2000) + `"}`},
		"NullCharacters": {reason: "refused by the parser", in: "image: \x00" + mark, fails: "cannot read"},
	} {
		t.Run(name, func(t *testing.T) {
			got, changes, err := Set([]byte(tt.in), given())
			if name == "Deep" {
				if err == nil {
					t.Errorf("%s: no error", tt.reason)
				}
				return
			}
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Errorf("%s: got %v; want an error with %q", tt.reason, err, tt.fails)
				}
				return
			}
			if err != nil {
				t.Fatalf("%s: %v", tt.reason, err)
			}
			want := tt.want
			if want == "" {
				want = tt.in
			}
			if string(got) != want {
				t.Errorf("%s: got\n%s\nwant\n%s", tt.reason, got, want)
			}
			if (len(changes) > 0) != (tt.want != "") {
				t.Errorf("%s: changes %+v", tt.reason, changes)
			}
		})
	}
}

func bomb() string {
	text := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := '1'; i <= '9'; i++ {
		below := "*a" + string(i-1)
		text += "a" + string(i) + ": &a" + string(i) + " [" + strings.Repeat(below+", ", 9) + below + "]\n"
	}
	return text
}

func TestSetTellsObjects(t *testing.T) {
	file := "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\n  namespace: shop\nspec:\n  image: old # {\"$imagepolicy\": \"apps:web\"}\n" +
		"---\nimages:\n- newTag: v1 # {\"$imagepolicy\": \"apps:web:tag\"}\n"
	_, changes, err := Set([]byte(file), given())
	if err != nil {
		t.Fatal(err)
	}
	want := []Change{
		{Object: Object{"apps/v1", "Deployment", "web", "shop"}, OldValue: "old", NewValue: "ghcr.io/org/web:2.0.0", Setter: "apps:web"},
		{OldValue: "v1", NewValue: "2.0.0", Setter: "apps:web:tag"},
	}
	if !slices.Equal(changes, want) {
		t.Errorf("changes\n%+v\nwant\n%+v", changes, want)
	}
}

// TestSetKeepsFiles: of thirty files with all that people write, each byte stays but those of marked values.
func TestSetKeepsFiles(t *testing.T) {
	names, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(names) != 30 {
		t.Fatalf("there are %d files, %v; want 30", len(names), err)
	}
	for _, name := range names {
		file, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		golden, err := os.ReadFile(name + ".golden")
		if err != nil {
			t.Fatal(err)
		}
		got, _, err := Set(file, given())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !bytes.Equal(got, golden) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, golden)
		}
		again, changes, err := Set(got, given())
		if err != nil || len(changes) > 0 || !bytes.Equal(again, got) {
			t.Errorf("%s: a second time changes %+v, %v", name, changes, err)
		}
	}
}

// FuzzSet: whatever a file is, what comes out differs from it in lines with a marker only, parses to the same but
// for what changed, and is not changed again.
func FuzzSet(f *testing.F) {
	names, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range names {
		file, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(file)
	}
	f.Add([]byte("a: &x !!str 'old' # {\"$imagepolicy\": \"apps:web\"}\r\nb: *x\r\n"))
	f.Add([]byte("a: [x, # {\"$imagepolicy\": \"apps:web\"}\n y]\n"))
	f.Add([]byte("? x\n: old # {\"$imagepolicy\": \"apps:number:tag\"}\n"))
	f.Fuzz(func(t *testing.T, file []byte) {
		if len(file) > 1<<16 {
			return
		}
		policies := given()
		delete(policies, "apps:evil")
		out, changes, err := Set(file, policies)
		if err != nil {
			return
		}
		if len(changes) == 0 {
			if !bytes.Equal(out, file) {
				t.Fatalf("nothing changed, and\n%q\nbecame\n%q", file, out)
			}
			return
		}
		before, after := bytes.Split(file, []byte("\n")), bytes.Split(out, []byte("\n"))
		if len(before) != len(after) {
			t.Fatalf("%q\nbecame\n%q", file, out)
		}
		for i := range before {
			if !bytes.Equal(before[i], after[i]) && !bytes.Contains(before[i], []byte(Token)) {
				t.Fatalf("line %d has no marker and was changed: %q, %q", i, before[i], after[i])
			}
		}
		old, new := values(t, file), values(t, out)
		if len(old) != len(new) {
			t.Fatalf("%d values became %d", len(old), len(new))
		}
		differ := 0
		for i := range old {
			if old[i] != new[i] {
				differ++
			}
		}
		// The value of a number that becomes the string of its digits stays the same.
		if differ > len(changes) {
			t.Fatalf("%d values differ after %d changes:\n%q\n%q", differ, len(changes), file, out)
		}
		again, more, err := Set(out, policies)
		if err != nil || len(more) > 0 || !bytes.Equal(again, out) {
			t.Fatalf("a second time changes %+v, %v", more, err)
		}
	})
}

// values are all scalars of a file.
func values(t *testing.T, file []byte) []string {
	documents, err := parse(file)
	if err != nil {
		t.Fatalf("cannot parse what was parsed before: %v", err)
	}
	var all []string
	var walk func(n *yaml.Node)
	walk = func(n *yaml.Node) {
		all = append(all, n.Value)
		for _, child := range n.Content {
			walk(child)
		}
	}
	for _, document := range documents {
		walk(document)
	}
	return all
}

// TestHostile: files that are below the bound of bytes, and of which the parser would make hundreds of megabytes.
func TestHostile(t *testing.T) {
	marked := "c: d # {\"$imagepolicy\": \"ns:p\"}\n"
	for name, file := range map[string]string{
		"Flat":  "a: {" + strings.Repeat("b,", 2_000_000) + "}\n" + marked,
		"List":  "a: [" + strings.Repeat("b,", 2_000_000) + "]\n" + marked,
		"Pairs": "a: [" + strings.Repeat("b:,", 1_300_000) + "]\n" + marked,
		"Lines": "a:\n" + strings.Repeat("-\n", 2_000_000) + marked,
		"Keys":  strings.Repeat("?\n", 2_000_000) + marked,
		"Parts": strings.Repeat("---\n", 1_000_000) + marked,
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, _, err := Set([]byte(file), Policies{"ns:p": {Name: "i", Tag: "1"}})
			runtime.ReadMemStats(&after)
			if !errors.Is(err, render.ErrHostile) {
				t.Errorf("Set() = %v, want an error of %v", err, render.ErrHostile)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
				t.Errorf("%d MiB were allocated", n>>20)
			}
		})
	}
	// A bundle of definitions, whose lines are descriptions for the most part, is no harm.
	bundle := strings.Repeat("description: \"what it is, and why: see there, or here, where more of it is told\"\ntype: string\nof: a text that goes on for a while\n---\n", 15_000) + marked
	if out, changes, err := Set([]byte(bundle), Policies{"ns:p": {Name: "i", Tag: "1"}}); err != nil || len(changes) != 1 || len(out) != len(bundle)+2 {
		t.Errorf("Set() of %d bytes = %d bytes, %v, %v", len(bundle), len(out), changes, err)
	}
}
