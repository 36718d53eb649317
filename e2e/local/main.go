// Command cascade-local is what the end-to-end environment puts in place of a cloud: nodes that run pods as processes, a
// Cluster API provider whose clusters are real control planes on loopback, and an installer of the real Cluster API core.
//
//	cascade-local capi      install Cluster API core into a cluster and run its manager
//	cascade-local provider  run the local Cluster API provider
//	cascade-local node      run one node (node start, node stop: in the background)
//
// Exit status: 0 when asked to end, 1 on failure, 2 on wrong use.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/cascade-gitops/cascade/e2e/local/process"
)

// Variables that the end-to-end environment sets for all its processes, through all pods.
const (
	envBin     = "CASCADE_E2E_BIN"         // directory of the programs
	envRun     = "CASCADE_E2E_RUN"         // directory of everything that runs
	envOwner   = "CASCADE_E2E_OWNER_PID"   // process whose end ends everything
	envReads   = "CASCADE_E2E_AUDIT_READS" // true: audit logs of control planes have reads
	envNetwork = "CASCADE_E2E_POD_NETWORK" // true: API servers proxy to pods
)

const usage = `usage: cascade-local capi | provider | node [start|stop]  [flags]

  capi      install Cluster API core into a cluster and run its manager
  provider  run the local Cluster API provider
  node      run one node; with start and stop: in the background

Each takes -h.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.As(err, new(usageError)):
		fmt.Fprintf(os.Stderr, "cascade-local: %v\n", err)
		os.Exit(2)
	default:
		fmt.Fprintf(os.Stderr, "cascade-local: %v\n", err)
		os.Exit(1)
	}
}

type usageError string

func (e usageError) Error() string { return string(e) }

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return usageError("a command is needed")
	}
	switch command, rest := args[0], args[1:]; command {
	case "capi":
		return runCAPI(ctx, rest)
	case "provider":
		return runProvider(ctx, rest)
	case "node":
		return runNode(ctx, rest)
	case "help", "-h", "--help":
		fmt.Print(usage)
		return nil
	default:
		fmt.Fprint(os.Stderr, usage)
		return usageError("unknown command " + command)
	}
}

// parse parses the flags and refuses what is left over.
func parse(flags *flag.FlagSet, args []string) error {
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return usageError(err.Error())
	}
	if flags.NArg() > 0 {
		return usageError("unexpected argument " + flags.Arg(0))
	}
	return nil
}

// ownerFromEnvironment is the owner that the environment names, or 0.
func ownerFromEnvironment() int {
	pid, err := strconv.Atoi(os.Getenv(envOwner))
	if err != nil {
		return 0 // not set, or not a number: then there is no owner to watch
	}
	return pid
}

// withOwner returns a context that ends when the owner is gone. No owner (0) is watched for nothing.
func withOwner(ctx context.Context, pid int) (context.Context, error) {
	if pid == 0 {
		return ctx, nil
	}
	owner, err := process.Lookup(pid)
	if err != nil {
		return nil, fmt.Errorf("cannot watch owner: %w", err)
	}
	return process.WatchOwner(ctx, owner), nil
}

func newLog() *slog.Logger { return slog.New(slog.NewTextHandler(os.Stderr, nil)) }
