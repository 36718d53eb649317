package release

import (
	"testing"
	"time"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/release/common"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	"sigs.k8s.io/yaml"
)

var at = time.Date(2026, 11, 20, 10, 30, 0, 123456789, time.UTC)

// fullRelease has something in every field that a digest is taken of.
func fullRelease() *helmrelease.Release {
	return &helmrelease.Release{
		Name: "web", Namespace: "apps", Version: 3,
		Info: &helmrelease.Info{FirstDeployed: at, LastDeployed: at.Add(time.Hour), Status: common.StatusDeployed, Description: "Upgrade complete", Notes: "Hello <b>"},
		Chart: &chart.Chart{Metadata: &chart.Metadata{
			Name: "web", Version: "1.2.3+abc", AppVersion: "2.0", APIVersion: "v2", Type: "application", KubeVersion: ">=1.25",
			Dependencies: []*chart.Dependency{{Name: "redis", Version: "1.x", Repository: "https://example.com", Condition: "redis.enabled", Enabled: true}},
			Maintainers:  []*chart.Maintainer{{Name: "a", Email: "a@example.com"}}, Annotations: map[string]string{"b": "2", "a": "1"},
		}},
		Config:   map[string]any{"replicas": float64(2), "image": map[string]any{"tag": "v1", "pull": nil}, "list": []any{"b", "a", true}},
		Manifest: "---\n# Source: web/templates/cm.yaml\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: web\n",
		Hooks: []*helmrelease.Hook{
			{
				Name: "pre", Kind: "Job", Path: "web/templates/pre.yaml", Manifest: "kind: Job", Events: []helmrelease.HookEvent{helmrelease.HookPreInstall}, Weight: -5,
				DeletePolicies: []helmrelease.HookDeletePolicy{helmrelease.HookSucceeded},
				LastRun:        helmrelease.HookExecution{StartedAt: at, CompletedAt: at.Add(time.Second), Phase: helmrelease.HookPhaseSucceeded},
			},
			{
				Name: "test", Kind: "Pod", Path: "web/templates/test.yaml", Manifest: "kind: Pod", Events: []helmrelease.HookEvent{helmrelease.HookTest},
				LastRun: helmrelease.HookExecution{StartedAt: at, CompletedAt: at.Add(time.Minute), Phase: helmrelease.HookPhaseFailed},
			},
		},
		Labels: map[string]string{"x": "y"}, ApplyMethod: "ssa",
	}
}

const noValues = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// TestDigests: what is wanted was recorded from helm-controller v1.6.4 itself, its
// internal/release run on the same releases. One other byte, and a takeover
// upgrades every release of the fleet.
func TestDigests(t *testing.T) {
	for name, tc := range map[string]struct {
		reason            string
		rel               *helmrelease.Release
		want, oci, config string
	}{
		"Full": {
			"every field, and a test hook that does not count", fullRelease(),
			"sha256:bfd6cdd3758d13e403f64f7ae76ba9da0a7f0ffb443e4578c5d248c0d74c61f6",
			"sha256:bb3b41bd997040a36914792a01f7fccaf2e5ee4b119577c1922105b8e09045a9",
			"sha256:450cc205976d3462bb08413c117a20576422df5a8d9543903339b6bb8ec5838b",
		},
		"Bare": {
			"empty values and no hooks are null",
			&helmrelease.Release{
				Name: "bare", Namespace: "default", Version: 1, Info: &helmrelease.Info{Status: common.StatusFailed},
				Chart: &chart.Chart{Metadata: &chart.Metadata{Name: "bare", Version: "0.1.0"}}, Config: map[string]any{},
			},
			"sha256:485aa1ec01b703f71dc3ebf9e999451882fc61209f4ee25834c3f58db568397c",
			"sha256:e52e0ec8f997ab8e67e7f37cd5cdeb7c03c644f1f834586d2b1d021ce4f78510", noValues,
		},
		"Tests": {
			"with nothing but tests there are no hooks",
			&helmrelease.Release{
				Name: "t", Namespace: "default", Version: 2, Info: &helmrelease.Info{Deleted: at, Status: common.StatusUninstalled},
				Hooks: []*helmrelease.Hook{{Name: "test", Events: []helmrelease.HookEvent{helmrelease.HookTest, helmrelease.HookPreDelete}}},
			},
			"sha256:df19d43f9a51531a68ceeabce29e004230dab09334610caa567f0c2b8c1dc175",
			"sha256:60db1e0e65e08d4f8922b3ad8af3091b0d73b1bfe07a79ff8547adcac6ed638c", noValues,
		},
		"Empty": {
			"whatever somebody wrote into the storage", &helmrelease.Release{},
			"sha256:0da23c004e090c98d205022a010948883905f15d430559719ec4f8d094abeabb",
			"sha256:32725b7235726cbc38be1acb832050c8e83e04b9c0924484c2eecfb15bcae56b", noValues,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshotOf(tc.rel, "", "")
			if s.Digest != tc.want || s.ConfigDigest != tc.config {
				t.Errorf("%s\nsnapshotOf() has digest %s and config %s, want %s and %s", tc.reason, s.Digest, s.ConfigDigest, tc.want, tc.config)
			}
			if got := snapshotOf(tc.rel, "sha256:0123", "").Digest; got != tc.oci {
				t.Errorf("%s\nas an OCI artifact: digest %s, want %s", tc.reason, got, tc.oci)
			}
			if err := verify(s, tc.rel); err != nil {
				t.Errorf("%s\nverify() of its own snapshot: %v", tc.reason, err)
			}
			changed := *tc.rel
			changed.Version++
			if err := verify(s, &changed); err != errNotObserved {
				t.Errorf("%s\nverify() of another revision: %v, want %v", tc.reason, err, errNotObserved)
			}
		})
	}
}

func TestSnapshot(t *testing.T) {
	s := snapshotOf(fullRelease(), "sha256:0123", v2.ReleaseActionUpgrade)
	s.SetTestHooks(testHooks(fullRelease(), nil))
	got, err := yaml.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	const want = `action: upgrade
apiVersion: v2
appVersion: "2.0"
chartName: web
chartVersion: 1.2.3+abc
configDigest: sha256:450cc205976d3462bb08413c117a20576422df5a8d9543903339b6bb8ec5838b
deleted: null
digest: sha256:bb3b41bd997040a36914792a01f7fccaf2e5ee4b119577c1922105b8e09045a9
firstDeployed: "2026-11-20T10:30:00Z"
lastDeployed: "2026-11-20T11:30:00Z"
name: web
namespace: apps
ociDigest: sha256:0123
status: deployed
testHooks:
  test:
    lastCompleted: "2026-11-20T10:31:00Z"
    lastStarted: "2026-11-20T10:30:00Z"
    phase: Failed
version: 3
`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("snapshot: -want, +got:\n%s", diff)
	}
}

func TestVerifyOlder(t *testing.T) {
	rel := fullRelease()
	for name, tc := range map[string]struct {
		reason string
		record v2.Snapshot
		want   error
	}{
		"NoVersion":  {"a record of before digests were taken like this says nothing", v2.Snapshot{Digest: "sha256:" + noValues[7:]}, nil},
		"NoDigest":   {"a record without a digest is no record", v2.Snapshot{APIVersion: "v2", Digest: "nonsense"}, errDigest},
		"OtherSum":   {"the algorithm is the recorded one's (--snapshot-digest-algo)", v2.Snapshot{APIVersion: "v2", Digest: releaseDigest(digest.SHA512, rel, "").String()}, nil},
		"NotTheSame": {"somebody changed the release", v2.Snapshot{APIVersion: "v2", Digest: noValues}, errNotObserved},
	} {
		t.Run(name, func(t *testing.T) {
			if err := verify(&tc.record, rel); err != tc.want {
				t.Errorf("%s\nverify() = %v, want %v", tc.reason, err, tc.want)
			}
		})
	}
}

// TestPartDigests: recorded from helm-controller v1.6.4 like the others.
func TestPartDigests(t *testing.T) {
	obj := &v2.HelmRelease{}
	if postRenderersDigest(obj) != "" || commonMetadataDigest(obj) != "" {
		t.Error("without post renderers and metadata there is no digest")
	}
	obj.Spec.PostRenderers = []v2.PostRenderer{{Kustomize: &v2.Kustomize{
		Patches: []kustomize.Patch{{Patch: "- op: add\n", Target: &kustomize.Selector{Kind: "Deployment"}}},
		Images:  []kustomize.Image{{Name: "web", NewTag: "v2"}},
	}}, {}}
	obj.Spec.CommonMetadata = &v2.CommonMetadata{Labels: map[string]string{"b": "2", "a": "<1>"}, Annotations: map[string]string{"c": "3"}}
	if got, want := postRenderersDigest(obj), "sha256:cd6ca109b8e7fadb9743e88d89b87b8e6fab11ee6151fed37fec1824ab2899ec"; got != want {
		t.Errorf("postRenderersDigest() = %s, want %s", got, want)
	}
	if got, want := commonMetadataDigest(obj), "sha256:a77a4ee951a094d8ab39ab39dbec9dfa2ddf218f1ebd7bb3e1bf276a117ee1b3"; got != want {
		t.Errorf("commonMetadataDigest() = %s, want %s", got, want)
	}
	obj.Spec.PostRenderers, obj.Spec.CommonMetadata = []v2.PostRenderer{}, &v2.CommonMetadata{}
	if got, want := postRenderersDigest(obj), "sha256:37517e5f3dc66819f61f5a7bb8ace1921282415f10551d2defa5c3eb0985b570"; got != want {
		t.Errorf("of an empty list: postRenderersDigest() = %s, want %s", got, want)
	}
	if got, want := commonMetadataDigest(obj), "sha256:ca3d163bab055381827226140568f3bef7eaac187cebd76878e0b63e9e442356"; got != want {
		t.Errorf("of empty metadata: commonMetadataDigest() = %s, want %s", got, want)
	}
}

func TestConfigDigest(t *testing.T) {
	for _, tc := range []struct {
		reason string
		values map[string]any
		want   string
	}{
		{"no values", nil, noValues},
		{"empty values are none", map[string]any{}, noValues},
		{"a number of YAML", map[string]any{"a": float64(1)}, "sha256:37b128c59f1f5097f73f82691cb519f1f568667faab5ced1b4ab979d36837eae"},
		{"a number of Go", map[string]any{"a": int64(1)}, "sha256:37b128c59f1f5097f73f82691cb519f1f568667faab5ced1b4ab979d36837eae"},
		{"nested, in another order", map[string]any{"b": []any{map[string]any{"z": 1, "a": "x"}}, "a": map[string]any{"n": nil, "t": true, "f": 1.5}},
			"sha256:9fcd0e3b20d139bb40d6ee2c0a0e59ac93cc20cf9daef8bc6dfc5c82bbacd50e"},
	} {
		if got := ConfigDigest(tc.values).String(); got != tc.want {
			t.Errorf("%s: ConfigDigest() = %s, want %s", tc.reason, got, tc.want)
		}
	}
}

func TestShortName(t *testing.T) {
	for in, want := range map[string]string{
		"short": "short",
		"release-name-that-is-exactly-fifty-three-characters-x":              "release-name-that-is-exactly-fifty-three-characters-x",
		"some-front-appended-namespace-release-with-a-name-that-is-too-long": "some-front-appended-namespace-release-wi-935b944e261b",
	} {
		if got := ShortName(in); got != want {
			t.Errorf("ShortName(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestTestFilters(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		filters []v2.Filter
		want    bool
	}{
		"None":         {"without filters every test counts", nil, true},
		"Included":     {"it is named", []v2.Filter{{Name: "other"}, {Name: "test"}}, true},
		"OthersOnly":   {"others are named", []v2.Filter{{Name: "other"}}, false},
		"Excluded":     {"it is excluded, wherever else it is named", []v2.Filter{{Name: "test"}, {Name: "test", Exclude: true}}, false},
		"OtherExclude": {"another is excluded", []v2.Filter{{Name: "other", Exclude: true}}, true},
	} {
		if got := selected("test", tc.filters); got != tc.want {
			t.Errorf("%s: %s: selected() = %t", name, tc.reason, got)
		}
	}
}
