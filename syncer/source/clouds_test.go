package source

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// sky stands for all the hosts of a cloud: everything that asks its proxy gets
// there.
type sky struct {
	t       *testing.T
	server  *httptest.Server
	proxy   *url.URL
	ca      map[string][]byte
	answers http.HandlerFunc

	mu       sync.Mutex
	requests []string
	files    map[string]string
	// generation is told with the objects of this name, 1 otherwise.
	generation map[string]int
}

func newCloud(t *testing.T, names ...string) *sky {
	t.Helper()
	c := &sky{t: t, files: map[string]string{}, generation: map[string]int{}}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "cloud"}, DNSNames: names, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	c.ca = map[string][]byte{"ca.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
	c.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		c.requests = append(c.requests, r.Method+" "+r.Host+r.URL.Path)
		c.mu.Unlock()
		c.answers(w, r)
	}))
	c.server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	c.server.StartTLS()
	t.Cleanup(c.server.Close)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			http.Error(w, "no", http.StatusBadRequest)
			return
		}
		there, err := net.Dial("tcp", c.server.Listener.Addr().String())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer there.Close()
		here, begun, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer here.Close()
		if _, err := io.WriteString(here, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
			return
		}
		go func() { _, _ = io.Copy(there, begun) }()
		_, _ = io.Copy(here, there)
	}))
	t.Cleanup(proxy.Close)
	if c.proxy, err = url.Parse(proxy.URL); err != nil {
		t.Fatal(err)
	}
	return c
}

// asked counts the requests that contain a text, since the last call.
func (c *sky) asked(text string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := times(c.requests, text)
	c.requests = nil
	return n
}

func (c *sky) etag(key string) string {
	return fmt.Sprintf("E%x.%d", sha256.Sum256([]byte(c.files[key])), c.generation[key])[:20]
}

// revision of the files with their ETags in a form.
func (c *sky) revision(form string) string {
	h := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(c.files)) {
		if key != ".sourceignore" {
			fmt.Fprintf(h, "%s "+form+"\n", key, c.etag(key))
		}
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

const (
	googleStorage = "storage.googleapis.com"
	googleTokens  = "oauth2.googleapis.com"
)

func newGoogle(t *testing.T) *sky {
	c := newCloud(t, googleStorage, googleTokens)
	c.answers = func(w http.ResponseWriter, r *http.Request) {
		if r.Host == googleTokens {
			if err := r.ParseForm(); err != nil || r.Form.Get("assertion") == "" {
				http.Error(w, `{"error":"invalid_grant","error_description":"s3cret body"}`, http.StatusBadRequest)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"access_token":"good","expires_in":3600,"token_type":"Bearer"}`)
			return
		}
		if r.Header.Get("Authorization") != "Bearer good" {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"error":{"code":401,"message":"who are you"}}`)
			return
		}
		c.google(w, r)
	}
	return c
}

// google speaks the four calls of its storage.
func (c *sky) google(w http.ResponseWriter, r *http.Request) {
	at := strings.TrimPrefix(r.URL.EscapedPath(), "/storage/v1/b/fleet")
	missing := func() {
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"error":{"code":404,"message":"not found"}}`)
	}
	describe := func(key string) map[string]any {
		return map[string]any{"name": key, "etag": c.etag(key), "size": fmt.Sprint(len(c.files[key])), "generation": fmt.Sprint(c.generation[key] + 1)}
	}
	switch key, object := strings.CutPrefix(at, "/o/"); {
	case at == "":
		_, _ = io.WriteString(w, `{"name":"fleet"}`)
	case at == "/o":
		// A page for each.
		var keys []string
		for _, key := range slices.Sorted(maps.Keys(c.files)) {
			if strings.HasPrefix(key, r.URL.Query().Get("prefix")) {
				keys = append(keys, key)
			}
		}
		page := 0
		_, _ = fmt.Sscan(r.URL.Query().Get("pageToken"), &page)
		answer := map[string]any{}
		if page < len(keys) {
			answer["items"] = []any{describe(keys[page])}
		}
		if page+1 < len(keys) {
			answer["nextPageToken"] = fmt.Sprint(page + 1)
		}
		_ = json.NewEncoder(w).Encode(answer)
	case object:
		key, _ = url.PathUnescape(key)
		content, ok := c.files[key]
		generation := r.URL.Query().Get("generation")
		if !ok || (generation != "" && generation != fmt.Sprint(c.generation[key]+1)) {
			missing()
			return
		}
		if r.URL.Query().Get("alt") == "media" {
			_, _ = io.WriteString(w, content)
			return
		}
		_ = json.NewEncoder(w).Encode(describe(key))
	default:
		missing()
	}
}

func serviceAccount(t *testing.T) []byte {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "me@example.com", "token_uri": "https://" + googleTokens + "/token",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})),
	})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestGoogleBucket(t *testing.T) {
	c := newGoogle(t)
	c.files = map[string]string{"a.yaml": "1", "dir/b c.yaml": "2", ".sourceignore": "*.md\n", "x.md": "3"}
	o := BucketOrigin{Provider: "gcp", Bucket: "fleet", Proxy: c.proxy, Certificates: c.ca, Secret: map[string][]byte{"serviceaccount": serviceAccount(t)}}
	b := NewBuckets(t.TempDir(), plenty)
	first := pullBucket(t, b, o, nil, nil)
	if diff := cmp.Diff([]string{".sourceignore", "a.yaml", "dir/b c.yaml"}, walk(t, first, "")); diff != "" {
		t.Errorf("files: -want, +got:\n%s", diff)
	}
	if read(t, first, "dir/b c.yaml") != "2" {
		t.Error("a file has other content")
	}
	delete(c.files, "x.md")
	if first.Revision != c.revision("%s") {
		t.Errorf("revision %s, want %s", first.Revision, c.revision("%s"))
	}
	c.asked("")
	if again := pullBucket(t, b, o, nil, first); again != first {
		t.Error("an unchanged bucket is another snapshot")
	}
	if n := c.asked("/o/a.yaml"); n != 0 {
		t.Errorf("%d requests for an object that is known", n)
	}
	// It is another one by the time that it is read.
	c.files["a.yaml"], c.generation["a.yaml"] = "later", 1
	answers := c.answers
	c.answers = func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("generation") == "2" {
			c.files["a.yaml"], c.generation["a.yaml"] = "latest", 2
		}
		answers(w, r)
	}
	next := pullBucket(t, b, o, nil, first)
	if read(t, next, "a.yaml") != "latest" || next.Revision != c.revision("%s") {
		t.Errorf("revision %s, want %s of what was fetched", next.Revision, c.revision("%s"))
	}
	o.Prefix = "dir/"
	if s := pullBucket(t, b, o, nil, nil); !slices.Equal(walk(t, s, ""), []string{".sourceignore", "dir/b c.yaml"}) {
		t.Errorf("with a prefix: %q", walk(t, s, ""))
	}
}

// TestCloudsLater: nor are the clouds asked before they said.
func TestCloudsLater(t *testing.T) {
	c := newCloud(t, googleStorage, "store.blob.core.windows.net")
	c.answers = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "120")
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	for name, origin := range map[string]BucketOrigin{
		"Google": {Provider: "gcp"},
		"Azure":  {Provider: "azure", Endpoint: "https://store.blob.core.windows.net", Secret: map[string][]byte{"sasKey": []byte("sv=1&sig=2")}},
	} {
		t.Run(name, func(t *testing.T) {
			origin.Bucket, origin.Certificates, origin.Proxy = "fleet", c.ca, c.proxy
			if name == "Google" {
				t.Setenv("STORAGE_EMULATOR_HOST", "https://"+googleStorage)
			}
			_, err := NewBuckets(t.TempDir(), 1<<20).Fetch(t.Context(), origin, nil, nil)
			if After(err) < 2*time.Minute || !strings.Contains(err.Error(), "503") {
				t.Errorf("%s: %v, again after %s", name, err, After(err))
			}
			if asked := c.asked("fleet"); asked != 1 {
				t.Errorf("%s: it is asked %d times", name, asked)
			}
		})
	}
}

func TestGoogleFailures(t *testing.T) {
	good := serviceAccount(t)
	for name, tc := range map[string]struct {
		reason string
		secret string
		bucket string
		set    func(c *sky)
		fails  string
		says   string
	}{
		"NoKey":   {"a Secret without a key", "", "fleet", nil, ReasonAuthenticationFailed, "serviceaccount"},
		"NoJSON":  {"a key that is none", "s3cret", "fleet", nil, ReasonAuthenticationFailed, "JSON"},
		"Program": {"other kinds run programs and read files", `{"type":"external_account"}`, "fleet", nil, ReasonAuthenticationFailed, "service_account"},
		"Broken":  {"a private key that is none", `{"type":"service_account","private_key":"s3cret","token_uri":"https://oauth2.googleapis.com/token"}`, "fleet", nil, ReasonBucketFailed, ""},
		"Bucket":  {"there is no such bucket", string(good), "other", nil, ReasonBucketFailed, "bucket not found"},
		"Refused": {"no token is given out", string(good), "fleet", func(c *sky) {
			c.answers = func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusBadRequest)
				_, _ = io.WriteString(w, strings.Repeat("s3cret", 1000))
			}
		}, ReasonAuthenticationFailed, "token"},
		"Forbidden": {"the token does not suffice", string(good), "fleet", func(c *sky) {
			answers := c.answers
			c.answers = func(w http.ResponseWriter, r *http.Request) {
				r.Header.Del("Authorization")
				answers(w, r)
			}
		}, ReasonBucketFailed, "spec.secretRef"},
		"Parent": {"CVE-2026-47680: a name that leads elsewhere", string(good), "fleet", func(c *sky) { c.files["a/../../b"] = "1" }, ReasonBucketFailed, "elsewhere"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newGoogle(t)
			c.files = map[string]string{"a.yaml": "1"}
			if tc.set != nil {
				tc.set(c)
			}
			o := BucketOrigin{Provider: "gcp", Bucket: tc.bucket, Proxy: c.proxy, Certificates: c.ca, Secret: map[string][]byte{}}
			if tc.secret != "" {
				o.Secret["serviceaccount"] = []byte(tc.secret)
			}
			_, err := NewBuckets(t.TempDir(), plenty).Fetch(t.Context(), o, nil, nil)
			if err == nil || ReasonOf(err) != tc.fails || !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("%s: Fetch() = %v (%s), want %s %q", tc.reason, err, ReasonOf(err), tc.fails, tc.says)
			}
			if strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "PRIVATE") || len(err.Error()) > 1000 {
				t.Errorf("%s: the error tells too much: %v", tc.reason, err)
			}
		})
	}
}

func TestGoogleEmulator(t *testing.T) {
	c := newGoogle(t)
	c.files = map[string]string{"a.yaml": "1"}
	plain := httptest.NewServer(http.HandlerFunc(c.google))
	defer plain.Close()
	t.Setenv("STORAGE_EMULATOR_HOST", strings.TrimPrefix(plain.URL, "http://"))
	s := pullBucket(t, NewBuckets(t.TempDir(), plenty), BucketOrigin{Provider: "gcp", Bucket: "fleet"}, nil, nil)
	if read(t, s, "a.yaml") != "1" {
		t.Error("a file has other content")
	}
}

const (
	azureAccount = "fleet.blob.core.windows.net"
	azureLogin   = "login.microsoftonline.com"
)

// newAzure speaks the two calls of its storage, for those that allowed says may
// read, and gives out tokens.
func newAzure(t *testing.T, allowed func(r *http.Request) bool) *sky {
	c := newCloud(t, azureAccount, azureLogin, "login.microsoft.com")
	c.answers = func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.Host, "login.") {
			w.Header().Set("Content-Type", "application/json")
			_ = r.ParseForm()
			switch {
			case strings.HasSuffix(r.URL.Path, "/discovery/instance"):
				_, _ = io.WriteString(w, `{"tenant_discovery_endpoint":"https://login.microsoftonline.com/tenant/v2.0/.well-known/openid-configuration","metadata":[{"preferred_network":"login.microsoftonline.com","preferred_cache":"login.microsoftonline.com","aliases":["login.microsoftonline.com"]}]}`)
			case strings.HasSuffix(r.URL.Path, "/openid-configuration"):
				_, _ = io.WriteString(w, `{"token_endpoint":"https://login.microsoftonline.com/tenant/oauth2/v2.0/token","authorization_endpoint":"https://login.microsoftonline.com/tenant/oauth2/v2.0/authorize","issuer":"https://login.microsoftonline.com/tenant/v2.0"}`)
			case strings.HasSuffix(r.URL.Path, "/token") && r.Form.Get("client_id") == "client" && (r.Form.Get("client_secret") == "s3cret" || r.Form.Get("client_assertion") != ""):
				_, _ = io.WriteString(w, `{"access_token":"good","expires_in":3600,"token_type":"Bearer"}`)
			default:
				w.WriteHeader(http.StatusUnauthorized)
				_, _ = io.WriteString(w, `{"error":"invalid_client","error_description":"the s3cret is another one"}`)
			}
			return
		}
		if !allowed(r) {
			w.Header().Set("x-ms-error-code", "AuthenticationFailed")
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, "<Error><Code>AuthenticationFailed</Code><Message>"+r.URL.String()+"</Message></Error>")
			return
		}
		at := strings.TrimPrefix(r.URL.Path, "/fleet")
		q := r.URL.Query()
		switch {
		case !strings.HasPrefix(r.URL.Path, "/fleet"):
			w.Header().Set("x-ms-error-code", "ContainerNotFound")
			w.WriteHeader(http.StatusNotFound)
		case q.Get("comp") == "list":
			var list strings.Builder
			next := ""
			for _, key := range slices.Sorted(maps.Keys(c.files)) {
				if !strings.HasPrefix(key, q.Get("prefix")) || key <= q.Get("marker") {
					continue
				}
				if list.Len() > 0 {
					break
				}
				var name strings.Builder
				_ = xml.EscapeText(&name, []byte(key))
				fmt.Fprintf(&list, "<Blob><Name>%s</Name><Properties><Etag>%s</Etag><Content-Length>%d</Content-Length></Properties></Blob>", &name, c.etag(key), len(c.files[key]))
				next = key
			}
			w.Header().Set("Content-Type", "application/xml")
			_, _ = fmt.Fprintf(w, `<?xml version="1.0"?><EnumerationResults><Blobs>%s</Blobs><NextMarker>%s</NextMarker></EnumerationResults>`, &list, next)
		default:
			key := strings.TrimPrefix(at, "/")
			content, ok := c.files[key]
			if !ok {
				w.Header().Set("x-ms-error-code", "BlobNotFound")
				w.WriteHeader(http.StatusNotFound)
				return
			}
			w.Header().Set("ETag", `"`+c.etag(key)+`"`)
			_, _ = io.WriteString(w, content)
		}
	}
	return c
}

func TestAzureBucket(t *testing.T) {
	c := newAzure(t, func(r *http.Request) bool { return r.URL.Query().Get("sig") == "s1gned" })
	c.files = map[string]string{"a.yaml": "1", "dir/b c.yaml": "2", ".sourceignore": "*.md\n", "x.md": "3"}
	o := BucketOrigin{Provider: "azure", Endpoint: "https://" + azureAccount, Bucket: "fleet", Proxy: c.proxy, Certificates: c.ca, Secret: map[string][]byte{"sasKey": []byte("?sv=1&sig=s1gned")}}
	b := NewBuckets(t.TempDir(), plenty)
	first := pullBucket(t, b, o, nil, nil)
	if diff := cmp.Diff([]string{".sourceignore", "a.yaml", "dir/b c.yaml"}, walk(t, first, "")); diff != "" {
		t.Errorf("files: -want, +got:\n%s", diff)
	}
	delete(c.files, "x.md")
	// Flux's revision has the ETags of the answers, which are in quotes.
	if first.Revision != c.revision(`"%s"`) || read(t, first, "dir/b c.yaml") != "2" {
		t.Errorf("revision %s, want %s", first.Revision, c.revision(`"%s"`))
	}
	c.asked("")
	if again := pullBucket(t, b, o, nil, first); again != first {
		t.Error("an unchanged bucket is another snapshot")
	}
	if n := c.asked("/a.yaml"); n != 0 {
		t.Errorf("%d requests for an object that is known", n)
	}
	c.files["a.yaml"] = "later"
	next := pullBucket(t, b, o, nil, first)
	if read(t, next, "a.yaml") != "later" || next.Revision != c.revision(`"%s"`) {
		t.Errorf("revision %s, want %s", next.Revision, c.revision(`"%s"`))
	}
	if n := c.asked("b%20c"); n != 0 {
		t.Errorf("%d requests for an object that stayed", n)
	}
}

func TestAzureCredentials(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certificate := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})) + string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	account := base64.StdEncoding.EncodeToString([]byte("s3cret"))
	for name, tc := range map[string]struct {
		reason   string
		secret   map[string]string
		endpoint string
		bucket   string
		fails    string
		says     string
	}{
		"Secret":      {"an app with a password", map[string]string{"tenantId": "tenant", "clientId": "client", "clientSecret": "s3cret"}, "", "fleet", "", ""},
		"Certificate": {"an app with a certificate", map[string]string{"tenantId": "tenant", "clientId": "client", "clientCertificate": certificate, "clientCertificateSendChain": "true"}, "", "fleet", "", ""},
		"Authority":   {"another place to ask", map[string]string{"tenantId": "tenant", "clientId": "client", "clientSecret": "s3cret", "authorityHost": "https://" + azureLogin}, "", "fleet", "", ""},
		"Account":     {"the key of the account", map[string]string{"accountKey": account}, "", "fleet", "", ""},
		"SAS":         {"a signed query", map[string]string{"sasKey": "sv=1&sig=s1gned"}, "", "fleet", "", ""},
		"InURL":       {"a signed query in the URL stays", map[string]string{"sasKey": "sv=1"}, "https://" + azureAccount + "/?sig=s1gned", "fleet", "", ""},
		"Wrong":       {"another password", map[string]string{"tenantId": "tenant", "clientId": "client", "clientSecret": "s3cret2"}, "", "fleet", ReasonAuthenticationFailed, "token"},
		"WrongSAS":    {"another signature", map[string]string{"sasKey": "sv=1&sig=s3cret"}, "", "fleet", ReasonBucketFailed, "spec.secretRef"},
		"BrokenKey":   {"a key that is none", map[string]string{"accountKey": "s3cret!"}, "", "fleet", ReasonAuthenticationFailed, "base64"},
		"BrokenCert":  {"a certificate that is none", map[string]string{"tenantId": "tenant", "clientId": "client", "clientCertificate": "s3cret"}, "", "fleet", ReasonAuthenticationFailed, "clientCertificate"},
		"BrokenSAS":   {"a query that is none", map[string]string{"sasKey": "%s3cret"}, "", "fleet", ReasonAuthenticationFailed, "sasKey"},
		"Empty":       {"nothing of use", map[string]string{"x": "s3cret"}, "", "fleet", ReasonAuthenticationFailed, "accountKey"},
		"NoAccount":   {"no account in the URL", map[string]string{"accountKey": account}, "https://localhost", "fleet", ReasonAuthenticationFailed, "account"},
		"URL":         {"no URL", map[string]string{"accountKey": account}, "x", "fleet", ReasonURLInvalid, "spec.endpoint"},
		"Bucket":      {"there is no such container", map[string]string{"sasKey": "sv=1&sig=s1gned"}, "", "other", ReasonBucketFailed, "bucket not found"},
		"Anonymous":   {"nobody", nil, "", "fleet", ReasonBucketFailed, "spec.secretRef"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newAzure(t, func(r *http.Request) bool {
				auth := r.Header.Get("Authorization")
				return auth == "Bearer good" || strings.HasPrefix(auth, "SharedKey fleet:") || r.URL.Query().Get("sig") == "s1gned"
			})
			c.files = map[string]string{"a.yaml": "1"}
			o := BucketOrigin{Provider: "azure", Endpoint: "https://" + azureAccount, Bucket: tc.bucket, Proxy: c.proxy, Certificates: c.ca}
			if tc.endpoint != "" {
				o.Endpoint = tc.endpoint
			}
			if tc.secret != nil {
				o.Secret = map[string][]byte{}
				for k, v := range tc.secret {
					o.Secret[k] = []byte(v)
				}
			}
			s, err := NewBuckets(t.TempDir(), plenty).Fetch(t.Context(), o, nil, nil)
			if (err != nil) != (tc.fails != "") || (err != nil && (ReasonOf(err) != tc.fails || !strings.Contains(err.Error(), tc.says))) {
				t.Fatalf("%s: Fetch() = %v (%s), want %s %q", tc.reason, err, ReasonOf(err), tc.fails, tc.says)
			}
			if err == nil && read(t, s, "a.yaml") != "1" {
				t.Errorf("%s: a file has other content", tc.reason)
			}
			if err != nil && (strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "s1gned") || strings.Contains(err.Error(), account)) {
				t.Errorf("%s: the credential is in %v", tc.reason, err)
			}
		})
	}
}

// TestAmazonKeysLapse: what is open for long goes on with the keys that come after its first ones, also when the
// context that it was opened with has ended.
func TestAmazonKeysLapse(t *testing.T) {
	given := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		given++
		lapses := time.Now().Add(time.Duration(given*given) * 3 * time.Minute) // the first ones at once, as the library takes 5 minutes off
		_, _ = fmt.Fprintf(w, `{"AccessKeyId":"keys-%d","SecretAccessKey":"s","Token":"t","Expiration":%q}`, given, lapses.UTC().Format(time.RFC3339))
	}))
	defer server.Close()
	for name, value := range map[string]string{
		"AWS_CONTAINER_CREDENTIALS_FULL_URI": server.URL, "AWS_REGION": "eu-central-1", "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "",
		"AWS_PROFILE": "", "AWS_WEB_IDENTITY_TOKEN_FILE": "", "AWS_CA_BUNDLE": "", "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
	} {
		t.Setenv(name, value)
	}
	ctx, cancel := context.WithCancel(t.Context())
	o, err := BucketOrigin{Provider: "aws", Endpoint: "s3.eu-central-1.amazonaws.com", Bucket: "fleet"}.Objects(ctx, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	cancel()
	for range 3 {
		got, err := o.in.(*s3).core.GetCreds()
		if err != nil || got.AccessKeyID != "keys-2" || given != 2 {
			t.Errorf("the keys are %q (%v), of %d that were given, want those that are good, once", got.AccessKeyID, err, given)
		}
	}
	given = 0
	t.Setenv("AWS_ACCESS_KEY_ID", "keys-for-good")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "s")
	if o, err = (BucketOrigin{Provider: "aws", Endpoint: "s3.eu-central-1.amazonaws.com", Bucket: "fleet"}).Objects(t.Context(), 1<<20); err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if got, err := o.in.(*s3).core.GetCreds(); err != nil || got.AccessKeyID != "keys-for-good" {
		t.Errorf("the keys are %q (%v), want those of the environment", got.AccessKeyID, err)
	}
}
