package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/cascade-gitops/cascade/e2e/local/capi"
)

func runCAPI(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("cascade-local capi", flag.ContinueOnError)
	kubeconfig := flags.String("kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig of the management cluster (default: in-cluster)")
	manifests := flags.String("manifests", "", "Cluster API's manifests (default: capi beside this program)")
	manager := flags.String("manager", "", "Cluster API's manager (default: capi-manager beside this program or on PATH)")
	healthAddr := flags.String("health-addr", defaultHealthAddr("9443"), "address of /readyz and /healthz")
	owner := flags.Int("owner-pid", ownerFromEnvironment(), "process whose end ends this (0: none)")
	if err := parse(flags, args); err != nil {
		return err
	}
	ctx, err := withOwner(ctx, *owner)
	if err != nil {
		return err
	}
	config, err := clientConfig(*kubeconfig)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find own program: %w", err)
	}
	if *manifests == "" {
		*manifests = filepath.Join(filepath.Dir(self), "capi")
	}
	if *manager == "" {
		*manager = filepath.Join(filepath.Dir(self), "capi-manager")
		if _, err := os.Stat(*manager); err != nil {
			if *manager, err = exec.LookPath("capi-manager"); err != nil {
				return fmt.Errorf("cannot find Cluster API's manager: %w", err)
			}
		}
	}
	work, err := os.MkdirTemp("", "capi-")
	if err != nil {
		return fmt.Errorf("cannot make working directory: %w", err)
	}
	defer os.RemoveAll(work)
	return capi.Run(ctx, capi.Config{
		Client: config, Kubeconfig: *kubeconfig, Manifests: *manifests, Manager: *manager,
		HealthAddr: *healthAddr, WorkDir: work, Log: newLog(),
	})
}

// defaultHealthAddr is on the pod's own address, so that the same port serves on every node of the machine.
func defaultHealthAddr(port string) string {
	ip := os.Getenv("POD_IP")
	if ip == "" {
		ip = "127.0.0.1"
	}
	return net.JoinHostPort(ip, port)
}

// clientConfig reads the kubeconfig, or what a pod finds in its file system.
func clientConfig(kubeconfig string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("cannot load kubeconfig: %w", err)
	}
	return config, nil
}
