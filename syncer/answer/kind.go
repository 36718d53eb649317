package answer

import (
	"net/http"
	"strings"
)

// Limits are the most bytes of an answer by what was asked for, after inflation.
type Limits struct {
	// Probe: health, readiness, version, and whatever is no resource.
	Probe int64
	// Discovery: the groups and resources that are served.
	Discovery int64
	OpenAPI   int64
	// Object: one object, whose text etcd bounds at 1.5 MiB unless told otherwise, or the
	// log of a container.
	Object int64
	// List: one page of a list, or all of it where the caller asks for no pages.
	List int64
	// Event: one event of a watch.
	Event int64
	// Proxied: what a Service or a pod answers behind the proxy of the API server.
	Proxied int64
	// stranger: the server is not ours, and neither is what it says.
	stranger bool
}

// Own are the limits for the API server of the agent's own cluster. It is trusted:
// they are there so that a fault of it ends a call and not the agent.
func Own() Limits {
	return Limits{Probe: 1 << 20, Discovery: 32 << 20, OpenAPI: 128 << 20, Object: 16 << 20, List: 512 << 20, Event: 16 << 20, Proxied: 64 << 20}
}

// Other are the limits for every other API server. Thousands of kinds and a page of
// thousands of objects stay far below.
func Other() Limits {
	return Limits{Probe: 64 << 10, Discovery: 8 << 20, OpenAPI: 32 << 20, Object: 8 << 20, List: 32 << 20, Event: 8 << 20, Proxied: 64 << 20, stranger: true}
}

// kind is what a request asks for.
type kind int

const (
	probe kind = iota
	discovery
	openAPI
	object
	text
	list
	watch
	proxied
)

func (l Limits) of(k kind) int64 {
	switch k {
	case discovery:
		return l.Discovery
	case openAPI:
		return l.OpenAPI
	case object, text:
		return l.Object
	case list:
		return l.List
	case watch:
		return l.Event
	case proxied:
		return l.Proxied
	}
	return l.Probe
}

// classify tells by the path what is asked for. prefix is the path of the server's own
// URL, below which some gateways put API servers.
func classify(r *http.Request, prefix string) kind {
	segments := strings.Split(strings.Trim(strings.TrimPrefix(r.URL.Path, strings.TrimSuffix(prefix, "/")), "/"), "/")
	rest := 0 // where the resource begins
	switch segments[0] {
	case "openapi":
		return openAPI
	case "api":
		rest = 2
	case "apis":
		rest = 3
	default:
		return probe
	}
	if len(segments) <= rest {
		return discovery
	}
	if w := r.URL.Query().Get("watch"); w == "true" || w == "1" {
		return watch
	}
	segments = segments[rest:]
	if segments[0] == "watch" {
		return watch
	}
	if segments[0] == "namespaces" && len(segments) > 2 {
		segments = segments[2:]
	}
	if len(segments) > 2 && segments[2] == "proxy" && (segments[0] == "services" || segments[0] == "pods") {
		return proxied
	}
	if len(segments) == 1 && (r.Method == http.MethodGet || r.Method == http.MethodDelete) {
		return list
	}
	if len(segments) == 3 && segments[0] == "pods" && segments[2] == "log" {
		return text
	}
	return object
}
