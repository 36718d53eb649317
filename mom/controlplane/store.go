package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"go.etcd.io/etcd/server/v3/embed"
)

// etcdEndpoint is where etcd listens: a socket in the working folder, which run
// sets to DIR. Its path is relative because a socket's path may not exceed 107
// bytes, which temporary folders easily do; and a socket in a private folder
// needs neither a port nor certificates.
const etcdEndpoint = "unix://etcd.sock"

// startEtcd starts the store in the background and returns when it serves. The
// channel delivers the error that ends it.
func startEtcd(ctx context.Context, dir layout, durable bool) (<-chan error, error) {
	config := embed.NewConfig()
	config.Name = "default"
	config.Dir = dir.etcd()
	config.ListenClientUrls = []url.URL{{Scheme: "unix", Host: "etcd.sock"}}
	config.ListenPeerUrls = []url.URL{{Scheme: "unix", Host: "etcd-peer.sock"}}
	// What a member advertises must look like host and port. Nobody asks a
	// cluster of one member.
	advertised := []url.URL{{Scheme: "unix", Host: "localhost:0"}}
	config.AdvertiseClientUrls = advertised
	config.AdvertisePeerUrls = advertised
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	// Test data need not survive a crash of the machine, and several stores
	// that sync one disk slow each other down by seconds.
	config.UnsafeNoFsync = !durable
	// A single member elects itself after up to one election timeout, which by
	// default is a second of every start.
	config.TickMs, config.ElectionMs = 25, 125
	if durable {
		// A disk that is slow to sync must not look like a member that is gone.
		config.TickMs, config.ElectionMs = 100, 1000
	}
	config.EnableGRPCGateway = false
	// A small cluster never fills the default of 10000 entries in memory, and
	// a smaller log makes a restart faster.
	config.SnapshotCount = 2000
	config.LogLevel = "error"
	server, err := embed.StartEtcd(config)
	if err != nil {
		return nil, fmt.Errorf("cannot start etcd %s: %w", dir.etcd(), err)
	}
	select {
	case <-server.Server.ReadyNotify():
	case <-server.Server.StopNotify():
		return nil, fmt.Errorf("cannot start etcd %s: it stopped", dir.etcd())
	case err := <-server.Err():
		return nil, fmt.Errorf("cannot start etcd %s: %w", dir.etcd(), err)
	case <-ctx.Done():
		return nil, fmt.Errorf("cannot start etcd %s: %w", dir.etcd(), context.Cause(ctx))
	}
	ended := make(chan error, 1)
	go func() {
		select {
		case err := <-server.Err():
			ended <- fmt.Errorf("cannot keep etcd running: %w", err)
		case <-server.Server.StopNotify():
			ended <- errors.New("cannot keep etcd running: it stopped")
		case <-ctx.Done():
		}
	}()
	return ended, nil
}
