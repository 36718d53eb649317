package rollout

import (
	"encoding/hex"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/version"
)

// Kinds of objects that a Rollout pins in clusters, and their groups.
const (
	gitRepository = "GitRepository"
	ociRepository = "OCIRepository"
	helmRelease   = "HelmRelease"
	sourceGroup   = "source.toolkit.fluxcd.io"
	helmGroup     = "helm.toolkit.fluxcd.io"
)

// Identify names an object as Rollouts do; false for one of a kind that no Rollout moves.
func Identify(u *unstructured.Unstructured) (v1alpha1.RolloutPinnedSource, bool) {
	is := v1alpha1.RolloutPinnedSource{Kind: u.GetKind(), Namespace: u.GetNamespace(), Name: u.GetName()}
	switch is.Kind {
	case gitRepository, ociRepository:
		return is, u.GroupVersionKind().Group == sourceGroup
	case helmRelease:
		return is, u.GroupVersionKind().Group == helmGroup
	}
	return is, false
}

// Content is a revision without the name by which it was found.
func Content(revision string) string { return revision[strings.LastIndex(revision, "@")+1:] }

// Commit is the commit of a revision of a GitRepository.
func Commit(revision string) (string, error) {
	algorithm, commit, ok := strings.Cut(Content(revision), ":")
	length := map[string]int{"sha1": 40, "sha256": 64}[algorithm]
	if _, err := hex.DecodeString(commit); !ok || err != nil || length == 0 || len(commit) != length {
		return "", fmt.Errorf("revision %q names no commit", revision)
	}
	return commit, nil
}

// Digest is the digest of a revision of an OCIRepository.
func Digest(revision string) (string, error) {
	digest := Content(revision)
	sum, ok := strings.CutPrefix(digest, "sha256:")
	if _, err := hex.DecodeString(sum); !ok || err != nil || len(sum) != 64 {
		return "", fmt.Errorf("revision %q names no digest of an image", revision)
	}
	return digest, nil
}

// ChartVersion is the version of a revision of a HelmChart. A part of a version would be a
// range of them.
func ChartVersion(revision string) (string, error) {
	if _, err := version.Parse(revision); err != nil {
		return "", fmt.Errorf("revision %q is no version of a chart: %w", revision, err)
	}
	return revision, nil
}

// IsChart reports whether a version is the one that is asked for. To ask for one without metadata is
// to ask for any build of it, as Helm does: a chart that was packaged with values files has lost the
// metadata of its repository. To ask for a build is to ask for that one.
func IsChart(version, asked string) bool {
	version, build, _ := strings.Cut(strings.TrimPrefix(version, "v"), "+")
	asked, wanted, _ := strings.Cut(strings.TrimPrefix(asked, "v"), "+")
	return version != "" && version == asked && (wanted == "" || wanted == build)
}

// Apply returns a copy of an object that is pinned to a revision. The object itself is not
// changed. The error says why the revision would have no effect, or another one.
func Apply(u *unstructured.Unstructured, revision string) (*unstructured.Unstructured, error) {
	pinned := u.DeepCopy()
	var err error
	switch u.GetKind() {
	case gitRepository:
		err = pinCommit(pinned, revision)
	case ociRepository:
		err = pinDigest(pinned, revision)
	case helmRelease:
		err = pinVersion(pinned, revision)
	default:
		err = fmt.Errorf("objects of kind %s have no revision", u.GetKind())
	}
	if err != nil {
		return nil, fmt.Errorf("cannot pin %s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
	}
	// The child reports these before all others.
	annotations := pinned.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.PinnedAnnotation] = "true"
	pinned.SetAnnotations(annotations)
	return pinned, nil
}

// pinCommit sets spec.ref.commit. Flux prefers a commit to all else in spec.ref, and takes
// the branch to be what has it. What else there was would only mislead who reads it.
func pinCommit(u *unstructured.Unstructured, revision string) error {
	commit, err := Commit(revision)
	if err != nil {
		return err
	}
	if mode, _, _ := unstructured.NestedString(u.Object, "spec", "verify", "mode"); mode == "Tag" || mode == "TagAndHEAD" {
		return fmt.Errorf("its spec.verify.mode is %s, and a commit has no tag; use mode HEAD", mode)
	}
	branch, _, err := unstructured.NestedString(u.Object, "spec", "ref", "branch")
	if err != nil {
		return err
	}
	if name, _, _ := unstructured.NestedString(u.Object, "spec", "ref", "name"); branch == "" {
		branch, _ = strings.CutPrefix(name, "refs/heads/")
		if branch == name {
			branch = ""
		}
	}
	ref := map[string]any{"commit": commit}
	if branch != "" {
		ref["branch"] = branch
	}
	return unstructured.SetNestedMap(u.Object, ref, "spec", "ref")
}

// pinDigest sets spec.ref.digest, which Flux prefers to a range of versions and a tag.
func pinDigest(u *unstructured.Unstructured, revision string) error {
	digest, err := Digest(revision)
	if err != nil {
		return err
	}
	return unstructured.SetNestedMap(u.Object, map[string]any{"digest": digest}, "spec", "ref")
}

// pinVersion sets the version of the chart, which counts only for charts of HelmRepositories.
func pinVersion(u *unstructured.Unstructured, revision string) error {
	version, err := ChartVersion(revision)
	if err != nil {
		return err
	}
	kind, found, err := unstructured.NestedString(u.Object, "spec", "chart", "spec", "sourceRef", "kind")
	switch {
	case err != nil:
		return err
	case !found:
		return fmt.Errorf("it has no spec.chart; let the Rollout move the source that spec.chartRef names")
	case kind != "HelmRepository":
		return fmt.Errorf("the version of a chart in a %s has no effect; let the Rollout move that", kind)
	}
	return unstructured.SetNestedField(u.Object, version, "spec", "chart", "spec", "version")
}
