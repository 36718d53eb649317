package decrypt

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/fluxcd/pkg/auth"
	"github.com/getsops/sops/v3/azkv"
	"github.com/getsops/sops/v3/cmd/sops/formats"
	"github.com/getsops/sops/v3/gcpkms"
	"github.com/getsops/sops/v3/hcvault"
	sopskeys "github.com/getsops/sops/v3/keys"
	"github.com/getsops/sops/v3/kms"
	authnv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/syncer/render"
)

// cloudServer is a key service. It answers by path, and records what it was
// asked and with which credentials.
type cloudServer struct {
	*httptest.Server
	mu       sync.Mutex
	requests []string
}

func newCloud(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, body map[string]any)) *cloudServer {
	t.Helper()
	c := &cloudServer{}
	c.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		if r.Header.Get("Content-Type") != "application/x-www-form-urlencoded" {
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
				body = nil
			}
		}
		authorization, _, _ := strings.Cut(r.Header.Get("Authorization"), "/")
		c.mu.Lock()
		c.requests = append(c.requests, strings.Join([]string{r.Method, r.URL.Path, authorization + r.Header.Get("X-Vault-Token"), r.Header.Get("X-Amz-Target")}, " "))
		c.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		answer(w, r, body)
	}))
	t.Cleanup(c.Close)
	return c
}

// asked reports whether a request has these words.
func (c *cloudServer) asked(words ...string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.requests {
		all := true
		for _, w := range words {
			all = all && strings.Contains(r, w)
		}
		if all {
			return true
		}
	}
	return false
}

func write(w http.ResponseWriter, v any) {
	if err := json.NewEncoder(w).Encode(v); err != nil {
		panic(err)
	}
}

func check(t *testing.T, d *Decryptor, master sopskeys.MasterKey, want string) {
	t.Helper()
	got, err := d.File(t.Context(), "a.yaml", seal(t, formats.Yaml, "user: admin\n", master))
	if want == "" && (err != nil || string(got) != "user: admin\n") {
		t.Errorf("got %q, %v", got, err)
	}
	if want != "" && (err == nil || !strings.Contains(strings.Join(strings.Fields(strings.ReplaceAll(err.Error(), "|", " ")), " "), want)) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func vaultServer(t *testing.T) *cloudServer {
	return newCloud(t, func(w http.ResponseWriter, r *http.Request, body map[string]any) {
		switch {
		case r.URL.Path == "/v1/auth/kubernetes/login" && body["role"] == "apps_decryptor" && strings.Count(fmt.Sprint(body["jwt"]), ".") == 2:
			write(w, map[string]any{"auth": map[string]any{"client_token": "logged-in-token"}})
		case r.URL.Path == "/v1/transit/decrypt/fleet" && strings.HasSuffix(r.Header.Get("X-Vault-Token"), "-token") && body["ciphertext"] == "vault:v1:sealed":
			write(w, map[string]any{"data": map[string]any{"plaintext": base64.StdEncoding.EncodeToString(dataKey)}})
		default:
			w.WriteHeader(http.StatusForbidden)
			write(w, map[string]any{"errors": []string{"permission denied"}})
		}
	})
}

func vaultKey(address string) sopskeys.MasterKey {
	return &hcvault.MasterKey{VaultAddress: address, EnginePath: "transit", KeyName: "fleet", EncryptedKey: "vault:v1:sealed"}
}

func TestVault(t *testing.T) {
	t.Setenv("VAULT_TOKEN", "environment-token")
	s := vaultServer(t)
	t.Setenv("VAULT_ADDR", s.URL)
	token := map[string]string{vaultTokenKey: "secret-token\n", vaultAddressKey: s.URL + "/\n"}
	t.Run("Unnamed", func(t *testing.T) {
		// A file in Git names the server, and gets no token by that.
		for name, d := range map[string]*Decryptor{
			"nobody":   open(t, map[string]string{vaultTokenKey: "secret-token"}, Options{HTTP: s.Client()}),
			"another":  open(t, map[string]string{vaultTokenKey: "secret-token", vaultAddressKey: "https://vault.example.com"}, Options{HTTP: s.Client(), VaultAddresses: []string{s.URL}}),
			"operator": open(t, map[string]string{vaultTokenKey: "secret-token"}, Options{HTTP: s.Client(), VaultAddresses: []string{"https://vault.example.com"}}),
		} {
			check(t, d, vaultKey(s.URL), "CredentialRefused: cannot use a token for Vault "+s.URL)
			if len(s.requests) > 0 {
				t.Errorf("%s: server was asked %q", name, s.requests)
			}
		}
	})
	t.Run("Operator", func(t *testing.T) {
		// A Secret of Flux has a token alone.
		check(t, open(t, map[string]string{vaultTokenKey: "secret-token"}, Options{HTTP: s.Client(), VaultAddresses: []string{"https://vault.example.com", s.URL}}), vaultKey(s.URL), "")
	})
	t.Run("Secret", func(t *testing.T) {
		check(t, open(t, token, Options{HTTP: s.Client()}), vaultKey(s.URL), "")
		if !s.asked("PUT /v1/transit/decrypt/fleet secret-token") {
			t.Errorf("server was asked %q", s.requests)
		}
	})
	t.Run("Refused", func(t *testing.T) {
		check(t, open(t, map[string]string{vaultTokenKey: "wrong", vaultAddressKey: s.URL}, Options{HTTP: s.Client()}), vaultKey(s.URL), "permission denied")
	})
	t.Run("NoToken", func(t *testing.T) {
		// A repository names the server: the environment's token must not go there.
		check(t, open(t, nil, Options{HTTP: s.Client(), VaultAddresses: []string{s.URL}}), vaultKey(s.URL), "no Vault token is given")
		if s.asked("environment-token") {
			t.Errorf("the token of this process was sent: %q", s.requests)
		}
	})
	t.Run("Socket", func(t *testing.T) {
		d := open(t, token, Options{HTTP: s.Client()})
		check(t, d, vaultKey("unix:///var/run/docker.sock"), "it is not a URL of http or https")
		check(t, d, vaultKey(s.URL), "")
	})
	t.Run("Unreachable", func(t *testing.T) {
		d := open(t, token, Options{HTTP: s.Client()})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := d.File(ctx, "a.yaml", seal(t, formats.Yaml, "user: admin\n", vaultKey(s.URL))); err == nil || !strings.Contains(err.Error(), "context canceled") {
			t.Errorf("the caller's context does not end the call: %v", err)
		}
	})
	t.Run("Switched", func(t *testing.T) {
		// What follows this answer has no end, and no time limit reaches it.
		switches := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
				defer c.Close()
				_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
				_, _ = io.Copy(io.Discard, c) // until the client hangs up
			}
		}))
		defer switches.Close()
		check(t, open(t, map[string]string{vaultTokenKey: "secret-token", vaultAddressKey: switches.URL}, Options{}), vaultKey(switches.URL), "the server answers 101")
	})
	t.Run("ServiceAccount", func(t *testing.T) {
		servers := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "flux-system", Name: "vaults"},
			Data: map[string]string{"config.yaml": "instances: [{address: '" + s.URL + "', loginPath: auth/kubernetes/login}]"}}
		auth.EnableObjectLevelWorkloadIdentity()
		t.Cleanup(auth.DisableObjectLevelWorkloadIdentity)
		c, audiences := withTokens(t, "decryptor", servers)
		o := Options{HTTP: s.Client(), Client: c, ServiceAccount: "decryptor", VaultConfig: types.NamespacedName{Namespace: "flux-system", Name: "vaults"}}
		d, err := New(t.Context(), c, kustomization(""), o)
		if err != nil {
			t.Fatal(err)
		}
		check(t, d, vaultKey(s.URL), "")
		if len(*audiences) == 0 || (*audiences)[0] != s.URL {
			t.Errorf("the service account's token is for %q", *audiences)
		}
		check(t, d, vaultKey("https://127.0.0.1:1"), "no Vault login path configured for address 'https://127.0.0.1:1' in ConfigMap 'flux-system/vaults'")
	})
}

// withTokens is a client that creates tokens of a service account of namespace
// apps.
func withTokens(t *testing.T, account string, objects ...client.Object) (client.Client, *[]string) {
	t.Helper()
	audiences := &[]string{}
	objects = append(objects, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: account}})
	return fake.NewClientBuilder().WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		SubResourceCreate: func(_ context.Context, _ client.Client, name string, obj, sub client.Object, _ ...client.SubResourceCreateOption) error {
			request, ok := sub.(*authnv1.TokenRequest)
			if !ok || name != "token" {
				return fmt.Errorf("unexpected %s of %T", name, sub)
			}
			*audiences = append(*audiences, request.Spec.Audiences...)
			part := func(v string) string { return base64.RawURLEncoding.EncodeToString([]byte(v)) }
			request.Status.Token = strings.Join([]string{part(`{"alg":"none"}`),
				part(fmt.Sprintf(`{"sub":"system:serviceaccount:%s:%s","exp":%d}`, obj.GetNamespace(), obj.GetName(), time.Now().Add(time.Hour).Unix())), part("x")}, ".")
			request.Status.ExpirationTimestamp = metav1.NewTime(time.Now().Add(time.Hour))
			return nil
		},
	}).Build(), audiences
}

func TestAWS(t *testing.T) {
	s := newCloud(t, func(w http.ResponseWriter, r *http.Request, body map[string]any) {
		if r.Header.Get("X-Amz-Target") != "TrentService.Decrypt" || body["CiphertextBlob"] != base64.StdEncoding.EncodeToString([]byte("sealed")) {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		write(w, map[string]any{"Plaintext": base64.StdEncoding.EncodeToString(dataKey), "KeyId": body["KeyId"]})
	})
	t.Setenv("AWS_ENDPOINT_URL_KMS", s.URL)
	t.Setenv("AWS_CA_BUNDLE", "")
	t.Setenv("AWS_CONFIG_FILE", "/nonexistent")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
	key := func(arn string) sopskeys.MasterKey {
		return &kms.MasterKey{Arn: arn, EncryptedKey: base64.StdEncoding.EncodeToString([]byte("sealed")), AwsProfile: "a-profile-of-this-process"}
	}
	const arn = "arn:aws:kms:eu-west-1:107501996527:key/612d5f0a-0000-0000-0000-000000000000"
	secret := map[string]string{awsKey: "aws_access_key_id: AKIATEST\naws_secret_access_key: hidden-hidden-hidden-hidden\n"}
	d := open(t, secret, Options{HTTP: s.Client()})
	check(t, d, key(arn), "")
	if !s.asked("POST / AWS4-HMAC-SHA256 Credential=AKIATEST", "TrentService.Decrypt") {
		t.Errorf("server was asked %q", s.requests)
	}
	check(t, d, key("not-an-arn"), "no valid ARN found")
	check(t, open(t, nil, Options{HTTP: s.Client()}), key(arn), "no credentials are given")
}

func TestAzure(t *testing.T) {
	var s *cloudServer
	s = newCloud(t, func(w http.ResponseWriter, r *http.Request, body map[string]any) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/v2.0/.well-known/openid-configuration"):
			at := s.URL + "/tenant"
			write(w, map[string]any{"token_endpoint": at + "/oauth2/v2.0/token", "authorization_endpoint": at + "/oauth2/v2.0/authorize", "issuer": at + "/v2.0", "jwks_uri": at + "/keys"})
		case strings.HasSuffix(r.URL.Path, "/oauth2/v2.0/token"):
			write(w, map[string]any{"access_token": "azure-token", "token_type": "Bearer", "expires_in": 3600})
		case r.Header.Get("Authorization") == "":
			w.Header().Set("WWW-Authenticate", `Bearer authorization="`+s.URL+`/tenant", resource="https://vault.azure.net"`)
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/keys/fleet/1/decrypt" && body["value"] == base64.RawURLEncoding.EncodeToString([]byte("sealed")):
			write(w, map[string]any{"kid": s.URL + "/keys/fleet/1", "value": base64.RawURLEncoding.EncodeToString(dataKey)})
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	})
	secret := map[string]string{azureKey: "tenantId: tenant\nclientId: id\nclientSecret: hidden-hidden-hidden-hidden\nauthorityHost: " + s.URL + "\n"}
	key := &azkv.MasterKey{VaultURL: s.URL, Name: "fleet", Version: "1", EncryptedKey: base64.RawURLEncoding.EncodeToString([]byte("sealed"))}
	o := Options{HTTP: s.Client(), azure: s.URL}
	d := open(t, secret, o)
	d.options.skipInstanceDiscovery = true
	check(t, d, key, "")
	if !s.asked("POST /keys/fleet/1/decrypt Bearer azure-token") {
		t.Errorf("server was asked %q", s.requests)
	}
	check(t, open(t, nil, o), key, "no credentials are given")
}

func TestAzureFile(t *testing.T) {
	text := "tenant: t\nappId: a\npassword: p\n"
	little, big := []byte{0xff, 0xfe}, []byte{0xfe, 0xff}
	for _, u := range utf16.Encode([]rune(text)) {
		little, big = append(little, byte(u), byte(u>>8)), append(big, byte(u>>8), byte(u))
	}
	for name, data := range map[string][]byte{"UTF-8": []byte(text), "BOM": append([]byte{0xef, 0xbb, 0xbf}, text...), "UTF-16LE": little, "UTF-16BE": big} {
		c, err := parseAzure(data)
		if err != nil || c.Tenant != "t" || c.Password != "p" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestGCP(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	const name = "projects/p/locations/global/keyRings/r/cryptoKeys/k"
	s := newCloud(t, func(w http.ResponseWriter, r *http.Request, body map[string]any) {
		switch {
		case r.URL.Path == "/token":
			write(w, map[string]any{"access_token": "google-token", "token_type": "Bearer", "expires_in": 3600})
		case r.URL.Path == "/v1/"+name+":decrypt" && r.Header.Get("Authorization") == "Bearer google-token" && body["ciphertext"] == base64.StdEncoding.EncodeToString([]byte("sealed")):
			write(w, map[string]any{"plaintext": base64.StdEncoding.EncodeToString(dataKey)})
		default:
			w.WriteHeader(http.StatusForbidden)
		}
	})
	account, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "x@p.iam.gserviceaccount.com", "private_key_id": "1", "token_uri": s.URL + "/token",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})),
	})
	if err != nil {
		t.Fatal(err)
	}
	master := &gcpkms.MasterKey{ResourceID: name, EncryptedKey: base64.StdEncoding.EncodeToString([]byte("sealed"))}
	o := Options{HTTP: s.Client(), gcp: s.URL}
	check(t, open(t, map[string]string{gcpKey: string(account) + "\n"}, o), master, "")
	check(t, open(t, nil, o), master, "no credentials are given")
}

// TestIdentityIsPermitted: the libraries of cloud providers clone the default
// transport, which the process denies to everybody else.
func TestIdentityIsPermitted(t *testing.T) {
	t.Setenv("PATH", os.Getenv("PATH"))
	before := http.DefaultTransport
	t.Cleanup(func() { http.DefaultTransport = before })
	if err := render.DenyNetwork(); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(s.Close)
	c, _ := withTokens(t, "decryptor")
	d := open(t, nil, Options{Client: c, ServiceAccount: "decryptor"})
	permitted, o, err := d.identity(t.Context(), "decrypt")
	if err != nil {
		t.Fatal(err)
	}
	var options auth.Options
	options.Apply(o...)
	if options.ServiceAccountName != "decryptor" || options.ServiceAccountNamespace != "apps" {
		t.Errorf("identity is %s/%s", options.ServiceAccountNamespace, options.ServiceAccountName)
	}
	for ctx, want := range map[context.Context]bool{permitted: true, t.Context(): false} {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := options.GetHTTPClient().Do(request)
		if (err == nil) != want {
			t.Errorf("permitted %t: %v", want, err)
		}
		if err == nil {
			response.Body.Close()
		}
	}
}
