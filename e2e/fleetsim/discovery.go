package fleetsim

import (
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiversion "k8s.io/apimachinery/pkg/version"
)

// document is an answer of discovery, made once for all clusters that serve the
// same kinds.
type document struct {
	contentType string
	text        []byte
	etag        string
}

const (
	jsonType       = "application/json"
	aggregatedType = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
)

var (
	allVerbs    = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	customVerbs = []string{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}
	someVerbs   = []string{"get", "patch", "update"}
)

// discover answers a request of discovery, or returns false if it is none.
func (c *catalog) discover(w http.ResponseWriter, r *http.Request, path string) bool {
	aggregated := (path == "/api" || path == "/apis") && acceptsAggregated(r.Header.Get("Accept"))
	key := path
	if aggregated {
		key += " aggregated"
	}
	c.docs.Lock()
	d := c.made[key]
	if d == nil {
		if d = c.document(path, aggregated); d != nil {
			c.made[key] = d
		}
	}
	c.docs.Unlock()
	if d == nil {
		return false
	}
	header := w.Header()
	header.Set("Cache-Control", "no-cache, private")
	header.Set("Vary", "Accept")
	if d.etag != "" {
		header.Set("ETag", d.etag)
		if r.Header.Get("If-None-Match") == d.etag {
			w.WriteHeader(http.StatusNotModified)
			return true
		}
	}
	header.Set("Content-Type", d.contentType)
	_, _ = w.Write(d.text)
	return true
}

// acceptsAggregated reports whether the first form that the client accepts and
// we have is the aggregated one.
func acceptsAggregated(accept string) bool {
	for part := range strings.SplitSeq(accept, ",") {
		fields := strings.Split(strings.ReplaceAll(part, " ", ""), ";")
		if !slices.Contains([]string{jsonType, "*/*", "application/*"}, fields[0]) {
			continue
		}
		if len(fields) == 1 {
			return false
		}
		if slices.Contains(fields, "g=apidiscovery.k8s.io") && slices.Contains(fields, "v=v2") && slices.Contains(fields, "as=APIGroupDiscoveryList") {
			return true
		}
	}
	return false
}

func (c *catalog) document(path string, aggregated bool) *document {
	var v any
	switch {
	case aggregated:
		v = c.aggregated(path == "/api")
	case path == "/api":
		v = &metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}, ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0", ServerAddress: "127.0.0.1:443"}}}
	case path == "/apis":
		list := &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
		for _, g := range c.groups() {
			if g != "" {
				list.Groups = append(list.Groups, c.group(g))
			}
		}
		v = list
	case path == "/api/v1":
		v = c.resources("", "v1")
	default:
		group, version, _ := strings.Cut(strings.TrimPrefix(path, "/apis/"), "/")
		switch {
		case !strings.HasPrefix(path, "/apis/") || group == "" || !slices.Contains(c.groups(), group):
			return nil
		case version == "":
			g := c.group(group)
			g.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
			v = &g
		case !c.hasVersion(group, version):
			return nil
		default:
			v = c.resources(group, version)
		}
	}
	text, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("cannot encode discovery: %v", err)) // our own types
	}
	d := &document{contentType: jsonType, text: text}
	if aggregated {
		d.contentType = aggregatedType
		d.etag = fmt.Sprintf(`"%X"`, sha512.Sum512(text))
	}
	return d
}

// groups in the order in which kube-apiserver lists them: its own by
// importance, custom ones by name. Ours are by name throughout, the core first.
func (c *catalog) groups() []string {
	var names []string
	for _, k := range c.kinds {
		if !slices.Contains(names, k.Group) {
			names = append(names, k.Group)
		}
	}
	slices.Sort(names)
	return names
}

// versions of a group, the preferred first.
func (c *catalog) versions(group string) []string {
	var versions []string
	for _, k := range c.kinds {
		if k.Group != group {
			continue
		}
		for _, v := range k.versions {
			if !slices.Contains(versions, v) {
				versions = append(versions, v)
			}
		}
	}
	slices.SortFunc(versions, func(a, b string) int { return apiversion.CompareKubeAwareVersionStrings(b, a) })
	return versions
}

func (c *catalog) group(name string) metav1.APIGroup {
	g := metav1.APIGroup{Name: name}
	for _, v := range c.versions(name) {
		g.Versions = append(g.Versions, metav1.GroupVersionForDiscovery{GroupVersion: name + "/" + v, Version: v})
	}
	g.PreferredVersion = g.Versions[0]
	return g
}

func (c *catalog) in(group, version string) []*kind {
	var found []*kind
	for _, k := range c.kinds {
		if k.Group == group && slices.Contains(k.versions, version) {
			found = append(found, k)
		}
	}
	slices.SortFunc(found, func(a, b *kind) int { return strings.Compare(a.Plural, b.Plural) })
	return found
}

func (k *kind) verbs() []string {
	switch {
	case k.Review:
		return allVerbs[:1]
	case k.custom != nil:
		return customVerbs
	}
	return allVerbs
}

func (k *kind) statusOf(version string) bool {
	if k.custom != nil {
		return k.custom.hasStatus[version]
	}
	return k.Status
}

func (c *catalog) resources(group, version string) *metav1.APIResourceList {
	list := &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version, APIResources: []metav1.APIResource{}}
	if group != "" {
		list.GroupVersion = group + "/" + version
	}
	for _, k := range c.in(group, version) {
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: k.Plural, SingularName: k.Singular, Namespaced: k.Namespaced, Kind: k.Kind, Verbs: k.verbs(), ShortNames: k.Short, Categories: k.Categories,
		})
		if k.statusOf(version) {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: k.Plural + "/status", Namespaced: k.Namespaced, Kind: k.Kind, Verbs: someVerbs})
		}
		for _, s := range k.subresources {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: k.Plural + "/" + s.name, Namespaced: k.Namespaced, Group: s.group, Version: s.version, Kind: s.kind, Verbs: s.verbs})
		}
	}
	return list
}

func (c *catalog) aggregated(core bool) *apidiscoveryv2.APIGroupDiscoveryList {
	list := &apidiscoveryv2.APIGroupDiscoveryList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"}}
	for _, group := range c.groups() {
		if (group == "") != core {
			continue
		}
		g := apidiscoveryv2.APIGroupDiscovery{}
		g.Name = group
		for _, version := range c.versions(group) {
			v := apidiscoveryv2.APIVersionDiscovery{Version: version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
			for _, k := range c.in(group, version) {
				r := apidiscoveryv2.APIResourceDiscovery{
					Resource: k.Plural, SingularResource: k.Singular, Scope: apidiscoveryv2.ScopeCluster, Verbs: k.verbs(), ShortNames: k.Short, Categories: k.Categories,
					ResponseKind: &metav1.GroupVersionKind{Group: group, Version: version, Kind: k.Kind},
				}
				if k.Namespaced {
					r.Scope = apidiscoveryv2.ScopeNamespace
				}
				if k.statusOf(version) {
					r.Subresources = append(r.Subresources, apidiscoveryv2.APISubresourceDiscovery{
						Subresource: "status", Verbs: someVerbs, ResponseKind: &metav1.GroupVersionKind{Group: group, Version: version, Kind: k.Kind},
					})
				}
				for _, s := range k.subresources {
					r.Subresources = append(r.Subresources, apidiscoveryv2.APISubresourceDiscovery{
						Subresource: s.name, Verbs: s.verbs, ResponseKind: &metav1.GroupVersionKind{Group: s.group, Version: s.version, Kind: s.kind},
					})
				}
				v.Resources = append(v.Resources, r)
			}
			g.Versions = append(g.Versions, v)
		}
		list.Items = append(list.Items, g)
	}
	return list
}
