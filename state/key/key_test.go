package key_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"filippo.io/age"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/state/archive"
	"github.com/cascade-gitops/cascade/state/key"
)

func secret(t *testing.T) *archive.Snapshot {
	t.Helper()
	o := unstructured.Unstructured{Object: map[string]any{}}
	o.SetAPIVersion("v1")
	o.SetKind("Secret")
	o.SetName("a")
	return &archive.Snapshot{Objects: []unstructured.Unstructured{o}}
}

func TestAge(t *testing.T) {
	plain, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	hybrid, err := age.GenerateHybridIdentity()
	if err != nil {
		t.Fatal(err)
	}
	to, err := key.Recipients(t.Context(), plain.Recipient().String(), " "+plain.Recipient().String()+"\n")
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := archive.Seal(secret(t), to...)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := key.Identities(t.Context(), []byte("# created: today\n# public key: "+plain.Recipient().String()+"\n"+plain.String()+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := archive.Open(sealed, ids...); err != nil {
		t.Error(err)
	}
	if to, err = key.Recipients(t.Context(), hybrid.Recipient().String()); err != nil {
		t.Fatal(err)
	}
	if sealed, err = archive.Seal(secret(t), to...); err != nil {
		t.Fatal(err)
	}
	if ids, err = key.Identities(t.Context(), []byte(hybrid.String())); err != nil {
		t.Fatal(err)
	}
	if _, err := archive.Open(sealed, ids...); err != nil {
		t.Error(err)
	}
}

func TestRefused(t *testing.T) {
	private, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct{ reason, text, want string }{
		{"a private key would be written down where public ones are", private.String(), "private key"},
		{"it is nothing", "", "none of"},
		{"it is a service that nobody knows", "otherkms:x", "none of"},
		{"it is no ARN", "awskms:alias/x", "ARN"},
		{"it is no key of Google", "gcpkms:x", "projects/"},
		{"a version that is not named could be another one when the state is read", "azurekv:https://v.vault.azure.net/keys/k", "version"},
		{"it is no key of Vault", "hcvault:https://vault/v1/secret", "transit"},
	} {
		_, err := key.Recipients(t.Context(), row.text)
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: got %v", row.reason, err)
		}
		if strings.HasPrefix(row.text, "AGE-SECRET") && strings.Contains(err.Error(), row.text[20:]) {
			t.Error("the error has the private key")
		}
	}
	for _, row := range []struct{ reason, file, want string }{
		{"there is none", "# only a comment\n", "has none"},
		{"it is the public key", private.Recipient().String(), "public key"},
		{"it is cut", private.String()[:40], "line 1"},
		{"it is encrypted with a passphrase", "age-encryption.org/v1\n-> scrypt", "encrypted"},
	} {
		_, err := key.Identities(t.Context(), []byte(row.file))
		if err == nil || !strings.Contains(err.Error(), row.want) || strings.Contains(err.Error(), "AGE-SECRET-KEY-1") {
			t.Errorf("%s: got %v", row.reason, err)
		}
	}
}

// TestMixed: what age would refuse when the state is saved is refused when it is declared.
func TestMixed(t *testing.T) {
	plain, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	hybrid, err := age.GenerateHybridIdentity()
	if err != nil {
		t.Fatal(err)
	}
	pq, weak := hybrid.Recipient().String(), plain.Recipient().String()
	for name, tt := range map[string]struct {
		reason string
		texts  []string
		fails  bool
	}{
		"Hybrid":  {"each of them withstands the same", []string{pq, pq}, false},
		"Plain":   {"and here", []string{weak, "awskms:arn:aws:kms:eu-west-1:1:key/k"}, false},
		"Both":    {"the weaker one opens it", []string{pq, weak}, true},
		"Service": {"so does what a service wrapped", []string{"awskms:arn:aws:kms:eu-west-1:1:key/k", pq}, true},
	} {
		t.Run(name, func(t *testing.T) {
			to, err := key.Recipients(t.Context(), tt.texts...)
			if tt.fails != (err != nil) || err != nil && !strings.Contains(err.Error(), "age1pq1") {
				t.Fatalf("%s: got %v", tt.reason, err)
			}
			if err == nil && name != "Plain" { // that would call the service
				if _, err := archive.Seal(secret(t), to...); err != nil {
					t.Errorf("%s: %v", tt.reason, err)
				}
			}
		})
	}
}

// transit answers as the transit engine of Vault does (its API documentation, Encrypt Data
// and Decrypt Data), with a cipher that is none.
func transit(t *testing.T, refuse *bool) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in map[string]string
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			t.Errorf("cannot read what Vault is asked: %v", err)
		}
		if r.Header.Get("X-Vault-Token") != "a-token" || *refuse {
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(`{"errors":["permission denied"]}`))
			return
		}
		data := map[string]string{}
		switch {
		case strings.HasSuffix(r.URL.Path, "/v1/transit/encrypt/state"):
			data["ciphertext"] = "vault:v1:" + in["plaintext"]
		case strings.HasSuffix(r.URL.Path, "/v1/transit/decrypt/state"):
			data["plaintext"] = strings.TrimPrefix(in["ciphertext"], "vault:v1:")
			if _, err := base64.StdEncoding.DecodeString(data["plaintext"]); err != nil {
				t.Error(err)
			}
		default:
			t.Errorf("Vault is asked for %s", r.URL.Path)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"data": data})
	}))
	t.Cleanup(s.Close)
	return s
}

func TestService(t *testing.T) {
	refuse := false
	s := transit(t, &refuse)
	t.Setenv("VAULT_TOKEN", "a-token")
	name := "hcvault:" + s.URL + "/v1/transit/keys/state"
	person, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	to, err := key.Recipients(t.Context(), name, person.Recipient().String())
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := archive.Seal(secret(t), to...)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := key.Identities(t.Context(), []byte(name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := archive.Open(sealed, ids...); err != nil {
		t.Errorf("the service does not open it: %v", err)
	}
	if _, err := archive.Open(sealed, person); err != nil {
		t.Errorf("the person does not open it: %v", err)
	}
	other, err := key.Identities(t.Context(), []byte("hcvault:"+s.URL+"/v1/transit/keys/other"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := archive.Open(sealed, other...); !errors.Is(err, archive.ErrWrongKey) {
		t.Errorf("another key of the service is no wrong key: %v", err)
	}
	refuse = true
	if _, err := archive.Open(sealed, ids...); err == nil || errors.Is(err, archive.ErrWrongKey) || errors.Is(err, archive.ErrDamaged) {
		t.Errorf("a service that refuses is not said: %v", err)
	}
	if _, err := archive.Seal(secret(t), to...); err == nil {
		t.Error("the state was sealed without the service")
	}
}
