package claim

import (
	"context"
	"errors"
	"maps"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/syncer/target"
)

// Numbers of places.
const (
	// identifyTimeout bounds how long a cluster is asked which one it is. A survey waits
	// for mostSilent that do not answer: the others are unknown to it.
	identifyTimeout = 10 * time.Second
	mostSilent      = 3
	// identityHolds is how long the answer counts: a tier may have a thousand releases
	// with a kubeconfig, and none of them has its cluster on record.
	identityHolds = 10 * time.Minute
)

// relation of an owner to the cluster that is asked about.
type relation int

const (
	elsewhere relation = iota
	here
	// perhaps: the kubeconfig is of another namespace than the one that asks, and its server says
	// that it is the cluster that is asked about. Anybody can run one that does.
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

// identity is which cluster a lead was found to lead to.
type identity struct {
	cluster string
	at      time.Time
}

// places are what a survey found out about clusters.
type places struct {
	// clusters are identities; one that is empty is not known.
	clusters map[lead]string
	// silent counts the clusters that did not answer in time.
	silent int
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
	asked := s.cluster(ctx, s.self.GetNamespace(), s.at)
	if asked == "" {
		return unclear
	}
	switch s.cluster(ctx, o.GetNamespace(), place) {
	case asked:
		return is
	case "":
		return unclear
	}
	return elsewhere
}

// atHome reports whether a reference leads to the cluster that we run in, whose owners are
// those of the tier.
func (s *survey) atHome(ctx context.Context, namespace string, r target.Ref) bool {
	if r.Local() || s.Identify == nil {
		return r.Local()
	}
	home := s.cluster(ctx, "", target.Ref{})
	return home != "" && s.cluster(ctx, namespace, r) == home
}

// worthAsking reports whether it is known where a place of an owner is, or it is akin, so that
// it is worth while to ask that cluster.
func (s *survey) worthAsking(v visit, place target.Ref) bool {
	return place.Local() || place.Cluster != "" || place.SameCluster(v.owner.GetNamespace(), s.at, s.self.GetNamespace()) || s.akin(v)
}

// cluster identifies the cluster that a reference leads to. Empty is not known.
func (s *survey) cluster(ctx context.Context, namespace string, r target.Ref) string {
	if r.Cluster != "" {
		return r.Cluster
	}
	at := leadOf(namespace, r)
	if known, ok := s.places.clusters[at]; ok {
		return known
	}
	if s.places.clusters == nil {
		s.places.clusters = map[lead]string{}
	}
	known := s.identified(at)
	if known == "" && s.places.silent < mostSilent {
		known = s.identify(ctx, namespace, r)
	}
	s.places.clusters[at] = known
	return known
}

// identify asks a cluster which one it is.
func (s *survey) identify(ctx context.Context, namespace string, r target.Ref) string {
	ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
	defer cancel()
	found, err := s.Identify(ctx, namespace, r)
	if err != nil {
		// Its own reconciliation tells why; here, it is unknown.
		if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
			s.places.silent++
		}
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if found.Cluster != "" {
		if s.identities == nil {
			s.identities = map[lead]identity{}
		}
		s.identities[leadOf(namespace, r)] = identity{found.Cluster, s.Now()}
	}
	return found.Cluster
}

// identified is the identity that was found a while ago; empty if none was.
func (c *Claims) identified(at lead) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.identities, func(_ lead, i identity) bool { return c.Now().Sub(i.at) >= identityHolds })
	return c.identities[at].cluster
}

// keepRecord gives an owner as it is declared what the live one has on record of its cluster, if
// it is to be the same.
func (s *survey) keepRecord(o, live client.Object) {
	next, ok := o.(*kustomizev1.Kustomization)
	now, exists := live.(*kustomizev1.Kustomization)
	if !ok || !exists {
		return
	}
	if wanted := target.Of(next, s.ServiceAccount).Record(onRecord(now)); wanted.Cluster != "" {
		if next.Annotations == nil {
			next.Annotations = map[string]string{}
		}
		next.Annotations[target.Annotation] = wanted.Encode()
	}
}
