// Command bench measures the agent from outside, at sizes at which the cost of
// a commit shows: many Kustomizations on one repository, one Kustomization of many
// objects, and many HelmReleases of one chart.
//
// It starts an API server without controllers, a Git server and the agent, all
// as processes of this machine, drives them through the Kubernetes API and Git,
// and reads the requests from the API server's metrics and CPU and memory from
// /proc. For each step it prints the median of its runs; with -json it writes
// every run. Timings of a busy machine are upper bounds: "other" is the CPU time
// that the machine spent besides.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	log.SetLogger(logr.Discard())
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are of all workloads: where the programs are, what more the agent is told, and how
// often a step is repeated.
type options struct {
	programs string
	agent    []string
	repeat   int
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	bin := flags.String("bin", "bin", "folder with the programs")
	out := flags.String("json", "", "file for the results of every run")
	kustomizations := flags.Int("kustomizations", 1000, "number of Kustomizations of the first shape, of 8 objects each")
	overlays := flags.Int("overlays", 1000, "number of Kustomizations that are overlays of 4 bases, of 8 objects each")
	large := flags.Int("objects", 5000, "number of objects of the one Kustomization of the second shape")
	releases := flags.Int("releases", 300, "number of HelmReleases of one chart, of 8 objects each")
	var o options
	flags.IntVar(&o.repeat, "repeat", 3, "runs of each step that can be repeated")
	agent := flags.String("agent-args", "", "more arguments of the agent, separated by spaces")
	if err := flags.Parse(args); err != nil {
		return err
	}
	o.agent = strings.Fields(*agent)
	var err error
	if o.programs, err = filepath.Abs(*bin); err != nil {
		return err
	}
	var results []result
	for _, w := range []workload{
		{name: "idle"},
		{name: fmt.Sprintf("%d x 8", *kustomizations), kustomizations: *kustomizations, objects: 8},
		{name: fmt.Sprintf("1 x %d", *large), kustomizations: 1, objects: *large},
		{name: fmt.Sprintf("%d overlays", *overlays), kustomizations: *overlays, objects: 8, bases: 4},
	} {
		if w.name != "idle" && w.kustomizations*w.objects == 0 {
			continue
		}
		more, err := measure(ctx, o, w)
		results = append(results, more...)
		if err != nil {
			return fmt.Errorf("cannot measure %s: %w", w.name, err)
		}
	}
	if *releases > 0 {
		more, err := measureReleases(ctx, o, *releases)
		results = append(results, more...)
		if err != nil {
			return fmt.Errorf("cannot measure releases: %w", err)
		}
	}
	fmt.Print(table(results))
	if *out == "" {
		return nil
	}
	data, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(*out, append(data, '\n'), 0o644)
}
