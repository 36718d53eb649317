package apply

import (
	"fmt"

	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// own is the connection with the agent's own rights.
func (c *Cluster) own() *Cluster {
	if c.agent != nil {
		return c.agent
	}
	return c
}

// As returns a connection to the same cluster that acts as another user. It
// shares what this one knows of the cluster's kinds, which every user may
// discover, and its connections; only rights differ. Closing it closes idle
// connections of both.
func (c *Cluster) As(user string) (*Cluster, error) {
	config := rest.CopyConfig(c.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("cannot make HTTP client for %s: %w", user, err)
	}
	as, err := client.New(config, client.Options{HTTPClient: httpClient, Mapper: c.RESTMapper(), Scheme: c.Scheme()})
	if err != nil {
		return nil, fmt.Errorf("cannot make client for %s: %w", user, err)
	}
	m, err := metadata.NewForConfigAndClient(metadata.ConfigFor(config), httpClient)
	if err != nil {
		return nil, fmt.Errorf("cannot make metadata client for %s: %w", user, err)
	}
	return &Cluster{
		agent: c.own(), moved: c.moved,
		Client: as, Config: config, http: httpClient, discovery: c.discovery, metadata: m, kinds: c.kinds, reader: c.reader.For(m), polled: c.polled,
		parallel: c.parallel, answer: c.answer, fence: c.fence,
	}, nil
}
