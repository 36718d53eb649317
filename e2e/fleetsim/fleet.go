package fleetsim

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// domain of the names of clusters in TLS.
const domain = ".fleet.test"

// Options of a fleet.
type Options struct {
	// Seed of everything that is random.
	Seed uint64
	// Version of Kubernetes that the clusters report; v1.36.3 if empty.
	Version string
	// Below is how many clusters each agent says are below its tier.
	Below int
	// Record keeps every write for Writes.
	Record bool
	// Now is the clock; time.Now if nil.
	Now func() time.Time
	// Complain receives what goes wrong inside of the simulation; nil drops it.
	Complain func(error)
}

// Fleet is a set of clusters behind one listener.
type Fleet struct {
	options     Options
	seed        uint64
	now         func() time.Time
	start       time.Time
	secret      []byte
	versionText []byte
	ca          authority
	clientKey   *ecdsa.PrivateKey
	clientKeyPM []byte
	address     string
	server      *http.Server
	served      chan error

	store store
	base  []record
	// below is what agents say of the clusters below them.
	below    *v1alpha1.Report
	outcomes outcomes
	decoded  struct {
		sync.Mutex
		access      map[*content]*access
		definitions map[*content]definition
	}

	mu       sync.RWMutex
	clusters map[string]*Cluster
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// Start serves an empty fleet on loopback until Close.
func Start(o Options) (*Fleet, error) {
	f := &Fleet{options: o, seed: o.Seed, now: o.Now, clusters: map[string]*Cluster{}, served: make(chan error, 1), secret: []byte(rand.Text())}
	if f.now == nil {
		f.now = time.Now
	}
	f.start = f.now()
	f.below = below(o.Below, metav1.NewTime(f.start.UTC().Truncate(time.Second)))
	f.outcomes.known = map[outcomeKey]outcome{}
	f.decoded.access, f.decoded.definitions = map[*content]*access{}, map[*content]definition{}
	v := o.Version
	if v == "" {
		v = "v1.36.3"
	}
	major, minor, _ := strings.Cut(strings.TrimPrefix(v, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	var err error
	if f.versionText, err = json.Marshal(version.Info{Major: major, Minor: minor, GitVersion: v, GoVersion: "go1.26", Compiler: "gc", Platform: "linux/amd64"}); err != nil {
		return nil, fmt.Errorf("cannot encode version: %w", err)
	}
	if f.base, err = f.store.base(); err != nil {
		return nil, err
	}
	if err := f.listen(); err != nil {
		return nil, fmt.Errorf("cannot serve fleet: %w", err)
	}
	return f, nil
}

func newAuthority(name string) (a authority, err error) {
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return a, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(10, 0, 0), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		return a, err
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return a, err
	}
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a, nil
}

// serverCertificate is for every cluster, with and without a name.
func (a authority) serverCertificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "fleet"}, DNSNames: []string{"*" + domain, "localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(10, 0, 0), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

func (f *Fleet) listen() error {
	var err error
	if f.ca, err = newAuthority("fleet"); err != nil {
		return err
	}
	stranger, err := newAuthority("stranger")
	if err != nil {
		return err
	}
	ours, err := f.ca.serverCertificate()
	if err != nil {
		return err
	}
	theirs, err := stranger.serverCertificate()
	if err != nil {
		return err
	}
	if f.clientKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(f.clientKey)
	if err != nil {
		return err
	}
	f.clientKeyPM = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	f.address = l.Addr().String()
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{ours}, ClientAuth: tls.RequestClientCert, NextProtos: []string{"h2", "http/1.1"}}
	strange := config.Clone()
	strange.Certificates = []tls.Certificate{theirs}
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		c := f.Cluster(strings.TrimSuffix(hello.ServerName, domain))
		connection, ok := hello.Conn.(*conn)
		if c == nil || !ok {
			return nil, nil
		}
		// From here on the connection is the cluster's, also for its faults.
		connection.bind(&c.network)
		switch faults := c.currentFaults(); {
		case faults.Reset:
			connection.reset()
			return nil, errors.New("reset")
		case faults.WrongCA:
			return strange, nil
		}
		return nil, nil
	}
	f.server = &http.Server{
		Handler: f, TLSConfig: config, ReadHeaderTimeout: 30 * time.Second, ErrorLog: log.New(discard{}, "", 0),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if t, ok := c.(*tls.Conn); ok {
				if own, ok := t.NetConn().(*conn); ok {
					return withConn(ctx, own)
				}
			}
			return ctx
		},
	}
	go func() { f.served <- f.server.ServeTLS(listener{l}, "", "") }()
	return nil
}

// discard drops what the HTTP server says of clients that hang up.
type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// Close ends everything.
func (f *Fleet) Close() error {
	for _, name := range f.Names() {
		f.Cluster(name).network.set(false, true)
	}
	err := f.server.Close()
	if serr := <-f.served; !errors.Is(serr, http.ErrServerClosed) {
		err = errors.Join(err, serr)
	}
	return err
}

func (f *Fleet) complain(err error) {
	if f.options.Complain != nil {
		f.options.Complain(err)
	}
}

// Add makes a new, empty cluster.
func (f *Fleet) Add(name string) (*Cluster, error) {
	if name == "" || strings.ContainsAny(name, "/. #") {
		return nil, fmt.Errorf("cannot add cluster %q: its name is no DNS label", name)
	}
	c := &Cluster{Name: name, fleet: f}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.clusters[name] != nil {
		return nil, fmt.Errorf("cannot add cluster %s: it is there already", name)
	}
	c.begin()
	f.clusters[name] = c
	return c, nil
}

// Remove ends a cluster; its address is nobody's from now on.
func (f *Fleet) Remove(name string) {
	f.mu.Lock()
	c := f.clusters[name]
	delete(f.clusters, name)
	f.mu.Unlock()
	if c != nil {
		c.network.set(false, true)
	}
}

// Cluster of a name, nil if there is none.
func (f *Fleet) Cluster(name string) *Cluster {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.clusters[name]
}

// Names of all clusters, sorted.
func (f *Fleet) Names() []string {
	f.mu.RLock()
	defer f.mu.RUnlock()
	names := make([]string, 0, len(f.clusters))
	for name := range f.clusters {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Counts are the requests to all clusters.
func (f *Fleet) Counts() map[string]int {
	total := map[string]int{}
	for _, name := range f.Names() {
		if c := f.Cluster(name); c != nil {
			for key, n := range c.Counts() {
				total[key] += n
			}
		}
	}
	return total
}

// URL of the cluster's API server.
func (c *Cluster) URL() string { return "https://" + c.fleet.address + "/c/" + c.Name }

// Credential is how an administrator authenticates.
type Credential string

const (
	Certificate Credential = "certificate"
	Token       Credential = "token"
)

// certificateSlack is how far back certificates begin, for clocks that differ.
const certificateSlack = time.Minute

// Kubeconfig of the cluster's administrator, who may do everything. A token lasts
// for life, a certificate for a year.
func (c *Cluster) Kubeconfig(with Credential, life time.Duration) ([]byte, error) {
	user := clientcmdapi.NewAuthInfo()
	c.mu.Lock()
	if with == Token {
		user.Token = c.administratorToken(life)
	} else {
		now := c.now()
		template := &x509.Certificate{
			SerialNumber: big.NewInt(int64(c.credential) + 3), NotBefore: now.Add(-certificateSlack), NotAfter: now.AddDate(1, 0, 0),
			Subject: pkix.Name{
				CommonName: adminName, Organization: []string{mastersGroup}, OrganizationalUnit: []string{fmt.Sprintf("%s#%d", c.identity(), c.credential)},
			},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
		der, err := x509.CreateCertificate(rand.Reader, template, c.fleet.ca.cert, &c.fleet.clientKey.PublicKey, c.fleet.ca.key)
		if err != nil {
			c.mu.Unlock()
			return nil, fmt.Errorf("cannot issue certificate for %s: %w", c.Name, err)
		}
		user.ClientCertificateData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		user.ClientKeyData = c.fleet.clientKeyPM
	}
	c.mu.Unlock()
	config := clientcmdapi.NewConfig()
	cluster := clientcmdapi.NewCluster()
	// A name of its own keeps clients from sharing a connection between
	// clusters, as they would not share one between hosts.
	cluster.Server, cluster.TLSServerName, cluster.CertificateAuthorityData = c.URL(), c.Name+domain, c.fleet.ca.pem
	at := clientcmdapi.NewContext()
	at.Cluster, at.AuthInfo = c.Name, adminName
	config.Clusters[c.Name], config.AuthInfos[adminName], config.Contexts[c.Name], config.CurrentContext = cluster, user, at, c.Name
	text, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("cannot write kubeconfig of %s: %w", c.Name, err)
	}
	return text, nil
}

// Rotate gives the administrator another credential, which the next Kubeconfig
// has. Those before stay valid until Revoke.
func (c *Cluster) Rotate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.credential++
}

// Revoke voids the administrator's credentials before the current one, and, if
// asked for, all tokens of ServiceAccounts that were issued until now.
func (c *Cluster) Revoke(tokens bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.revoked.credential = c.credential
	if tokens {
		c.revoked.epoch++
	}
}

// Recreate makes the cluster another one of the same name and address: empty,
// with new UIDs, and with none of the credentials of the old one.
func (c *Cluster) Recreate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.incarnation++
	c.credential, c.revoked = 0, revocation{}
	c.begin()
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
	c.network.set(c.currentFaults().BlackHole, true)
}

// Connections is how many connections to the cluster are open.
func (c *Cluster) Connections() int { return c.network.open() }

// Stats say what a fleet consists of.
type Stats struct {
	Clusters    int `json:"clusters"`
	Objects     int `json:"objects"`
	Connections int `json:"connections"`
	// Contents, Managers, Catalogs and Outcomes are kept once for all clusters.
	Contents int `json:"contents"`
	Managers int `json:"managers"`
	Catalogs int `json:"catalogs"`
	Outcomes int `json:"outcomes"`
}

// Stats of the fleet now.
func (f *Fleet) Stats() Stats {
	s := Stats{Contents: f.store.contents.len(), Managers: f.store.managed.len(), Catalogs: f.store.catalogs.len()}
	f.outcomes.mu.Lock()
	s.Outcomes = len(f.outcomes.known)
	f.outcomes.mu.Unlock()
	for _, name := range f.Names() {
		c := f.Cluster(name)
		if c == nil {
			continue
		}
		c.mu.Lock()
		s.Objects += len(c.objects)
		c.mu.Unlock()
		s.Clusters++
		s.Connections += c.Connections()
	}
	return s
}
