package main

import (
	"context"
	"fmt"

	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
)

// prepareScheduler returns two functions: the first runs kube-scheduler until
// its context ends, the second waits until its caches are filled.
func prepareScheduler(ctx context.Context, s settings) (serve, synced func(context.Context) error, err error) {
	opts := options.NewOptions()
	err = parseFlags("kube-scheduler", *opts.Flags, []string{
		"--kubeconfig=" + s.dir.schedulerKubeconfig(),
		"--leader-elect=false",
		"--secure-port=0",
		"--profiling=false",
	})
	if err != nil {
		return nil, nil, err
	}
	config, scheduler, err := app.Setup(ctx, opts)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot configure kube-scheduler: %w", err)
	}
	serve = func(ctx context.Context) error { return app.Run(ctx, config, scheduler) }
	return serve, scheduler.WaitForHandlersSync, nil
}
