package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
)

// momProgram is the program that has a management cluster within. It is many times as large
// as this one, so it is a program of its own.
const momProgram = "cascade-mom"

func (c *cli) newMom() *cobra.Command {
	return &cobra.Command{
		Use:   "mom up|down|status|kubeconfig",
		Short: "Run a management cluster without a cluster, a container engine or root",
		Long: "Run a management cluster without a cluster, a container engine or root: for an hour, or for good.\n" +
			"The program " + momProgram + " does it, which is looked for beside this one and in PATH. Flags are those\n" +
			"of that program: cascade mom up --help.",
		Example: "  cascade mom up --repo https://example.com/masters --path mom --state s3://fleet/mom --identity key.txt --until ready\n" +
			"  cascade mom status\n" +
			"  cascade mom down",
		DisableFlagParsing: true,
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return []string{"up", "down", "status", "kubeconfig", "controlplane"}, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("cannot find own program: %w", err)
			}
			program, err := findMom(filepath.Dir(self))
			if err != nil {
				return err
			}
			return runMom(cmd.Context(), program, args)
		},
	}
}

// runMom runs the program. When the context ends, it has it end, and waits until it has.
func runMom(ctx context.Context, program string, args []string) error {
	child := exec.CommandContext(ctx, program, args...)
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	// It saves before it ends, however long that takes.
	child.Cancel = func() error { return child.Process.Signal(syscall.SIGTERM) }
	err := child.Run()
	switch {
	case child.ProcessState == nil:
		return fmt.Errorf("cannot run %s: %w", momProgram, err)
	case !child.ProcessState.Success():
		return errNotReady // it has said why
	}
	return nil // also where the context is over, which Run takes for an error
}

// findMom looks for the program in a directory, and then in PATH.
func findMom(dir string) (string, error) {
	beside := filepath.Join(dir, momProgram)
	if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() {
		return beside, nil
	}
	program, err := exec.LookPath(momProgram)
	if err != nil {
		return "", fmt.Errorf("cannot find %s beside this program or in PATH: download it from the release that this program is of, or build it with make mom", momProgram)
	}
	return program, nil
}
