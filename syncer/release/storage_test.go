package release

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/release/common"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	v2 "github.com/fluxcd/helm-controller/api/v2"
)

// TestHostileReleases: anybody who may write Secrets can write a release, and Helm reads it
// in goroutines where nothing catches a panic.
func TestHostileReleases(t *testing.T) {
	for name, tc := range map[string]struct{ reason, release string }{
		"Hooks": {"a hook is nothing", `{"name": "web", "version": 1, "info": {"status": "deployed"}, "hooks": [null, {"name": "pre"}]}`},
		"Files": {"parts of the chart are nothing", `{"name": "web", "version": 1, "chart": {"templates": [null], "files": [null]}, "hooks": [{"name": "pre"}]}`},
		"Bare":  {"nothing is known of it", `{"name": "web", "version": 1, "hooks": [{"name": "pre"}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			s := storageWith(t, tc.release)
			var wrote []*v2.Snapshot
			o := &observer{Driver: s.driver("apps"), wrote: func(rel *helmrelease.Release) {
				if rel.Chart != nil {
					rel.Chart.CRDObjects()
				}
				wrote = append(wrote, snapshotOf(rel, "", v2.ReleaseActionUpgrade))
			}}
			found, err := o.Query(map[string]string{"owner": "helm", "name": "web"})
			if err != nil || len(found) != 1 {
				t.Fatalf("%s: Query() = %v, %v", tc.reason, found, err)
			}
			rel, err := typed(o.Get(secretName("web", 1)))
			if err != nil {
				t.Fatalf("%s: Get() = %v", tc.reason, err)
			}
			for _, r := range []*helmrelease.Release{rel, found[0].(*helmrelease.Release)} {
				if r.Info == nil || len(r.Hooks) != 1 || r.Hooks[0] == nil {
					t.Errorf("%s: it has %v and hooks %v", tc.reason, r.Info, r.Hooks)
				}
				// What Helm does with the revision before the one that it has made.
				r.SetStatus(common.StatusSuperseded, "")
				if err := o.Update(secretName("web", 1), r); err != nil {
					t.Errorf("%s: Update() = %v", tc.reason, err)
				}
			}
			if _, err := o.Delete(secretName("web", 1)); err != nil || len(wrote) != 3 {
				t.Errorf("%s: %d were written, %v", tc.reason, len(wrote), err)
			}
		})
	}
}

// TestObserverSurvives: who looks at what is written fails by itself, not with the agent.
func TestObserverSurvives(t *testing.T) {
	o := &observer{Driver: driver.NewMemory(), wrote: func(*helmrelease.Release) { panic("never seen") }}
	if err := o.Create(secretName("web", 1), &helmrelease.Release{Name: "web", Version: 1, Info: &helmrelease.Info{}}); err == nil || !strings.Contains(err.Error(), "never seen") {
		t.Errorf("Create() = %v, want an error", err)
	}
}

// storageWith is a storage that has one revision, as it is written.
func storageWith(t *testing.T, release string) helmStore {
	t.Helper()
	var text bytes.Buffer
	z := gzip.NewWriter(&text)
	if _, err := z.Write([]byte(release)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	secret := corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Name: secretName("web", 1), Namespace: "apps"},
		Data: map[string][]byte{"release": []byte(base64.StdEncoding.EncodeToString(text.Bytes()))},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		var answer any = &secret
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/secrets") {
			answer = &corev1.SecretList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "SecretList"}, Items: []corev1.Secret{secret}}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(server.Close)
	clientset, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return helmStore{&session{clientset: clientset}}
}
