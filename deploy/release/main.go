// Command release makes what is published of a version: the agent's container image with
// documents of what it is made of, and the files beside it. The Makefile calls it with
// programs that are built already; docs/release.md says how a release is made.
//
// It asks no clock. The time of everything is that of the commit, so that two people who
// make the same release have the same bytes. A step that fails leaves what it wrote; the
// next run writes it anew.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newRoot().ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "✗ %v\n", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has run
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use: "release", Short: "Make, push and sign what is published of a version",
		SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(newRootfs(), newImage(), newPush(), newSign(), newNotes(), newAssets(), newMom())
	return root
}

// dated is the time of a release, from seconds as SOURCE_DATE_EPOCH has them.
func dated(seconds int64) (time.Time, error) {
	if seconds <= 0 {
		return time.Time{}, errors.New("cannot date the release: set SOURCE_DATE_EPOCH, or work in a clone that has commits")
	}
	return time.Unix(seconds, 0).UTC(), nil
}
