package answer

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
)

// Addresses are those that a kubeconfig, or a Provider, may lead to. It is checked where a connection
// is made, when names are resolved: what a name means can change after a check. The
// zero value refuses what no API server has, and what gives credentials of machines
// away. It is safe for concurrent use.
type Addresses struct {
	// Deny has addresses that are refused besides those, such as loopback, and the
	// networks that only the agent's node can reach.
	Deny []netip.Prefix
}

// never are addresses that no kubeconfig may lead to: link-local ones, among them the
// metadata services of clouds, those of these services that are not link-local, and
// those that mean this machine by chance or many machines.
var never = []netip.Prefix{
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("fd00:ec2::/32"),      // Amazon
	netip.MustParsePrefix("fd20:ce::254/128"),   // Google
	netip.MustParsePrefix("168.63.129.16/32"),   // Azure
	netip.MustParsePrefix("100.100.100.200/32"), // Alibaba
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("::/128"),
	netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("ff00::/8"),
}

// Networks of IPv6 addresses that stand for an IPv4 address, to which a gateway may
// connect.
var (
	translated        = netip.MustParsePrefix("64:ff9b::/96")   // RFC 6052
	translatedLocally = netip.MustParsePrefix("64:ff9b:1::/48") // RFC 8215
	tunnelled         = netip.MustParsePrefix("2002::/16")      // RFC 3056
)

// embedded are the IPv4 addresses that an IPv6 address may stand for.
func embedded(ip netip.Addr) []netip.Addr {
	b := ip.As16()
	switch {
	case translated.Contains(ip):
		return []netip.Addr{netip.AddrFrom4([4]byte(b[12:]))}
	case tunnelled.Contains(ip):
		return []netip.Addr{netip.AddrFrom4([4]byte(b[2:6]))}
	case translatedLocally.Contains(ip):
		// Who runs the gateway chose the length of the prefix, and with it where the address
		// is (RFC 6052, 2.2). At the wrong places there may be zeros, or whatever makes a
		// multicast address, and no gateway connects to either.
		var all []netip.Addr
		for _, v4 := range [][4]byte{{b[6], b[7], b[9], b[10]}, {b[7], b[9], b[10], b[11]}, {b[9], b[10], b[11], b[12]}, {b[12], b[13], b[14], b[15]}} {
			if at := netip.AddrFrom4(v4); v4[0] != 0 && !at.IsMulticast() {
				all = append(all, at)
			}
		}
		return all
	}
	return nil
}

func (a Addresses) refused(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	for _, at := range append(embedded(ip), ip) {
		for _, prefixes := range [][]netip.Prefix{never, a.Deny} {
			for _, p := range prefixes {
				if p.Contains(at) {
					return true
				}
			}
		}
	}
	return false
}

// dialer connects to any address.
func dialer() *net.Dialer { return &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second} }

// Dial connects to an address that is not refused. The error is an Error otherwise.
func (a Addresses) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := dialer()
	d.ControlContext = func(_ context.Context, _, at string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(at)
		if err != nil || a.refused(to.Addr()) {
			return errAddress()
		}
		return nil
	}
	return d.DialContext(ctx, network, address)
}

func errAddress() error {
	return &Error{ReasonAddress, "the address is link-local, a metadata service, or one of --deny-kubeconfig-addresses; name another server in the kubeconfig"}
}

// Check refuses a server whose address is written as a refused number. That matters
// where a proxy makes the connection.
func (a Addresses) Check(server string) error {
	u, err := url.Parse(server)
	if err != nil {
		return nil // whoever connects says what is wrong with it
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil && a.refused(ip) {
		return errAddress()
	}
	return nil
}

// Restrict lets a transport ask servers at these addresses only. Its proxy is set before. One that whoever
// runs the agent set up, as in its environment, is ours, and may be anywhere; any other is called by the same
// rule. Which address a name means is the proxy's matter, so that with one only what is written is checked.
func (a Addresses) Restrict(t *http.Transport, ours bool) {
	proxy := t.Proxy
	var proxies sync.Map // host and port of ours
	t.Proxy = func(r *http.Request) (*url.URL, error) {
		if err := a.Check(r.URL.String()); err != nil || proxy == nil {
			return nil, err
		}
		by, err := proxy(r)
		if by != nil && ours {
			proxies.Store(hostPort(by), true)
		}
		return by, err
	}
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if _, ok := proxies.Load(address); ok {
			return dialer().DialContext(ctx, network, address)
		}
		return a.Dial(ctx, network, address)
	}
}

// hostPort is where a transport dials a proxy.
func hostPort(proxy *url.URL) string {
	usual := map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}
	return net.JoinHostPort(proxy.Hostname(), cmp.Or(proxy.Port(), usual[proxy.Scheme]))
}

// Guard bounds all that is sent with a configuration that came from somebody else, by
// whatever client is made of it. Warnings of the server go nowhere: each would be a
// line of the log.
func (a Addresses) Guard(config *rest.Config) error {
	if err := a.Check(config.Host); err != nil {
		return err
	}
	config.Dial = a.Dial
	config.WarningHandler = rest.NoWarnings{}
	config.WarningHandlerWithContext = nil
	wrap(config, Other())
	return nil
}
