package credentials

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

const rootToken = "root-of-the-test"

// server is a Vault that ends with the test. It keeps what it knows in its memory.
type server struct {
	url string
	cmd *exec.Cmd
}

func startVault(t *testing.T) *server {
	t.Helper()
	address := scenario.FreeAddress(t)
	dir := t.TempDir()
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(scenario.Path(t, "bin", "vault"), "server", "-dev", "-dev-no-store-token", "-dev-root-token-id="+rootToken,
		"-dev-listen-address="+address, "-dev-plugin-dir="+scenario.Path(t, "bin", "vault-plugins"), "-log-level=warn")
	cmd.Env = append(os.Environ(), "HOME="+dir, "VAULT_DISABLE_MLOCK=true")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &server{"http://" + address, cmd}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // by a signal, as it was told
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("log of Vault:\n%s", text)
		}
	})
	scenario.Eventually(t, scenario.Converge, "Vault answers", func(ctx context.Context) error {
		_, err := s.call(ctx, http.MethodGet, "sys/health", nil)
		return err
	})
	return s
}

// stop makes Vault answer nothing until it goes on.
func (s *server) stop(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
}

func (s *server) goOn(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// call calls Vault as root. A path that is not there answers nil.
func (s *server) call(ctx context.Context, method, path string, body any) (map[string]any, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, s.url+"/v1/"+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	request.Header.Set("X-Vault-Token", rootToken)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode == http.StatusNotFound {
		return nil, nil
	}
	if response.StatusCode >= 300 {
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, response.Status, answer)
	}
	found := map[string]any{}
	if len(answer) == 0 {
		return found, nil
	}
	return found, json.Unmarshal(answer, &found)
}

func (s *server) do(t *testing.T, method, path string, body any) map[string]any {
	t.Helper()
	answer, err := s.call(t.Context(), method, path, body)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// setUp mounts the engines: certificates for real, and accounts of AWS at a stand-in.
func (s *server) setUp(t *testing.T, lease time.Duration, iam string) {
	t.Helper()
	s.do(t, http.MethodPost, "sys/mounts/pki", map[string]any{"type": "pki"})
	s.do(t, http.MethodPost, "pki/root/generate/internal", map[string]any{"common_name": "Authority of the test", "ttl": "24h", "key_type": "ec", "key_bits": 256})
	s.do(t, http.MethodPost, "pki/roles/agents", map[string]any{
		"allow_any_name": true, "enforce_hostnames": false, "generate_lease": true, "ttl": lease.String(), "max_ttl": "1h", "key_type": "ec", "key_bits": 256,
	})
	if mounts := s.do(t, http.MethodGet, "sys/mounts", nil); mounts["aws/"] == nil { // -dev-plugin-dir mounts it by itself in some versions
		s.do(t, http.MethodPost, "sys/mounts/aws", map[string]any{"type": "aws"})
	}
	s.do(t, http.MethodPost, "aws/config/root", map[string]any{
		"access_key": "AKIATEST", "secret_key": "secret", "region": "us-east-1", "iam_endpoint": iam, "sts_endpoint": iam, "max_retries": 0,
	})
	s.do(t, http.MethodPost, "aws/config/lease", map[string]any{"lease": lease.String(), "lease_max": (5 * lease).String()})
	s.do(t, http.MethodPost, "aws/roles/capa", map[string]any{"credential_type": "iam_user", "policy_arns": "arn:aws:iam::aws:policy/ReadOnlyAccess"})
	s.do(t, http.MethodPut, "sys/policies/acl/credentials", map[string]any{
		"policy": `path "pki/issue/agents" { capabilities = ["create", "update"] } path "aws/creds/capa" { capabilities = ["read"] }`,
	})
}

// trust lets an account of a tier log in, by the keys with which its API server signs tokens.
func (s *server) trust(t *testing.T, tier *stage.Tier, mount, subject string) {
	t.Helper()
	config, err := tier.Config()
	if err != nil {
		t.Fatal(err)
	}
	s.do(t, http.MethodPost, "sys/auth/"+mount, map[string]any{"type": "jwt"})
	s.do(t, http.MethodPost, "auth/"+mount+"/config", map[string]any{"jwt_validation_pubkeys": signingKeys(t, config)})
	s.do(t, http.MethodPost, "auth/"+mount+"/role/cascade", map[string]any{
		"role_type": "jwt", "user_claim": "sub", "bound_audiences": []string{"vault"}, "bound_subject": subject, "token_policies": []string{"credentials"}, "token_ttl": "1h",
	})
}

// signingKeys are those of an API server, as it publishes them.
func signingKeys(t *testing.T, config *rest.Config) []string {
	t.Helper()
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	text, err := clients.RESTClient().Get().AbsPath("/openid/v1/jwks").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var set struct {
		Keys []struct{ Kty, Crv, X, Y string }
	}
	if err := json.Unmarshal(text, &set); err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, k := range set.Keys {
		x, xerr := base64.RawURLEncoding.DecodeString(k.X)
		y, yerr := base64.RawURLEncoding.DecodeString(k.Y)
		if k.Kty != "EC" || k.Crv != "P-256" || errors.Join(xerr, yerr) != nil {
			t.Fatalf("cannot read a key of kind %s %s", k.Kty, k.Crv)
		}
		public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), slices.Concat([]byte{4}, x, y))
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.MarshalPKIXPublicKey(public)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})))
	}
	return keys
}

// leases are those that Vault has below a path.
func (s *server) leases(ctx context.Context, path string) ([]string, error) {
	answer, err := s.call(ctx, "LIST", "sys/leases/lookup/"+path, nil)
	if err != nil || answer == nil {
		return nil, err
	}
	data, _ := answer["data"].(map[string]any)
	keys, _ := data["keys"].([]any)
	var ids []string
	for _, k := range keys {
		ids = append(ids, fmt.Sprint(k))
	}
	return ids, nil
}

// revoked reports whether Vault has revoked a certificate.
func (s *server) revoked(ctx context.Context, serial *big.Int) (bool, error) {
	text := fmt.Sprintf("%x", serial.Bytes())
	var parts []string
	for i := 0; i+1 < len(text); i += 2 {
		parts = append(parts, text[i:i+2])
	}
	answer, err := s.call(ctx, http.MethodGet, "pki/cert/"+strings.Join(parts, "-"), nil)
	if err != nil {
		return false, err
	}
	if answer == nil {
		return false, fmt.Errorf("Vault knows no certificate %s", text)
	}
	data, _ := answer["data"].(map[string]any)
	at, _ := data["revocation_time"].(float64)
	return at > 0, nil
}
