package agent

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/cascade-gitops/cascade/syncer/events"
)

// recorders is where events go besides the API server.
type recorders struct{ addr string }

func (r *recorders) bind(f *pflag.FlagSet) {
	f.StringVar(&r.addr, "events-addr", "", "URL of Flux's notification-controller, which events are posted to")
}

func (*recorders) check() error { return nil }

// build returns what events are recorded with, by the name of a controller of Flux.
// They go to a sink as well, if there is one.
func (r *recorders) build(mgr ctrl.Manager, sink events.Sink, now func() time.Time) (func(controller string) record.EventRecorder, error) {
	var posts *events.Posts
	if r.addr != "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("cannot read host name: %w", err)
		}
		if posts, err = events.NewPosts(r.addr, host, nil, ctrlmetrics.Registry, mgr.GetLogger()); err != nil {
			return nil, fmt.Errorf("cannot use --events-addr: %w", err)
		}
		if err := mgr.Add(posts); err != nil {
			return nil, fmt.Errorf("cannot set up posts of events: %w", err)
		}
	}
	return func(controller string) record.EventRecorder {
		//lint:ignore SA1019 flux events reads the old events API
		recorder := mgr.GetEventRecorderFor(controller)
		return &events.Recorder{
			Recorder: recorder, Controller: controller, Scheme: mgr.GetScheme(), Posts: posts, Sink: sink, Log: mgr.GetLogger(), Now: now,
		}
	}, nil
}
