package archive

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var noon = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)

// files of an archive; the program comes from a file.
func files(t *testing.T) []File {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("program"), 0o600); err != nil {
		t.Fatal(err)
	}
	return []File{{Name: "cascade", Mode: 0o755, From: program}, {Name: "LICENSE", Mode: 0o644, Content: []byte("license")}}
}

func write(t *testing.T, name string, files []File, at time.Time) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := Write(file, files, at); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestTar(t *testing.T) {
	file := write(t, "a.tar.gz", append(files(t), File{Name: "kubectl-cascade", Link: "cascade"}), noon)
	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	unzipped, err := gzip.NewReader(in)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for r := tar.NewReader(unzipped); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		content, err2 := io.ReadAll(r)
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		got[h.Name] = h.FileInfo().Mode().String() + " " + string(content) + h.Linkname
		if !h.ModTime.Equal(noon) || h.Uid != 0 {
			t.Errorf("%s is of %s and owner %d", h.Name, h.ModTime, h.Uid)
		}
	}
	want := map[string]string{"cascade": "-rwxr-xr-x program", "LICENSE": "-rw-r--r-- license", "kubectl-cascade": "L--------- cascade"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("content: -want, +got:\n%s", diff)
	}
}

func TestZip(t *testing.T) {
	r, err := zip.OpenReader(write(t, "a.zip", files(t), noon))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got := map[string]string{}
	for _, f := range r.File {
		body, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(body)
		if err != nil || !f.Modified.Equal(noon) {
			t.Errorf("%s is of %s, %v", f.Name, f.Modified, err)
		}
		got[f.Name] = f.Mode().String() + " " + string(content)
	}
	want := map[string]string{"cascade": "-rwxr-xr-x program", "LICENSE": "-rw-r--r-- license"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("content: -want, +got:\n%s", diff)
	}
}

// TestSameArchive: when and where it is packed does not show.
func TestSameArchive(t *testing.T) {
	for _, name := range []string{"a.tar.gz", "a.zip"} {
		one, err1 := os.ReadFile(write(t, name, files(t), noon))
		two, err2 := os.ReadFile(write(t, name, files(t), noon.In(time.FixedZone("elsewhere", 9*3600))))
		if err := errors.Join(err1, err2); err != nil || !bytes.Equal(one, two) {
			t.Errorf("%s: equal: %t, %v", name, bytes.Equal(one, two), err)
		}
	}
}

func TestRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, file string
		files        []File
		says         string
	}{
		"Missing": {"a program that was not built", "a.tar.gz", []File{{Name: "x", From: "/nowhere/x"}}, "/nowhere/x"},
		"Link":    {"not everybody on Windows may make links", "a.zip", []File{{Name: "x", Link: "y"}}, "no links"},
	} {
		if err := Write(filepath.Join(t.TempDir(), tc.file), tc.files, noon); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s (%s): %v", name, tc.reason, err)
		}
	}
}
