package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Free ports are taken below the range from which the kernel gives ports to
// outgoing connections, and below the NodePorts: while this control plane is
// down, no connection of another program can sit on its port.
const (
	firstPort    = 16000
	lastPort     = 29999
	portAttempts = 50
	// portGrace is how long a remembered port may be busy: the kernel releases
	// the lock of a killed process before it closes the last of its sockets.
	portGrace = 5 * time.Second
)

// listen opens the API server's socket: on the wanted port, else on the one used
// before, else on a free one, and remembers it. The socket itself is handed on,
// so nobody can take the port in between.
func listen(ctx context.Context, dir layout, wanted int) (net.Listener, int, error) {
	remembered := 0
	if wanted == 0 {
		var err error
		if remembered, err = readPort(dir); err != nil {
			return nil, 0, err
		}
		wanted = remembered
	}
	listener, port, err := listenOn(ctx, wanted)
	if err != nil {
		return nil, 0, err
	}
	if port == remembered {
		return listener, port, nil
	}
	if err := keepFile(dir.port(), []byte(strconv.Itoa(port)+"\n"), 0o644); err != nil {
		_ = listener.Close()
		return nil, 0, err
	}
	return listener, port, nil
}

func listenOn(ctx context.Context, wanted int) (net.Listener, int, error) {
	if wanted != 0 {
		return listenUntil(ctx, wanted, time.Now().Add(portGrace))
	}
	var last error
	for range portAttempts {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		listener, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return listener, port, nil
		}
		last = err
	}
	return nil, 0, fmt.Errorf("cannot find a free port in %d-%d: %w", firstPort, lastPort, last)
}

func listenUntil(ctx context.Context, port int, deadline time.Time) (net.Listener, int, error) {
	for {
		listener, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return listener, port, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(deadline) {
			return nil, 0, fmt.Errorf("cannot listen on port %d: %w", port, err)
		}
		select {
		case <-ctx.Done():
			return nil, 0, fmt.Errorf("cannot listen on port %d: %w", port, err)
		case <-time.After(pollInterval):
		}
	}
}

// readPort is the port used before, 0 if there is none. A file without content is what a cut of
// power left of one: another port is found, and told in the kubeconfigs.
func readPort(dir layout) (int, error) {
	data, err := os.ReadFile(dir.port())
	if errors.Is(err, fs.ErrNotExist) || err == nil && strings.Trim(string(data), "\x00 \n") == "" {
		return 0, nil
	}
	return readNumber(dir.port())
}

// readNumber reads a file that holds one number.
func readNumber(name string) (int, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return 0, fmt.Errorf("cannot read file %s: %w", name, err)
	}
	number, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, fmt.Errorf("cannot read file %s: %w", name, err)
	}
	return number, nil
}
