package release

import (
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery/cached/memory"
	fakediscovery "k8s.io/client-go/discovery/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestTrackedVersion(t *testing.T) {
	const sum = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for name, tc := range map[string]struct {
		reason            string
		version, revision string
		want, digest      string
		err               string
	}{
		"Tag":       {"the tag is the version", "1.2.3", "1.2.3@sha256:" + sum, "1.2.3+0123456789ab", "sha256:" + sum, ""},
		"Prefix":    {"people tag with a v", "1.2.3", "v1.2.3@sha256:" + sum, "1.2.3+0123456789ab", "sha256:" + sum, ""},
		"Metadata":  {"a registry allows no plus; what was there gives way to the digest", "1.2.3+build", "1.2.3_build@sha256:" + sum, "1.2.3+0123456789ab", "sha256:" + sum, ""},
		"Digest":    {"it was asked for by digest", "1.2.3", "sha256:" + sum, "1.2.3+0123456789ab", "sha256:" + sum, ""},
		"Latest":    {"a tag that is no version has too many parts for Flux, but a digest", "1.2.3", "latest@sha256:" + sum, "1.2.3+0123456789ab", "latest@sha256:" + sum, ""},
		"Mismatch":  {"the tag promises another version", "1.2.3", "1.2.4@sha256:" + sum, "", "", "does not match chart version 1.2.3"},
		"NoVersion": {"a chart has to have one", "one", "1.2.3@sha256:" + sum, "", "", "invalid chart version one"},
		"NoDigest":  {"there is nothing to tell artifacts apart by", "1.2.3", "abc", "", "", "invalid artifact revision abc"},
		"Short":     {"nor here", "1.2.3", "sha256:0123", "", "", "invalid artifact revision"},
		"Twice":     {"two digests are none", "1.2.3", "1.2.3@sha256:" + sum + "@sha256:" + sum, "", "", "does not match"},
	} {
		t.Run(name, func(t *testing.T) {
			got, digest, err := TrackedVersion(tc.version, tc.revision)
			if got != tc.want || digest != tc.digest || (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s\nTrackedVersion(%q, %q) = %q, %q, %v; want %q, %q, %q", tc.reason, tc.version, tc.revision, got, digest, err, tc.want, tc.digest, tc.err)
			}
		})
	}
}

// TestCapabilities: a chart that looks at what the cluster serves sees what is served now,
// wherever it looks from. The others see it after a while.
func TestCapabilities(t *testing.T) {
	const text = "{{ .Capabilities.APIVersions.Has \"example.com/v1\" }}"
	file := func(name string) []*common.File { return []*common.File{{Name: name, Data: []byte(text)}} }
	parent := &chart.Chart{Metadata: &chart.Metadata{Name: "web"}}
	parent.SetDependencies(&chart.Chart{Metadata: &chart.Metadata{Name: "db"}, Files: file("alerts.yaml")})
	for name, tc := range map[string]struct {
		reason string
		chart  *chart.Chart
		values map[string]any
		after  time.Duration
		want   bool
	}{
		"Template":   {"it asks itself", &chart.Chart{Templates: file("templates/x.yaml")}, nil, 0, true},
		"File":       {"a file may be given to tpl", &chart.Chart{Files: file("files/x.yaml")}, nil, 0, true},
		"Dependency": {"so may one of a subchart", parent, nil, 0, true},
		"Value":      {"and a value", &chart.Chart{}, map[string]any{"a": []any{text}}, 0, true},
		"Default":    {"of the chart, too", &chart.Chart{Values: map[string]any{"a": text}}, nil, 0, true},
		"Neither":    {"it does not look", &chart.Chart{}, nil, time.Minute, false},
		"Later":      {"what was served is not for ever", &chart.Chart{}, nil, versionHolds + time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			served := &fakediscovery.FakeDiscovery{Fake: &clienttesting.Fake{}, FakedServerVersion: &version.Info{GitVersion: "v1.33.0"}}
			served.Resources = []*metav1.APIResourceList{{GroupVersion: "v1"}}
			s := &session{discovery: memory.NewMemCacheClient(served)}
			if _, err := s.capabilities(&chart.Chart{}, nil, at); err != nil {
				t.Fatal(err)
			}
			served.Resources = append(served.Resources, &metav1.APIResourceList{GroupVersion: "example.com/v1"})
			got, err := s.capabilities(tc.chart, tc.values, at.Add(tc.after))
			if err != nil || got.APIVersions.Has("example.com/v1") != tc.want {
				t.Errorf("%s: %v, %v", tc.reason, got.APIVersions, err)
			}
		})
	}
}
