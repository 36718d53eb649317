package remote

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// readApprovals reads the tags that approve waves of the run, which are on its commit, and tells which one was read last if
// there are more.
func (x *exchange) readApprovals(ctx context.Context, o *v1alpha1.Rollout, from source.Key, before *exchanged) (approvals []rollout.Approval, refused rollout.Hold, last string) {
	run := o.Status.Run
	if run == nil || !rollout.Active(run) {
		return nil, rollout.Hold{}, ""
	}
	commit, err := rollout.Commit(run.Revision)
	if err != nil {
		return nil, rollout.Hold{}, ""
	}
	waits := func(wave string) bool {
		return (wave == rollout.End || slices.ContainsFunc(run.Terms.Waves, func(w v1alpha1.RolloutWave) bool { return w.Name == wave })) &&
			!slices.ContainsFunc(run.Approvals, func(a v1alpha1.RolloutApproval) bool { return a.Wave == wave })
	}
	prefix := rollout.ApprovalPrefix(o)
	tags, err := x.Repositories.Tags(ctx, from.NamespacedName, func(commits map[string]string) []string {
		var names []string
		for reference, on := range commits {
			if on == commit && waits(rollout.ApprovedWave(prefix, strings.TrimPrefix(reference, "refs/tags/"))) && strings.HasPrefix(reference, "refs/tags/") {
				names = append(names, reference)
			}
		}
		if names = rollout.InTurn(run, prefix, names, before.approved(), before.lastRead(), source.MostTags); len(names) > source.MostTags {
			last = names[source.MostTags-1]
		}
		return names
	})
	if err != nil { // those that were read approve beside one that cannot be
		refused = rollout.Hold{Reason: v1alpha1.ReasonTagsUnreadable, Message: short(fmt.Sprintf("cannot read the tags of GitRepository %s: %v", from.NamespacedName, err))}
	}
	if len(tags) == 0 {
		return nil, refused, last
	}
	secret := types.NamespacedName{Namespace: o.Namespace, Name: o.Spec.ApprovalTags.SecretRef.Name}
	keys, err := x.Repositories.Keys(ctx, secret)
	if err != nil {
		return nil, rollout.Hold{Reason: v1alpha1.ReasonTagRefused, Message: short(err.Error())}, last
	}
	for i := range tags {
		tag := &tags[i]
		key, err := tag.Verify(keys)
		if err == nil && tag.Reference != "refs/tags/"+tag.Name {
			// Who can write tags could give one that was signed for something else another name.
			err = fmt.Errorf("the tag that %s points to was signed as %.100q", tag.Reference, tag.Name)
		}
		if err != nil {
			refused = rollout.Hold{Reason: v1alpha1.ReasonTagRefused, Message: short(fmt.Sprintf("%s approves nothing: %v", tag.Reference, err))}
			continue
		}
		approvals = append(approvals, rollout.Approval{Wave: rollout.ApprovedWave(prefix, tag.Name), Revision: tag.Commit, By: tag.Tagger, Tag: tag.Name, Key: short(key)})
	}
	return approvals, refused, last
}

// approved are the tags that approved, by their references: one of each wave.
func (e *exchanged) approved() []string {
	if e == nil {
		return nil
	}
	var references, waves []string
	for _, a := range e.approvals {
		if !slices.Contains(waves, a.Wave) {
			references, waves = append(references, "refs/tags/"+a.Tag), append(waves, a.Wave)
		}
	}
	return references
}

func (e *exchanged) lastRead() string {
	if e == nil {
		return ""
	}
	return e.last
}
