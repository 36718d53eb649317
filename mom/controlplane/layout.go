package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// layout is the folder of one control plane; its methods name the files in it.
type layout string

func (l layout) path(name string) string { return filepath.Join(string(l), name) }

func (l layout) pki(name string) string { return filepath.Join(string(l), "pki", name) }

func (l layout) kubeconfig() string           { return l.path("kubeconfig") }
func (l layout) controllerKubeconfig() string { return l.path("controller-manager.kubeconfig") }
func (l layout) schedulerKubeconfig() string  { return l.path("scheduler.kubeconfig") }
func (l layout) port() string                 { return l.path("port") }
func (l layout) auditLog() string             { return l.path("audit.log") }
func (l layout) auditPolicy() string          { return l.path("audit-policy.yaml") }
func (l layout) egress() string               { return l.path("egress.yaml") }
func (l layout) log() string                  { return l.path("log") }
func (l layout) pid() string                  { return l.path("pid") }
func (l layout) ready() string                { return l.path("ready") }
func (l layout) etcd() string                 { return l.path("etcd") }

// replaceFile makes name hold data, whole or not at all: readers poll these
// files, and the process may be killed at any moment.
func replaceFile(name string, data []byte, mode os.FileMode) error {
	return replace(name, data, mode, func(*os.File) error { return nil })
}

// keepFile is replaceFile for what the next start cannot do without: after a cut of
// power the name could be there without what was written.
func keepFile(name string, data []byte, mode os.FileMode) error {
	if err := replace(name, data, mode, (*os.File).Sync); err != nil {
		return err
	}
	return syncOne(filepath.Dir(name))
}

func replace(name string, data []byte, mode os.FileMode, sync func(*os.File) error) error {
	temporary, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*")
	if err != nil {
		return fmt.Errorf("cannot write file %s: %w", name, err)
	}
	defer func() { _ = os.Remove(temporary.Name()) }()
	_, err = temporary.Write(data)
	if err == nil {
		err = temporary.Chmod(mode)
	}
	if err == nil {
		err = sync(temporary)
	}
	if closed := temporary.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(temporary.Name(), name)
	}
	if err != nil {
		return fmt.Errorf("cannot write file %s: %w", name, err)
	}
	return nil
}

// syncOne has on disk what a file holds, or the names in a folder.
func syncOne(name string) error {
	file, err := os.Open(name)
	if err == nil {
		err = errors.Join(file.Sync(), file.Close())
	}
	if err != nil {
		return fmt.Errorf("cannot sync %s: %w", name, err)
	}
	return nil
}

// syncAll has a folder of files on disk.
func syncAll(folder string) error {
	files, err := os.ReadDir(folder)
	if err != nil {
		return fmt.Errorf("cannot sync %s: %w", folder, err)
	}
	for _, file := range files {
		if err := syncOne(filepath.Join(folder, file.Name())); err != nil {
			return err
		}
	}
	return syncOne(folder)
}
