package apply

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/cascade-gitops/cascade/syncer/answer"
	"github.com/cascade-gitops/cascade/syncer/memo"
	"github.com/cascade-gitops/cascade/syncer/observed"
)

// concurrency of requests for one rendering, unless Parallel says otherwise.
const concurrency = 4

// Cluster is a connection to one cluster, for reads that must be true and for
// writes. It caches discovery, not objects, and is safe for concurrent use.
type Cluster struct {
	client.Client
	Config    *rest.Config
	http      *http.Client
	discovery discovery.DiscoveryInterface
	metadata  metadata.Interface
	// kinds is nil for a connection that discovers for itself.
	kinds *kinds
	// parallel is the most calls for one rendering at the same time.
	parallel int
	reader   *observed.Reader
	polled   *memo.Memo
	answer   *readiness
	// fence is asked before each delete; nil lets all pass.
	fence func() error
	moved *relocated
	// tearDown is held over the look for Clusters that are being torn down and the delete
	// of the next one. All that act as another user hold that of agent.
	tearDown sync.Mutex
	// home is the tier that applies to this cluster from elsewhere, with the agent's own rights;
	// nil for the cluster that the agent runs in.
	home *Cluster
	// agent is the connection that this one was made of, to act as another user; nil
	// if it acts as itself.
	agent *Cluster
}

// readiness is the last answer of an API server to the question whether it is
// there. All connections to that API server share it.
type readiness struct {
	mu  sync.Mutex // guards the fields; never held over a call
	at  time.Time
	err error
	// asking is closed when the question that is under way has its answer; nil if
	// none is.
	asking chan struct{}
}

// Connect makes a connection; nothing is sent yet. Calls are not limited in
// rate by the client: API servers of today limit fairly by themselves. All that is
// sent with Config of the connection has the bounds of package answer: those of
// answer.Own, or the tighter ones that the configuration has already.
func Connect(config *rest.Config, scheme *runtime.Scheme) (*Cluster, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	answer.Guard(config)
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("cannot make HTTP client: %w", err)
	}
	mapper, err := apiutil.NewDynamicRESTMapper(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("cannot make REST mapper: %w", err)
	}
	return connect(config, httpClient, mapper, scheme)
}

// Attach makes a connection over an HTTP client that knows how to authenticate,
// how long to wait and how much to read (answer.Bound). Its calls follow each other: there is never more than
// one on its way. What the cluster serves is shared through schemas and
// remembered in known. Nothing is sent yet. The owner of the HTTP client closes
// its connections.
func Attach(host string, httpClient *http.Client, scheme *runtime.Scheme, schemas *Schemas, known *Kinds) (*Cluster, error) {
	config := &rest.Config{Host: host, QPS: -1}
	mapper := &kinds{schemas: schemas, http: httpClient, host: host, known: known}
	c, err := connect(config, httpClient, mapper, scheme)
	if err != nil {
		return nil, err
	}
	mapper.legacy = c.discovery
	c.kinds, c.parallel = mapper, 1
	return c, nil
}

func connect(config *rest.Config, httpClient *http.Client, mapper meta.RESTMapper, scheme *runtime.Scheme) (*Cluster, error) {
	c, err := client.New(config, client.Options{HTTPClient: httpClient, Mapper: mapper, Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("cannot make client: %w", err)
	}
	d, err := discovery.NewDiscoveryClientForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("cannot make discovery client: %w", err)
	}
	m, err := metadata.NewForConfigAndClient(metadata.ConfigFor(config), httpClient)
	if err != nil {
		return nil, fmt.Errorf("cannot make metadata client: %w", err)
	}
	reader := observed.NewReader(m)
	return &Cluster{
		Client: c, Config: config, http: httpClient, discovery: d, metadata: m, reader: reader, polled: memo.NewPolled(reader, group),
		parallel: concurrency, answer: &readiness{}, moved: &relocated{},
	}, nil
}

// Override adds field managers whose fields are taken over by applying, besides
// kubectl's. A name stands for all that begin with it. It is called before the
// first use.
func (c *Cluster) Override(managers []string) { c.reader.Override(managers) }

// Parallel sets how many requests for one rendering are on their way at the same time. It
// is called before the first use.
func (c *Cluster) Parallel(most int) { c.parallel = most }

// Obey takes over the rules of another connection, to the cluster that the agent runs in: what is
// asked before each delete, the managers of Override, and the number of Parallel. The Kustomizations
// and HelmReleases that apply to this cluster are there, too. It is called before the first use.
func (c *Cluster) Obey(other *Cluster) {
	c.home = other
	c.fence, c.parallel = other.MayDelete, max(1, other.parallel)
	c.reader = other.reader.For(c.metadata)
	c.polled = memo.NewPolled(c.reader, group)
}

// Reader reads the metadata of the cluster's objects.
func (c *Cluster) Reader() *observed.Reader { return c.reader }

// Polled is what is remembered of the cluster's objects where it is not watched. All
// connections that were made of this one share it.
func (c *Cluster) Polled() *memo.Memo { return c.polled }

// Close drops idle connections. Calls that are under way end by themselves.
func (c *Cluster) Close() { c.http.CloseIdleConnections() }

// Version of Kubernetes that the API server reports.
func (c *Cluster) Version(ctx context.Context) (string, error) {
	v, err := c.discovery.ServerVersion()
	if err != nil {
		return "", fmt.Errorf("cannot read version: %w", err)
	}
	return v.GitVersion, ctx.Err()
}

// Ready asks the API server's own readiness endpoint.
func (c *Cluster) Ready(ctx context.Context) error {
	body, err := c.discovery.RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	switch {
	case err != nil && len(body) > 0:
		return fmt.Errorf("cannot reach API server: %w: %.2000s", err, body)
	case err != nil:
		return fmt.Errorf("cannot reach API server: %w", err)
	}
	return nil
}

// Write applies one object by one request, and takes fields that it names from
// other managers. Of the answer only the metadata is decoded.
func (c *Cluster) Write(ctx context.Context, u *unstructured.Unstructured, manager string) (*metav1.PartialObjectMetadata, error) {
	mapping, err := c.RESTMapper().RESTMapping(u.GroupVersionKind().GroupKind(), u.GroupVersionKind().Version)
	if err != nil {
		return nil, err
	}
	body, err := encode(u)
	if err != nil {
		return nil, err
	}
	return c.send(ctx, mapping.Resource, client.ObjectKeyFromObject(u), body, manager)
}

func (c *Cluster) send(ctx context.Context, resource schema.GroupVersionResource, name types.NamespacedName, body []byte, manager string) (*metav1.PartialObjectMetadata, error) {
	return c.metadata.Resource(resource).Namespace(name.Namespace).Patch(ctx, name.Name, types.ApplyPatchType, body,
		metav1.PatchOptions{FieldManager: manager, Force: new(true)})
}

// Numbers of Answers.
const (
	// answerTimeout bounds the question, which a healthy API server answers in
	// milliseconds.
	answerTimeout = 10 * time.Second
	// answerHolds is how long an answer, or the lack of one, stands.
	answerHolds = 15 * time.Second
	// answerPatience bounds how long a caller waits for the answer to another's
	// question. Callers are workers, and all of one cluster that is gone must not hold
	// all of them.
	answerPatience = 3 * time.Second
)

// errNoAnswer: the question is under way, and its answer takes long.
var errNoAnswer = fmt.Errorf("cannot reach API server: it has not said within %s whether it is ready", answerPatience)

// Answers asks whether the API server is there at all. Callers share an answer
// for a while: a cluster that is gone must not delay each of them. One asks, with its
// own context. The others get the last answer if that was a failure, and wait
// otherwise: no longer than answerPatience or their own context.
func (c *Cluster) Answers(ctx context.Context, now time.Time) error {
	a := c.answer
	for {
		a.mu.Lock()
		if now.Sub(a.at) < answerHolds {
			defer a.mu.Unlock()
			return a.err
		}
		asking, last := a.asking, a.err
		if asking == nil {
			a.asking = make(chan struct{})
			a.mu.Unlock()
			return c.ask(ctx, now)
		}
		a.mu.Unlock()
		if last != nil {
			return last
		}
		patience := time.NewTimer(answerPatience)
		select {
		case <-asking:
			patience.Stop()
		case <-patience.C:
			return errNoAnswer
		case <-ctx.Done():
			patience.Stop()
			return fmt.Errorf("cannot reach API server: %w", ctx.Err())
		}
	}
}

// ask puts the question of Answers and ends asking.
func (c *Cluster) ask(ctx context.Context, now time.Time) error {
	asked, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	err := c.Ready(asked)
	a := c.answer
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.asking)
	a.asking = nil
	if err != nil && ctx.Err() != nil {
		// The caller gave up, which says nothing of the API server. Another asks.
		return err
	}
	a.err, a.at = err, now
	if err != nil {
		// The time that the question took counts as well.
		a.at = now.Add(answerTimeout)
	}
	return err
}

// resources lists the API resources of every group, all or an error.
func (c *Cluster) resources(ctx context.Context) ([]*metav1.APIResourceList, error) {
	if c.kinds != nil {
		return c.kinds.resources(ctx)
	}
	_, lists, err := c.discovery.ServerGroupsAndResources()
	if err != nil {
		return nil, fmt.Errorf("cannot discover API resources completely: %w", err)
	}
	return lists, nil
}
