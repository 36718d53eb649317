// Command fleetbench measures the agent of a tier with many children, from
// outside: what it takes to seed them all, to do nothing, to find them again after
// a restart, and to bring a change to each, also while a part of them is dead.
//
// It starts an API server without controllers as the hub, with the definitions of
// Cluster API and of Cascade; a Git server with the layer; the children as
// package fleetsim simulates them, in one process; and the agent. It drives them
// through Kubernetes' API and Git, and reads CPU and memory from /proc. All four
// share the processors of the machine: "others" is what everything but the agent
// used, the simulation's part is told besides.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	log.SetLogger(logr.Discard())
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "fleetbench:", err)
		os.Exit(1)
	}
}

// options of the benchmark.
type options struct {
	programs string
	children int
	large    int
	sharded  int
	rollout  int
	told     int
	rest     time.Duration
	// restAfter changes.
	restAfter time.Duration
	settle    time.Duration
	dead      []float64
	layers    int
	objects   int
	sick      int
	below     int
	repeat    int
	latency   time.Duration
	profiles  string
	args      []string
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("fleetbench", flag.ContinueOnError)
	var o options
	bin := flags.String("bin", "bin", "folder with the programs")
	out := flags.String("json", "", "file for the results")
	flags.IntVar(&o.children, "children", 1000, "number of children; 0 is none")
	flags.IntVar(&o.large, "large", 5000, "number of children of a second fleet, of which only rest is measured; 0 is none")
	flags.IntVar(&o.sharded, "sharded", 0, "number of children of a fleet that two replicas share, of which one is killed; 0 is none")
	flags.IntVar(&o.rollout, "rollout", 0, "number of children of a fleet over which a Rollout brings a commit in five waves, 2 % of them dead and 1 % failing; 0 is none")
	flags.IntVar(&o.told, "told", 0, "number of children of a fleet that is told of a push, and then fails for one cause; 0 is none")
	flags.DurationVar(&o.rest, "rest", 3*time.Minute, "how long rest is measured after the fleet was seeded")
	flags.DurationVar(&o.restAfter, "rest-after", 3*time.Minute, "how long rest is measured after changes")
	flags.DurationVar(&o.settle, "settle", 20*time.Second, "pause before each measurement")
	flags.IntVar(&o.layers, "layers", 1, "number of layers, of which the first has the agent")
	flags.IntVar(&o.objects, "objects", 20, "number of objects of each layer but the first")
	flags.IntVar(&o.sick, "sick", 0, "number of children that answer and hang, as many whose webhook is dead, and as many black holes, while changes are measured at the end")
	flags.IntVar(&o.below, "below", 0, "number of clusters that each child says are below it")
	dead := flags.String("dead", "0.1,0.5", "parts of the children that are black holes while changes are measured")
	flags.IntVar(&o.repeat, "repeat", 3, "changes of each kind; the median counts")
	flags.DurationVar(&o.latency, "latency", 0, "latency of every answer of a child")
	flags.StringVar(&o.profiles, "profiles", "", "folder for profiles of the agent: CPU while it seeds and takes children over, heap and goroutines at rest")
	agent := flags.String("agent-args", "", "more arguments of the agent, separated by spaces")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var err error
	if o.programs, err = filepath.Abs(*bin); err != nil {
		return err
	}
	for part := range strings.SplitSeq(*dead, ",") {
		if part == "" {
			continue
		}
		f, err := strconv.ParseFloat(part, 64)
		if err != nil || f <= 0 || f >= 1 {
			return fmt.Errorf("cannot use -dead %q: parts are between 0 and 1", *dead)
		}
		o.dead = append(o.dead, f)
	}
	o.args = strings.Fields(*agent)
	var results []result
	for _, fleet := range []struct {
		children int
		measure  func(context.Context, options) ([]result, error)
	}{{o.children, measure}, {o.large, measureLarge}, {o.sharded, measureShards}, {o.rollout, measureRollout}, {o.told, measureTold}} {
		if fleet.children == 0 {
			continue
		}
		var more []result
		more, err = fleet.measure(ctx, o)
		if results = append(results, more...); err != nil {
			break
		}
	}
	fmt.Print(table(results))
	if *out != "" {
		data, jerr := json.MarshalIndent(results, "", "  ")
		if jerr != nil {
			return jerr
		}
		if werr := os.WriteFile(*out, append(data, '\n'), 0o644); werr != nil {
			return werr
		}
	}
	return err
}
