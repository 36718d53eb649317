package release

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/fluxcd/pkg/ssa/jsondiff"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/memo"
	"github.com/cascade-gitops/cascade/syncer/rights"
)

// comparison is what a look for drift found.
type comparison struct {
	set jsondiff.DiffSet
	// known is how many objects the memo has. complete: these are all that can drift.
	known    int
	complete bool
}

// driftState is a release whose objects were compared.
type driftState struct {
	// of identifies the release, and what is declared about its drift, of which known
	// objects were all found to be as declared; empty if they were not.
	of    string
	known int
	// sweep is when everything is compared anew, whatever the memo says.
	sweep time.Time
}

// driftOf identifies what a look for drift depends on besides the objects.
func (n *run) driftOf() string {
	return fmt.Sprintf("%d %s %s", n.obj.Generation, n.found.stamp, n.found.recorded)
}

// watched is the memo of the objects of releases; nil if the run's cluster is another.
func (n *run) watched() *memo.Memo {
	if !n.req.Local {
		return nil
	}
	return n.Memo
}

// undrifted reports whether the objects of the release are known to be as they were when
// they were compared last.
func (n *run) undrifted() bool {
	n.mu.Lock()
	s, ok := n.driftStates[n.obj.UID]
	n.mu.Unlock()
	return ok && s.of == n.driftOf() && n.watched().Clean(client.ObjectKeyFromObject(n.obj), s.known)
}

// noteDrift notes what a comparison found. The time of the next sweep is spread, so that
// what was installed together is not compared together.
func (n *run) noteDrift(found comparison, err error) {
	if n.watched() == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s, ok := n.driftStates[n.obj.UID]
	if !ok {
		s.sweep = n.Now().Add(n.Sweep + time.Duration(n.Random()*float64(n.Sweep/2)))
	}
	if s.of = ""; err == nil && found.complete && !found.set.HasChanges() {
		s.of, s.known = n.driftOf(), found.known
	}
	if n.driftStates == nil {
		n.driftStates = map[types.UID]driftState{}
	}
	n.driftStates[n.obj.UID] = s
}

// sweeps forgets what is known of the objects of the release if it is time to compare all
// of them: what admission webhooks would do differently by now, no watch tells.
func (n *run) sweeps() {
	n.mu.Lock()
	s, ok := n.driftStates[n.obj.UID]
	if ok = ok && !n.Now().Before(s.sweep); ok {
		delete(n.driftStates, n.obj.UID)
	}
	n.mu.Unlock()
	if ok {
		n.watched().Forget(client.ObjectKeyFromObject(n.obj))
	}
}

// doubt has compared again what the account of the release may not touch any more, as the
// dry run of each object would show at each interval.
func (n *run) doubt(ctx context.Context) {
	c := n.req.Cluster
	if n.watched() != nil && c != nil && c.Config != nil && c.Config.Impersonate.UserName != "" {
		rights.Doubt(ctx, c, c.RESTMapper(), n.watched(), client.ObjectKeyFromObject(n.obj))
	}
}

// compared is one object of a release on its way through a comparison.
type compared struct {
	object  *unstructured.Unstructured
	key     memo.Object
	desired digest.Short
	watched bool
}

// unknown returns the objects that the memo does not know to be as declared. Until the
// comparison is noted, what the watch shows of them is kept for it.
func (d clusterDrifts) unknown(ctx context.Context, objects []*unstructured.Unstructured, rules jsondiff.IgnoreRules) (unknown []compared, err error) {
	how, err := json.Marshal(rules)
	if err != nil {
		return nil, fmt.Errorf("cannot encode rules of what to ignore: %w", err)
	}
	for _, u := range objects {
		body, err := u.MarshalJSON()
		if err != nil {
			return nil, fmt.Errorf("cannot encode %s: %w", subject(u), err)
		}
		c := compared{object: u, desired: digest.Of(string(body), string(how), d.cluster.Config.Impersonate.UserName).Short()}
		gvk := u.GroupVersionKind()
		c.key = memo.Object{Kind: gvk.GroupKind(), Name: client.ObjectKeyFromObject(u)}
		if d.memo.Matches(c.key, d.owner(), c.desired) {
			continue
		}
		declared, err := d.cluster.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
		if err == nil {
			preferred := declared
			if any, err := d.cluster.RESTMapper().RESTMapping(gvk.GroupKind()); err == nil {
				preferred = any
			}
			c.watched = d.memo.Watch(ctx, c.key.Kind, preferred.Resource, declared.Resource)
		}
		if c.watched {
			d.memo.Begin(c.key)
		}
		unknown = append(unknown, c)
	}
	return unknown, nil
}

// note has the memo remember the objects in which nothing differs, and reports whether
// these are all.
func (d clusterDrifts) note(unknown []compared, set jsondiff.DiffSet, read seen) (complete bool) {
	same := map[memo.Object]bool{}
	for _, diff := range set {
		if diff != nil && diff.Type == jsondiff.DiffTypeNone {
			gk := diff.DesiredObject.GetObjectKind().GroupVersionKind().GroupKind()
			same[memo.Object{Kind: gk, Name: client.ObjectKeyFromObject(diff.DesiredObject)}] = true
		}
	}
	complete = true
	for _, c := range unknown {
		live := read[c.key]
		switch {
		case c.watched && same[c.key] && live != nil && d.memo.Remember(c.key, d.owner(), c.desired, c.object, live):
			continue
		case c.watched:
			d.memo.Abandon(c.key, d.owner())
		}
		complete = false
	}
	return complete
}

func (d clusterDrifts) owner() types.NamespacedName { return client.ObjectKeyFromObject(d.obj) }

// seen is the metadata of live objects.
type seen map[memo.Object]*metav1.PartialObjectMetadata

// observing is a client that notes the metadata of what is read by it.
type observing struct {
	client.Client
	seen seen
}

// Get reads an object.
func (o observing) Get(ctx context.Context, key client.ObjectKey, obj client.Object, options ...client.GetOption) error {
	if err := o.Client.Get(ctx, key, obj, options...); err != nil {
		return err
	}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		o.seen[memo.Object{Kind: u.GroupVersionKind().GroupKind(), Name: key}] = &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Namespace: u.GetNamespace(), Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion(),
			Generation: u.GetGeneration(), Labels: u.GetLabels(), Annotations: u.GetAnnotations(),
			ManagedFields: u.GetManagedFields(), DeletionTimestamp: u.GetDeletionTimestamp(),
		}}
	}
	return nil
}
