// Command fleetsim runs a fleet of simulated clusters, see package fleetsim, until
// it gets a signal or its standard input ends, so that it never outlives who
// started it. It prints the URL at which package control drives it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/cascade-gitops/cascade/e2e/fleetsim"
	"github.com/cascade-gitops/cascade/e2e/fleetsim/control"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "fleetsim:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("fleetsim", flag.ContinueOnError)
	seed := flags.Uint64("seed", 1, "seed of everything that is random")
	below := flags.Int("below", 0, "number of clusters that each agent says are below its tier")
	record := flags.Bool("record", false, "keep every write, for control's /writes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	f, err := fleetsim.Start(fleetsim.Options{Seed: *seed, Below: *below, Record: *record, Complain: func(err error) { log.Print(err) }})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("cannot listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", control.Handler(f))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	fmt.Printf("http://%s\n", l.Addr())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	select {
	case <-ctx.Done():
	case <-ended:
	case err := <-served:
		return err
	}
	return server.Close()
}
