package version

import "testing"

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"1.2.3": "1.2.3", "v1.2.3-rc.1+build.5": "1.2.3-rc.1+build.5", "2026.01.05": "2026.1.5", "v2026.02.03-rc.1": "2026.2.3-rc.1", "1.2-a.b": "1.2.0-a.b",
		"v1": "", "1.2": "", "1.2.3.4": "", "latest": "", "a.b.c": "", "": "", "1.2.x": "", " 1.2.3": "", "V1.2.3": "",
	} {
		got, err := Parse(text)
		if (err == nil) != (want != "") || err == nil && got.String() != want {
			t.Errorf("Parse(%q) = %v, %v, want %q", text, got, err, want)
		}
	}
}
