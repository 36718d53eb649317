package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	authzv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/cascade-gitops/cascade/cmd/cascade/web"
	"github.com/cascade-gitops/cascade/syncer/scrape"
)

// noPages is the --web-addr of an agent that serves none.
const noPages = "0"

// pages are what the agent serves to people.
type pages struct {
	addr, certs string
}

func (p *pages) bind(f *pflag.FlagSet) {
	f.StringVar(&p.addr, "web-addr", noPages, "address of the pages about this tier, :8443 for example, over HTTPS, for bearer tokens of those who may list what a page shows; 0 serves none")
	f.StringVar(&p.certs, "web-cert-dir", "", "directory with tls.crt and tls.key for --web-addr, which may come later and change; empty makes a certificate that nobody signed")
}

func (p *pages) check() error {
	if p.addr == noPages && p.certs != "" {
		return errors.New("cannot use --web-cert-dir without --web-addr: no pages are served")
	}
	return nil
}

// build adds the server of the pages to the manager, in each replica, leader or not.
func (p *pages) build(mgr ctrl.Manager, namespace string, now func() time.Time) error {
	if p.addr == noPages {
		return nil
	}
	clients, err := kubernetes.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("cannot make client: %w", err)
	}
	filter := scrape.New(clients, now)
	server, err := web.New(web.Options{
		Look: 3 * time.Second, Now: now, Log: mgr.GetLogger().WithName("web"),
		Source: func(r *http.Request) (*web.Source, error) {
			token := scrape.Token(r)
			if token == "" {
				return nil, &web.Refusal{Status: http.StatusUnauthorized}
			}
			may := func(ctx context.Context, of authzv1.ResourceAttributes) (int, error) {
				return filter.May(ctx, token, of)
			}
			return &web.Source{
				Reader: web.Guard(mgr.GetClient(), mgr.GetScheme(), may), Direct: web.Guard(mgr.GetAPIReader(), mgr.GetScheme(), may), Namespace: namespace,
			}, nil
		},
	})
	if err != nil {
		return err
	}
	return mgr.Add(&pageServer{pages: p, server: server, now: now, log: mgr.GetLogger()})
}

// pageServer serves the pages until the manager ends.
type pageServer struct {
	*pages
	server *web.Server
	now    func() time.Time
	log    logr.Logger
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: every replica serves.
func (*pageServer) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (s *pageServer) Start(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.addr)
	if err != nil {
		return fmt.Errorf("cannot serve pages: %w; see --web-addr", err)
	}
	s.log.Info("serving pages", "address", listener.Addr().String())
	// Tokens must not be sent in the clear.
	shown := &certificate{dir: s.certs, now: s.now, log: s.log.WithName("web")}
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: shown.get}
	return web.Serve(ctx, s.server.HTTP(ctx), tls.NewListener(listener, config))
}
