package hint

import (
	"context"
	"sync"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/syncer/request"
)

const (
	// mostWoken sources are requested for the hints of one moment, mostWrites at a time.
	mostWoken  = 2000
	mostWrites = 16
)

// Matcher finds the sources of a tier that name a repository.
type Matcher struct {
	// Client reads from the cache. Kinds are those that it has.
	Client client.Reader
	Kinds  []string
	// Selects passes the objects that this process reconciles.
	Selects  func(client.Object) bool
	Requests *request.Requests
	Log      logr.Logger
}

// Wake implements Sources. A source that is suspended is left alone, and one that has the
// commit already, if its repository has no other news, of which nobody knows the branch, and it is
// about to have no other commit: one that is fetched may be the one that a push by force took back.
func (m *Matcher) Wake(ctx context.Context, hints []Hint) {
	wanted := make(map[string]string, len(hints))
	for _, h := range hints {
		if before, ok := wanted[h.Repository]; ok && before != h.Revision {
			h.Revision = ""
		}
		wanted[h.Repository] = h.Revision
	}
	var writes sync.WaitGroup
	defer writes.Wait()
	places := make(chan struct{}, mostWrites)
	woken := 0
	for _, kind := range m.Kinds {
		for _, name := range m.named(ctx, kind, wanted) {
			if woken++; woken > mostWoken || ctx.Err() != nil {
				return
			}
			places <- struct{}{}
			writes.Go(func() {
				defer func() { <-places }()
				o := request.Object{GroupVersionKind: sourcev1.GroupVersion.WithKind(kind), NamespacedName: name}
				if err := m.Requests.Make(ctx, o); client.IgnoreNotFound(err) != nil && ctx.Err() == nil {
					m.Log.Error(err, "cannot follow a hint; the source polls", "kind", kind, "source", name.String())
				}
			})
		}
	}
}

// named are the sources of a kind that are of the repositories, without those that have the
// commit that is wanted of theirs.
func (m *Matcher) named(ctx context.Context, kind string, wanted map[string]string) []types.NamespacedName {
	var names []types.NamespacedName
	pick := func(o client.Object, url string, suspended bool, artifact *meta.Artifact, handled string) {
		commit, ok := wanted[Repository(url)]
		if !ok || suspended || !o.GetDeletionTimestamp().IsZero() || !m.Selects(o) {
			return
		}
		requested := o.GetAnnotations()[meta.ReconcileRequestAnnotation]
		if artifact != nil && has(artifact.Revision, commit) && (requested == "" || requested == handled) {
			return
		}
		names = append(names, client.ObjectKeyFromObject(o))
	}
	list := func(l client.ObjectList) bool {
		if err := m.Client.List(ctx, l, client.UnsafeDisableDeepCopy); err != nil {
			m.Log.Error(err, "cannot list the sources that a hint is about", "kind", kind)
			return false
		}
		return true
	}
	switch kind {
	case sourcev1.GitRepositoryKind:
		if l := (&sourcev1.GitRepositoryList{}); list(l) {
			for i := range l.Items {
				o := &l.Items[i]
				pick(o, o.Spec.URL, o.Spec.Suspend, o.Status.Artifact, o.Status.LastHandledReconcileAt)
			}
		}
	case sourcev1.OCIRepositoryKind:
		if l := (&sourcev1.OCIRepositoryList{}); list(l) {
			for i := range l.Items {
				o := &l.Items[i]
				pick(o, o.Spec.URL, o.Spec.Suspend, nil, "")
			}
		}
	case sourcev1.HelmRepositoryKind:
		if l := (&sourcev1.HelmRepositoryList{}); list(l) {
			for i := range l.Items {
				o := &l.Items[i]
				pick(o, o.Spec.URL, o.Spec.Suspend, nil, "")
			}
		}
	}
	return names
}
