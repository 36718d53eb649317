package claim

import (
	"context"
	"maps"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/syncer/target"
)

// Numbers of places.
const (
	// identifyTimeout bounds how long a cluster is asked which one it is, and mostAsking how long
	// a survey asks before it begins with no other: these come next time.
	identifyTimeout = 10 * time.Second
	mostAsking      = 15 * time.Second
	// identityHolds is how long an answer counts, and silenceHolds how long that there was none.
	// A tier may have a thousand releases with a kubeconfig that no cluster is on record
	// of. An old answer would be about what the kubeconfig was before.
	identityHolds = 30 * time.Second
	silenceHolds  = 2 * time.Minute
)

// relation of an owner to the cluster that is asked about.
type relation int

const (
	elsewhere relation = iota
	here
	// perhaps: the kubeconfig is of another namespace than the one that asks, and its server says
	// that it is the cluster that is asked about. Anybody can run one that does, and would keep
	// objects of others there for good. What an owner has applied there proves it by its labels.
	// Or there was no time yet to ask.
	perhaps
	// unclear: it applies to a cluster that did not tell which one it is, or the one
	// that is asked about did not. Unknown is not elsewhere.
	unclear
)

// lead is a reference and the namespace that it is made in, without the identity of the
// cluster. The zero value leads to the cluster that we run in.
type lead struct{ namespace, kind, name, key string }

func leadOf(namespace string, r target.Ref) lead {
	if r.Local() {
		return lead{}
	}
	return lead{namespace, r.Kind, r.Name, r.Key}
}

// identity is which cluster a lead was found to lead to; empty if it did not tell.
type identity struct {
	cluster string
	at      time.Time
}

func (i identity) holds(now time.Time) bool {
	if i.cluster == "" {
		return now.Sub(i.at) < silenceHolds
	}
	return now.Sub(i.at) < identityHolds
}

// places are what a survey found out about clusters.
type places struct {
	// clusters are identities; one that is empty did not tell.
	clusters map[lead]string
	// asking is how long clusters were asked.
	asking time.Duration
}

// applies tells whether a place of an owner is the cluster that is asked about. Nobody is
// asked as long as the references tell.
func (s *survey) applies(ctx context.Context, o client.Object, place target.Ref) relation {
	is := perhaps
	if place.Local() || o.GetNamespace() == s.self.GetNamespace() {
		is = here
	}
	if place.SameCluster(o.GetNamespace(), s.at, s.self.GetNamespace()) {
		return is
	}
	if s.Identify == nil {
		return elsewhere
	}
	about, _ := s.cluster(ctx, s.self.GetNamespace(), s.at)
	if about == "" {
		return unclear
	}
	switch there, asked := s.cluster(ctx, o.GetNamespace(), place); {
	case there == about:
		return is
	case there != "":
		return elsewhere
	case !asked:
		return perhaps
	}
	return unclear
}

// atHome reports whether a reference leads to the cluster that we run in, whose owners are
// those of the tier.
func (s *survey) atHome(ctx context.Context, namespace string, r target.Ref) bool {
	if r.Local() || s.Identify == nil {
		return r.Local()
	}
	home, _ := s.cluster(ctx, "", target.Ref{})
	if home == "" {
		return false
	}
	there, _ := s.cluster(ctx, namespace, r)
	return there == home
}

// worthAsking reports whether it is known where a place of an owner is, or it is akin, so that
// it is worth while to ask that cluster.
func (s *survey) worthAsking(v visit, place target.Ref) bool {
	return place.Local() || place.Cluster != "" || place.SameCluster(v.owner.GetNamespace(), s.at, s.self.GetNamespace()) || s.akin(v)
}

// cluster identifies the cluster that a reference leads to. Empty is not known: asked tells
// whether it did not say so, or was not asked. That of self is always asked, and anew: all
// that is elsewhere is so by it.
func (s *survey) cluster(ctx context.Context, namespace string, r target.Ref) (cluster string, asked bool) {
	if r.Cluster != "" {
		return r.Cluster, true
	}
	at := leadOf(namespace, r)
	if known, ok := s.places.clusters[at]; ok {
		return known, true
	}
	isSelf := at == leadOf(s.self.GetNamespace(), s.at)
	known, remembered := s.identified(at)
	switch {
	case isSelf:
		known = s.identify(ctx, namespace, r)
	case remembered:
	case s.places.asking >= mostAsking:
		return "", false
	default:
		began := s.Now()
		known = s.identify(ctx, namespace, r)
		s.places.asking += s.Now().Sub(began)
	}
	if ctx.Err() != nil {
		return "", false
	}
	if s.places.clusters == nil {
		s.places.clusters = map[lead]string{}
	}
	s.places.clusters[at] = known
	return known, true
}

// identify asks a cluster which one it is.
func (s *survey) identify(ctx context.Context, namespace string, r target.Ref) string {
	asking, cancel := context.WithTimeout(ctx, identifyTimeout)
	defer cancel()
	found, err := s.Identify(asking, namespace, r)
	if ctx.Err() != nil {
		return "" // that says nothing of the cluster
	}
	if err != nil {
		found.Cluster = "" // its own reconciliation tells why
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.identities == nil {
		s.identities = map[lead]identity{}
	}
	s.identities[leadOf(namespace, r)] = identity{found.Cluster, s.Now()}
	return found.Cluster
}

// identified is the identity that was found a while ago, if one was asked for.
func (c *Claims) identified(at lead) (cluster string, asked bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.identities, func(_ lead, i identity) bool { return !i.holds(c.Now()) })
	i, asked := c.identities[at]
	return i.cluster, asked
}

// keepRecord gives an owner as it is declared what the live one has on record of its cluster, if
// it is to be the same.
func (s *survey) keepRecord(o, live client.Object) {
	if live == nil {
		return
	}
	if wanted := s.wantedAt(o).Record(onRecord(live)); wanted.Cluster != "" {
		target.SetRecorded(o, wanted.Encode())
	}
}
