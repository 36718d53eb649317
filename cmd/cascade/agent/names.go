package agent

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/syncer/clusterdns"
)

// names is how names of hosts are resolved.
type names struct {
	server string
	domain string
}

func (n *names) bind(f *pflag.FlagSet) {
	f.StringVar(&n.server, "cluster-dns", os.Getenv("CASCADE_CLUSTER_DNS"),
		"namespace/name of the Service of the cluster's DNS, such as kube-system/kube-dns, which is asked for names of Services; all others are asked of the system's servers. "+
			"Empty asks these for all: in a pod that has the cluster's DNS they are it")
	f.StringVar(&n.domain, "cluster-domain", "cluster.local", "domain of the cluster, for --cluster-dns")
}

func (n *names) check() error {
	if n.server == "" {
		return nil
	}
	if namespace, name, found := strings.Cut(n.server, "/"); !found || namespace == "" || name == "" {
		return fmt.Errorf("cannot use --cluster-dns %q: write namespace/name of a Service", n.server)
	}
	return nil
}

// apply makes all of the process resolve names so. Go asks a variable of the process.
func (n *names) apply(config *rest.Config, now func() time.Time) error {
	if n.server == "" {
		return nil
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("cannot make client: %w", err)
	}
	namespace, name, _ := strings.Cut(n.server, "/")
	server := &dnsService{now: now, read: func(ctx context.Context) (*corev1.Service, error) {
		return clients.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	}}
	net.DefaultResolver = clusterdns.Resolver(cmp.Or(strings.Trim(n.domain, "."), "cluster.local"), server.address)
	return nil
}

// How long the address of the cluster's DNS is used, and how long the lack of one stands: in
// a new cluster it comes in the next second, and whoever fails for want of it waits longer
// each time.
const (
	dnsHolds = 10 * time.Minute
	dnsRetry = time.Second
	dnsWait  = 5 * time.Second
)

// dnsService knows the address of the Service of the cluster's DNS. It is safe for
// concurrent use.
type dnsService struct {
	now  func() time.Time
	read func(context.Context) (*corev1.Service, error)

	mu    sync.Mutex // guards the fields; never held over a call
	found string
	err   error
	until time.Time
}

func (s *dnsService) address(ctx context.Context) (string, error) {
	s.mu.Lock()
	found, err, fresh := s.found, s.err, s.now().Before(s.until)
	s.mu.Unlock()
	if fresh {
		return found, err
	}
	ctx, cancel := context.WithTimeout(ctx, dnsWait)
	defer cancel()
	found, err = s.look(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	hold := dnsHolds
	if err != nil {
		hold = dnsRetry
	}
	s.found, s.err, s.until = found, err, s.now().Add(hold)
	return found, err
}

func (s *dnsService) look(ctx context.Context) (string, error) {
	service, err := s.read(ctx)
	if err != nil {
		return "", err
	}
	if ip := net.ParseIP(service.Spec.ClusterIP); ip == nil {
		return "", fmt.Errorf("the Service %s/%s has no address", service.Namespace, service.Name)
	}
	return net.JoinHostPort(service.Spec.ClusterIP, "53"), nil
}
