package main

import (
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
	temporary, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*")
	if err != nil {
		return fmt.Errorf("cannot write file %s: %w", name, err)
	}
	defer func() { _ = os.Remove(temporary.Name()) }()
	_, err = temporary.Write(data)
	if err == nil {
		err = temporary.Chmod(mode)
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
