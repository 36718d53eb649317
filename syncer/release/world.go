package release

import (
	"context"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/ssa"
	"github.com/fluxcd/pkg/ssa/jsondiff"
	"helm.sh/helm/v4/pkg/release/common"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	"k8s.io/apimachinery/pkg/api/meta"
)

// world is everything outside of a run that its steps look at or change. Each
// part is as small as the steps need it, so that a test can stand in for it.
type world struct {
	// mapper tells which kinds have a namespace.
	mapper meta.RESTMapper
	// store is Helm's storage.
	store store
	// drifts compares objects with the cluster and brings them back.
	drifts drifts
	// guard judges what is to be deleted.
	guard *guard
	// helm prepares one action of Helm's. wrote sees what is really written to the
	// storage.
	helm func(ctx context.Context, wrote func(*helmrelease.Release)) actor
}

// store is Helm's storage, as far as a run reads it by itself.
type store interface {
	// revisions lists what there is of a release, the newest first.
	revisions(ctx context.Context, namespace, name string) ([]revision, error)
	read(ctx context.Context, namespace, name string, version int) (*helmrelease.Release, error)
}

// actor carries out one action on a release.
type actor interface {
	install(ctx context.Context) error
	upgrade(ctx context.Context) error
	rollback(to *v2.Snapshot) error
	// test runs the tests of the newest revision, which is returned.
	test() (*helmrelease.Release, error)
	// uninstall removes the newest revision of a release, and returns it.
	uninstall(name string) (*helmrelease.Release, error)
	// begun marks a revision as one whose uninstall began.
	begun(rel *helmrelease.Release) error
	// unlock marks a release as failed whose action never ended.
	unlock() (was common.Status, rel *helmrelease.Release, err error)
	// rehearse renders what an install or upgrade would make.
	rehearse(ctx context.Context, next Action) (*helmrelease.Release, error)
	// spared are the objects that the action would have deleted and did not.
	spared() *verdicts
	// withLogs appends to a message what Helm logged last.
	withLogs(message string) string
}

// drifts is what the objects of a release are in the cluster.
type drifts interface {
	compare(ctx context.Context, rel *helmrelease.Release) (comparison, error)
	correct(ctx context.Context, set jsondiff.DiffSet) (*ssa.ChangeSet, error)
}

// inCluster is the world of a run: a cluster, by way of Helm. custom readers judge
// objects that are waited for.
func (n *run) inCluster(s *session, custom readers) world {
	g := newGuard(n.req.Cluster, n.obj, n.name, n.namespace, n.Now)
	g.claimed, g.former, g.lowerTier = n.req.Claimed, n.former, !n.req.Local
	return world{
		mapper: s.cluster.RESTMapper(), store: helmStore{s, n.memory}, guard: g,
		drifts: clusterDrifts{cluster: s.cluster, obj: n.obj, overridden: n.OverrideManagers, memo: n.watched()},
		helm: func(ctx context.Context, wrote func(*helmrelease.Release)) actor {
			return newHelm(ctx, n, s, custom, wrote)
		},
	}
}
