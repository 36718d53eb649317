package fleetsim

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Cluster is one of the fleet. Its methods may be called at any time.
type Cluster struct {
	Name string

	fleet   *Fleet
	ledger  ledger
	network network
	faults  atomic.Pointer[Faults]
	// requests numbers requests, for faults that hit a part of them.
	requests atomic.Uint64

	mu sync.Mutex
	// incarnation counts how often the cluster was created anew, credential how
	// often its administrator got another credential, revoked which of them and
	// of the tokens that were issued until then no longer count.
	incarnation, credential int
	revoked                 revocation
	objects                 map[objectKey]*record
	catalog                 *catalog
	version                 uint64
	created                 int64
	// writes counts, to make UIDs.
	writes uint64
	rights rights
	// log has the last changes for watches, which begin at oldest+1.
	log      []change
	oldest   uint64
	watchers int
	changed  chan struct{}
}

// revocation of credentials.
type revocation struct {
	// credentials of the administrator below this one are void.
	credential int
	// tokens issued in an epoch below this one are void.
	epoch int
}

type objectKey struct {
	resource        schema.GroupResource
	namespace, name string
}

func (k *kind) key(namespace, name string) objectKey {
	return objectKey{resource: k.resource(), namespace: namespace, name: name}
}

// change of an object: before or after is nil if it was created or deleted.
type change struct {
	version       uint64
	before, after *record
}

// Numbers of the log of changes.
const (
	// keptAtRest is how many changes stay when nobody watches.
	keptAtRest = 16
	// keptWatched is how many changes a watch may lag behind.
	keptWatched = 4096
)

// period is the time in which what moves by itself moves on: the pace at which
// an agent renews its lease.
const period = 2 * time.Second

// paced is by how much resource versions move on in a period: more than there are
// writes, which move them on by one each, so that each period shows.
const paced = 1 << 10

// now is the cluster's time.
func (c *Cluster) now() time.Time {
	return c.fleet.now().Add(c.currentFaults().Skew)
}

func (c *Cluster) currentFaults() Faults {
	if f := c.faults.Load(); f != nil {
		return *f
	}
	return Faults{}
}

// renewal is the state of leases now. Resource versions follow the clock, so
// that a lease has a higher one with every period without any work.
func (c *Cluster) renewal() renewal {
	at := c.fleet.now().Truncate(period)
	return renewal{version: uint64(at.Unix() / int64(period/time.Second) * paced), at: at.Add(c.currentFaults().Skew)}
}

// next is the version of the next write.
func (c *Cluster) next() uint64 {
	c.version = max(c.version+1, c.renewal().version)
	return c.version
}

// current is the version of the cluster's state.
func (c *Cluster) current() uint64 {
	c.version = max(c.version, c.renewal().version)
	return c.version
}

// begin makes the cluster an empty one with an identity of its own.
func (c *Cluster) begin() {
	c.objects = map[objectKey]*record{}
	c.catalog = c.fleet.store.catalog(nil)
	c.created = c.fleet.now().Unix()
	c.rights = rights{}
	c.log, c.oldest = nil, c.current()
	for _, b := range c.fleet.base {
		r := &record{
			kind: b.kind, name: b.name, content: b.content, managed: b.managed, times: slices.Repeat([]int64{c.created}, len(b.managed.entries)),
			uid: c.newUID(b.kind.Kind, "", b.name), version: c.next(), generation: 1, created: c.created,
		}
		c.objects[r.kind.key("", r.name)] = r
	}
	c.oldest = c.version
}

// newUID is the UID of an object that is created now. Those that a cluster begins
// with have the same ones each time that a fleet is made from the same seed.
func (c *Cluster) newUID(of ...any) uid {
	c.writes++
	return uidOf(c.fleet.seed, c.Name, c.incarnation, c.writes, fmt.Sprint(of...))
}

// base is what every cluster begins with.
func (s *store) base() ([]record, error) {
	var base []record
	add := func(k *kind, name string, fields map[string]any) error {
		object := map[string]any{"metadata": map[string]any{"name": name}}
		for key, v := range fields {
			if key == "labels" {
				object["metadata"].(map[string]any)["labels"] = v
				continue
			}
			object[key] = v
		}
		content, err := s.content(k, object)
		if err != nil {
			return err
		}
		base = append(base, record{kind: k, name: name, content: content, managed: s.managedSet(nil)})
		return nil
	}
	named := []metav1.ManagedFieldsEntry{{
		Manager: "kube-apiserver", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{".":{},"f:kubernetes.io/metadata.name":{}}}}`),
	}}
	for _, name := range []string{"default", "kube-node-lease", "kube-public", "kube-system"} {
		if err := add(builtin("Namespace"), name, map[string]any{
			"labels": map[string]any{"kubernetes.io/metadata.name": name},
			"spec":   map[string]any{"finalizers": []any{"kubernetes"}}, "status": map[string]any{"phase": "Active"},
		}); err != nil {
			return nil, err
		}
		base[len(base)-1].managed = s.managedSet(named)
	}
	rule := func(verbs, groups, resources []any) map[string]any {
		return map[string]any{"verbs": verbs, "apiGroups": groups, "resources": resources}
	}
	urls := func(verbs []any, paths ...any) map[string]any {
		return map[string]any{"verbs": verbs, "nonResourceURLs": paths}
	}
	all := []any{"*"}
	roles := map[string][]any{
		"cluster-admin":    {rule(all, all, all), urls(all, "*")},
		"system:discovery": {urls([]any{"get"}, "/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz", "/version", "/version/")},
		"system:basic-user": {rule([]any{"create"}, []any{"authorization.k8s.io"}, []any{"selfsubjectaccessreviews", "selfsubjectrulesreviews"}),
			rule([]any{"create"}, []any{"authentication.k8s.io"}, []any{"selfsubjectreviews"})},
		"system:public-info-viewer": {urls([]any{"get"}, "/healthz", "/livez", "/readyz", "/version", "/version/")},
	}
	group := func(name string) map[string]any {
		return map[string]any{"apiGroup": rbacGroup, "kind": "Group", "name": name}
	}
	subjects := map[string][]any{
		"cluster-admin": {group("system:masters")}, "system:discovery": {group(authenticatedGroup)}, "system:basic-user": {group(authenticatedGroup)},
		"system:public-info-viewer": {group(authenticatedGroup), group("system:unauthenticated")},
	}
	labels := map[string]any{"kubernetes.io/bootstrapping": "rbac-defaults"}
	for _, name := range []string{"cluster-admin", "system:basic-user", "system:discovery", "system:public-info-viewer"} {
		if err := add(builtin("ClusterRole"), name, map[string]any{"labels": labels, "rules": roles[name]}); err != nil {
			return nil, err
		}
		if err := add(builtin("ClusterRoleBinding"), name, map[string]any{
			"labels": labels, "subjects": subjects[name], "roleRef": map[string]any{"apiGroup": rbacGroup, "kind": "ClusterRole", "name": name},
		}); err != nil {
			return nil, err
		}
	}
	for name, value := range map[string]int64{"system-cluster-critical": 2000000000, "system-node-critical": 2000001000} {
		if err := add(builtin("PriorityClass"), name, map[string]any{"value": value, "preemptionPolicy": "PreemptLowerPriority"}); err != nil {
			return nil, err
		}
	}
	return base, nil
}

// put makes a record the state of its object. The cluster is locked.
func (c *Cluster) put(before, after *record) {
	key := after.kind.key(after.namespace, after.name)
	c.objects[key] = after
	c.note(change{version: after.version, before: before, after: after})
}

// drop deletes an object. The cluster is locked.
func (c *Cluster) drop(r *record) {
	delete(c.objects, r.kind.key(r.namespace, r.name))
	last := *r
	last.version = c.next()
	c.note(change{version: last.version, before: &last})
}

// note tells watches and whoever depends on the kind of what changed.
func (c *Cluster) note(ch change) {
	c.log = append(c.log, ch)
	keep := keptAtRest
	if c.watchers > 0 {
		keep = keptWatched
	}
	// Cut in batches: each cut copies.
	if len(c.log) > 2*keep {
		c.oldest = c.log[len(c.log)-keep-1].version
		c.log = slices.Clone(c.log[len(c.log)-keep:])
	}
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
	r := ch.after
	if r == nil {
		r = ch.before
	}
	switch {
	case r.kind.Group == rbacGroup:
		c.rights = rights{}
	case r.kind.Kind == "CustomResourceDefinition" && r.kind.Group == apiextensionsv1.GroupName:
		c.serve()
	}
}

// serve makes the kinds of the definitions that are established the cluster's
// catalog.
func (c *Cluster) serve() {
	var custom []*kind
	for key, r := range c.objects {
		if key.resource.Resource != "customresourcedefinitions" || !c.fleet.established(r.content) {
			continue
		}
		if k := c.fleet.kindOf(r.content); k != nil {
			custom = append(custom, k)
		}
	}
	c.catalog = c.fleet.store.catalog(custom)
}

// list returns the objects of a kind in the order of the API server.
func (c *Cluster) list(k *kind, namespace string) []*record {
	var found []*record
	resource := k.resource()
	for key, r := range c.objects {
		if key.resource == resource && (namespace == "" || key.namespace == namespace) {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, func(a, b *record) int {
		if n := strings.Compare(a.namespace, b.namespace); n != 0 {
			return n
		}
		return strings.Compare(a.name, b.name)
	})
	return found
}

// namespaceUsable is an error if nothing can be created in a namespace.
func (c *Cluster) namespaceUsable(k *kind, namespace, name string) *apierrors.StatusError {
	ns := c.objects[builtin("Namespace").key("", namespace)]
	if ns == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, namespace)
	}
	if ns.content.leaving {
		err := apierrors.NewForbidden(k.resource(), name, fmt.Errorf("unable to create new content in namespace %s because it is being terminated", namespace))
		err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, causeOfTermination(namespace))
		return err
	}
	return nil
}
