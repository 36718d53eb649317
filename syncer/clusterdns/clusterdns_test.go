package clusterdns

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// nameServer answers every A query with one address, and remembers the names. An answer by
// UDP is cut if it says so, so that the resolver asks by TCP.
type nameServer struct {
	address string
	answer  [4]byte
	cut     bool

	mu    sync.Mutex
	asked []string
}

func serve(t *testing.T, answer [4]byte, cut bool) *nameServer {
	t.Helper()
	s := &nameServer{answer: answer, cut: cut}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address = listener.Addr().String()
	conn, err := net.ListenPacket("udp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() { s.packets(conn) })
	serving.Go(func() { s.streams(listener) })
	t.Cleanup(func() { conn.Close(); listener.Close(); serving.Wait() })
	return s
}

func (s *nameServer) packets(conn net.PacketConn) {
	buffer := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return
		}
		_, _ = conn.WriteTo(s.reply(buffer[:n], s.cut), from)
	}
}

func (s *nameServer) streams(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		var length [2]byte
		if _, err := io.ReadFull(conn, length[:]); err == nil {
			query := make([]byte, binary.BigEndian.Uint16(length[:]))
			if _, err := io.ReadFull(conn, query); err == nil {
				reply := s.reply(query, false)
				_, _ = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...))
			}
		}
		conn.Close()
	}
}

func (s *nameServer) reply(query []byte, cut bool) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(query)
	if err != nil {
		return nil
	}
	q, err := p.Question()
	if err != nil {
		return nil
	}
	s.mu.Lock()
	s.asked = append(s.asked, q.Name.String())
	s.mu.Unlock()
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: h.ID, Response: true, Truncated: cut, RecursionAvailable: true}, Questions: []dnsmessage.Question{q}}
	if q.Type == dnsmessage.TypeA && !cut {
		m.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 1}, Body: &dnsmessage.AResource{A: s.answer},
		}}
	}
	packed, err := m.Pack()
	if err != nil {
		return nil
	}
	return packed
}

func (s *nameServer) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// at has a resolver ask a server in place of the ones of this machine.
func at(r *net.Resolver, s *nameServer) *net.Resolver {
	dial := r.Dial
	r.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) { return dial(ctx, network, s.address) }
	return r
}

func TestResolver(t *testing.T) {
	ofNode, ofCluster := [4]byte{192, 0, 2, 1}, [4]byte{10, 96, 0, 1}
	for name, tc := range map[string]struct {
		reason string
		host   string
		cut    bool
		inside bool
	}{
		"Public":   {"Git is there before the cluster's DNS is", "git.example.com.", false, false},
		"Service":  {"as Flux writes it", "notification-controller.flux-system.svc.cluster.local.", false, true},
		"Capitals": {"names have no case", "Git.Forge.SVC.Cluster.Local.", false, true},
		"Short":    {"the cluster's DNS says that there is no such name, and the search domains follow", "git.forge.svc.", false, true},
		"Alike":    {"not a part of the cluster's domain", "notcluster.local.", false, false},
		"Long":     {"an answer that is too long for a packet is asked for by a stream", "git.example.com.", true, false},
		"LongHere": {"of the cluster too", "git.forge.svc.cluster.local.", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			node, cluster := serve(t, ofNode, tc.cut), serve(t, ofCluster, tc.cut)
			r := at(Resolver("cluster.local", func(context.Context) (string, error) { return cluster.address, nil }), node)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			got, err := r.LookupIP(ctx, "ip4", tc.host)
			if err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			asked, other, want := node, cluster, ofNode
			if tc.inside {
				asked, other, want = cluster, node, ofCluster
			}
			if len(got) != 1 || !got[0].Equal(net.IP(want[:])) || len(asked.names()) == 0 || len(other.names()) > 0 {
				t.Errorf("%s: %v, asked %v, and the other %v", tc.reason, got, asked.names(), other.names())
			}
		})
	}
}

// TestUnknownServer: as long as there is no DNS in the cluster, names outside are resolved.
func TestUnknownServer(t *testing.T) {
	node := serve(t, [4]byte{192, 0, 2, 1}, false)
	r := at(Resolver("cluster.local", func(context.Context) (string, error) { return "", errors.New("no such Service") }), node)
	if _, err := r.LookupHost(t.Context(), "git.example.com."); err != nil {
		t.Errorf("outside: %v", err)
	}
	_, err := r.LookupHost(t.Context(), "git.forge.svc.cluster.local.")
	if err == nil || !strings.Contains(err.Error(), "no such Service") || slices.ContainsFunc(node.names(), func(n string) bool { return strings.HasSuffix(n, "local.") }) {
		t.Errorf("inside: %v, the node's server was asked for %v", err, node.names())
	}
}
