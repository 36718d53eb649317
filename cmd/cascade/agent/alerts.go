package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/alert/dispatch"
	"github.com/cascade-gitops/cascade/syncer/answer"
	"github.com/cascade-gitops/cascade/syncer/events"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// noIntake is the --events-receive-addr of an agent that receives none.
const noIntake = "0"

// alerts is how Alerts and Providers are served.
type alerts struct {
	rateLimit time.Duration
	deny      []string
	addresses answer.Addresses
	// intake is where events of other controllers are received, tokenFile what they have to
	// know.
	intake, tokenFile string
}

func (a *alerts) bind(f *pflag.FlagSet) {
	f.DurationVar(&a.rateLimit, "rate-limit-interval", 5*time.Minute, "time in which Providers are not told of the same event again; 0 tells of each")
	f.StringSliceVar(&a.deny, "deny-provider-addresses", nil,
		"networks, such as 127.0.0.0/8,::1/128, where no Provider of an Alert may be, and no issuer of a Receiver; link-local ones and metadata services they never may")
	f.StringVar(&a.intake, "events-receive-addr", noIntake,
		"address at which events of other controllers are received for Alerts, :9090 for example, as Flux's notification-controller receives them; 0 receives none")
	f.StringVar(&a.tokenFile, "events-receive-token-file", "",
		"file with the token that who posts to --events-receive-addr has to know, as the password of the URL or as a bearer; an address that is not of loopback needs one")
}

// receives reports whether events of other controllers are received.
func (a *alerts) receives() bool { return a.intake != noIntake }

// checkIntake refuses to let everybody on a network tell events.
func (a *alerts) checkIntake() error {
	if !a.receives() {
		if a.tokenFile != "" {
			return errors.New("cannot use --events-receive-token-file without --events-receive-addr")
		}
		return nil
	}
	host, _, err := net.SplitHostPort(a.intake)
	if err != nil {
		return fmt.Errorf("cannot use --events-receive-addr %q: it is no address such as :9090", a.intake)
	}
	if ip, err := netip.ParseAddr(host); a.tokenFile == "" && host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return fmt.Errorf("cannot use --events-receive-addr %q without --events-receive-token-file: whoever reaches it could tell events in the name of others", a.intake)
	}
	return nil
}

func (a *alerts) check() error {
	if a.rateLimit < 0 {
		return fmt.Errorf("cannot use --rate-limit-interval %s: it must not be negative", a.rateLimit)
	}
	a.addresses.Deny = nil
	for _, text := range a.deny {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("cannot use --deny-provider-addresses: %q is not a network such as 127.0.0.0/8", text)
		}
		a.addresses.Deny = append(a.addresses.Deny, network.Masked())
	}
	return a.checkIntake()
}

// tellers are the parts of the agent that notifications need.
type tellers struct {
	mgr     ctrl.Manager
	logins  *source.Logins
	workers *worker.Pool
	// namespace has the Alerts that are served; empty is all.
	namespace            string
	noCrossNamespaceRefs bool
	registry             prometheus.Registerer
	now                  func() time.Time
	random               func() float64
}

// build makes what sends events to Providers, which the manager runs.
func (a *alerts) build(t tellers) (*dispatch.Dispatcher, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("cannot read host name: %w", err)
	}
	//lint:ignore SA1019 flux events reads the old events API
	recorder := t.mgr.GetEventRecorderFor("notification-controller")
	d, err := dispatch.New(dispatch.Options{
		Client: t.mgr.GetClient(), Namespace: t.namespace, NoCrossNamespaceRefs: t.noCrossNamespaceRefs,
		RateLimit: a.rateLimit, Instance: host, Events: recorder, Workers: t.workers,
		Senders:  &dispatch.Senders{Reader: t.mgr.GetAPIReader(), Addresses: a.addresses, GitHubApp: githubApp(t.logins)},
		Registry: t.registry, Now: t.now, Rand: t.random, Log: t.mgr.GetLogger().WithName("notifications"),
	})
	if err != nil {
		return nil, err
	}
	if err := t.mgr.Add(d); err != nil {
		return nil, fmt.Errorf("cannot set up notifications: %w", err)
	}
	if !a.receives() {
		return d, nil
	}
	o := events.IntakeOptions{
		Sink: d, Labels: labelsOf(t.mgr.GetAPIReader()), Now: t.now, Log: t.mgr.GetLogger().WithName("events"), Registry: t.registry,
	}
	if a.tokenFile != "" {
		o.Token = a.token
	}
	intake, err := events.NewIntake(o)
	if err != nil {
		return nil, err
	}
	if err := t.mgr.Add(&eventServer{addr: a.intake, intake: intake, log: o.Log}); err != nil {
		return nil, fmt.Errorf("cannot set up what receives events: %w", err)
	}
	return d, nil
}

// mostIntakeToken bounds the file of the token.
const mostIntakeToken = 4 << 10

// token reads the token that who posts events has to know: it may be replaced at any time.
func (a *alerts) token() (string, error) {
	f, err := os.Open(a.tokenFile)
	if err != nil {
		return "", fmt.Errorf("cannot read token: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, mostIntakeToken))
	if err != nil {
		return "", fmt.Errorf("cannot read token: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// labelsOf reads the labels of objects of Flux's kinds and ours, which are those that Alerts
// may name.
func labelsOf(reader client.Reader) func(context.Context, corev1.ObjectReference) (map[string]string, error) {
	return func(ctx context.Context, ref corev1.ObjectReference) (map[string]string, error) {
		gvk := ref.GroupVersionKind()
		if !v1alpha1.IsFluxGroup(gvk.Group) && gvk.Group != v1alpha1.Group {
			return nil, nil
		}
		o := &metav1.PartialObjectMetadata{}
		o.SetGroupVersionKind(gvk)
		if err := reader.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, o); err != nil {
			return nil, fmt.Errorf("cannot read %s %s/%s: %w", ref.Kind, ref.Namespace, ref.Name, err)
		}
		return o.Labels, nil
	}
}

// eventServer receives events until the manager ends, in each replica: a Service leads to all
// of them.
type eventServer struct {
	addr   string
	intake *events.Intake
	log    logr.Logger
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*eventServer) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (s *eventServer) Start(ctx context.Context) error {
	listener, err := (&net.ListenConfig{KeepAlive: time.Minute}).Listen(ctx, "tcp", s.addr)
	if err != nil {
		return fmt.Errorf("cannot receive events: %w; see --events-receive-addr", err)
	}
	s.log.Info("receiving events of other controllers", "address", listener.Addr().String())
	return s.intake.Serve(ctx, listener)
}

// githubApp gets tokens of GitHub Apps for Providers.
func githubApp(logins *source.Logins) func(context.Context, string, map[string][]byte, *url.URL, func(*http.Transport)) (string, error) {
	return func(ctx context.Context, repository string, secret map[string][]byte, proxy *url.URL, restrict func(*http.Transport)) (string, error) {
		login, err := logins.GitHubApp(ctx, repository, secret, proxy, restrict)
		if err != nil {
			return "", err
		}
		if login.Password == "" {
			return "", errors.New("the login has no token")
		}
		return login.Password, nil
	}
}
