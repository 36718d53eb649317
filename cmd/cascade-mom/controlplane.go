//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cascade-gitops/cascade/mom"
)

// newControlPlane runs the control plane alone, which others use for a moment: cascade save
// --verify restores a state into an empty one.
func newControlPlane() *cobra.Command {
	return &cobra.Command{
		Use:                "controlplane run|start|stop",
		Short:              "Run the control plane by itself",
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			programs, _, err := unpack(cmd.Context())
			if err != nil {
				return err
			}
			program := filepath.Join(programs, mom.PlaneProgram)
			if err := syscall.Exec(program, append([]string{program}, args...), environment(os.Environ())); err != nil {
				return fmt.Errorf("cannot run %s: %w", mom.PlaneProgram, err)
			}
			return nil // it is another program from here on
		},
	}
}
