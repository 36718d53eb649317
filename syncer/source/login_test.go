package source_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/source/gitserver"
)

// deny does to the process what the agent does first of all, for one test.
func deny(t *testing.T) {
	t.Helper()
	old := http.DefaultTransport
	t.Setenv("PATH", os.Getenv("PATH")) // sets it back
	if err := render.DenyNetwork(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { http.DefaultTransport = old })
}

func logins(t *testing.T) *source.Logins {
	t.Helper()
	l, err := source.NewLogins(10, time.Hour, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func object() source.Key {
	return source.Key{Kind: "GitRepository", NamespacedName: types.NamespacedName{Namespace: "ns", Name: "fleet"}}
}

// TestGitHubApp: from the Secret of an app to a fetch, over HTTPS with a CA of
// one's own.
func TestGitHubApp(t *testing.T) {
	const token = "ghs-hidden-word"
	git, err := gitserver.Start(t.Context(), gitserver.Options{Root: t.TempDir(), Username: "x-access-token", Password: token, TLS: true})
	if err != nil {
		t.Fatal(err)
	}
	defer git.Close()
	if err := git.Create(t.Context(), "fleet"); err != nil {
		t.Fatal(err)
	}
	if _, err := git.Commit(t.Context(), "fleet", "main", "x", func(folder string) error {
		return os.WriteFile(folder+"/a.yaml", []byte("1"), 0o644)
	}); err != nil {
		t.Fatal(err)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	var minted atomic.Int32
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		claims := jwt.RegisteredClaims{}
		signed := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if _, err := jwt.ParseWithClaims(signed, &claims, func(*jwt.Token) (any, error) { return &key.PublicKey, nil }); err != nil || (claims.Issuer != "7" && claims.Issuer != "Iv1.client") {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"message": "bad credentials"}`)
			return
		}
		switch r.Method + " " + r.URL.Path {
		case "GET /api/v3/orgs/someone/installation":
			w.WriteHeader(http.StatusNotFound)
		case "GET /api/v3/users/someone/installation", "GET /api/v3/orgs/team/installation":
			_ = json.NewEncoder(w).Encode(map[string]any{"id": 42})
		case "POST /api/v3/app/installations/42/access_tokens":
			minted.Add(1)
			w.WriteHeader(http.StatusCreated)
			_ = json.NewEncoder(w).Encode(map[string]any{"token": token, "expires_at": time.Now().Add(time.Hour)})
		case "POST /api/v3/app/installations/43/access_tokens":
			http.Redirect(w, r, "https://127.0.0.2:1/", http.StatusTemporaryRedirect)
		default:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"message": "Not Found"}`)
		}
	}))
	defer api.Close()
	deny(t)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw})
	private := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	stranger := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(other)})
	secret := func(kv ...string) map[string][]byte {
		m := map[string][]byte{"githubAppID": []byte("7\n"), "githubAppInstallationID": []byte("42"), "githubAppPrivateKey": private, "githubAppBaseURL": []byte(api.URL + "/api/v3/"), "ca.crt": ca}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = []byte(kv[i+1])
			if kv[i+1] == "" {
				delete(m, kv[i])
			}
		}
		return m
	}
	for name, tc := range map[string]struct {
		reason string
		secret map[string][]byte
		fails  string
	}{
		"ID":           {"the ordinary case", secret(), ""},
		"ClientID":     {"an app by its client", secret("githubAppID", "", "githubAppClientID", "Iv1.client"), ""},
		"Organisation": {"the installation of an owner", secret("githubAppInstallationID", "", "githubAppInstallationOwner", "team"), ""},
		"User":         {"an owner that is a person", secret("githubAppInstallationID", "", "githubAppInstallationOwner", "someone"), ""},
		"Nobody":       {"an owner without an installation", secret("githubAppInstallationID", "", "githubAppInstallationOwner", "../../app"), source.ReasonAuthenticationFailed},
		"Unknown":      {"no such installation", secret("githubAppInstallationID", "9"), source.ReasonAuthenticationFailed},
		"OtherKey":     {"the key of another app", secret("githubAppPrivateKey", string(stranger)), source.ReasonAuthenticationFailed},
		"Redirect":     {"the request must not go to another host", secret("githubAppInstallationID", "43"), source.ReasonAuthenticationFailed},
		"NoCA":         {"a server that nobody vouches for", secret("ca.crt", ""), source.ReasonAuthenticationFailed},
		"NoID":         {"nothing says which app", secret("githubAppID", ""), source.ReasonInvalidProvider},
		"NoNumber":     {"an ID that is none", secret("githubAppID", "seven"), source.ReasonInvalidProvider},
		"Neither":      {"nothing says which installation", secret("githubAppInstallationID", ""), source.ReasonInvalidProvider},
		"Both":         {"two things do", secret("githubAppInstallationOwner", "team"), source.ReasonInvalidProvider},
		"NoKey":        {"a key that is none", secret("githubAppPrivateKey", "x"), source.ReasonInvalidProvider},
		"Query":        {"what is asked for would be a query, and the path anybody's choice", secret("githubAppBaseURL", api.URL+"/api/v3/?"), source.ReasonInvalidProvider},
		"Fragment":     {"it would not be asked for at all", secret("githubAppBaseURL", api.URL+"/api/v3/#x"), source.ReasonInvalidProvider},
		"BadURL":       {"a URL that is none", secret("githubAppBaseURL", "api.github.com"), source.ReasonInvalidProvider},
	} {
		t.Run(name, func(t *testing.T) {
			login, err := logins(t).GitHubApp(t.Context(), git.HTTPURL("fleet"), tc.secret, nil, nil)
			if (err == nil) != (tc.fails == "") || (err != nil && source.ReasonOf(err) != tc.fails) {
				t.Fatalf("%s\nGitHubApp() = %v, want reason %q", tc.reason, err, tc.fails)
			}
			if err != nil {
				if strings.Contains(err.Error(), "PRIVATE") || strings.Contains(err.Error(), "eyJ") {
					t.Errorf("%s\nthe error shows a credential: %v", tc.reason, err)
				}
				return
			}
			_, err = source.NewMirrors(t.TempDir(), 1<<20).Fetch(t.Context(), source.Origin{URL: git.HTTPURL("fleet"), Login: login, Secret: map[string][]byte{"ca.crt": git.CA()}}, source.Reference{Branch: "main"}, source.Options{}, nil)
			if err != nil {
				t.Errorf("%s\nFetch() with the token: %v", tc.reason, err)
			}
		})
	}
	l, entered := logins(t), make(chan struct{}, 1)
	minted.Store(0)
	for _, elsewhere := range []string{"https://git.example.com/x", strings.Replace(git.HTTPURL("fleet"), "https", "http", 1)} {
		if _, err := l.GitHubApp(t.Context(), elsewhere, secret(), nil, nil); source.ReasonOf(err) != source.ReasonCredentialRefused || minted.Load() != 0 {
			t.Errorf("for %s: GitHubApp() = %v, want reason %s", elsewhere, err, source.ReasonCredentialRefused)
		}
	}
	first, err := l.GitHubApp(t.Context(), git.HTTPURL("fleet"), secret(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	second, err := l.GitHubApp(t.Context(), git.HTTPURL("fleet"), secret(), nil, nil)
	if err != nil || minted.Load() != 1 || first.Identity != second.Identity {
		t.Errorf("%d tokens were minted, %v, want one for its life", minted.Load(), err)
	}
	if _, err := l.GitHubApp(t.Context(), git.HTTPURL("fleet"), secret("githubAppPrivateKey", string(stranger)), nil, nil); err == nil {
		t.Error("one without the private key got the token of another from the cache")
	}
	// A server that accepts and never answers holds those who need it, no longer than they have time.
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case entered <- struct{}{}:
		default:
		}
		<-r.Context().Done()
	}))
	defer silent.Close()
	hangs := secret("githubAppBaseURL", silent.URL)
	held, release := context.WithCancel(t.Context())
	var holder sync.WaitGroup
	holder.Go(func() {
		if _, err := l.GitHubApp(held, silent.URL+"/x", hangs, nil, nil); err == nil {
			t.Error("a server that does not answer gave a token")
		}
	})
	<-entered
	for name, other := range map[string]map[string][]byte{"known": secret(), "new": secret("githubAppInstallationID", "", "githubAppInstallationOwner", "team")} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if _, err := l.GitHubApp(ctx, git.HTTPURL("fleet"), other, nil, nil); err != nil {
			t.Errorf("%s: the server of another App holds it: %v", name, err)
		}
		cancel()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.GitHubApp(ctx, silent.URL+"/x", hangs, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("who has no time waits: %v", err)
	}
	release()
	holder.Wait()
}

// TestCloud gets tokens with the clouds' own libraries, in a process whose
// default transport is denied, as the agent's is.
func TestCloud(t *testing.T) {
	deny(t)
	var asked atomic.Int32
	metadata := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", "application/json")
		if strings.HasPrefix(r.URL.Path, "/aws") {
			_ = json.NewEncoder(w).Encode(map[string]any{"AccessKeyId": "AKIDEXAMPLE", "SecretAccessKey": "hidden-word", "Token": "session", "Expiration": time.Now().Add(time.Hour).UTC().Format(time.RFC3339)})
			return
		}
		if r.Header.Get("X-IDENTITY-HEADER") != "header" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": "azure-token", "expires_on": fmt.Sprint(time.Now().Add(time.Hour).Unix()), "resource": "r", "token_type": "Bearer"})
	}))
	defer metadata.Close()
	for _, name := range []string{"AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE", "AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_ROLE_ARN", "AWS_CA_BUNDLE", "AWS_WEB_IDENTITY_TOKEN_FILE", "HTTP_PROXY", "http_proxy"} {
		t.Setenv(name, "")
		_ = os.Unsetenv(name)
	}
	t.Setenv("IDENTITY_ENDPOINT", metadata.URL+"/azure")
	t.Setenv("IDENTITY_HEADER", "header")
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", metadata.URL+"/aws")
	t.Setenv("AWS_CONFIG_FILE", os.DevNull)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
	t.Setenv("AWS_REGION", "eu-west-1")
	l := logins(t)
	azure, err := l.Cloud(t.Context(), "azure", "https://dev.azure.com/org/project/_git/repo", "", source.Way{}, nil, object())
	if err != nil || azure.BearerToken != "azure-token" {
		t.Errorf("Cloud(azure) = %+v, %v", azure, err)
	}
	aws, err := l.Cloud(t.Context(), "aws", "https://git-codecommit.eu-west-1.amazonaws.com/v1/repos/x", "", source.Way{}, nil, object())
	if err != nil || aws.Username != "AKIDEXAMPLE%session" || aws.Password == "" {
		t.Errorf("Cloud(aws) = %+v, %v", aws, err)
	}
	before := asked.Load()
	if again, err := l.Cloud(t.Context(), "azure", "https://dev.azure.com/org/project/_git/repo", "", source.Way{}, nil, object()); err != nil || asked.Load() != before || again.Identity != azure.Identity {
		t.Errorf("the token is not kept: %d requests after %d, %v", asked.Load(), before, err)
	}
	// The proxy of an object is not asked for the login of the agent, which may be in plain text.
	var proxied atomic.Int32
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			proxied.Add(1)
		}
		w.WriteHeader(http.StatusBadGateway)
	}))
	defer proxy.Close()
	through, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	workload := &source.Workload{Logins: logins(t), Key: object()}
	for name, o := range map[string]source.BucketOrigin{
		"azure": {Provider: "azure", Endpoint: "https://fleet.blob.core.windows.net", Bucket: "fleet", Workload: workload},
		"node":  {Provider: "azure", Endpoint: "https://fleet.blob.core.windows.net", Bucket: "fleet", Secret: map[string][]byte{"clientId": []byte("x")}, Workload: workload},
		"aws":   {Provider: "aws", Endpoint: "s3.eu-west-1.amazonaws.com", Bucket: "fleet", Region: "eu-west-1", Workload: workload},
	} {
		o.Proxy = through
		was := asked.Load()
		_, err := source.NewBuckets(t.TempDir(), 1<<20).Fetch(t.Context(), o, nil, nil)
		if err == nil || proxied.Load() != 0 || asked.Load() == was {
			t.Errorf("Fetch(%s) by a proxy that does not connect = %v; %d requests went there, and %d to the cloud", name, err, proxied.Load(), asked.Load()-was)
		}
	}
	before = asked.Load()
	for provider, urls := range map[string][]string{
		"azure": {"https://git.example.com/x", "http://dev.azure.com/org/project/_git/repo", "https://dev.azure.com.example.com/x", "https://xdev.azure.com/x", "https://dev.azure.com@git.example.com/x"},
		"aws":   {"https://git.example.com/x", "https://git-codecommit.eu-west-1.amazonaws.com.example.com/x", "https://git-codecommit.s3-website.eu-west-1.amazonaws.com/x", "http://git-codecommit.eu-west-1.amazonaws.com/v1/repos/x"},
	} {
		for _, at := range urls {
			if _, err := l.Cloud(t.Context(), provider, at, "", source.Way{}, nil, object()); source.ReasonOf(err) != source.ReasonCredentialRefused || asked.Load() != before {
				t.Errorf("Cloud(%s, %s) = %v after %d requests, want reason %s and none", provider, at, err, asked.Load()-before, source.ReasonCredentialRefused)
			}
		}
	}
	for provider, at := range map[string]string{"azure": "oci://evil.example.com/x", "aws": "oci://evil.example.com/x", "gcp": "oci://gcr.io.example.com/x"} {
		if _, err := l.Registry(t.Context(), provider, at, "", source.Way{}, nil, object()); source.ReasonOf(err) != source.ReasonCredentialRefused || asked.Load() != before {
			t.Errorf("Registry(%s, %s) = %v, want reason %s", provider, at, err, source.ReasonCredentialRefused)
		}
	}
	if _, err := l.Cloud(t.Context(), "gcp", "https://x", "", source.Way{}, nil, object()); source.ReasonOf(err) != source.ReasonInvalidProvider {
		t.Errorf("Cloud(gcp) = %v, want reason %s", err, source.ReasonInvalidProvider)
	}
	// The default transport itself stays denied, also for a host that one of
	// the above is connected to.
	if res, err := http.Get(metadata.URL); err == nil {
		_ = res.Body.Close()
		t.Error("a request without the mark reached the network")
	}
	req, err := http.NewRequestWithContext(source.AllowNetwork(context.Background()), http.MethodGet, metadata.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("a request with the mark: %v", err)
	}
	_ = res.Body.Close()
	if res, err := http.Get(metadata.URL); err == nil {
		_ = res.Body.Close()
		t.Error("a request without the mark used the connection of one with it")
	}
}
