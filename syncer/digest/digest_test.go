package digest

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestOf(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		a, b   []string
		same   bool
	}{
		"Same":     {"the same content", []string{"a", "b"}, []string{"a", "b"}, true},
		"Boundary": {"where a part ends is content", []string{"ab", "c"}, []string{"a", "bc"}, false},
		"Empty":    {"so is an empty part", []string{"a", ""}, []string{"a"}, false},
		"Prefix":   {"a part may look like the length of the next", []string{"1:a", "b"}, []string{"1:a1:b"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if same := Of(tc.a...) == Of(tc.b...); same != tc.same {
				t.Errorf("%s: the digests of %q and %q are the same: %t", tc.reason, tc.a, tc.b, same)
			}
		})
	}
	text, bytes := Of("a", "b"), Of([]byte("a"), []byte("b"))
	if text != bytes || text.String() != "sha256:"+text.Hex() || len(text.Hex()) != 64 {
		t.Errorf("Of() = %s for strings and %s for bytes", text, bytes)
	}
	if short := text.Short(); short != Short(text[:16]) {
		t.Errorf("Short() = %x of %s", short, text)
	}
}

func TestKeys(t *testing.T) {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetLabels(map[string]string{"app": "a"})
	u.SetAnnotations(map[string]string{"note": "n"})
	keys := KeysOf(u)
	asked := keys.Values(map[string]string{"app": "a"}, map[string]string{"note": "n"})
	for name, tc := range map[string]struct {
		reason              string
		labels, annotations map[string]string
		same                bool
	}{
		"More":    {"what others add does not count", map[string]string{"app": "a", "x": "y"}, map[string]string{"note": "n", "z": ""}, true},
		"Changed": {"a value was changed", map[string]string{"app": "b"}, map[string]string{"note": "n"}, false},
		"Gone":    {"a key was removed", map[string]string{"app": "a"}, nil, false},
		"Emptied": {"an empty value is another one than none", map[string]string{"app": "a"}, map[string]string{"note": ""}, false},
		"Swapped": {"a label is no annotation", map[string]string{"note": "n"}, map[string]string{"app": "a"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if same := keys.Values(tc.labels, tc.annotations) == asked; same != tc.same {
				t.Errorf("%s: the values are the same: %t, want %t", tc.reason, same, tc.same)
			}
		})
	}
	if (Keys{}).Values(map[string]string{"a": "b"}, nil) != KeysOf(&unstructured.Unstructured{Object: map[string]any{}}).Values(nil, nil) {
		t.Error("no keys have values")
	}
}

// TestRecordedForms: these digests are in statuses and artifacts of clusters that
// run, so that they must stay what they are.
func TestRecordedForms(t *testing.T) {
	json, err := JSON(map[string]string{"a": "<1>"})
	for form, tc := range map[string]struct{ got, want string }{
		"Of":     {Of("a", "").Hex(), "c4855ea937d9bc672a18f1a2318fd6dc7dd449d0dd34f06cea68e8f1a5d0ae34"},
		"Quoted": {Quoted("a", "b\n").Hex(), "58acd98943554ac6bb689a2127238202fa3f5371b882289b3146f4ff139bcd0a"},
		"JSON":   {json.String(), "sha256:199cdb176092410a6c7f1d595e205325dcd3d3c7d79109e3fe006100b354a398"},
	} {
		if tc.got != tc.want || err != nil {
			t.Errorf("%s is %s, want %s: %v", form, tc.got, tc.want, err)
		}
	}
	if _, err := JSON(func() {}); err == nil {
		t.Error("a function has a digest")
	}
}
