package apply

import (
	"fmt"
	"net/http"

	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// own is the connection with the agent's own rights.
func (c *Cluster) own() *Cluster {
	if c.agent != nil {
		return c.agent
	}
	return c
}

// impersonating sends requests of another user over a client.
type impersonating struct {
	http.RoundTripper
	below *http.Client
}

// CloseIdleConnections of the client below.
func (i *impersonating) CloseIdleConnections() { i.below.CloseIdleConnections() }

// httpAs makes requests as the user of a configuration. Where the HTTP client is somebody
// else's (Attach), it is his that sends them.
func (c *Cluster) httpAs(config *rest.Config) (*http.Client, error) {
	if c.kinds == nil {
		return rest.HTTPClientFor(config)
	}
	as := transport.ImpersonationConfig{UserName: config.Impersonate.UserName}
	over := *c.http
	over.Transport = &impersonating{RoundTripper: transport.NewImpersonatingRoundTripper(as, c.http.Transport), below: c.http}
	return &over, nil
}

// As returns a connection to the same cluster that acts as another user. It
// shares what this one knows of the cluster's kinds, which every user may
// discover, and its connections; only rights differ. Closing it closes idle
// connections of both.
func (c *Cluster) As(user string) (*Cluster, error) {
	config := rest.CopyConfig(c.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user}
	httpClient, err := c.httpAs(config)
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
