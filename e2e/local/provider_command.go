package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cascade-gitops/cascade/e2e/local/provider"
)

func runProvider(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("cascade-local provider", flag.ContinueOnError)
	kubeconfig := flags.String("kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig of the management cluster (default: in-cluster)")
	runDir := flags.String("run-dir", os.Getenv(envRun), "directory of everything that runs; control planes are in clusters below it")
	binDirs := flags.String("bin-dir", os.Getenv(envBin), "directories of programs that pods may run, separated by colons; controlplane is there or on PATH")
	healthAddr := flags.String("health-addr", defaultHealthAddr("9442"), "address of /readyz and /healthz")
	auditReads := flags.Bool("audit-reads", os.Getenv(envReads) == "true", "record reads in the audit logs of control planes, too")
	podNetwork := flags.Bool("pod-network", os.Getenv(envNetwork) == "true", "have API servers that proxy to pods")
	owner := flags.Int("owner-pid", ownerFromEnvironment(), "process whose end ends the provider and all it started (0: none)")
	if err := parse(flags, args); err != nil {
		return err
	}
	if *runDir == "" {
		return usageError("--run-dir is needed")
	}
	absolute, err := filepath.Abs(*runDir)
	if err != nil {
		return fmt.Errorf("cannot resolve path %s: %w", *runDir, err)
	}
	ctx, err = withOwner(ctx, *owner)
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
	machine := provider.Machine{Run: absolute, Self: self, Owner: *owner, AuditReads: *auditReads, PodNetwork: *podNetwork}
	if *binDirs != "" {
		machine.BinDirs = strings.Split(*binDirs, ":")
	}
	return provider.Run(ctx, provider.Config{Client: config, Machine: machine, HealthAddr: *healthAddr, Log: newLog()})
}
