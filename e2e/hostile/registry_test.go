package hostile

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/cascade-gitops/cascade/e2e/origins"
)

// ociImage is what a registry serves under each tag: a manifest, and blobs by digest.
type ociImage struct {
	manifest  string
	mediaType string
	blobs     map[string][]byte
}

const manifestType = "application/vnd.oci.image.manifest.v1+json"

func digestOf(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

// image has one layer, as Flux pushes it.
func image(layer []byte) ociImage {
	config := []byte("{}")
	return ociImage{
		manifest: fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":%q,"size":%d,"digest":%q},"layers":[{"mediaType":%q,"size":%d,"digest":%q}]}`,
			manifestType, string(origins.FluxConfig), len(config), digestOf(config), string(origins.FluxContent), len(layer), digestOf(layer)),
		mediaType: manifestType, blobs: map[string][]byte{digestOf(config): config, digestOf(layer): layer},
	}
}

// registryOf serves an image.
func registryOf(i ociImage) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v2/":
			_, _ = io.WriteString(w, "{}")
		case strings.Contains(r.URL.Path, "/manifests/"):
			w.Header().Set("Content-Type", i.mediaType)
			w.Header().Set("Docker-Content-Digest", digestOf([]byte(i.manifest)))
			w.Header().Set("Content-Length", fmt.Sprint(len(i.manifest)))
			if r.Method != http.MethodHead {
				_, _ = io.WriteString(w, i.manifest)
			}
		case strings.HasSuffix(r.URL.Path, "/tags/list"):
			_, _ = io.WriteString(w, `{"name":"x","tags":["latest","1.0.0"]}`)
		default:
			digest := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
			blob, ok := i.blobs[digest]
			if !ok {
				http.NotFound(w, r)
				return
			}
			_, _ = w.Write(blob)
		}
	}
}

// partly answers requests whose path has a part, and leaves the rest to a registry.
func partly(part string, h http.HandlerFunc) http.HandlerFunc {
	usual := registryOf(image(origins.Tarball(map[string]string{"a.yaml": configMap("a")})))
	return func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, part) {
			h(w, r)
			return
		}
		usual(w, r)
	}
}

var dockerLogin = "apiVersion: v1\nkind: Secret\nmetadata: {name: docker, namespace: $ns}\ntype: kubernetes.io/dockerconfigjson\nstringData: {.dockerconfigjson: '{\"auths\":{\"$server\":{\"username\":\"u\",\"password\":\"" + password + "\"}}}'}\n"

// ociOf is an OCIRepository whose registry gets a login.
func ociOf(name, reason string, h http.HandlerFunc, more string, tells ...string) fixture {
	if len(tells) == 0 {
		tells = []string{"OCIArtifactPullFailed", "OCIArtifactLayerOperationFailed", "LimitExceeded", "ReadOperationFailed"}
	}
	if more == "" {
		more = "ref: {tag: latest}"
	}
	return fixture{
		name: name, reason: reason, serve: h, kind: "OCIRepository", tells: tells,
		objects: manifests(dockerLogin, source("OCIRepository", "url: 'oci://$server/app', insecure: true, secretRef: {name: docker}, interval: 1m, timeout: 15s, "+more)),
	}
}

// registries are those that do not keep to the protocol.
func registries(o *outside) []fixture {
	manifests := func(h http.HandlerFunc) http.HandlerFunc { return partly("/manifests/", h) }
	blobs := func(h http.HandlerFunc) http.HandlerFunc { return partly("/blobs/", h) }
	as := func(mediaType, text string) http.HandlerFunc {
		return registryOf(ociImage{manifest: text, mediaType: mediaType})
	}
	const index = "application/vnd.oci.image.index.v1+json"
	layers := `{"schemaVersion":2,"config":{"mediaType":"x/y","size":2,"digest":"` + digestOf([]byte("{}")) + `"},"layers":[` +
		strings.TrimSuffix(strings.Repeat(`{"mediaType":"application/octet-stream","size":1,"digest":"`+digestOf(nil)+`"},`, 50_000), ",") + `]}`
	huge := fmt.Sprintf(`{"schemaVersion":2,"config":{"mediaType":"x/y","size":2,"digest":%q},"layers":[{"mediaType":%q,"size":1099511627776,"digest":%q}]}`, digestOf([]byte("{}")), string(origins.FluxContent), digestOf([]byte("x")))
	semver := "ref: {semver: '>=1.0.0'}"
	all := []fixture{
		ociOf("manifest-endless", "a manifest without an end", manifests(endless(`{"schemaVersion":2,"annotations":{"a":"`, "x")), ""),
		ociOf("manifest-bomb", "a manifest that inflates to gigabytes", manifests(bombing("{")), ""),
		ociOf("manifest-html", "the page of a portal", manifests(says("text/html", "<html>sign in</html>")), ""),
		ociOf("manifest-noise", "a manifest that is no JSON", as(manifestType, "\x00\xff"), ""),
		ociOf("manifest-deep", "a manifest of a hundred thousand levels", as(manifestType, `{"a":`+strings.Repeat("[", 100_000)+strings.Repeat("]", 100_000)+"}"), ""),
		ociOf("manifest-nulls", "null where lists are wanted", as(manifestType, `{"schemaVersion":2,"config":null,"layers":[null]}`), ""),
		ociOf("manifest-digest", "a digest that is not the manifest's", manifests(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Docker-Content-Digest", digestOf([]byte("other")))
			says(manifestType, "{}")(w, r)
		}), "ref: {digest: '"+digestOf([]byte("wanted"))+"'}"),
		ociOf("manifest-layers", "fifty thousand layers", as(manifestType, layers), ""),
		ociOf("manifest-old", "a manifest of the first version, which nobody can check", as("application/vnd.docker.distribution.manifest.v1+prettyjws", `{"schemaVersion":1}`), ""),
		ociOf("index-self", "an index whose only image is the index", as(index, `{"schemaVersion":2,"manifests":[{"mediaType":"`+index+`","size":10,"digest":"`+digestOf([]byte("x"))+`"}]}`), ""),
		ociOf("index-empty", "an index without an image", as(index, `{"schemaVersion":2,"manifests":[]}`), ""),
		ociOf("layer-endless", "a layer without an end", blobs(endless("", "x")), ""),
		ociOf("layer-bomb", "a layer that the transport inflates to gigabytes", blobs(bombing("")), ""),
		ociOf("layer-digest", "a layer that is not what the manifest says", blobs(says("", "other")), ""),
		ociOf("layer-size", "a layer of a terabyte, by its manifest", registryOf(ociImage{manifest: huge, mediaType: manifestType, blobs: map[string][]byte{digestOf([]byte("x")): []byte("x")}}), ""),
		ociOf("layer-hang", "a layer that begins and goes on no more", blobs(begins("\x1f\x8b")), ""),
		ociOf("layer-drip", "a layer of a byte each 100 ms", blobs(drips("x")), ""),
		ociOf("layer-cut", "a layer that is a gigabyte shorter than it says", blobs(lies("x")), ""),
		ociOf("layer-redirect", "a layer at the metadata service", blobs(leads(http.StatusTemporaryRedirect, "http://169.254.169.254")), ""),
		ociOf("layer-redirect-other", "a layer at another host, which would get the login", blobs(leads(http.StatusTemporaryRedirect, o.other.url())), ""),
		ociOf("layer-redirect-circle", "a layer behind redirects without an end", blobs(circles), ""),
		ociOf("tags-endless", "a list of tags without an end", partly("/tags/list", endless(`{"tags":["`, `1.0.0","`)), semver),
		ociOf("tags-pages", "pages of tags, each of which names the next", partly("/tags/list", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Link", `</v2/x/tags/list?n=1&last=`+r.URL.Query().Get("last")+`x>; rel="next"`)
			_, _ = io.WriteString(w, `{"name":"x","tags":["a"]}`)
		}), semver),
		ociOf("tags-elsewhere", "pages of tags that go on at another host", partly("/tags/list", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", `<`+o.other.url()+`/v2/x/tags/list>; rel="next"`)
			_, _ = io.WriteString(w, `{"name":"x","tags":["a"]}`)
		}), semver),
		ociOf("tags-noise", "tags that are no versions, and no tags", partly("/tags/list", text(`{"tags":["\u001b[2J","../..","9999999999999999999999.0.0"]}`)), semver),
		ociOf("redirect", "everything is at another host, which would get the login", leads(http.StatusTemporaryRedirect, o.other.url()), ""),
		ociOf("hang", "no answer", hangs, ""),
		ociOf("switch", "another protocol, which nobody asked for, and nothing", switches(""), ""),
		ociOf("drip", "a byte each 100 ms", drips("{"), ""),
		ociOf("retry-after", "429, to come again in thirty years", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "999999999")
			w.WriteHeader(http.StatusTooManyRequests)
		}, ""),
		ociOf("errors", "ten thousand errors in one answer", statusOf(http.StatusBadRequest, `{"errors":[`+strings.TrimSuffix(strings.Repeat(`{"code":"DENIED","message":"`+strings.Repeat("no ", 30)+`"},`, 10_000), ",")+"]}"), ""),
		ociOf("headers", "a hundred thousand headers", headers, ""),
		ociOf("verify", "a signature that nobody made", registryOf(image(origins.Tarball(map[string]string{"a.yaml": configMap("a")}))), "ref: {tag: latest}, verify: {provider: cosign, secretRef: {name: none}}", "VerificationError", "OCIArtifactPullFailed", "AuthenticationFailed"),
	}
	return append(all, realms(o)...)
}

// realms are registries that want a token, and say where it is to be had.
func realms(o *outside) []fixture {
	token := func(realm string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+realm+`",service="registry",scope="repository:x:pull"`)
			w.WriteHeader(http.StatusUnauthorized)
		}
	}
	return []fixture{
		ociOf("realm", "tokens are to be had at another host, for the login", token(o.other.url()+"/token"), "", "AuthenticationFailed", "OCIArtifactPullFailed", "CredentialRefused"),
		ociOf("realm-file", "tokens are in a file of the machine", token("file://"+o.file()), "", "AuthenticationFailed", "OCIArtifactPullFailed", "CredentialRefused"),
		ociOf("realm-self", "tokens need a token", func(w http.ResponseWriter, r *http.Request) { token("http://"+r.Host+"/token")(w, r) }, "", "AuthenticationFailed", "OCIArtifactPullFailed"),
		ociOf("realm-hang", "tokens that never come", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/token" {
				hangs(w, r)
				return
			}
			token("http://"+r.Host+"/token")(w, r)
		}, "", "AuthenticationFailed", "OCIArtifactPullFailed"),
		ociOf("realm-endless", "a token without an end", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/token" {
				endless(`{"token":"`, "x")(w, r)
				return
			}
			token("http://"+r.Host+"/token")(w, r)
		}, "", "AuthenticationFailed", "OCIArtifactPullFailed", "LimitExceeded"),
		ociOf("challenge", "a challenge that is none", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", strings.Repeat(`Bearer realm="`, 1000))
			w.WriteHeader(http.StatusUnauthorized)
		}, "", "AuthenticationFailed", "OCIArtifactPullFailed"),
	}
}

// helmRepositories are those whose index or archives are hostile.
func helmRepositories(o *outside) []fixture {
	of := func(name, reason string, h http.HandlerFunc, tells ...string) fixture {
		f := indexOf(name, reason, "")
		f.serve = h
		f.objects = manifests(login, source("HelmRepository", "url: 'http://$server', secretRef: {name: login}, interval: 1m, timeout: 15s"))
		if len(tells) > 0 {
			f.tells = tells
		}
		return f
	}
	// A chart by its URL in the index.
	urls := func(name, reason, url string, more http.HandlerFunc) fixture {
		f := archiveOf(name, reason, nil)
		f.serve = paths(more, map[string]http.HandlerFunc{"/index.yaml": says("application/yaml", "apiVersion: v1\nentries:\n  app:\n  - {apiVersion: v2, name: app, version: 1.0.0, urls: ['"+url+"'], digest: "+strings.TrimPrefix(digestOf([]byte("x")), "sha256:")+"}\n")})
		f.objects = strings.ReplaceAll(login+"---\n"+f.objects, "url: 'http://$server',", "url: 'http://$server', secretRef: {name: login},")
		// A HelmChart has a minute, and no field that says less.
		f.within = 75 * time.Second
		return f
	}
	begin := "apiVersion: v1\nentries:\n  app:\n"
	line := "  - {apiVersion: v2, name: app, version: 1.0.0, urls: [app.tgz], description: " + strings.Repeat("x", 900) + "}\n"
	return []fixture{
		of("endless", "an index without an end", endless(begin, line)),
		of("large", "an index of 51 MiB", says("application/yaml", begin+strings.Repeat(line, (51<<20)/len(line)))),
		of("bomb", "an index that the transport inflates to gigabytes", bombing(begin)),
		of("html", "the page of a portal", says("text/html", "<html>sign in</html>")),
		of("empty", "no byte", says("application/yaml", "")),
		of("json-deep", "JSON of a million levels", says("application/json", strings.Repeat("[", 1<<20))),
		of("no-version", "an index of no version", says("application/yaml", "entries: {}\n")),
		of("hang", "no answer", hangs),
		of("hang-later", "the beginning of an index", begins(begin)),
		of("drip", "a byte each 100 ms", drips("# ")),
		of("redirect", "an index at another host, which would get the login", leads(http.StatusFound, o.other.url())),
		of("redirect-circle", "redirects without an end", circles),
		of("redirect-metadata", "an index at the metadata service", leads(http.StatusFound, "http://169.254.169.254")),
		of("unauthorized", "401 that shows the password", func(w http.ResponseWriter, r *http.Request) {
			_, sent, _ := r.BasicAuth()
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, sent)
		}, "AuthenticationFailed", "IndexationFailed", "Failed"),
		of("cut", "an index that is a gigabyte shorter than it says", lies(begin)),
		of("headers", "a hundred thousand headers", headers),
		urls("url-other", "the chart is at another host, which would get the login", o.other.url()+"/app.tgz", hangs),
		urls("url-file", "the chart is a file of the machine", "file://"+o.file(), hangs),
		urls("url-metadata", "the chart is at the metadata service", "http://169.254.169.254/app.tgz", hangs),
		urls("url-oci", "the chart is in a registry that nobody named", "oci://"+strings.TrimPrefix(o.inside.URL, "http://")+"/app", hangs),
		urls("url-above", "the chart is above the repository", "../../../../../app.tgz", statusOf(http.StatusNotFound, "")),
		urls("url-noise", "a URL that is none", "http://[::1", hangs),
		urls("digest", "a chart that is not what the index says", "app.tgz", serveChart(origins.Chart{Name: "app", Version: "1.0.0"}.Pack())),
		urls("chart-endless", "a chart without an end", "app.tgz", endless("", "x")),
		urls("chart-hang", "a chart that begins and goes on no more", "app.tgz", begins("\x1f\x8b")),
		urls("chart-redirect", "a chart behind redirects without an end", "app.tgz", circles),
		urls("chart-bomb", "a chart that the transport inflates to gigabytes", "app.tgz", bombing("")),
	}
}
