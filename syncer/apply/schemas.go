package apply

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/restmapper"
)

const (
	// discoveryType asks for all groups and resources in one answer, which API
	// servers give since Kubernetes 1.30.
	discoveryType = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	// discoveryMost bounds one answer; thousands of kinds stay far below.
	discoveryMost = 8 << 20
	// schemasMost is how many different schemas are kept for later connections, and
	// schemasBytes of how many bytes of answers. A connection keeps its own as long as
	// it lives.
	schemasMost  = 64
	schemasBytes = 32 << 20
)

// Schemas shares what API servers serve between connections to many clusters.
// Clusters of one version of Kubernetes with the same definitions give the same
// answer, which is decoded and kept once. What is the same is told by the bytes that
// came. An entity tag is the word of one API server, and says something about the
// answers of that one only: another could give its own answer under a tag that it knows
// from elsewhere. It is safe for concurrent use; no lock is held over a call.
type Schemas struct {
	mu    sync.Mutex
	known []*served // most recently used first
}

// sum is the SHA-256 of an answer.
type sum [sha256.Size]byte

// both are the sums of two answers as one.
func both(sums [2]sum) sum { return sha256.Sum256(append(sums[0][:], sums[1][:]...)) }

// served is what an API server serves at one moment. It does not change, and is safe
// for concurrent use.
type served struct {
	// sum identifies both answers by their content, and bytes is how long they are; zero
	// if they are not shared.
	sum    sum
	bytes  int
	lists  []*metav1.APIResourceList
	stale  []string
	mapper meta.RESTMapper

	// found are mappings that were looked up: the mapper goes over all versions of a
	// group each time.
	mu    sync.Mutex
	found map[schema.GroupVersionKind]*meta.RESTMapping
}

// mapping finds a kind in a version, or in the preferred one if that is empty.
func (s *served) mapping(gk schema.GroupKind, version string) (*meta.RESTMapping, error) {
	key := gk.WithVersion(version)
	s.mu.Lock()
	known := s.found[key]
	s.mu.Unlock()
	if known != nil {
		return known, nil
	}
	var versions []string
	if version != "" {
		versions = append(versions, version)
	}
	m, err := s.mapper.RESTMapping(gk, versions...)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.found == nil {
		s.found = map[schema.GroupVersionKind]*meta.RESTMapping{}
	}
	s.found[key] = m
	return m, nil
}

// NewSchemas returns an empty store.
func NewSchemas() *Schemas { return &Schemas{} }

// find returns the schema with a content, nil if it is not known.
func (s *Schemas) find(content sum) *served {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, k := range s.known {
		if k.sum == content {
			copy(s.known[1:], s.known[:i])
			s.known[0] = k
			return k
		}
	}
	return nil
}

// keep remembers a schema. If another connection remembered the same one first,
// keep returns that.
func (s *Schemas) keep(n *served) *served {
	if k := s.find(n.sum); k != nil {
		return k
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = slices.Insert(s.known, 0, n)
	bytes := 0
	for i, k := range s.known {
		if bytes += k.bytes; i == schemasMost || i > 0 && bytes > schemasBytes {
			s.known = slices.Delete(s.known, i, len(s.known))
			break
		}
	}
	return n
}

// Kinds is what one cluster is known to serve. A caller that connects to the
// cluster repeatedly keeps it. The zero value knows nothing; it is safe for
// concurrent use.
type Kinds struct {
	mu      sync.Mutex
	current *served
	// answers are those that current was decoded from.
	answers answers
	// missed: a kind was found neither in current nor in a fresh answer of the API
	// server.
	missed bool
}

// Doubt lets kinds that were missing be looked up again.
func (k *Kinds) Doubt() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.missed = false
}

// answers are those of the two roots of one API server: the entity tags that it gave
// them, empty if it gave none, and their content.
type answers struct {
	tags [2]string
	sums [2]sum
}

func (k *Kinds) get() (current *served, of answers, missed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current, k.answers, k.missed
}

func (k *Kinds) set(current *served, of answers) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.current, k.answers, k.missed = current, of, false
}

// miss notes that a kind is not in what was just discovered.
func (k *Kinds) miss(current *served) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.current == current {
		k.missed = true
	}
}

// kinds is a RESTMapper of one cluster. It asks the API server at first use,
// and once more when a kind is not known. An API server that serves the same as
// before answers that without a body.
type kinds struct {
	schemas *Schemas
	http    *http.Client
	host    string
	legacy  discovery.DiscoveryInterface
	known   *Kinds
}

var _ meta.RESTMapper = &kinds{}

// now returns what the cluster serves; fresh asks it again.
func (k *kinds) now(ctx context.Context, fresh bool) (*served, error) {
	current, of, _ := k.known.get()
	if current != nil && !fresh {
		return current, nil
	}
	found, of, err := k.ask(ctx, current, of)
	if err != nil {
		return nil, fmt.Errorf("cannot discover API resources: %w", err)
	}
	k.known.set(found, of)
	return found, nil
}

var configMap = schema.GroupKind{Kind: "ConfigMap"}

// configMaps is where an API server has ConfigMaps.
func configMaps() *meta.RESTMapping {
	v1 := schema.GroupVersion{Version: "v1"}
	return &meta.RESTMapping{Resource: v1.WithResource("configmaps"), GroupVersionKind: v1.WithKind(configMap.Kind), Scope: meta.RESTScopeNamespace}
}

// roots are the paths of the two answers.
var roots = [2]string{"/api", "/apis"}

// ask asks for the groups and resources of the two roots. expected is what the answers
// of were decoded to, or nil.
func (k *kinds) ask(ctx context.Context, expected *served, of answers) (*served, answers, error) {
	if expected == nil {
		of = answers{}
	}
	now := of
	var bodies [2][]byte
	for i, root := range roots {
		body, tag, err := k.get(ctx, root, of.tags[i])
		if err != nil {
			return nil, answers{}, err
		}
		if tag == "" {
			s, err := k.unaggregated()
			return s, answers{}, err
		}
		bodies[i], now.tags[i] = body, tag
		if body != nil {
			now.sums[i] = sha256.Sum256(body)
		}
	}
	if expected != nil && now.sums == of.sums {
		return expected, now, nil
	}
	if known := k.schemas.find(both(now.sums)); known != nil {
		return known, now, nil
	}
	// One of the two may be unchanged, and its content is not kept.
	for i, root := range roots {
		if bodies[i] != nil {
			continue
		}
		var err error
		if bodies[i], now.tags[i], err = k.get(ctx, root, ""); err != nil {
			return nil, answers{}, err
		}
		now.sums[i] = sha256.Sum256(bodies[i])
	}
	s, err := decode(bodies)
	if err != nil {
		return nil, answers{}, err
	}
	if len(s.stale) > 0 {
		// A stale answer changes without a change of definitions, so that it is not
		// shared.
		return s, answers{}, nil
	}
	s.sum, s.bytes = both(now.sums), len(bodies[0])+len(bodies[1])
	return k.schemas.keep(s), now, nil
}

// decode reads both answers.
func decode(bodies [2][]byte) (*served, error) {
	n := &served{}
	var groups []*restmapper.APIGroupResources
	for _, body := range bodies {
		var list apidiscovery.APIGroupDiscoveryList
		if err := json.Unmarshal(body, &list); err != nil {
			return nil, fmt.Errorf("cannot parse answer: %w", err)
		}
		found, byVersion, failed := discovery.SplitGroupsAndResources(list)
		for gv := range failed {
			n.stale = append(n.stale, gv.String())
		}
		for _, g := range found.Groups {
			group := &restmapper.APIGroupResources{Group: g, VersionedResources: map[string][]metav1.APIResource{}}
			for _, v := range g.Versions {
				resources := byVersion[schema.GroupVersion{Group: g.Name, Version: v.Version}]
				if resources == nil {
					continue
				}
				group.VersionedResources[v.Version] = resources.APIResources
				n.lists = append(n.lists, resources)
			}
			groups = append(groups, group)
		}
	}
	n.mapper = restmapper.NewDiscoveryRESTMapper(groups)
	return n, nil
}

// get reads one root. The body is nil if it is still the one that the server gave the
// tag. An answer without a tag is not of the type that was asked for.
func (k *kinds) get(ctx context.Context, root, tag string) (body []byte, found string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(k.host, "/")+root, nil)
	if err != nil {
		return nil, "", err
	}
	request.Header.Set("Accept", discoveryType+",application/json")
	if tag != "" {
		request.Header.Set("If-None-Match", tag)
	}
	response, err := k.http.Do(request)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	found = response.Header.Get("ETag")
	switch {
	case response.StatusCode == http.StatusNotModified && tag != "":
		return nil, tag, nil
	case response.StatusCode != http.StatusOK:
		return nil, "", apierrors.NewGenericServerResponse(response.StatusCode, http.MethodGet, schema.GroupResource{}, "", root+": "+response.Status, 0, false)
	}
	if body, err = io.ReadAll(io.LimitReader(response.Body, discoveryMost+1)); err != nil {
		return nil, "", err
	}
	if len(body) > discoveryMost {
		return nil, "", fmt.Errorf("cannot read %s: it has more than %d bytes", root, discoveryMost)
	}
	return body, found, nil
}

// unaggregated discovers group by group, from API servers before 1.30.
func (k *kinds) unaggregated() (*served, error) {
	groups, err := restmapper.GetAPIGroupResources(k.legacy)
	if err != nil {
		return nil, err
	}
	n := &served{mapper: restmapper.NewDiscoveryRESTMapper(groups)}
	for _, g := range groups {
		for version, resources := range g.VersionedResources {
			gv := schema.GroupVersion{Group: g.Group.Name, Version: version}
			n.lists = append(n.lists, &metav1.APIResourceList{GroupVersion: gv.String(), APIResources: resources})
		}
	}
	slices.SortFunc(n.lists, func(a, b *metav1.APIResourceList) int { return strings.Compare(a.GroupVersion, b.GroupVersion) })
	return n, nil
}

// resources lists the API resources of every group as they are now, all or an
// error.
func (k *kinds) resources(ctx context.Context) ([]*metav1.APIResourceList, error) {
	s, err := k.now(ctx, true)
	if err != nil {
		return nil, err
	}
	if len(s.stale) > 0 {
		return nil, fmt.Errorf("cannot discover API resources completely: %s does not answer", strings.Join(s.stale, ", "))
	}
	return s.lists, nil
}

// lookup asks the mapper. If a kind is not known, lookup asks the API server
// anew and tries once more. The mapper's methods have no context; the client's
// time-out bounds the calls.
func lookup[T any](k *kinds, f func(*served) (T, error)) (T, error) {
	var none T
	s, err := k.now(context.Background(), false)
	if err != nil {
		return none, err
	}
	found, err := f(s)
	if err == nil {
		return found, nil
	}
	if _, _, missed := k.known.get(); missed || !meta.IsNoMatchError(err) {
		return found, err
	}
	again, aerr := k.now(context.Background(), true)
	if aerr != nil {
		return none, aerr
	}
	if again != s {
		found, err = f(again)
	}
	if meta.IsNoMatchError(err) {
		k.known.miss(again)
	}
	return found, err
}

func (k *kinds) KindFor(resource schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	return lookup(k, func(s *served) (schema.GroupVersionKind, error) { return s.mapper.KindFor(resource) })
}

func (k *kinds) KindsFor(resource schema.GroupVersionResource) ([]schema.GroupVersionKind, error) {
	return lookup(k, func(s *served) ([]schema.GroupVersionKind, error) { return s.mapper.KindsFor(resource) })
}

func (k *kinds) ResourceFor(input schema.GroupVersionResource) (schema.GroupVersionResource, error) {
	return lookup(k, func(s *served) (schema.GroupVersionResource, error) { return s.mapper.ResourceFor(input) })
}

func (k *kinds) ResourcesFor(input schema.GroupVersionResource) ([]schema.GroupVersionResource, error) {
	return lookup(k, func(s *served) ([]schema.GroupVersionResource, error) { return s.mapper.ResourcesFor(input) })
}

func (k *kinds) RESTMapping(gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	if current, _, _ := k.known.get(); current == nil && gk == configMap && slices.Equal(versions, []string{"v1"}) {
		// Each API server has it, and who only wants the records of a child need not ask for all kinds.
		return configMaps(), nil
	}
	if len(versions) > 1 {
		return lookup(k, func(s *served) (*meta.RESTMapping, error) { return s.mapper.RESTMapping(gk, versions...) })
	}
	return lookup(k, func(s *served) (*meta.RESTMapping, error) { return s.mapping(gk, strings.Join(versions, "")) })
}

func (k *kinds) RESTMappings(gk schema.GroupKind, versions ...string) ([]*meta.RESTMapping, error) {
	return lookup(k, func(s *served) ([]*meta.RESTMapping, error) { return s.mapper.RESTMappings(gk, versions...) })
}

func (k *kinds) ResourceSingularizer(resource string) (string, error) {
	return lookup(k, func(s *served) (string, error) { return s.mapper.ResourceSingularizer(resource) })
}
