//go:build linux

package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/cascade-gitops/cascade/mom"
)

// place is where a management cluster is.
type place struct{ name, dir string }

// folder is the absolute path of its folder.
func (p *place) folder() (mom.Folder, error) {
	if p.name == "" || strings.ContainsAny(p.name, "/\x00") || p.name == "." || p.name == ".." {
		return "", fmt.Errorf("cannot use --name %q: it is to be the name of a folder", p.name)
	}
	dir := p.dir
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil && os.Getenv("XDG_STATE_HOME") == "" {
			return "", errors.New("cannot find a folder: neither HOME nor XDG_STATE_HOME is set; say --dir")
		}
		dir = filepath.Join(cmp.Or(os.Getenv("XDG_STATE_HOME"), filepath.Join(home, ".local", "state")), "cascade", "mom", p.name)
	}
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("cannot resolve --dir %s: %w", dir, err)
	}
	return mom.Folder(absolute), nil
}

// cache is where programs are unpacked.
func cache() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", errors.New("cannot find a directory for programs: neither HOME nor XDG_CACHE_HOME is set")
	}
	return filepath.Join(dir, "cascade", "mom"), nil
}

// releaseVersion is set by the linker for a release.
var releaseVersion = ""

// version of this binary: the release, or the commit that it was built from.
func version() string {
	if releaseVersion != "" {
		return releaseVersion
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	return "devel"
}
