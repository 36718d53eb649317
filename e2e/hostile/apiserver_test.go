package hostile

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// served is a Kustomization that is applied to a hostile API server.
func served(name, reason string, h http.HandlerFunc) fixture {
	f := kubeconfigOf(name, reason, kubeconfig{cluster: ", certificate-authority-data: $ca"}.String())
	f.serve, f.secure = h, true
	return f
}

const aboutNamespace = `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":"0c4d0c6f-4d0e-4f7e-9d55-0d2a3c3f7a11"}}`

// plausible is an API server as far as others let it be: it is there, says who it is and
// what it serves.
func plausible(over map[string]http.HandlerFunc) http.HandlerFunc {
	usual := map[string]http.HandlerFunc{
		"/namespaces/kube-system": says("application/json", aboutNamespace),
		"/version":                says("application/json", `{"major":"1","minor":"36","gitVersion":"v1.36.0"}`),
		"/readyz":                 says("text/plain", "ok"),
		"/api":                    says("application/json", `{"kind":"APIVersions","versions":["v1"]}`),
		"/api/v1": says("application/json", `{"kind":"APIResourceList","groupVersion":"v1","resources":[`+
			`{"name":"configmaps","singularName":"configmap","namespaced":true,"kind":"ConfigMap","verbs":["get","list","patch","create","update","delete","watch"]}]}`),
		"/apis": says("application/json", `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`),
	}
	return func(w http.ResponseWriter, r *http.Request) {
		for _, by := range []map[string]http.HandlerFunc{over, usual} {
			for suffix, h := range by {
				if strings.HasSuffix(r.URL.Path, suffix) {
					h(w, r)
					return
				}
			}
		}
		if rest := over["*"]; rest != nil {
			rest(w, r)
			return
		}
		http.Error(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`, http.StatusNotFound)
	}
}

// apiServers are those that a tenant's kubeconfig leads to.
func apiServers(o *outside) []fixture {
	var b strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&b, `{"name":"g%d.example.com","versions":[{"groupVersion":"g%d.example.com/v1","version":"v1"}],"preferredVersion":{"groupVersion":"g%d.example.com/v1","version":"v1"}},`, i, i, i)
	}
	groups := `{"kind":"APIGroupList","apiVersion":"v1","groups":[` + strings.TrimSuffix(b.String(), ",") + "]}"
	onPatch := func(h http.HandlerFunc) http.HandlerFunc {
		return plausible(map[string]http.HandlerFunc{"/configmaps/a": h})
	}
	deep := `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","managedFields":[{"fieldsV1":` + strings.Repeat(`{"f:a":`, 100_000) + "{}" + strings.Repeat("}", 100_000) + `}]}}`
	all := []fixture{
		served("bomb", "every answer is a few MB that inflate to gigabytes", bombing(`{"kind":"Namespace",`)),
		served("bomb-discovery", "what it serves inflates to gigabytes", plausible(map[string]http.HandlerFunc{"/api": bombing(`{"kind":"APIVersions",`), "/apis": bombing(`{"kind":"APIGroupList",`)})),
		served("bomb-patch", "the answer to an apply inflates to gigabytes", onPatch(bombing(`{"kind":"ConfigMap",`))),
		served("bomb-openapi", "its schema inflates to gigabytes", plausible(map[string]http.HandlerFunc{"/openapi/v2": bombing("{"), "/openapi/v3": bombing("{"), "/configmaps/a": bombing("{")})),
		served("endless", "every answer is a body without an end", endless(`{"kind":"Namespace","metadata":{"annotations":{"a":"`, "x")),
		served("endless-error", "an error whose text has no end", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			endless(`{"kind":"Status","message":"`, "x")(w, r)
		}),
		served("groups", "twenty thousand groups, each of which would be asked for", plausible(map[string]http.HandlerFunc{"/apis": says("application/json", groups), ".example.com/v1": hangs})),
		served("headers", "a hundred thousand headers", headers),
		served("redirect", "every request is sent to another server, without TLS", leads(http.StatusTemporaryRedirect, o.inside.URL)),
		served("redirect-metadata", "every request is sent to the metadata service", leads(http.StatusFound, "http://169.254.169.254")),
		served("redirect-circle", "redirects to itself", circles),
		served("html", "the page of a portal", says("text/html", "<html>sign in</html>")),
		served("hang", "no answer", hangs),
		served("hang-after-headers", "headers, and then nothing", begins(`{"kind":`)),
		served("hang-patch", "no answer to an apply", onPatch(hangs)),
		served("drip", "an answer of a byte each 100 ms", drips(" ")),
		served("unauthorized", "401, over and over", statusOf(http.StatusUnauthorized, "{}")),
		served("forbidden", "403 with what was sent", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no: `+r.Header.Get("Authorization")+`","reason":"Forbidden","code":403}`)
		}),
		served("internal", "500, over and over", statusOf(http.StatusInternalServerError, "{}")),
		served("retry-after", "429, to come again in thirty years", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "999999999")
			w.WriteHeader(http.StatusTooManyRequests)
		}),
		served("length", "a body that is a gigabyte shorter than it says", lies(`{"kind":"Namespace"`)),
		served("success", "a Status that says Success instead of an object", onPatch(says("application/json", `{"kind":"Status","apiVersion":"v1","status":"Success"}`))),
		served("other-object", "another object than the one that was applied", onPatch(says("application/json", `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"canary","namespace":"vault"}}`))),
		served("deep", "an object of a hundred thousand levels", onPatch(says("application/json", deep))),
		served("noise", "no JSON", onPatch(says("application/json", "\x00\xff\xfe"))),
		served("protobuf", "protobuf that is none", plausible(map[string]http.HandlerFunc{"/configmaps/a": says("application/vnd.kubernetes.protobuf", "k8s\x00\xff\xff\xff\xff\xff\xff")})),
		served("nothing", "no body", func(http.ResponseWriter, *http.Request) {}),
		served("no-uid", "a cluster that does not say who it is", plausible(map[string]http.HandlerFunc{"/namespaces/kube-system": says("application/json", "{}")})),
		served("no-kinds", "a cluster that serves nothing", plausible(map[string]http.HandlerFunc{"/api/v1": says("application/json", `{"kind":"APIResourceList","groupVersion":"v1","resources":[]}`)})),
		served("lists-null", "null where lists are wanted", plausible(map[string]http.HandlerFunc{"/api/v1": says("application/json", `{"kind":"APIResourceList","groupVersion":"v1","resources":null}`), "/apis": says("application/json", "null")})),
	}
	slow := served("handshake", "a connection on which nothing is said", nil)
	slow.listen = func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }
	plain := served("plain", "an answer without TLS", nil)
	plain.listen = func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") }
	noise := served("tls-noise", "a record of TLS that is as long as can be, and noise", nil)
	noise.listen = func(c net.Conn) {
		_, _ = bufio.NewReader(c).Peek(5)
		_, _ = c.Write(append([]byte{22, 3, 3, 0xff, 0xff}, make([]byte, 1<<16)...))
	}
	cut := served("cut", "connections that are cut", nil)
	cut.listen = func(c net.Conn) { _ = c.SetDeadline(time.Now()) }
	for _, f := range []*fixture{&slow, &plain, &noise, &cut} {
		f.secure = false
		f.objects = strings.ReplaceAll(f.objects, ", certificate-authority-data: $ca", "")
		all = append(all, *f)
	}
	for name, h := range inOrder(map[string]http.HandlerFunc{"bomb": bombing("{"), "redirect": leads(http.StatusTemporaryRedirect, o.inside.URL), "hang": hangs, "html": says("text/html", "<html>"), "hang-later": onPatch(hangs)}) {
		f := releaseElsewhere("release-"+name, "the same ("+name+") for Helm", kubeconfig{cluster: ", certificate-authority-data: $ca"}.String())
		f.serve, f.secure = h, true
		all = append(all, f)
	}
	all = append(all,
		served("switch", "another protocol, which nobody asked for, and nothing", switches("")),
		served("switch-endless", "the same, and zeros without an end", switches(strings.Repeat("\x00", 1<<16))))
	for i, f := range all {
		// A call to an API server has half a minute of its own, and is not the first one.
		if strings.Contains(f.name, "hang") || strings.Contains(f.name, "drip") {
			all[i].within = 75 * time.Second
		}
	}
	return all
}
