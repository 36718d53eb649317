package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const cgroupRoot = "/sys/fs/cgroup"

// cgroupOf is the group of a site, in each hierarchy.
func cgroupOf(site int) string { return prefix + strconv.Itoa(site) }

// programsOf is the group of the programs of a site, those of its machines included. Groups of
// containers are beside it: a group with processes in it cannot limit groups below.
func programsOf(site int) string { return cgroupOf(site) + "/programs" }

// unified reports whether there is one hierarchy for all controllers.
func unified() bool {
	_, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers"))
	return err == nil
}

// hierarchies are the directories below which groups are made.
func hierarchies() []string {
	if unified() {
		return []string{cgroupRoot}
	}
	entries, _ := os.ReadDir(cgroupRoot)
	var dirs []string
	for _, e := range entries {
		if e.IsDir() { // what several controllers share has links to it besides
			dirs = append(dirs, filepath.Join(cgroupRoot, e.Name()))
		}
	}
	return dirs
}

// controllers that containers need; false if one is missing.
func haveControllers() bool {
	var found []string
	if unified() {
		text, _ := os.ReadFile(filepath.Join(cgroupRoot, "cgroup.controllers"))
		found = strings.Fields(string(text))
	} else {
		for _, dir := range hierarchies() {
			found = append(found, strings.Split(filepath.Base(dir), ",")...)
		}
	}
	for _, name := range []string{"cpu", "memory", "pids"} {
		if !slices.Contains(found, name) {
			return false
		}
	}
	return true
}

// Limits of all that runs on a site, as a last line: whatever goes wrong in it, the computer
// remains usable. Two clusters take a tenth of the threads and a fifth of the memory, with what is cached of files.
const (
	maxThreads = 3000
	maxMemory  = 10 << 30
)

// openCgroup makes the group of a site, with its limits, in each hierarchy.
func openCgroup(group string) error {
	if err := makeCgroup(group); err != nil {
		return err
	}
	limits := map[string]int{"pids/pids.max": maxThreads, "memory/memory.limit_in_bytes": maxMemory}
	if unified() {
		limits = map[string]int{"pids.max": maxThreads, "memory.max": maxMemory}
	}
	for file, limit := range limits {
		hierarchy, name := filepath.Split(file)
		file := filepath.Join(cgroupRoot, hierarchy, group, name)
		if err := os.WriteFile(file, []byte(strconv.Itoa(limit)), 0o644); err != nil {
			return fmt.Errorf("cannot limit the site: %w", err)
		}
	}
	return nil
}

// joinCgroup moves this process into a group, which it makes, in each hierarchy.
func joinCgroup(group string) error {
	if err := makeCgroup(group); err != nil {
		return err
	}
	for _, hierarchy := range hierarchies() {
		if err := os.WriteFile(filepath.Join(hierarchy, group, "cgroup.procs"), []byte("0"), 0o644); err != nil {
			return fmt.Errorf("cannot join cgroup %s: %w", group, err)
		}
	}
	return nil
}

// makeCgroup makes a group in each hierarchy.
func makeCgroup(group string) error {
	for _, hierarchy := range hierarchies() {
		dir := hierarchy
		for _, part := range strings.Split(group, "/") {
			above := dir
			dir = filepath.Join(dir, part)
			if err := passOn(above); err != nil {
				return err
			}
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("cannot make cgroup %s: %w", dir, err)
			}
			// In a hierarchy of its own, a new group has neither processors nor memory.
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				text, err := os.ReadFile(filepath.Join(above, file))
				if unified() || err != nil {
					continue
				}
				if err := os.WriteFile(filepath.Join(dir, file), text, 0o644); err != nil {
					return fmt.Errorf("cannot set up cgroup %s: %w", dir, err)
				}
			}
		}
	}
	return nil
}

// passOn gives the groups below one all of its controllers. Where each controller has a
// hierarchy, they have.
func passOn(dir string) error {
	if !unified() {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("cannot see the controllers of cgroup %s: %w", dir, err)
	}
	var all []string
	for _, controller := range strings.Fields(string(text)) {
		all = append(all, "+"+controller)
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(strings.Join(all, " ")), 0o644); err != nil {
		return fmt.Errorf("cannot pass the controllers of cgroup %s on: %w", dir, err)
	}
	return nil
}

// removeCgroups removes a group and all below it in each hierarchy. The kernel needs a
// moment for processes that it killed.
func removeCgroups(group string) error {
	deadline := time.Now().Add(10 * time.Second)
	for {
		var left error
		for _, hierarchy := range hierarchies() {
			left = errors.Join(left, removeTree(filepath.Join(hierarchy, group)))
		}
		if left == nil || time.Now().After(deadline) {
			return left
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// removeTree removes the directories of a tree, from below. Files of a cgroup go with it.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot list cgroup %s: %w", dir, err)
	}
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, removeTree(filepath.Join(dir, e.Name())))
		}
	}
	if err != nil {
		return err
	}
	if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove cgroup %s: %w", dir, err)
	}
	return nil
}
