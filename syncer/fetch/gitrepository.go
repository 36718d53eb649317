package fetch

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/cascade-gitops/cascade/syncer/find"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/status"
	"github.com/cascade-gitops/cascade/syncer/wake"
)

// GitRepositories reconciles GitRepository objects into snapshots.
type GitRepositories struct {
	*Sources
	Mirrors *source.Mirrors
}

// SetupWithManager registers the reconciler.
func (r *GitRepositories) SetupWithManager(mgr ctrl.Manager, concurrent int) error {
	b, complete := r.setup(mgr, sourcev1.GitRepositoryKind, &sourcev1.GitRepository{}, r, concurrent)
	b.WatchesRawSource(ctrlsource.Func(r.onSnapshot))
	if r.Part.has(sourcev1.GitRepositoryKind) { // one that is included by now is followed
		b.Watches(&sourcev1.GitRepository{}, handler.EnqueueRequestsFromMapFunc(includedBy), builder.WithPredicates(predicate.GenerationChangedPredicate{}))
	}
	return complete()
}

// onSnapshot enqueues the repositories that include one that changed.
func (r *GitRepositories) onSnapshot(ctx context.Context, queue wake.Queue) error {
	r.Snapshots.OnChange(func(key source.Key) {
		if key.Kind != sourcev1.GitRepositoryKind {
			return
		}
		list := &sourcev1.GitRepositoryList{}
		if err := r.Client.List(ctx, list, client.InNamespace(key.Namespace)); err != nil {
			log.FromContext(ctx).Error(err, "cannot list GitRepositories that include", "source", key.String())
			return
		}
		for i := range list.Items {
			if slices.ContainsFunc(list.Items[i].Spec.Include, func(in sourcev1.GitRepositoryInclude) bool {
				return in.GitRepositoryRef.Name == key.Name
			}) {
				queue.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
			}
		}
	})
	return nil
}

// Reconcile fetches one repository.
func (r *GitRepositories) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	return reconcileSource(ctx, r.Sources, r, &sourcev1.GitRepository{}, req.NamespacedName)
}

func (r *GitRepositories) describe(obj *sourcev1.GitRepository) sourceFields {
	return sourceFields{
		kind: sourcev1.GitRepositoryKind, suspend: obj.Spec.Suspend,
		artifact: &obj.Status.Artifact, observed: &obj.Status.ObservedGeneration, handled: &obj.Status.LastHandledReconcileAt,
		asMade: func() {
			obj.Spec.Ignore, obj.Spec.Include = obj.Status.ObservedIgnore, obj.Status.ObservedInclude
			obj.Spec.SparseCheckout, obj.Spec.RecurseSubmodules = obj.Status.ObservedSparseCheckout, obj.Status.ObservedRecurseSubmodules
		},
		included: obj.Status.IncludedArtifacts,
	}
}

func (r *GitRepositories) timeout(_ context.Context, obj *sourcev1.GitRepository) time.Duration {
	return timeoutOf(obj.Spec.Timeout)
}

// forget has nothing to do: mirrors go with the last snapshot.
func (r *GitRepositories) forget(source.Key) {}

// pin names the commit. What the source follows is what the server is asked for if it gives out no single commits, and it counts
// before the branch. Where the signature of a tag counts, the tag is named: a commit has none.
func (r *GitRepositories) pin(obj *sourcev1.GitRepository, artifact *meta.Artifact) {
	if v := obj.Spec.Verification; v != nil && v.VerifyTag() {
		if at := strings.LastIndex(artifact.Revision, "@"); at > 0 {
			obj.Spec.Reference = &sourcev1.GitRepositoryRef{Tag: strings.TrimPrefix(artifact.Revision[:at], "refs/tags/")}
			return
		}
	}
	ref := &sourcev1.GitRepositoryRef{}
	if obj.Spec.Reference != nil {
		ref = obj.Spec.Reference.DeepCopy()
	}
	if ref.Name != "" || ref.SemVer != "" || ref.Tag != "" {
		ref.Branch = ""
	}
	ref.Commit = strings.TrimPrefix(contentOf(artifact.Revision), "sha1:")
	obj.Spec.Reference = ref
}

// datable refuses what includes other repositories: a commit does not say at which commits
// these were.
func (r *GitRepositories) datable(obj *sourcev1.GitRepository) error {
	if len(obj.Spec.Include) > 0 {
		return errors.New("it has spec.include, and a commit does not say at which commits the included repositories were; use submodules, or a repository without includes")
	}
	return nil
}

// fetch gets the snapshot and checks its signature.
func (r *GitRepositories) fetch(ctx context.Context, key source.Key, obj *sourcev1.GitRepository) (*fetched, *failure) {
	origin, err := r.origin(ctx, key, obj)
	if err != nil {
		reason := source.ReasonOf(err)
		return nil, &failure{
			condition: sourcev1.FetchFailedCondition, err: err,
			stalls: reason == source.ReasonURLInvalid || obj.Spec.SecretRef == nil && (reason == source.ReasonInvalidProvider || reason == source.ReasonCredentialRefused),
		}
	}
	includes, included, failed := r.includes(ctx, obj)
	if failed != nil {
		return nil, failed
	}
	status.RemoveCondition(obj, sourcev1.IncludeUnavailableCondition)
	snapshot, err := r.Mirrors.Fetch(ctx, origin, reference(obj), source.Options{
		Ignore: obj.Spec.Ignore, SparseCheckout: obj.Spec.SparseCheckout, Submodules: obj.Spec.RecurseSubmodules, Include: includes,
	}, r.Snapshots.Get(key))
	if err != nil {
		reason := source.ReasonOf(err)
		condition := sourcev1.FetchFailedCondition
		if reason == source.ReasonCopyFailure {
			status.RemoveCondition(obj, sourcev1.FetchFailedCondition)
			condition = sourcev1.StorageOperationFailedCondition
		}
		return nil, &failure{condition: condition, err: err, stalls: reason == source.ReasonURLInvalid}
	}
	status.RemoveCondition(obj, sourcev1.FetchFailedCondition)
	if failed := r.verify(ctx, obj, snapshot); failed != nil {
		return nil, failed
	}
	return &fetched{
		snapshot: snapshot, included: included, includes: includes,
		reason: meta.SucceededReason, message: fmt.Sprintf("stored artifact for revision '%s'", snapshot.Revision),
		eventReason: reasonNewArtifact, event: fmt.Sprintf("stored artifact for commit '%s'", shortened(snapshot.Subject)),
		sameReason: sourcev1.GitOperationSucceedReason, same: fmt.Sprintf("no changes since last reconciliation: observed revision '%s'", snapshot.Revision),
		observe: func() {
			obj.Status.IncludedArtifacts = included
			obj.Status.ObservedIgnore = obj.Spec.Ignore
			obj.Status.ObservedInclude = obj.Spec.Include
			obj.Status.ObservedRecurseSubmodules = obj.Spec.RecurseSubmodules
			obj.Status.ObservedSparseCheckout = obj.Spec.SparseCheckout
		},
	}, nil
}

// OriginOf is where a repository is and how it is read, for who reads it beside the agent.
func OriginOf(ctx context.Context, c client.Client, logins *source.Logins, obj *sourcev1.GitRepository) (source.Origin, error) {
	r := &GitRepositories{Sources: &Sources{Client: c, Reader: c, Logins: logins}}
	return r.origin(ctx, source.Key{Kind: sourcev1.GitRepositoryKind, NamespacedName: client.ObjectKeyFromObject(obj)}, obj)
}

// origin gathers the credential that the repository is read with.
func (r *GitRepositories) origin(ctx context.Context, key source.Key, obj *sourcev1.GitRepository) (source.Origin, error) {
	origin := source.Origin{URL: obj.Spec.URL, Timeout: timeoutOf(obj.Spec.Timeout)}
	var err error
	if origin.Proxy, err = r.proxy(ctx, obj.Namespace, obj.Spec.ProxySecretRef); err != nil {
		return origin, err
	}
	if ref := obj.Spec.SecretRef; ref != nil {
		if origin.Secret, err = r.secret(ctx, obj.Namespace, ref.Name, source.ReasonAuthenticationFailed); err != nil {
			return origin, err
		}
	}
	switch provider := obj.GetProvider(); provider {
	case sourcev1.GitProviderGeneric:
		if source.HasGitHubApp(origin.Secret) {
			err = &source.Error{Reason: source.ReasonInvalidProvider, Err: fmt.Errorf("secretRef '%s/%s' has github app data but provider is not set to github", obj.Namespace, obj.Spec.SecretRef.Name)}
		}
	case sourcev1.GitProviderGitHub:
		if !source.HasGitHubApp(origin.Secret) {
			return origin, &source.Error{Reason: source.ReasonInvalidProvider, Err: errors.New("secretRef with github app data must be specified when provider is set to github")}
		}
		origin.Login, err = r.Logins.GitHubApp(ctx, obj.Spec.URL, origin.Secret, origin.Proxy, nil)
	default:
		if _, perr := url.Parse(obj.Spec.URL); perr != nil {
			return origin, nil // the mirror says what is wrong with it
		}
		origin.Login, err = r.Logins.Cloud(ctx, provider, obj.Spec.URL, obj.Spec.ServiceAccountName, source.Way{Proxy: origin.Proxy, Certificates: origin.Secret}, uncached{r.Client, r.Reader}, key)
	}
	return origin, err
}

// includePoll is when a repository that another includes is looked for again;
// its snapshot wakes us before, if it comes to have one.
const includePoll = 15 * time.Second

// includes gathers the snapshots of the repositories to include.
func (r *GitRepositories) includes(ctx context.Context, obj *sourcev1.GitRepository) ([]source.Include, []*meta.Artifact, *failure) {
	unavailable := func(reason, format string, args ...any) *failure {
		return &failure{
			condition: sourcev1.IncludeUnavailableCondition, wait: includePoll,
			err: &source.Error{Reason: reason, Err: fmt.Errorf(format, args...)},
		}
	}
	var includes []source.Include
	var artifacts []*meta.Artifact
	for _, in := range obj.Spec.Include {
		key := source.Key{Kind: sourcev1.GitRepositoryKind, NamespacedName: types.NamespacedName{Namespace: obj.Namespace, Name: in.GitRepositoryRef.Name}}
		included := &sourcev1.GitRepository{}
		if err := r.Client.Get(ctx, key.NamespacedName, included); err != nil {
			return nil, nil, unavailable("NotFound", "could not get resource for include '%s': %w", key.Name, err)
		}
		if r.leadsBack(ctx, key.NamespacedName, obj.Name, map[string]bool{}) {
			return nil, nil, unavailable("IncludeCycle", "cannot include '%s': it includes this repository; remove one of the two", key.Name)
		}
		artifact := r.artifactOf(key)
		snapshot := r.Snapshots.Get(key)
		if away := r.notFollowed(key); snapshot == nil && away != nil {
			return nil, nil, unavailable("NoArtifact", "no artifact available for include '%s': %w", key.Name, away)
		}
		if snapshot == nil && included.Status.Artifact != nil && find.Failing(included) == nil && r.brings(included) {
			return nil, nil, &failure{wait: r.Jitter(includePoll), err: fmt.Errorf("include '%s': %w", key.Name, find.ErrFetchedAgain)}
		}
		if snapshot == nil || artifact == nil || artifact.Revision != snapshot.Revision {
			return nil, nil, unavailable("NoArtifact", "no artifact available for include '%s'", key.Name)
		}
		includes = append(includes, source.Include{Name: key.Name, Snapshot: snapshot, From: in.GetFromPath(), To: in.GetToPath()})
		artifacts = append(artifacts, artifact)
	}
	return includes, artifacts, nil
}

// brings reports whether this process fetches a repository that another includes, or follows it.
func (r *GitRepositories) brings(obj *sourcev1.GitRepository) bool {
	return r.Part != nil || r.Shard.Has(obj)
}

// leadsBack reports whether a repository includes the named one, itself or by
// others: each would grow by the other without end.
func (r *GitRepositories) leadsBack(ctx context.Context, from types.NamespacedName, name string, seen map[string]bool) bool {
	if from.Name == name {
		return true
	}
	if seen[from.Name] {
		return false
	}
	seen[from.Name] = true
	obj := &sourcev1.GitRepository{}
	if err := r.Client.Get(ctx, from, obj); err != nil {
		return false
	}
	return slices.ContainsFunc(obj.Spec.Include, func(in sourcev1.GitRepositoryInclude) bool {
		return r.leadsBack(ctx, types.NamespacedName{Namespace: from.Namespace, Name: in.GitRepositoryRef.Name}, name, seen)
	})
}

// sshKeys ends the names of SSH keys in the Secret of spec.verify.
const sshKeys = ".sshpub"

// verify checks the signatures that the object asks for, at each reconcile:
// a key that is taken away counts at once.
func (r *GitRepositories) verify(ctx context.Context, obj *sourcev1.GitRepository, snapshot *source.Snapshot) *failure {
	spec := obj.Spec.Verification
	if spec == nil || spec.Mode == "" {
		obj.Status.SourceVerificationMode = nil
		status.RemoveCondition(obj, sourcev1.SourceVerifiedCondition)
		return nil
	}
	keys, err := r.secret(ctx, obj.Namespace, spec.SecretRef.Name, sourcev1.VerificationError)
	if err != nil {
		return &failure{condition: sourcev1.SourceVerifiedCondition, err: err}
	}
	want := keysOf(keys)
	want.Tag, want.Head = spec.VerifyTag(), spec.VerifyHEAD()
	message, err := snapshot.Verify(want)
	if err != nil {
		return &failure{condition: sourcev1.SourceVerifiedCondition, err: err, stalls: source.ReasonOf(err) == source.ReasonInvalidVerificationMode}
	}
	mode := spec.GetMode()
	obj.Status.SourceVerificationMode = &mode
	r.verified(ctx, obj, message)
	return nil
}

func reference(obj *sourcev1.GitRepository) source.Reference {
	ref := obj.Spec.Reference
	if ref == nil {
		return source.Reference{}
	}
	return source.Reference{Branch: ref.Branch, Tag: ref.Tag, SemVer: ref.SemVer, Name: ref.Name, Commit: ref.Commit}
}
