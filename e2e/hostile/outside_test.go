package hostile

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// canary is a text that only what is outside of all tenants has. Nobody may find it in
// an object.
const canary = "CANARY-5d1e77"

// password is what agents send to the servers of tenants. No other server may get it.
const password = "hunter2-5d1e77"

// vault is a namespace of nobody's, with a Secret.
const vault = "vault"

// outside is what is none of the tenants' business: a file, a directory beside it in
// which nothing may be written, a Secret of another namespace, and servers inside of the
// network.
type outside struct {
	// dir has the files canary and kustomization.yaml.
	dir string
	// inside is a server that nobody may ask.
	inside *listener
	// other is a server that may be asked, and may not get a credential.
	other *listener
}

// listener is a server that keeps what it was asked.
type listener struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string
	taken []string
}

func startListener() *listener {
	l := &listener{}
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.asked = append(l.asked, r.Method+" "+r.Host+r.URL.String()+" by "+r.UserAgent())
		for _, name := range []string{"Authorization", "Cookie", "X-Vault-Token", "Proxy-Authorization", "Private-Token"} {
			if text := r.Header.Get(name); text != "" {
				l.taken = append(l.taken, r.Method+" "+r.URL.String()+": "+name+": "+text)
			}
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"token": "t", "canary": canary}) // to who may have gone
	}))
	return l
}

// url of the server, by another name of the host, so that no library takes it for the
// same as a tenant's.
func (l *listener) url() string { return strings.Replace(l.URL, "127.0.0.1", "localhost", 1) }

func startOutside(t *testing.T) *outside {
	t.Helper()
	o := &outside{dir: t.TempDir(), inside: startListener(), other: startListener()}
	t.Cleanup(o.inside.Close)
	t.Cleanup(o.other.Close)
	for name, text := range map[string]string{"canary": "k: " + canary + "\n", "kustomization.yaml": "resources: [canary]\n", "Chart.yaml": "apiVersion: v2\nname: " + canary + "\nversion: 1.0.0\n"} {
		if err := os.WriteFile(filepath.Join(o.dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

// file is the path of the file, above is the same from anywhere.
func (o *outside) file() string { return filepath.Join(o.dir, "canary") }

func (o *outside) above(path string) string {
	return strings.Repeat("../", 24) + strings.TrimPrefix(path, "/")
}

// declare makes the Secret of nobody's.
func (o *outside) declare(t *testing.T, c client.Client) {
	t.Helper()
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: vault}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: vault, Name: "canary"}, StringData: map[string]string{"k": canary}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: vault, Name: "kept"}, Data: map[string]string{"k": "kept"}},
	} {
		if err := c.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
}

// untouched fails if anything was read, written or sent that is outside.
func (o *outside) untouched(t *testing.T, c client.Client) {
	t.Helper()
	entries, err := os.ReadDir(o.dir)
	if err != nil || len(entries) != 3 {
		t.Errorf("the directory outside has %v (%v), want what was in it", entries, err)
	}
	o.inside.mu.Lock()
	defer o.inside.mu.Unlock()
	for _, what := range o.inside.asked {
		t.Errorf("a server inside was asked: %s", what)
	}
	o.other.mu.Lock()
	defer o.other.mu.Unlock()
	for _, what := range o.other.taken {
		t.Errorf("another server was sent a credential: %s", what)
	}
	t.Logf("another server was asked %d times, without a credential", len(o.other.asked))
	kept := &corev1.ConfigMap{}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: vault, Name: "kept"}, kept); err != nil || kept.Data["k"] != "kept" {
		t.Errorf("an object of nobody's is %v (%v)", kept.Data, err)
	}
	configs, secrets := &corev1.ConfigMapList{}, &corev1.SecretList{}
	if err := c.List(t.Context(), configs); err != nil {
		t.Fatal(err)
	}
	if err := c.List(t.Context(), secrets); err != nil {
		t.Fatal(err)
	}
	found := func(namespace, name string, data any) {
		if text := fmt.Sprintf("%s", data); strings.Contains(text, canary) && namespace != vault || strings.Contains(text, "root:x:") {
			t.Errorf("%s/%s has what is outside: %.300s", namespace, name, text)
		}
	}
	for _, o := range configs.Items {
		found(o.Namespace, o.Name, o.Data)
	}
	for _, o := range secrets.Items {
		found(o.Namespace, o.Name, o.Data)
	}
}
