package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cascade-gitops/cascade/e2e/local/node"
)

// startTimeout bounds the start of a node: its API server answers by then, or something is wrong with it.
const startTimeout = 60 * time.Second

// nodeFlags are the flags of a node; start takes them to hand them on.
type nodeFlags struct {
	kubeconfig, name, dir, ip, binDirs string
	owner                              int
	podNetwork                         bool
}

func (f *nodeFlags) register(flags *flag.FlagSet) {
	flags.StringVar(&f.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "admin kubeconfig of the API server")
	flags.StringVar(&f.name, "name", "node-1", "name of the node")
	flags.StringVar(&f.dir, "dir", "", "directory of the node")
	flags.StringVar(&f.ip, "ip", "", "loopback address of the node (default: 127.x.y.1 from the port of the API server)")
	flags.StringVar(&f.binDirs, "bin-dir", os.Getenv(envBin), "directories of programs that pods may run, separated by colons")
	flags.BoolVar(&f.podNetwork, "pod-network", os.Getenv(envNetwork) == "true", "the API has pods at addresses of 240.0.0.0/8, to which API servers proxy")
	flags.IntVar(&f.owner, "owner-pid", ownerFromEnvironment(), "process whose end ends the node (0: none)")
}

func (f *nodeFlags) check() error {
	if f.dir == "" || f.kubeconfig == "" {
		return usageError("--dir and --kubeconfig are needed")
	}
	// The node runs in its directory, wherever it was started from.
	for _, path := range []*string{&f.dir, &f.kubeconfig} {
		abs, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("cannot resolve path %s: %w", *path, err)
		}
		*path = abs
	}
	return nil
}

func (f *nodeFlags) args() []string {
	args := []string{"--kubeconfig", f.kubeconfig, "--name", f.name, "--dir", f.dir, "--owner-pid", strconv.Itoa(f.owner), fmt.Sprintf("--pod-network=%t", f.podNetwork)}
	if f.ip != "" {
		args = append(args, "--ip", f.ip)
	}
	if f.binDirs != "" {
		args = append(args, "--bin-dir", f.binDirs)
	}
	return args
}

func runNode(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case "start":
			return startNode(ctx, args[1:])
		case "stop":
			return stopNode(ctx, args[1:])
		}
	}
	var f nodeFlags
	flags := flag.NewFlagSet("cascade-local node", flag.ContinueOnError)
	f.register(flags)
	if err := parse(flags, args); err != nil {
		return err
	}
	if err := f.check(); err != nil {
		return err
	}
	owned, err := withOwner(ctx, f.owner)
	if err != nil {
		return err
	}
	cfg := node.Config{
		Kubeconfig: f.kubeconfig, Name: f.name, Dir: f.dir, IP: f.ip, PodNetwork: f.podNetwork,
		ShutdownGrace: 2 * time.Second, Log: newLog(),
	}
	if f.binDirs != "" {
		cfg.BinDirs = strings.Split(f.binDirs, ":")
	}
	return node.Run(owned, cfg)
}

func startNode(ctx context.Context, args []string) error {
	var f nodeFlags
	flags := flag.NewFlagSet("cascade-local node start", flag.ContinueOnError)
	f.register(flags)
	if err := parse(flags, args); err != nil {
		return err
	}
	if err := f.check(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find own program: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return node.Start(ctx, f.dir, os.Environ(), append([]string{self, "node"}, f.args()...))
}

func stopNode(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("cascade-local node stop", flag.ContinueOnError)
	dir := flags.String("dir", "", "directory of the node")
	if err := parse(flags, args); err != nil {
		return err
	}
	if *dir == "" {
		return usageError("--dir is needed")
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return node.Stop(ctx, *dir)
}
