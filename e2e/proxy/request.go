package proxy

import (
	"net/http"
	"strings"
)

// Request of a client, in the words of the API.
type Request struct {
	// Verb is get, list, watch, create, update, patch, delete or deletecollection,
	// or the method in small letters for a path that is no resource.
	Verb string
	// Path with the query.
	Path string
	// Resource is the plural, Subresource what follows the name. They and the rest are
	// empty for a path that is no resource; Name is empty for a create.
	Group, Resource, Subresource, Namespace, Name string
	// DryRun: it changes nothing.
	DryRun bool

	// fault that it meets.
	fault fault
}

// parse reads a request as the API server does.
func parse(r *http.Request) *Request {
	query := r.URL.Query()
	q := &Request{Verb: strings.ToLower(r.Method), Path: r.URL.RequestURI(), DryRun: query.Get("dryRun") != ""}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		q.Group, parts = parts[1], parts[3:]
	default:
		return q
	}
	// A Namespace is a resource, too: /namespaces/NAME/SUBRESOURCE is about itself.
	if parts[0] == "namespaces" && len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
		q.Namespace, parts = parts[1], parts[2:]
	}
	q.Resource = parts[0]
	if len(parts) > 1 {
		q.Name = parts[1]
	}
	if len(parts) > 2 {
		q.Subresource = strings.Join(parts[2:], "/")
	}
	watches := query.Get("watch") == "true" || query.Get("watch") == "1"
	q.Verb = verb(r.Method, q.Name != "", watches)
	return q
}

func verb(method string, named, watches bool) string {
	switch method {
	case http.MethodGet, http.MethodHead:
		switch {
		case watches:
			return "watch"
		case named:
			return "get"
		}
		return "list"
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		if named {
			return "delete"
		}
		return "deletecollection"
	}
	return strings.ToLower(method)
}

// Writes reports whether the request could change what the API server keeps, or asks
// what such a request would do. Leases and events say nothing of what is declared;
// reviews and tokens are not kept.
func (r *Request) Writes() bool {
	switch r.Group {
	case "authorization.k8s.io", "authentication.k8s.io", "coordination.k8s.io", "events.k8s.io":
		return false
	}
	if r.Resource == "events" || r.Subresource == "token" {
		return false
	}
	switch r.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
		return true
	}
	return false
}
