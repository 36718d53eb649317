package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"

	"github.com/cascade-gitops/cascade/cmd/cascade/web"
)

func (c *cli) newWeb() *cobra.Command {
	var port uint16
	cmd := &cobra.Command{
		Use:   "web",
		Short: "Show the pages about this tier in a browser, on this machine only",
		Long: "Show the pages about this tier: the fleet and what is not ready, commits, rollouts, and what is held. They\n" +
			"are served on the loopback of this machine until the command is interrupted, with the rights of the\n" +
			"kubeconfig, and are only read. The address has a key in it, which is another one each time: without\n" +
			"it other users of the machine see nothing.",
		Example: "  cascade web\n" +
			"  cascade web --context master-of-masters --port 8765",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.serveWeb(cmd.Context(), port) },
	}
	cmd.Flags().Uint16Var(&port, "port", 0, "port on 127.0.0.1; 0 for any that is free")
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

func (c *cli) serveWeb(ctx context.Context, port uint16) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err != nil {
		return fmt.Errorf("cannot listen: %w; choose another --port", err)
	}
	followed := web.Follow(ctx, cl)
	defer followed.Close()
	source := &web.Source{Reader: followed, Direct: cl, Namespace: agentNamespace(ctx, cl, c.saidNamespace())}
	server, err := web.New(web.Options{
		Source:   func(*http.Request) (*web.Source, error) { return source, nil },
		Loopback: listener.Addr().String(), Key: rand.Text(), Look: 10 * time.Second, Now: c.now,
		Log: logr.New(&errorSink{cli: c}),
	})
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	fmt.Fprintf(c.streams.Out, "► the pages of this tier, until you interrupt: %s\n", server.Address())
	return web.Serve(ctx, server.HTTP(ctx), listener)
}

// errorSink writes errors as the verbs do. Requests fail side by side.
type errorSink struct {
	*cli
	mu sync.Mutex // guards the stream, which is for one goroutine
}

func (*errorSink) Init(logr.RuntimeInfo)            {}
func (*errorSink) Enabled(int) bool                 { return false }
func (*errorSink) Info(int, string, ...any)         {}
func (s *errorSink) WithValues(...any) logr.LogSink { return s }
func (s *errorSink) WithName(string) logr.LogSink   { return s }
func (s *errorSink) Error(err error, msg string, _ ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.streams.ErrOut, "✗ %s: %v\n", msg, err)
}
