//go:build linux

// Command cascade-mom is a management cluster in one file: it has the control plane, the
// managers of Cluster API and its providers, and the agent within, and runs them without a
// cluster, a container engine or root. `cascade mom` runs it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), endings()...)
	defer stop()
	log.SetLogger(logr.Discard()) // the verbs say what matters by their errors
	if err := newRoot().ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "✗ %v\n", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has run
	}
}

// endings are the signals that tell the program to end. A terminal that closes is one of them,
// unless nohup says otherwise.
func endings() []os.Signal {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "mom",
		Short: "A management cluster without a cluster, a container engine or root",
		Long: "A management cluster that needs no cluster, no container engine and no root: a control plane, Cluster\n" +
			"API with its providers, and an agent, as processes of this machine. It may run for an hour,\n" +
			"provision masters, and go; what it knows is saved elsewhere, encrypted, and it goes on from there.",
		SilenceUsage:      true,
		SilenceErrors:     true,
		Annotations:       map[string]string{cobra.CommandDisplayNameAnnotation: "cascade mom"},
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		Version:           version(),
	}
	place := &place{}
	root.PersistentFlags().StringVar(&place.name, "name", "mom", "name of the management cluster, for the kubeconfig and the folder")
	root.PersistentFlags().StringVar(&place.dir, "dir", "", "folder of the management cluster; without it, one of this name below XDG_STATE_HOME")
	root.AddCommand(newUp(place), newDown(place), newStatus(place), newKubeconfig(place), newControlPlane())
	return root
}
