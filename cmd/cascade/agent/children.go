package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/endpoint"
	"github.com/cascade-gitops/cascade/remote/link"
)

// children is how children are seeded and observed.
type children struct {
	image    string
	interval time.Duration
	// changing bounds the clusters that Rollouts change at the same time.
	changing int
	// endpoints are what is scraped of each child through this agent.
	endpoints []string
}

func (c *children) bind(f *pflag.FlagSet) {
	f.StringVar(&c.image, "agent-image", cmp.Or(os.Getenv("CASCADE_IMAGE"), "cascade"), "image of agents that are installed in children")
	f.DurationVar(&c.interval, "observe-interval", 45*time.Second,
		"time between two questions to a child that is ready: whether it is there, and what its agent reports; a child whose agent's heartbeat can be watched is not asked")
	f.IntVar(&c.changing, "max-changing", 0,
		"clusters of the tier that may change at the same time over all its Rollouts, so that what they pull overloads no registry; 0 has no bound")
	f.StringSliceVar(&c.endpoints, "child-endpoints", nil,
		"what an environment's Prometheus may scrape of each child through this agent, which lists it at /sd/children and serves it below /children/: agent stands for the "+
			"metrics of the child's agent (agent:PORT if they are not at 8080), NAME=NAMESPACE/[https:]SERVICE:PORT/PATH for a Service in the child. Needs --metrics-auth=kubernetes")
}

func (c *children) check() error {
	if _, err := endpoint.Parse(c.endpoints); err != nil {
		return fmt.Errorf("cannot use --child-endpoints: %w", err)
	}
	if c.changing < 0 {
		return fmt.Errorf("cannot use --max-changing=%d: it must be 0, for no bound, or more", c.changing)
	}
	return nil
}

// environment is who is served what of the children: see package endpoint.
type environment struct {
	mgr         ctrl.Manager
	connections *link.Pool
	selects     func(client.Object) bool
	drivers     *endpoint.Drivers
	registry    prometheus.Registerer
	log         logr.Logger
}

// serve serves discovery and proxy beside the metrics, and returns what the parent needs for
// it in each child; nil if nothing is to be served.
func (c *children) serve(e environment) (*link.Permission, error) {
	endpoints, err := endpoint.Parse(c.endpoints)
	if err != nil || len(endpoints) == 0 {
		return nil, err
	}
	permission, err := endpoints.Permission()
	if err != nil {
		return nil, err
	}
	discovery := &endpoint.Discovery{
		Endpoints: endpoints, TLS: true, Log: e.log, Drivers: e.drivers.Of,
		List: func(ctx context.Context) ([]v1alpha1.Child, error) {
			list := &v1alpha1.ChildList{}
			if err := e.mgr.GetClient().List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
				return nil, err
			}
			var ours []v1alpha1.Child
			for i := range list.Items {
				if e.selects(&list.Items[i]) {
					ours = append(ours, list.Items[i])
				}
			}
			return ours, nil
		},
	}
	if err := errors.Join(
		e.mgr.AddMetricsServerExtraHandler(endpoint.DiscoveryPath, discovery),
		e.mgr.AddMetricsServerExtraHandler(endpoint.ProxyPath, endpoint.NewProxy(endpoints, e.connections, e.drivers.Now, e.registry)),
	); err != nil {
		return nil, fmt.Errorf("cannot serve endpoints of children: %w", err)
	}
	return &permission, nil
}
