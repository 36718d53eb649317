package fleetsim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// maxBody is the largest request, as in kube-apiserver.
const maxBody = 3 << 20

// answer of a request.
type answer struct {
	code        int
	contentType string
	body        []byte
	header      map[string]string
	err         *apierrors.StatusError
}

// request on its way through a cluster.
type request struct {
	*http.Request
	cluster *Cluster
	// path below the cluster's own.
	path   string
	query  url.Values
	user   *user
	action action
	// Of a resource:
	kind    *kind
	version string
	body    []byte
	// partial: the client wants metadata only.
	partial bool
	changed bool
}

// ServeHTTP answers as the cluster that the URL names.
func (f *Fleet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, path, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, "/c/"), "/")
	c := f.Cluster(name)
	if !ok || !strings.HasPrefix(r.URL.Path, "/c/") || c == nil {
		http.NotFound(w, r)
		return
	}
	connection, _ := r.Context().Value(connKey{}).(*conn)
	if connection != nil {
		connection.bind(&c.network)
	}
	req := &request{Request: r, cluster: c, path: "/" + path, query: r.URL.Query()}
	if !req.suffer(connection) {
		panic(http.ErrAbortHandler)
	}
	var err error
	if req.body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody)); err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			send(w, answer{err: apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody))})
		}
		return
	}
	req.parse()
	if err := req.callWebhook(); err != nil {
		send(w, answer{err: err})
		req.account(int(err.ErrStatus.Code))
		return
	}
	c.mu.Lock()
	a, served := req.admit(w)
	if !served && a.err == nil && a.code == 0 {
		if req.action.verb == "watch" {
			watch, err := req.watch()
			c.mu.Unlock()
			req.account(http.StatusOK)
			if err != nil {
				send(w, answer{err: err})
				return
			}
			watch.run(w)
			return
		}
		a = req.answer()
	}
	c.mu.Unlock()
	if served {
		req.account(http.StatusOK)
		return
	}
	if c.currentFaults().Hang {
		req.account(a.code)
		hang(r.Context(), w, a)
	}
	send(w, a)
	req.account(a.code)
}

// callWebhook is what a dead webhook does to a write.
func (r *request) callWebhook() *apierrors.StatusError {
	pause := r.cluster.currentFaults().DeadWebhook
	if pause == 0 || r.action.sub != "" || !slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, r.action.verb) {
		return nil
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.Context().Done():
	}
	return apierrors.NewInternalError(errors.New(`failed calling webhook "dead.example.com": failed to call webhook: Post "https://dead.example.com/": context deadline exceeded`))
}

// hang sends a part of an answer and waits until the client goes.
func hang(ctx context.Context, w http.ResponseWriter, a answer) {
	if a.err != nil {
		a = statusAnswer(a.err.ErrStatus)
	}
	w.Header().Set("Content-Type", jsonType)
	w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
	w.WriteHeader(a.code)
	_, _ = w.Write(a.body[:len(a.body)/2])
	_ = http.NewResponseController(w).Flush() // to a client that has gone
	<-ctx.Done()
	panic(http.ErrAbortHandler)
}

// send writes an answer.
func send(w http.ResponseWriter, a answer) {
	header := w.Header()
	header.Set("Cache-Control", "no-cache, private")
	if a.err != nil {
		a = statusAnswer(a.err.ErrStatus)
	}
	for key, v := range a.header {
		header.Set(key, v)
	}
	if a.contentType == "" {
		a.contentType = jsonType
	}
	header.Set("Content-Type", a.contentType)
	header.Set("Content-Length", strconv.Itoa(len(a.body)))
	w.WriteHeader(a.code)
	_, _ = w.Write(a.body) // a client that has gone
}

func statusAnswer(s metav1.Status) answer {
	s.Kind, s.APIVersion = "Status", "v1"
	body, _ := json.Marshal(s) // our own type
	code := int(s.Code)
	if code == 0 {
		code = http.StatusOK
	}
	a := answer{code: code, body: body}
	if s.Details != nil && s.Details.RetryAfterSeconds > 0 && code == http.StatusTooManyRequests {
		a.header = map[string]string{"Retry-After": strconv.Itoa(int(s.Details.RetryAfterSeconds))}
	}
	return a
}

// suffer is what the cluster's faults do to a request before it is read. It is
// false if there will be no answer.
func (r *request) suffer(connection *conn) bool {
	f := r.cluster.currentFaults()
	if gate := r.cluster.network.gate(); gate != nil {
		select {
		case <-gate:
		case <-r.Context().Done():
			return false
		}
	}
	if f.Reset {
		if connection != nil {
			connection.reset()
		}
		return false
	}
	wait := f.Latency
	if f.Jitter > 0 {
		wait += time.Duration(r.cluster.chance() * float64(f.Jitter))
	}
	if f.SlowList > 0 && r.Method == http.MethodGet && r.isList() {
		wait += f.SlowList
	}
	if wait <= 0 {
		return true
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.Context().Done():
		return false
	}
}

// chance is the next random number of the cluster, from 0 to 1.
func (c *Cluster) chance() float64 {
	u := uidOf(c.fleet.seed, c.Name, c.requests.Add(1))
	return float64(uint32(u[0])<<24|uint32(u[1])<<16|uint32(u[2])<<8|uint32(u[3])) / (1 << 32)
}

func (r *request) isList() bool {
	r.parse()
	return r.action.resourceRequest && r.action.name == ""
}

// parse finds out what the URL names. It says nothing about whether it is
// served.
func (r *request) parse() {
	a := action{path: r.path, verb: strings.ToLower(r.Method)}
	parts := strings.Split(strings.Trim(r.path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		r.version, parts = parts[1], parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		a.group, r.version, parts = parts[1], parts[2], parts[3:]
	default:
		r.action = a
		return
	}
	a.resourceRequest = true
	if parts[0] == "namespaces" && len(parts) > 1 {
		a.namespace = parts[1]
		// What comes behind a namespace is a resource in it, unless it is a
		// subresource of the namespace itself.
		if len(parts) > 2 && (a.group != "" || parts[2] != "status" && parts[2] != "finalize") {
			parts = parts[2:]
		} else if a.group == "" {
			a.name = parts[1]
		}
	}
	a.resource = parts[0]
	if len(parts) > 1 {
		a.name = parts[1]
	}
	if len(parts) > 2 {
		a.sub = strings.Join(parts[2:], "/")
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		a.verb = "get"
		if a.name == "" {
			a.verb = "list"
			if v := r.query.Get("watch"); v == "1" || v == "true" {
				a.verb = "watch"
			}
		}
	case http.MethodPost:
		a.verb = "create"
	case http.MethodPut:
		a.verb = "update"
	case http.MethodDelete:
		a.verb = "delete"
		if a.name == "" {
			a.verb = "deletecollection"
		}
	}
	r.action = a
}

// byName is the action as rights are about it: who lists or watches what has one name asks
// for that object.
func (r *request) byName() action {
	a := r.action
	if a.name != "" || !slices.Contains([]string{"list", "watch", "deletecollection"}, a.verb) {
		return a
	}
	if selector, err := fields.ParseSelector(r.query.Get("fieldSelector")); err == nil {
		a.name, _ = selector.RequiresExactMatch("metadata.name")
	}
	return a
}

// admit lets a request in or says why not. served: it is answered already. The
// cluster is locked.
func (r *request) admit(w http.ResponseWriter) (a answer, served bool) {
	c := r.cluster
	if r.user = c.authenticate(r.Request); r.user == nil {
		c.ledger.count("unauthorized")
		return answer{err: apierrors.NewUnauthorized("Unauthorized")}, false
	}
	if f := c.currentFaults(); f.Throttle > 0 && c.chance() < f.Throttle {
		c.ledger.count("throttled")
		err := apierrors.NewTooManyRequests("Too many requests, please try again later.", max(int(f.RetryAfter/time.Second), 1))
		return answer{err: err}, false
	}
	if asked := r.byName(); !c.allowed(r.user, asked) {
		return answer{err: r.forbidden(asked)}, false
	}
	if !r.action.resourceRequest {
		return r.unresourceful(w)
	}
	r.kind = c.catalog.served[schema.GroupVersionResource{Group: r.action.group, Version: r.version, Resource: r.action.resource}]
	if r.kind == nil || r.kind.Namespaced && r.action.namespace == "" && r.action.name != "" ||
		!r.kind.Namespaced && r.action.namespace != "" && r.kind.Kind != "Namespace" {
		return r.notServed(), false
	}
	if err := r.negotiate(); err != nil {
		return answer{err: err}, false
	}
	return a, false
}

// notServed is how kube-apiserver answers for a path that is nothing.
func notServed() answer {
	return answer{code: http.StatusNotFound, contentType: "text/plain; charset=utf-8", body: []byte("404 page not found\n"), header: map[string]string{"X-Content-Type-Options": "nosniff"}}
}

// notServed is how an API of kube-apiserver itself answers for a resource that it
// does not have; those of custom ones are nothing.
func (r *request) notServed() answer {
	if !slices.ContainsFunc(builtinKinds, func(k *kind) bool { return k.Group == r.action.group }) {
		return notServed()
	}
	return answer{err: apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{}, "", "", 0, false)}
}

// notAllowed is the answer for a method that a resource does not have.
func (r *request) notAllowed() answer {
	return answer{err: apierrors.NewGenericServerResponse(http.StatusMethodNotAllowed, "", schema.GroupResource{}, "", "", 0, false)}
}

func (r *request) forbidden(a action) *apierrors.StatusError {
	replace := strings.NewReplacer(`&`, "&amp;", `<`, "&lt;", `>`, "&gt;")
	var message string
	switch {
	case !a.resourceRequest:
		message = fmt.Sprintf("User %q cannot %s path %q", r.user.name, a.verb, a.path)
	default:
		resource := a.resource
		if a.sub != "" {
			resource += "/" + a.sub
		}
		message = fmt.Sprintf("User %q cannot %s resource %q in API group %q", r.user.name, a.verb, resource, a.group)
		if a.namespace != "" {
			message += fmt.Sprintf(" in the namespace %q", a.namespace)
		} else {
			message += " at the cluster scope"
		}
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: a.group, Resource: a.resource}, a.name, errors.New(replace.Replace(message)))
}

// unresourceful answers for paths that are no resources.
func (r *request) unresourceful(w http.ResponseWriter) (answer, bool) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return notServed(), false
	}
	switch r.path {
	case "/version", "/version/":
		return answer{code: http.StatusOK, body: r.cluster.fleet.versionText}, false
	case "/healthz", "/livez", "/readyz":
		return answer{code: http.StatusOK, contentType: "text/plain; charset=utf-8", body: []byte("ok"), header: map[string]string{"X-Content-Type-Options": "nosniff"}}, false
	}
	if r.cluster.catalog.discover(w, r.Request, strings.TrimSuffix(r.path, "/")) {
		return answer{}, true
	}
	return notServed(), false
}

// negotiate finds the form of the answer.
func (r *request) negotiate() *apierrors.StatusError {
	accept := r.Header.Get("Accept")
	if accept == "" {
		return nil
	}
	for part := range strings.SplitSeq(accept, ",") {
		fields := strings.Split(strings.ReplaceAll(part, " ", ""), ";")
		if !slices.Contains([]string{jsonType, "*/*", "application/*"}, fields[0]) {
			continue
		}
		as := ""
		for _, f := range fields[1:] {
			if v, ok := strings.CutPrefix(f, "as="); ok {
				as = v
			}
		}
		switch as {
		case "":
			return nil
		case "PartialObjectMetadata", "PartialObjectMetadataList":
			r.partial = true
			return nil
		}
	}
	s := metav1.Status{Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable}
	types := []string{jsonType, "application/yaml", runtime.ContentTypeProtobuf}
	if r.kind.custom != nil {
		s.Message = "only the following media types are accepted: " + strings.Join(types[:2], ", ")
	} else {
		s.Message = "406: Not Acceptable\n\nAvailable representations: " + strings.Join(types, ", ")
		s.Details = &metav1.StatusDetails{}
	}
	return &apierrors.StatusError{ErrStatus: s}
}

// account counts a request.
func (r *request) account(code int) {
	a := r.action
	key := a.verb + " " + a.path
	if a.resourceRequest {
		key = a.verb + " " + a.resource
		if a.sub != "" {
			key += "/" + a.sub
		}
	}
	l := &r.cluster.ledger
	l.count(key)
	if !r.cluster.fleet.options.Record || !a.resourceRequest || slices.Contains([]string{"get", "list", "watch"}, a.verb) {
		return
	}
	w := Write{
		Time: r.cluster.fleet.now(), Cluster: r.cluster.Name, Agent: r.UserAgent(), Verb: a.verb, Resource: a.resource,
		Namespace: a.namespace, Name: a.name, Code: code, DryRun: r.query.Has("dryRun"), Changed: r.changed,
	}
	if a.sub != "" {
		w.Resource += "/" + a.sub
	}
	if r.user != nil {
		w.User = r.user.name
	}
	l.record(w)
}

// answer serves a resource. The cluster is locked.
func (r *request) answer() answer {
	a := r.action
	if a.resource == "namespaces" && a.group == "" {
		// A namespace is in none.
		a.namespace = ""
	}
	r.action = a
	status := r.kind.statusOf(r.version)
	switch {
	case r.kind.Review && a.verb == "create" && a.sub == "" && a.name == "":
		return r.review()
	case r.kind.Review:
		return r.notAllowed()
	case a.sub == "token" && r.kind.Kind == "ServiceAccount":
		return r.token()
	case a.sub == "status" && status, a.sub == "":
	default:
		return r.notServed()
	}
	switch {
	case a.verb == "get":
		return r.get()
	case a.sub == "" && a.verb == "list":
		return r.list()
	case a.sub == "" && a.verb == "create" && a.name == "":
		return r.create()
	case a.verb == "update" && a.name != "":
		return r.replace()
	case a.verb == "patch" && a.name != "":
		return r.patch()
	case a.sub == "" && a.verb == "delete":
		return r.delete()
	case a.sub == "" && a.verb == "deletecollection":
		return r.deleteAll()
	}
	return r.notAllowed()
}

type connKey struct{}

// withConn keeps the connection of a request in its context.
func withConn(ctx context.Context, c *conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}
