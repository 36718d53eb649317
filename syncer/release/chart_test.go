package release

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
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

// TestCapabilities: a chart that looks at what the cluster is and serves sees what that is now,
// wherever it looks from. The others see it after a while.
func TestCapabilities(t *testing.T) {
	const text = "{{ .Capabilities.APIVersions.Has \"example.com/v1\" }}"
	file := func(name string) []*common.File { return []*common.File{{Name: name, Data: []byte(text)}} }
	parent := &chart.Chart{Metadata: &chart.Metadata{Name: "web"}}
	parent.SetDependencies(&chart.Chart{Metadata: &chart.Metadata{Name: "db"}, Files: file("alerts.yaml")})
	requires := &chart.Chart{Metadata: &chart.Metadata{Name: "web", KubeVersion: ">=1.34.0-0"}}
	above := &chart.Chart{Metadata: &chart.Metadata{Name: "above"}}
	above.SetDependencies(requires)
	for name, tc := range map[string]struct {
		reason string
		chart  *chart.Chart
		values map[string]any
		after  time.Duration
		// want is what is served now, and version what the API server is now.
		want, version bool
	}{
		"Template":   {"it asks itself", &chart.Chart{Templates: file("templates/x.yaml")}, nil, 0, true, true},
		"File":       {"a file may be given to tpl", &chart.Chart{Files: file("files/x.yaml")}, nil, 0, true, true},
		"Dependency": {"so may one of a subchart", parent, nil, 0, true, true},
		"Value":      {"and a value", &chart.Chart{}, map[string]any{"a": []any{text}}, 0, true, true},
		"Default":    {"of the chart, too", &chart.Chart{Values: map[string]any{"a": text}}, nil, 0, true, true},
		"Requires":   {"it is not for all versions", requires, nil, time.Minute, false, true},
		"Above":      {"nor is a chart in it", above, nil, time.Minute, false, true},
		"Neither":    {"it does not look", &chart.Chart{}, nil, time.Minute, false, false},
		"Later":      {"what was served is not for ever", &chart.Chart{}, nil, versionHolds + time.Second, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			served := &fakediscovery.FakeDiscovery{Fake: &clienttesting.Fake{}, FakedServerVersion: &version.Info{GitVersion: "v1.33.0"}}
			served.Resources = []*metav1.APIResourceList{{GroupVersion: "v1"}}
			s := &session{discovery: served}
			if _, err := s.capabilities(t.Context(), &chart.Chart{}, nil, at); err != nil {
				t.Fatal(err)
			}
			served.Resources = append(served.Resources, &metav1.APIResourceList{GroupVersion: "example.com/v1"})
			served.FakedServerVersion = &version.Info{GitVersion: "v1.34.0"}
			got, err := s.capabilities(t.Context(), tc.chart, tc.values, at.Add(tc.after))
			if err != nil || got.APIVersions.Has("example.com/v1") != tc.want {
				t.Fatalf("%s: %v, %v", tc.reason, got, err)
			}
			if now := got.KubeVersion.Version == "v1.34.0"; now != tc.version {
				t.Errorf("%s: it is %s", tc.reason, got.KubeVersion.Version)
			}
		})
	}
}

// TestQuestion: releases of one session ask an API server, a second after each other. It takes
// a minute for each answer.
func TestQuestion(t *testing.T) {
	hangs := errors.New("no answer")
	type asks struct {
		anew  bool
		gives time.Duration
		// after how many seconds from the begin it has what, or how it failed.
		after time.Duration
		got   int
		err   error
	}
	for name, tc := range map[string]struct {
		reason string
		err    error
		asks   []asks
		times  int
	}{
		"Shared":  {"one asks for all", nil, []asks{{after: 60, got: 1}, {after: 60, got: 1}, {after: 60, got: 1}}, 1},
		"Failed":  {"a server that hangs costs each one timeout", hangs, []asks{{after: 60, err: hangs}, {after: 60, err: hangs}, {after: 60, err: hangs}}, 1},
		"Leaves":  {"nobody waits for longer than there is time", nil, []asks{{after: 60, got: 1}, {gives: 9, after: 10, err: context.DeadlineExceeded}}, 1},
		"GaveUp":  {"who had no time says nothing of the server", nil, []asks{{gives: 10, after: 10, err: context.DeadlineExceeded}, {after: 70, got: 2}, {after: 70, got: 2}}, 2},
		"Anew":    {"what was asked before does not count, for all who came meanwhile", nil, []asks{{anew: true, after: 60, got: 1}, {anew: true, after: 120, got: 2}, {anew: true, after: 120, got: 2}, {after: 60, got: 1}}, 2},
		"AnewBad": {"but a failure does", hangs, []asks{{anew: true, after: 60, err: hangs}, {anew: true, after: 60, err: hangs}}, 1},
		"Later":   {"the next attempt asks again", hangs, []asks{{gives: 3600, after: 60, err: hangs}, 61: {after: 121, err: hangs}}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var q question[int]
				var all sync.WaitGroup
				begin, times := time.Now(), 0
				for n, a := range tc.asks {
					if a.after == 0 {
						continue
					}
					all.Go(func() {
						time.Sleep(time.Duration(n) * time.Second)
						ctx := t.Context()
						if a.gives > 0 {
							var cancel func()
							ctx, cancel = context.WithTimeout(ctx, a.gives*time.Second)
							defer cancel()
						}
						got, err := q.answer(ctx, time.Now(), a.anew, func() (int, error) {
							times++
							mine := times
							select {
							case <-time.After(time.Minute):
								return mine, tc.err
							case <-ctx.Done():
								return 0, ctx.Err()
							}
						})
						if after := time.Since(begin); !errors.Is(err, a.err) || err == nil && got != a.got || after != a.after*time.Second {
							t.Errorf("%s: number %d has %d, %v after %s; want %d, %v after %s", tc.reason, n, got, err, after, a.got, a.err, a.after*time.Second)
						}
					})
				}
				all.Wait()
				if times != tc.times {
					t.Errorf("%s: it was asked %d times, want %d", tc.reason, times, tc.times)
				}
			})
		})
	}
}

// impatient is discovery that ends its caller's context, after which groups are missing.
type impatient struct {
	*fakediscovery.FakeDiscovery
	end func()
}

func (i impatient) ServerGroupsAndResourcesWithContext(context.Context) ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	i.end()
	return nil, []*metav1.APIResourceList{{GroupVersion: "v1"}}, &discovery.ErrGroupDiscoveryFailed{}
}

// TestCapabilitiesWithin: discovery ends with its caller, and what there was no time for is
// not taken for missing.
func TestCapabilitiesWithin(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	served := &fakediscovery.FakeDiscovery{Fake: &clienttesting.Fake{}, FakedServerVersion: &version.Info{GitVersion: "v1.33.0"}}
	s := &session{discovery: impatient{served, cancel}}
	if got, err := s.capabilities(ctx, &chart.Chart{}, nil, at); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", got, err)
	}
}
