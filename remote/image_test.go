package remote

import (
	"errors"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// TestPinImage: what a layer's agents run follows from the layer, not from which version
// its parent has today.
func TestPinImage(t *testing.T) {
	const own = "cascade:v2"
	for _, c := range []struct {
		reason string
		agent  *v1alpha1.AgentSpec
		before string
		want   string
	}{
		{"a new layer that names none has the parent's", &v1alpha1.AgentSpec{}, "", own},
		{"the parent was upgraded since", &v1alpha1.AgentSpec{}, "cascade:v1", "cascade:v1"},
		{"a layer that names one has it", imaged("cascade:v3"), "cascade:v1", "cascade:v3"},
		{"one that does not name it any more keeps it", &v1alpha1.AgentSpec{}, "cascade:v3", "cascade:v3"},
		{"without an agent there is none", nil, "cascade:v1", ""},
	} {
		layer := &v1alpha1.Layer{}
		layer.Spec.Agent, layer.Status.AgentImage = c.agent, c.before
		pinImage(layer, own)
		if got := layer.Status.AgentImage; got != c.want {
			t.Errorf("%s: %q, want %q", c.reason, got, c.want)
		}
	}
}

func imaged(image string) *v1alpha1.AgentSpec {
	return &v1alpha1.AgentSpec{AgentValues: v1alpha1.AgentValues{Image: image}}
}

// TestImageOf: nothing is pushed with an image that is not on record, because another
// replica of the tier, of another version, might push another.
func TestImageOf(t *testing.T) {
	for _, c := range []struct {
		reason string
		agent  *v1alpha1.AgentSpec
		noted  string
		want   string
		err    error
	}{
		{"no agent", nil, "", "", nil},
		{"named", imaged("a"), "b", "a", nil},
		{"on record", &v1alpha1.AgentSpec{}, "b", "b", nil},
		{"just seen", &v1alpha1.AgentSpec{}, "", "", errNoImage},
	} {
		layer := &v1alpha1.Layer{}
		layer.Spec.Agent, layer.Status.AgentImage = c.agent, c.noted
		if got, err := imageOf(layer); got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %q, %v; want %q, %v", c.reason, got, err, c.want, c.err)
		}
	}
}

// TestParentBefore: agents of a later version wait for their parent, as far as versions are
// known.
func TestParentBefore(t *testing.T) {
	for _, c := range []struct {
		reason, image, own string
		held               bool
	}{
		{"a later release waits", "registry.example.com:5000/cascade:v1.3.0", "v1.2.9", true},
		{"so does a later pre-release", "cascade:1.3.0-rc.1", "v1.2.9", true},
		{"the digest beside a tag says nothing of the version", "cascade:v1.3.0@sha256:" + "00", "v1.2.9", true},
		{"the same release goes", "cascade:v1.3.0", "v1.3.0", false},
		{"how a release was built is no part of its version", "cascade:v1.3.0", "v1.3.0+dirty", false},
		{"an earlier release goes", "cascade:v1.2.0", "v1.3.0", false},
		{"a pre-release is before its release", "cascade:v1.3.0-rc.1", "v1.3.0", false},
		{"a digest alone is no version", "cascade@sha256:" + "00", "v1.2.9", false},
		{"the port of a registry is no tag", "registry.example.com:5000/cascade", "v1.2.9", false},
		{"a branch is no version", "cascade:main", "v1.2.9", false},
		{"part of a version is none", "cascade:v2", "v1.2.9", false},
		{"this program was built of a working tree", "cascade:v1.3.0", "devel", false},
		{"this program was built of a commit before any release", "cascade:v1.3.0", "v0.0.0-20260101000000-0123456789ab", false},
		{"a layer without an agent moves none", "", "v1.2.9", false},
	} {
		err := parentBefore(c.image, c.own)
		if (err != nil) != c.held || c.held && (reason.Of(err) != v1alpha1.ReasonParentOlder || !strings.Contains(err.Error(), "upgrade this tier to ")) {
			t.Errorf("%s: %s below %s: %v", c.reason, c.image, c.own, err)
		}
	}
}

// TestUpgradeMovesNoChild: with the same layer on record, a parent of another version makes
// the same Deployment.
func TestUpgradeMovesNoChild(t *testing.T) {
	var before, after manifest
	layer := layerOn("base")
	layer.Spec.Agent = &v1alpha1.AgentSpec{}
	digest := func(m *manifest, own string) string {
		pinImage(layer, own)
		image, err := imageOf(layer)
		if err != nil {
			t.Fatal(err)
		}
		made, err := m.of(t.Context(), layer, image)
		if err != nil {
			t.Fatal(err)
		}
		digest, err := digestOf([]apply.Phase{made.workload})
		if err != nil {
			t.Fatal(err)
		}
		return digest
	}
	if digest(&before, "cascade:v1") != digest(&after, "cascade:v2") {
		t.Error("the parent's own image decides what its children run")
	}
}

func TestImageNoted(t *testing.T) {
	old, noted := &v1alpha1.Layer{}, &v1alpha1.Layer{}
	noted.Status.AgentImage = "a"
	p := imageNoted()
	if !p.Update(event.UpdateEvent{ObjectOld: old, ObjectNew: noted}) || p.Update(event.UpdateEvent{ObjectOld: noted, ObjectNew: noted}) {
		t.Error("children are woken when the image is noted, and not by other writes of the status")
	}
}
