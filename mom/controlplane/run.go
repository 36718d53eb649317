package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
	netutils "k8s.io/utils/net"
)

const (
	// shutdownGrace is for requests in flight. Nothing needs more: the data is
	// as safe after a kill as after an orderly end.
	shutdownGrace = 500 * time.Millisecond
	// gcPercent trades a little work for a third less memory; many control
	// planes share a small machine. GOGC overrides it.
	gcPercent = 50
)

// errEnd is why a control plane ends that nothing is wrong with.
var errEnd = errors.New("end of the control plane")

// run serves dir until ctx ends, the owner ends or a component fails.
func run(ctx context.Context, s settings) error {
	if err := os.MkdirAll(string(s.dir), 0o700); err != nil {
		return fmt.Errorf("cannot create folder %s: %w", s.dir, err)
	}
	lock, err := acquire(s.dir)
	if err != nil {
		return err
	}
	// Only the end of the process releases the lock, so that whoever gets it
	// next meets nothing of this one. Uncollected, the file stays open.
	defer runtime.KeepAlive(lock)
	if err := os.Chdir(string(s.dir)); err != nil {
		return fmt.Errorf("cannot enter folder %s: %w", s.dir, err)
	}
	if _, set := os.LookupEnv("GOGC"); !set {
		debug.SetGCPercent(gcPercent)
	}
	// One configuration of the log for all components, applied once: each of
	// them would refuse a second.
	if err := logsapi.ValidateAndApply(logs.NewOptions(), utilfeature.DefaultFeatureGate); err != nil {
		return fmt.Errorf("cannot configure log: %w", err)
	}
	defer klog.Flush()
	// The controllers watch deprecated kinds too, and need no advice on it.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})

	ctx, end := context.WithCancelCause(ctx)
	c := &controlPlane{settings: s, end: end}
	err = c.serve(ctx)
	c.wait(shutdownGrace)
	return err
}

// controlPlane owns the goroutines of one run.
type controlPlane struct {
	settings
	end     context.CancelCauseFunc
	running sync.WaitGroup
}

// serve starts everything and returns when it must end. Its goroutines end with
// ctx, which it cancels.
func (c *controlPlane) serve(ctx context.Context) error {
	begin := time.Now()
	defer c.end(errEnd)
	if c.ownerPID != 0 {
		watched, err := newOwner(c.ownerPID)
		if err != nil {
			return err
		}
		c.start(func() error { return watched.wait(ctx) })
	}
	c.start(func() error { return c.bringUp(ctx, begin) })
	<-ctx.Done()
	cause := context.Cause(ctx)
	if errors.Is(cause, errEnd) || errors.Is(cause, context.Canceled) {
		return nil
	}
	return cause
}

// start runs f beside the others; if it returns an error, all of them end.
func (c *controlPlane) start(f func() error) {
	c.running.Add(1)
	go func() {
		defer c.running.Done()
		if err := f(); err != nil {
			c.end(err)
		}
	}()
}

// wait gives the goroutines some time; the end of the process ends the rest.
func (c *controlPlane) wait(grace time.Duration) {
	done := make(chan struct{})
	go func() {
		c.running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(grace):
	}
}

// bringUp starts the components in their order and reports when they are usable.
func (c *controlPlane) bringUp(ctx context.Context, begin time.Time) error {
	serviceIP, err := firstServiceIP(c.serviceCIDR)
	if err != nil {
		return err
	}
	if err := ensurePKI(c.dir, serviceIP, time.Now(), c.durable); err != nil {
		return err
	}
	listener, port, err := listen(ctx, c.dir, c.port)
	if err != nil {
		return err
	}
	if err := writeKubeconfigs(c.settings, port); err != nil {
		return err
	}
	c.start(func() error { return c.keepPKI(ctx, port) })
	client, err := c.client()
	if err != nil {
		return err
	}
	stored, err := startEtcd(ctx, c.dir, c.durable)
	if err != nil {
		return err
	}
	c.start(func() error {
		select {
		case err := <-stored:
			return err
		case <-ctx.Done():
			return nil
		}
	})
	klog.InfoS("Store serves", "after", time.Since(begin))
	if c.podNetwork {
		egress, err := serveEgress(ctx, c.dir)
		if err != nil {
			return err
		}
		c.start(egress)
	}
	apiServer, err := prepareAPIServer(ctx, c.settings, listener, port)
	if err != nil {
		return err
	}
	c.start(func() error { return ended("kube-apiserver", ctx, apiServer(ctx)) })
	// Started earlier, the scheduler is denied its reads until the default roles
	// exist and then backs off for seconds; the controllers wait for this too,
	// but look only once a second.
	if err := waitServing(ctx, client, "/healthz"); err != nil {
		return err
	}
	klog.InfoS("API server serves", "after", time.Since(begin))
	if c.apiOnly {
		err = waitServing(ctx, client, "/readyz")
	} else {
		err = c.bringUpControllers(ctx, client)
	}
	if err != nil {
		return err
	}
	klog.InfoS("Control plane is usable", "after", time.Since(begin), "port", port)
	return replaceFile(c.dir.ready(), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644)
}

// bringUpControllers starts what makes objects live and waits until it does.
func (c *controlPlane) bringUpControllers(ctx context.Context, client kubernetes.Interface) error {
	c.start(func() error { return ended("kube-controller-manager", ctx, runControllers(ctx, c.settings)) })
	scheduler, synced, err := prepareScheduler(ctx, c.settings)
	if err != nil {
		return err
	}
	c.start(func() error { return ended("kube-scheduler", ctx, scheduler(ctx)) })
	return waitUsable(ctx, client, synced)
}

// ended says why a component returned: after ctx ended that is its duty.
func ended(component string, ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return nil
	case err == nil:
		return fmt.Errorf("cannot keep %s running: it returned", component)
	default:
		return fmt.Errorf("cannot keep %s running: %w", component, err)
	}
}

func (c *controlPlane) client() (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.dir.kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("cannot read kubeconfig %s: %w", c.dir.kubeconfig(), err)
	}
	// This client only polls its own process while it starts.
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot use kubeconfig %s: %w", c.dir.kubeconfig(), err)
	}
	return client, nil
}

// firstServiceIP is the address that the API server gives to the Service
// kubernetes, which its certificate must name.
func firstServiceIP(cidr string) (net.IP, error) {
	_, network, err := net.ParseCIDR(cidr)
	if err != nil {
		return nil, fmt.Errorf("cannot use --service-cidr %q: %w", cidr, err)
	}
	ip, err := netutils.GetIndexedIP(network, 1)
	if err != nil {
		return nil, fmt.Errorf("cannot use --service-cidr %q: %w", cidr, err)
	}
	return ip, nil
}
