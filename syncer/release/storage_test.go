package release

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/release/common"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
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
			s, _ := storageWith(t, "deployed", tc.release)
			var wrote []*v2.Snapshot
			o := &observer{Driver: s.driver(t.Context(), "apps"), wrote: func(rel *helmrelease.Release) {
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

// TestBoundedReleases: what a few kilobytes of a tenant expand to is read into this process.
func TestBoundedReleases(t *testing.T) {
	of := func(version int, more string) string {
		return fmt.Sprintf(`{"name": "web", "version": %d, "info": {"status": "deployed"}%s}`, version, more)
	}
	large := `, "manifest": "` + strings.Repeat("m", 60<<20) + `"`
	dense := func(n int) string { return `, "chart": {"templates": [` + strings.Repeat("{},", n) + `{}]}` }
	for name, tc := range map[string]struct {
		reason string
		// stored are revisions, from the first on, with the status that their labels have: the last is that of
		// all others.
		stored []string
		status string
		// got is an error of Get of the newest, queried one of Query, which has read so many.
		got, queried string
		read         int32
	}{
		"Dense":    {"an empty object takes a hundred bytes", []string{of(1, dense(1_000_000))}, "failed", "nodes", "nodes", 1},
		"Text":     {"what is in a string is no more than that", []string{of(1, `, "manifest": "\"\\\"`+strings.Repeat("{},", 1_000_000)+`"`)}, "failed", "", "", 1},
		"Deployed": {"Helm takes all that are deployed for the one before", []string{of(1, large), of(2, large), of(3, large)}, "deployed", "", "128 MiB", 3},
		"Nodes":    {"those may be dense as well", []string{of(1, dense(400_000)), of(2, dense(400_000)), of(3, dense(400_000))}, "deployed", "", "nodes", 3},
		"Old":      {"of the others it needs nothing", []string{of(1, `, "manifest": "m"`), of(2, large), of(3, dense(1_000_000)), of(4, "")}, "superseded", "", "", 1},
		"Listed":   {"all together may be more than an answer may have", []string{of(1, ""), of(2, ""), of(3, ""), of(4, ""), of(5, "")}, "superseded superseded deployed superseded failed", "", "", 2},
	} {
		t.Run(name, func(t *testing.T) {
			s, gets := storageWith(t, tc.status, tc.stored...)
			d := s.driver(t.Context(), "apps")
			failsAs := func(err error, want string) bool {
				return (err != nil) == (want != "") && (err == nil || strings.Contains(err.Error(), want))
			}
			if _, err := d.Get(secretName("web", len(tc.stored))); !failsAs(err, tc.got) {
				t.Errorf("%s: Get() = %v, want %q", tc.reason, err, tc.got)
			}
			gets.Store(0)
			found, err := d.Query(map[string]string{"owner": "helm", "name": "web"})
			if !failsAs(err, tc.queried) || gets.Load() != tc.read {
				t.Fatalf("%s: Query() = %v after %d were read, want %q after %d", tc.reason, err, gets.Load(), tc.queried, tc.read)
			}
			if err == nil && len(found) != len(tc.stored) {
				t.Errorf("%s: %d revisions, want %d", tc.reason, len(found), len(tc.stored))
			}
			for i, rel := range found {
				r := rel.(*helmrelease.Release)
				if r.Name != "web" || r.Version != i+1 || i+1 < len(found) && (r.Info.Status.String() != statusAt(tc.status, i) || r.Manifest != "") {
					t.Errorf("%s: revision %d is %s, version %d, %s, with %d bytes", tc.reason, i+1, r.Name, r.Version, r.Info.Status, len(r.Manifest))
				}
			}
		})
	}
}

// statusAt is the status of one of some revisions. The last is that of all others.
func statusAt(status string, i int) string {
	all := strings.Fields(status)
	return all[min(i, len(all)-1)]
}

// storageWith is a storage that has revisions, as they are written, from the first on. Their labels
// have the status (statusAt). It counts how many were read. A list has their metadata only.
func storageWith(t *testing.T, status string, releases ...string) (s helmStore, gets *atomic.Int32) {
	t.Helper()
	var stored []corev1.Secret
	listed := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}}
	for i, release := range releases {
		var text bytes.Buffer
		z, err := gzip.NewWriterLevel(&text, gzip.BestSpeed)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := z.Write([]byte(release)); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		about := metav1.ObjectMeta{
			Name: secretName("web", i+1), Namespace: "apps",
			Labels: map[string]string{"owner": "helm", "name": "web", "version": strconv.Itoa(i + 1), "status": statusAt(status, i)},
		}
		stored = append(stored, corev1.Secret{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: about,
			Data: map[string][]byte{"release": []byte(base64.StdEncoding.EncodeToString(text.Bytes()))},
		})
		listed.Items = append(listed.Items, metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}, ObjectMeta: about,
		})
	}
	gets = &atomic.Int32{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, name, one := strings.Cut(r.URL.Path, "/secrets/")
		i := slices.IndexFunc(stored, func(s corev1.Secret) bool { return s.Name == name })
		switch {
		case one && i < 0:
			w.WriteHeader(http.StatusNotFound)
		case one:
			gets.Add(1)
			_ = json.NewEncoder(w).Encode(&stored[i])
		case strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList"):
			_ = json.NewEncoder(w).Encode(listed)
		default:
			http.Error(w, "whole Secrets are listed", http.StatusInternalServerError)
		}
	}))
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL}
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	metadataClient, err := metadata.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return helmStore{session: &session{clientset: clientset, metadata: metadataClient}}, gets
}

// listed is a storage of which the revisions are known.
type listed struct {
	store
	*fakeWorld
}

func (l listed) revisions(ctx context.Context, namespace, name string) ([]revision, error) {
	return l.fakeWorld.revisions(ctx, namespace, name)
}

func (l listed) read(ctx context.Context, namespace, name string, version int) (*helmrelease.Release, error) {
	return l.store.read(ctx, namespace, name, version)
}

// TestReadEnds: who reads one revision after the other from an API server that hangs ends with the reconcile.
func TestReadEnds(t *testing.T) {
	ends := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-ends }))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(ends) })
	const most = 10 * time.Second
	clientset, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, Timeout: most})
	if err != nil {
		t.Fatal(err)
	}
	obj, m := inSync(t)
	m.manifest = strings.ReplaceAll(manifestOf(named("ConfigMap", "settings")), "namespace: apps}",
		"namespace: apps, labels: {"+ownerName+": web, "+ownerNamespace+": apps}}")
	for range 2 {
		m.add("web", "apps", &chart.Metadata{Name: "web", Version: "2.0.0"}, wanted.Values, common.StatusFailed)
	}
	n := m.newRun(obj, wanted)
	n.store = listed{helmStore{session: &session{clientset: clientset, metadata: metadata.NewForConfigOrDie(&rest.Config{Host: server.URL})}}, m}
	found, err := n.store.revisions(t.Context(), "apps", "web")
	if err != nil {
		t.Fatal(err)
	}
	newest := m.stored[len(m.stored)-1]
	for name, read := range map[string]func(context.Context) error{
		"Former": func(ctx context.Context) error { _, err := n.former(ctx, "old"); return err },
		"CutOff": func(ctx context.Context) error { _, err := n.isCutOff(ctx, found, newest); return err },
		"Undone": func(ctx context.Context) error { _, err := n.undoneIn(ctx, found, newest); return err },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			begin := time.Now()
			if err := read(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > most/2 {
				t.Errorf("after %s: %v", time.Since(begin), err)
			}
		})
	}
}
