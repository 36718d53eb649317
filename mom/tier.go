package mom

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/layout"
)

// Tier is where Git declares a tier.
type Tier struct {
	// Repository is its address without any login, which may be another person's.
	Repository string `json:"repository,omitempty"`
	// Branch is empty where an earlier program wrote it down.
	Branch string `json:"branch,omitempty"`
	Path   string `json:"path,omitempty"`
}

// tierAt is what a path of a branch declares.
func tierAt(address, branch, path string) Tier {
	if u, err := url.Parse(address); err == nil {
		u.User = nil
		address = u.String()
	}
	return Tier{Repository: address, Branch: branch, Path: path}
}

func (t Tier) String() string {
	if t.Branch == "" {
		return fmt.Sprintf("path %s of %s", t.Path, t.Repository)
	}
	return fmt.Sprintf("path %s, branch %s, of %s", t.Path, t.Branch, t.Repository)
}

// is reports whether both are one tier. Its repository may be read by another protocol, and its
// branch may not be known. Branches may be environments.
func (t Tier) is(other Tier) bool {
	return t.Path == other.Path && (t.Branch == other.Branch || t.Branch == "" || other.Branch == "") && layout.SamePlace(t.Repository, other.Repository)
}

// tier is the one that the cluster is of, which was of before when it was told to sync to. A
// path that is not there, or a repository that nobody can read, is no tier: it may be a slip,
// and its correction is no other tier; nor is a path without objects. Where nothing was applied
// before, the first object counts, which the inventory has before the cluster does. A move is over when
// all is applied from there, though what is to be deleted may wait for a person.
func (f Facts) tier(before, to Tier) Tier {
	source, sync := f.root()
	if source == nil || sync == nil {
		return before
	}
	some := sync.Status.Inventory != nil && len(sync.Status.Inventory.Entries) > 0
	if some && (before == Tier{} || f.current() && notReady(source.Object) == "" && isApplied(sync)) {
		return to
	}
	return before
}

// isApplied reports whether all that a Kustomization declares is applied.
func isApplied(sync *kustomizev1.Kustomization) bool {
	c := meta.FindStatusCondition(sync.Status.Conditions, v1alpha1.ReadyCondition)
	return notReady(sync) == "" || c != nil && c.ObservedGeneration >= sync.Generation && c.Reason == v1alpha1.ReasonPruneBlocked
}

// branch is the one from which all was applied last, or from which it was tried if all never was; it is
// empty where neither is known. What the cluster was told last may be a slip.
func (f Facts) branch() string {
	_, sync := f.root()
	if sync == nil {
		return ""
	}
	revision := cmp.Or(sync.Status.LastAppliedRevision, sync.Status.LastAttemptedRevision)
	return revision[:max(0, strings.LastIndex(revision, "@"))]
}

// declared is the tier that the cluster was told to sync last.
func (f Facts) declared() Tier {
	source, sync := f.root()
	if source == nil || sync == nil {
		return Tier{}
	}
	path, err := layout.Clean(sync.Spec.Path)
	git, ok := source.Object.(*sourcev1.GitRepository)
	if err != nil || !ok {
		return Tier{}
	}
	branch := ""
	if git.Spec.Reference != nil {
		branch = git.Spec.Reference.Branch
	}
	return tierAt(git.Spec.URL, branch, path)
}
