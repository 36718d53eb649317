package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/uuid"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/hint"
	"github.com/cascade-gitops/cascade/syncer/receive"
	"github.com/cascade-gitops/cascade/syncer/request"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// noReceivers is the --receiver-addr of an agent that serves none.
const noReceivers = "0"

// receivers is where webhooks are received, and what tiers below are told of them.
type receivers struct {
	addr string
	// hints is how many children are told in a second. polled: they are told of what this tier
	// found by looking, too.
	hints  float64
	polled bool
}

func (r *receivers) bind(f *pflag.FlagSet) {
	f.StringVar(&r.addr, "receiver-addr", noReceivers,
		"address at which the webhooks of Receivers are served, :9292 for example, over HTTP: an Ingress or a load balancer in front of it brings TLS; 0 serves none")
	f.StringVar(&r.addr, "receiverAddr", noReceivers, "Flux's name of --receiver-addr")
	f.Float64Var(&r.hints, "hints-per-second", 100,
		"children that are told in a second that a repository of which a Receiver was told, or this tier by its parent, may have something new, so that they do not ask its server all at once; 0 tells none, and follows no hint")
	f.BoolVar(&r.polled, "hint-polled-revisions", false,
		"tell children as well that a repository has something new if this tier found it by polling, and no Receiver or parent told of it")
}

func (r *receivers) check() error {
	if !(r.hints >= 0 && r.hints <= 10_000) { // nor no number
		return fmt.Errorf("cannot use --hints-per-second=%g: it must be from 0, for none, to 10000", r.hints)
	}
	if r.addr == "" {
		return errors.New("cannot use --receiver-addr without an address: 0 serves none")
	}
	return nil
}

// serves reports whether webhooks are received.
func (r *receivers) serves() bool { return r.addr != noReceivers }

// pass sets up what of a push comes from the parent, and goes to children; nil if nothing
// is. It comes after the children.
func (w *wiring) pass() (*hint.Inbox, error) {
	o, mgr := w.options, w.mgr
	if o.receivers.hints == 0 {
		return nil, nil
	}
	log := mgr.GetLogger().WithName("hints")
	// It is of its own: of ConfigMaps the manager's has the metadata of another one.
	watched, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{&corev1.ConfigMap{}: {
			Namespaces: map[string]cache.Config{o.place.namespace: {}}, Field: fields.OneTermEqualSelector("metadata.name", v1alpha1.HintsConfigMap),
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot set up the cache of hints: %w", err)
	}
	inbox := &hint.Inbox{
		Namespace: o.place.namespace, Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Cache: watched, Elected: mgr.Elected(), Log: log,
		ID: func() string { return string(uuid.NewUUID()) }, Passed: func() bool { return true },
	}
	if kinds := o.sharding.of(sourcev1.GitRepositoryKind, sourcev1.OCIRepositoryKind, sourcev1.HelmRepositoryKind); len(kinds) > 0 {
		inbox.Sources = &hint.Matcher{Client: mgr.GetClient(), Kinds: kinds, Selects: w.selects, Requests: w.requests, Log: log}
	}
	if w.connections != nil {
		inbox.Teller = hint.NewTeller(hint.Options{
			Children: w.connections, PerSecond: o.receivers.hints, Now: w.program.Now, Random: w.program.Rand, Log: log, Registry: ctrlmetrics.Registry,
		})
		inbox.Passed = func() bool { return hasChildren(mgr.GetClient()) }
		if err := mgr.Add(inbox.Teller); err != nil {
			return nil, err
		}
		if o.receivers.polled {
			if err := w.passPolled(inbox); err != nil {
				return nil, err
			}
		}
	}
	return inbox, errors.Join(mgr.Add(watched), mgr.Add(inbox))
}

// passPolled passes on what the tier's own sources find by looking.
func (w *wiring) passPolled(inbox *hint.Inbox) error {
	leads := w.mgr.Elected()
	// of is where a source is and what its status says that it has; empty for one that is gone,
	// which has nothing new.
	of := func(ctx context.Context, s hint.Source) (url string, artifact *meta.Artifact) {
		switch s.Kind {
		case sourcev1.GitRepositoryKind:
			o := &sourcev1.GitRepository{}
			if w.mgr.GetClient().Get(ctx, s.NamespacedName, o) == nil {
				return o.Spec.URL, o.Status.Artifact
			}
		case sourcev1.OCIRepositoryKind:
			o := &sourcev1.OCIRepository{}
			if w.mgr.GetClient().Get(ctx, s.NamespacedName, o) == nil {
				return o.Spec.URL, o.Status.Artifact
			}
		}
		return "", nil
	}
	polled := hint.NewPolled(hint.PolledOptions{
		URL: func(ctx context.Context, s hint.Source) string {
			url, _ := of(ctx, s)
			return url
		},
		Had: func(s hint.Source) string {
			if _, artifact := of(context.Background(), s); artifact != nil { // of the cache
				return artifact.Revision
			}
			return ""
		},
		Publish: inbox.Publish, Now: w.program.Now,
		Leads: func() bool {
			select {
			case <-leads:
				return true
			default:
				return false
			}
		},
	})
	inbox.Heard = polled.Heard
	w.finder.Snapshots.OnChange(func(key source.Key) {
		if snapshot := w.finder.Snapshots.Get(key); snapshot != nil {
			polled.Found(hint.Source{Kind: key.Kind, NamespacedName: key.NamespacedName}, snapshot.Revision)
		}
	})
	return w.mgr.Add(polled)
}

// hasChildren reports whether the tier has any, or nobody can tell.
func hasChildren(c client.Reader) bool {
	list := &v1alpha1.ChildList{}
	err := c.List(context.Background(), list, client.UnsafeDisableDeepCopy) // of the cache: it does not wait
	return err != nil || len(list.Items) > 0
}

// receive sets up the controller of Receivers, and serves them.
func (w *wiring) receive(ctx context.Context, inbox *hint.Inbox) error {
	o, mgr := w.options, w.mgr
	r := &receive.Reconciler{
		Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Events: w.events(receive.Manager), Metrics: w.metrics, Stalls: w.stalls,
		Now: w.program.Now, Jitter: w.jitter(), Retries: o.pauses.retries(), Shard: w.selects, NoCrossNamespaceRefs: o.references.noCrossNamespace,
	}
	if err := r.SetupWithManager(ctx, mgr, w.configs); err != nil {
		return err
	}
	if !o.receivers.serves() {
		return nil
	}
	if err := receive.IndexPaths(ctx, mgr); err != nil {
		return fmt.Errorf("cannot index Receivers: %w", err)
	}
	log := mgr.GetLogger().WithName("receiver")
	objects := &receive.Objects{Reader: mgr.GetAPIReader(), Requests: w.requests, Workers: w.workers, NoCrossNamespaceRefs: o.references.noCrossNamespace}
	if inbox != nil {
		objects.Tell = func(ctx context.Context, pushes []receive.Push) {
			told := make([]hint.Told, 0, len(pushes))
			for _, p := range pushes {
				told = append(told, hint.Told(p))
			}
			inbox.Publish(ctx, told)
		}
	}
	handler := receive.NewHandler(receive.Options{
		Receivers: mgr.GetClient(), Secrets: mgr.GetAPIReader(), Objects: objects, Identities: receive.NewIssuers(w.program.Now, o.alerts.addresses), Workers: w.workers,
		Now: w.program.Now, Log: log, Registry: ctrlmetrics.Registry,
	})
	return mgr.Add(&receiverServer{addr: o.receivers.addr, handler: handler, cache: mgr.GetCache(), log: log})
}

// receiverServer serves webhooks until the manager ends, in each replica: a Service leads to
// all of them.
type receiverServer struct {
	addr    string
	handler http.Handler
	cache   cache.Cache
	log     logr.Logger
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*receiverServer) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (s *receiverServer) Start(ctx context.Context) error {
	// Before the Receivers are known, each path would be unknown.
	if _, err := s.cache.GetInformer(ctx, &notificationv1.Receiver{}); err != nil {
		return fmt.Errorf("cannot watch Receivers: %w", err)
	}
	listener, err := (&net.ListenConfig{KeepAlive: time.Minute}).Listen(ctx, "tcp", s.addr)
	if err != nil {
		return fmt.Errorf("cannot serve Receivers: %w; see --receiver-addr", err)
	}
	s.log.Info("serving Receivers", "address", listener.Addr().String())
	return receive.Serve(ctx, s.handler, listener)
}

// requester requests reconciles in the name of Flux's controller that does so.
func requester(mgr ctrl.Manager, now func() time.Time) *request.Requests {
	return &request.Requests{Client: mgr.GetClient(), Manager: receive.Manager, Now: now}
}
