// Command controlplane is a complete Kubernetes control plane in one process on
// loopback: etcd, kube-apiserver, kube-controller-manager and kube-scheduler,
// unmodified and linked into one binary. `cascade mom` runs one as a management
// cluster that needs no cluster. The end-to-end tests and the demo run one per
// cluster, several on one small machine, with no container engine.
//
// Build it from this folder, with the version that /version must report:
//
//	v=k8s.io/component-base/version
//	go build -p 2 -ldflags "-s -w -X $v.gitVersion=v1.36.3 -X $v.gitMajor=1 -X $v.gitMinor=36" -o ../../bin/controlplane .
//
// It is a module of its own because k8s.io/kubernetes needs its staging modules
// replaced, and a replace would bind the whole product.
//
// # Use
//
//	controlplane run   --dir DIR [--name NAME] [--secure-port 0] [--service-cidr 10.96.0.0/16] [--owner-pid PID] [--api-only] [--audit-reads] [--token-cache 10s] [--pod-network] [--durable]
//	controlplane start --dir DIR [the flags of run] [--timeout 3m]
//	controlplane stop  --dir DIR
//
// run stays in the foreground. start runs it detached, returns 0 once it is
// usable, and also when it already is; else it prints the end of the log,
// leaves no process behind and returns 1. stop returns 0 once no process is
// left, and also when there was none. A wrong command line returns 2.
//
// # Folder
//
//	DIR/kubeconfig         administrator, certificates embedded, context NAME
//	DIR/port               port of the API server
//	DIR/audit.log          one JSON line per write, or per request (see auditPolicy)
//	DIR/log                output of a detached run, appended
//	DIR/pid                process id; the process holds a lock on this file
//	DIR/ready              process id, written when that process became usable
//	DIR/pki/               authorities, certificates and keys
//	DIR/etcd/              data
//	DIR/audit-policy.yaml, DIR/controller-manager.kubeconfig, DIR/egress.yaml,
//	DIR/scheduler.kubeconfig, DIR/etcd.sock, DIR/etcd-peer.sock, DIR/egress.sock
//
// # Invariants
//
//   - DIR is the identity of the cluster. A restart keeps the port, the
//     authorities, the certificates and every object with its UID.
//   - Only one process serves a DIR, by a kernel lock on DIR/pid. Nothing is
//     signalled unless it holds that lock, so a stale pid is harmless.
//   - Everything listens on 127.0.0.1 or on a socket inside DIR (mode 0700).
//   - Usable means: /readyz succeeds, the default service account exists, the
//     scheduler's caches are filled, and the garbage collector has collected an
//     object made for the purpose, so the controllers work, not only run.
//   - With --owner-pid the control plane ends within about a second of the
//     owner. No other process is ever started by run.
//
// # Failure model
//
// A kill at any moment leaves DIR restartable: files appear by rename, and etcd
// replays its log. Without --durable, writes are not synced to disk, so a crash of
// the machine (not of the process) may lose or break the data. There is one shutdown: SIGTERM
// gives requests in flight half a second, then the process exits as if killed. If one
// component ends, all end. Certificates are renewed when less than a third of their
// life is left, at the start and while they serve; the authorities are good for ten
// years. kube-apiserver talks to itself by a certificate of its own, which each start
// makes anew: it is good for three years.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

const usage = `usage:
  controlplane run   --dir DIR [--name NAME] [--secure-port PORT] [--service-cidr CIDR] [--owner-pid PID] [--api-only] [--audit-reads] [--token-cache 10s] [--pod-network] [--durable]
  controlplane start --dir DIR [flags of run] [--timeout 3m]
  controlplane stop  --dir DIR
`

func main() {
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	if err := command(os.Args[1], os.Args[2:]); err != nil {
		var wrong usageError
		switch {
		case errors.Is(err, flag.ErrHelp):
			fmt.Fprint(os.Stderr, usage)
		case errors.As(err, &wrong):
			fmt.Fprintf(os.Stderr, "controlplane: %v\n%s", err, usage)
		default:
			fmt.Fprintf(os.Stderr, "controlplane: %v\n", err)
			os.Exit(1)
		}
		os.Exit(2)
	}
}

// usageError marks a mistake on the command line, which no retry repairs.
type usageError struct{ error }

func command(verb string, args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	s, timeout, err := parse(verb, args)
	if err != nil {
		return err
	}
	switch verb {
	case "run":
		return run(ctx, s)
	case "start":
		return start(ctx, s, timeout)
	default:
		return stopProcess(ctx, s.dir)
	}
}

// settings are the flags of run.
type settings struct {
	dir         layout
	name        string
	port        int
	serviceCIDR string
	ownerPID    int
	apiOnly     bool
	auditReads  bool
	tokenCache  time.Duration
	podNetwork  bool
	durable     bool
}

// arguments is the command line that makes run use s.
func (s settings) arguments() []string {
	return []string{"run",
		"--dir=" + string(s.dir),
		"--name=" + s.name,
		fmt.Sprintf("--secure-port=%d", s.port),
		"--service-cidr=" + s.serviceCIDR,
		fmt.Sprintf("--owner-pid=%d", s.ownerPID),
		fmt.Sprintf("--api-only=%t", s.apiOnly),
		fmt.Sprintf("--audit-reads=%t", s.auditReads),
		fmt.Sprintf("--token-cache=%s", s.tokenCache),
		fmt.Sprintf("--pod-network=%t", s.podNetwork),
		fmt.Sprintf("--durable=%t", s.durable),
	}
}

func parse(verb string, args []string) (settings, time.Duration, error) {
	var s settings
	var dir string
	timeout := 3 * time.Minute
	flags := flag.NewFlagSet(verb, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&dir, "dir", "", "folder of the control plane")
	switch verb {
	case "run", "start":
		flags.StringVar(&s.name, "name", "", "name of the kubeconfig context (default: the folder's name)")
		flags.IntVar(&s.port, "secure-port", 0, "port of the API server (default: the one used before, else a free one)")
		flags.StringVar(&s.serviceCIDR, "service-cidr", "10.96.0.0/16", "range of the Service addresses")
		flags.IntVar(&s.ownerPID, "owner-pid", 0, "end when this process ends")
		flags.BoolVar(&s.apiOnly, "api-only", false, "run no controllers and no scheduler, whose requests a benchmark would count")
		flags.BoolVar(&s.auditReads, "audit-reads", false, "record reads and refused logins too, but no reads of the control plane itself and its administrator")
		flags.DurationVar(&s.tokenCache, "token-cache", 10*time.Second, "how long a token that was found valid is not looked at again; 0 refuses a revoked one at once")
		flags.BoolVar(&s.podNetwork, "pod-network", false, "reach pods at addresses of 240.0.0.0/8 on loopback, so that the API server proxies to them")
		flags.BoolVar(&s.durable, "durable", false, "sync writes to disk, and keep the audit log small: for a cluster that somebody relies on")
		if verb == "start" {
			flags.DurationVar(&timeout, "timeout", timeout, "how long to wait until usable")
		}
	case "stop":
	default:
		return s, 0, usageError{fmt.Errorf("cannot run command %q: it does not exist", verb)}
	}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return s, 0, err
		}
		return s, 0, usageError{err}
	}
	if flags.NArg() > 0 {
		return s, 0, usageError{fmt.Errorf("cannot use argument %q: only flags are allowed", flags.Arg(0))}
	}
	if dir == "" {
		return s, 0, usageError{errors.New("cannot find folder: --dir is required")}
	}
	if s.port < 0 || s.port > 65535 {
		return s, 0, usageError{fmt.Errorf("cannot use --secure-port %d: not a port", s.port)}
	}
	if s.serviceCIDR != "" {
		if _, _, err := net.ParseCIDR(s.serviceCIDR); err != nil {
			return s, 0, usageError{fmt.Errorf("cannot use --service-cidr %q: %w", s.serviceCIDR, err)}
		}
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return s, 0, fmt.Errorf("cannot resolve folder %s: %w", dir, err)
	}
	s.dir = layout(abs)
	if s.name == "" {
		s.name = filepath.Base(abs)
	}
	return s, timeout, nil
}
