package forecast

import (
	"context"
	"fmt"

	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/syncer/fetch"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// fetch gets a commit from the clone, or from the repository as the agent does.
func (f *forecast) fetch(ctx context.Context, commit string) (*source.Snapshot, error) {
	spec := f.repository.Spec
	options := source.Options{Ignore: spec.Ignore, SparseCheckout: spec.SparseCheckout, Submodules: spec.RecurseSubmodules}
	local := f.Clone != nil && f.Clone.Has(commit)
	var origin source.Origin
	if !local || options.Submodules {
		var err error
		if origin, err = fetch.OriginOf(ctx, f.cluster, f.Logins, f.repository); err != nil {
			return nil, fmt.Errorf("cannot fetch commit %s: %w", commit, err)
		}
	}
	if local {
		snapshot, err := f.Mirrors.FromClone(ctx, f.Clone, commit, origin, options)
		if err != nil {
			return nil, fmt.Errorf("cannot read commit %s: %w", commit, err)
		}
		return snapshot, nil
	}
	branch := ""
	if spec.Reference != nil {
		branch = spec.Reference.Branch
	}
	snapshot, err := f.Mirrors.Fetch(ctx, origin, source.Reference{Branch: branch, Commit: commit}, options, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot fetch commit %s from %s: %w", commit, source.PublicURL(spec.URL), err)
	}
	return snapshot, nil
}

// revision is the content of the source at a revision, as a status names it.
func (f *forecast) revision(ctx context.Context, revision string) (*source.Snapshot, error) {
	commit, err := rollout.Commit(revision)
	if err != nil {
		return nil, err
	}
	return f.at(ctx, commit)
}
