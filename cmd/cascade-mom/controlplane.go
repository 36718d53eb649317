//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cascade-gitops/cascade/mom/payload"
)

// controlPlane is the program of the payload that runs one.
const controlPlane = "controlplane"

// newControlPlane runs the control plane by itself, for those who need an empty API server for
// a while, such as cascade save --verify.
func newControlPlane() *cobra.Command {
	return &cobra.Command{
		Use:                "controlplane <start|stop> [flags]",
		Short:              "Run a control plane by itself",
		Long:               "Run a control plane by itself, without Cluster API and an agent. Flags are those of its program.",
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			carried, err := payload.Embedded()
			if err != nil {
				return err
			}
			dir, err := cache()
			if err != nil {
				return err
			}
			programs, err := carried.Unpack(cmd.Context(), dir)
			if err != nil {
				return err
			}
			program := filepath.Join(programs, controlPlane)
			// It takes the place of this process, so that whoever waits for this one waits for it.
			if err := syscall.Exec(program, append([]string{program}, args...), os.Environ()); err != nil {
				return fmt.Errorf("cannot run program %s: %w", controlPlane, err)
			}
			return nil
		},
	}
}
