package main

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// releaseVersion is set by the linker for a release.
var releaseVersion = ""

// version of this binary: the release, or the commit that it was built from.
func version() string {
	if releaseVersion != "" {
		return releaseVersion
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	return "devel"
}

func (c *cli) newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(c.streams.Out, "cascade", version())
			return err
		},
	}
}
