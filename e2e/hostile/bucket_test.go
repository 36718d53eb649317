package hostile

import (
	"fmt"
	"net/http"
	"strings"
)

// bucketOf is a Bucket whose server gets a login.
func bucketOf(name, reason string, h http.HandlerFunc, tells ...string) fixture {
	if len(tells) == 0 {
		tells = []string{"BucketOperationFailed", "LimitExceeded"}
	}
	return fixture{
		name: name, reason: reason, serve: h, kind: "Bucket", tells: tells,
		objects: manifests(secret("keys", map[string]string{"accesskey": "a", "secretkey": password}),
			source("Bucket", "bucketName: bucket, endpoint: '$server', insecure: true, secretRef: {name: keys}, interval: 1m, timeout: 15s")),
	}
}

const listBegin = `<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>x</Name><IsTruncated>%t</IsTruncated>`

// listed is the list of a bucket with one object.
func listed(key string, size int) string {
	return fmt.Sprintf(listBegin, false) + fmt.Sprintf(`<Contents><Key>%s</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"x"</ETag><Size>%d</Size></Contents></ListBucketResult>`, key, size)
}

// bucketWith answers for the list of a bucket, and for its objects.
func bucketWith(list, objects http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		switch {
		case query.Has("location"):
			says("application/xml", `<LocationConstraint xmlns="http://s3.amazonaws.com/doc/2006-03-01/">us-east-1</LocationConstraint>`)(w, r)
		case r.Method == http.MethodHead && strings.Count(strings.Trim(r.URL.Path, "/"), "/") == 0:
		case query.Has("list-type") || query.Has("max-keys") || query.Has("prefix"):
			list(w, r)
		default:
			objects(w, r)
		}
	}
}

// buckets are S3 servers that do not keep to the protocol, and names that lead
// elsewhere.
func buckets(o *outside) []fixture {
	xml := func(text string) http.HandlerFunc { return says("application/xml", text) }
	none := statusOf(http.StatusNotFound, "")
	key := func(name, reason, key string) fixture {
		return bucketOf("key-"+name, reason, bucketWith(xml(listed(key, 1)), text("x")))
	}
	object := func(name, reason string, size int, h http.HandlerFunc) fixture {
		return bucketOf("object-"+name, reason, bucketWith(xml(listed("a.yaml", size)), h))
	}
	entities := `<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a0 "xxxxxxxxxx">`
	for i := 1; i < 12; i++ {
		entities += fmt.Sprintf(`<!ENTITY a%d "%s">`, i, strings.Repeat(fmt.Sprintf("&a%d;", i-1), 10))
	}
	more := func(w http.ResponseWriter, r *http.Request) {
		xml(fmt.Sprintf(listBegin, true)+`<NextContinuationToken>`+r.URL.Query().Get("continuation-token")+`x</NextContinuationToken></ListBucketResult>`)(w, r)
	}
	contents := `<Contents><Key>a</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"x"</ETag><Size>1</Size></Contents>`
	return []fixture{
		key("above", "a name that leads up", "../../../../was-here"),
		key("above-later", "a name that leads up later", "a/../../../b.yaml"),
		key("absolute", "a name that begins at the root", "/etc/was-here"),
		key("null", "a name with a byte that ends texts", "a&#x0;b"),
		key("empty", "no name", ""),
		key("long", "a name of a megabyte", strings.Repeat("a/", 1<<19)),
		key("conflict", "a file, and a file below it", "a.yaml</Key></Contents><Contents><Key>a.yaml/b.yaml"),
		bucketOf("list-endless", "a list without an end", bucketWith(endless(fmt.Sprintf(listBegin, false), contents), none)),
		bucketOf("list-pages", "pages without an end, each of which names the next", bucketWith(more, none)),
		bucketOf("list-same", "a page that names itself as the next", bucketWith(xml(fmt.Sprintf(listBegin, true)+contents+`<NextContinuationToken>same</NextContinuationToken></ListBucketResult>`), hangs)),
		bucketOf("list-bomb", "a list that the transport inflates to gigabytes", bucketWith(bombing(fmt.Sprintf(listBegin, false)), none)),
		bucketOf("list-entities", "entities each of which is ten of the one before", bucketWith(xml(entities+`]><ListBucketResult><Name>&a11;</Name></ListBucketResult>`), none)),
		bucketOf("list-external", "an entity that is a file of the machine", bucketWith(xml(`<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a SYSTEM "file://`+o.file()+`">]><ListBucketResult><Name>&a;</Name></ListBucketResult>`), none)),
		bucketOf("list-deep", "a hundred thousand levels", bucketWith(xml(strings.Repeat("<a>", 1<<20)), none)),
		bucketOf("list-html", "the page of a portal", says("text/html", "<html>sign in")),
		bucketOf("list-noise", "no list", bucketWith(text("\x00\xff"), none)),
		bucketOf("list-hang", "no answer", hangs),
		bucketOf("list-drip", "a byte each 100 ms", bucketWith(drips(" "), none)),
		bucketOf("list-cut", "a list that is a gigabyte shorter than it says", bucketWith(lies("<ListBucketResult>"), none)),
		bucketOf("redirect", "everything is at another host, which would get a signature", leads(http.StatusTemporaryRedirect, o.other.url())),
		bucketOf("redirect-region", "a region that is a host", statusOf(http.StatusMovedPermanently, `<Error><Code>PermanentRedirect</Code><Endpoint>`+strings.TrimPrefix(o.inside.URL, "http://")+`</Endpoint><Region>../`+strings.TrimPrefix(o.inside.URL, "http://")+`/</Region></Error>`)),
		bucketOf("redirect-circle", "redirects without an end", circles),
		bucketOf("denied", "403 with what was sent", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			xml(`<Error><Code>AccessDenied</Code><Message>`+r.Header.Get("Authorization")+"\x1b[2J"+`</Message></Error>`)(w, r)
		}, "AuthenticationFailed", "BucketOperationFailed"),
		bucketOf("retry-after", "503, to come again in thirty years", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "999999999")
			w.WriteHeader(http.StatusServiceUnavailable)
		}),
		object("endless", "an object without an end", 1, endless("", "x")),
		object("bomb", "an object that the transport inflates to gigabytes", 1, bombing("")),
		object("large", "an object of a terabyte, by the list", 1<<40, endless("", "x")),
		object("negative", "an object of less than nothing", -1, text("x")),
		object("hang", "an object that does not come", 1, hangs),
		object("cut", "an object that is a gigabyte shorter than it says", 1, lies("x")),
		object("gone", "an object that is not there", 1, none),
	}
}

// externalArtifacts are artifacts that somebody who may write a status announces.
func externalArtifacts(o *outside) []fixture {
	at := func(name, reason, url, digest string, h http.HandlerFunc) fixture {
		return fixture{
			name: name, reason: reason, serve: h, kind: "Kustomization", tells: []string{"ArtifactFailed", "BuildFailed"},
			objects:  strings.ReplaceAll(kustomizationOf(""), "kind: GitRepository, name: git", "kind: ExternalArtifact, name: external"),
			external: `{"status":{"artifact":{"digest":"` + digest + `","lastUpdateTime":"2026-01-01T00:00:00Z","path":"x","revision":"v1@sha256:x","url":"` + url + `","size":1},"conditions":[{"type":"Ready","status":"True","reason":"Succeeded","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`,
		}
	}
	const server = "http://$server/x.tar.gz"
	some := digestOf([]byte("x"))
	all := []fixture{
		at("metadata", "an artifact at the metadata service", "http://169.254.169.254/x.tar.gz", some, nil),
		at("file", "an artifact that is a file of the machine", "file://"+o.file(), some, nil),
		at("noise-url", "a URL that is none", "http://[::1", some, nil),
		at("digest", "an artifact that is not what its digest says", server, some, text("other")),
		at("digest-kind", "a digest of a kind that nobody can compute", server, "md5:abc", text("x")),
		at("endless", "an artifact without an end", server, some, endless("", "x")),
		at("bomb", "an artifact that the transport inflates to gigabytes", server, some, bombing("")),
		at("html", "the page of a portal", server, some, says("text/html", "<html>sign in")),
		at("not-found", "an artifact that is not there", server, some, statusOf(http.StatusNotFound, strings.Repeat("x", 1<<20))),
		at("redirect", "an artifact at the metadata service, by a redirect", server, some, leads(http.StatusFound, "http://169.254.169.254")),
		at("redirect-circle", "redirects without an end", server, some, circles),
		at("cut", "an artifact that is a gigabyte shorter than it says", server, some, lies("x")),
	}
	for _, a := range tarballs(o, "app/", file("app/a.yaml", configMap("a"))) {
		switch a.name {
		case "above", "absolute", "bomb", "directories", "size", "cut", "gzip-twice":
			all = append(all, at("tar-"+a.name, a.reason, server, digestOf(a.archive), text(string(a.archive))))
		}
	}
	return all
}
