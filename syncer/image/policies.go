package image

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
	"github.com/fluxcd/pkg/apis/acl"
	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/cascade-gitops/cascade/syncer/image/policy"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/stall"
	"github.com/cascade-gitops/cascade/syncer/status"
	"github.com/cascade-gitops/cascade/syncer/wake"
)

// Digests find what a tag points to.
type Digests interface {
	Resolve(ctx context.Context, origin source.ImageOrigin, ref source.ImageReference, mediaType string) (source.Image, error)
}

// Policies reconciles ImagePolicies: it chooses tags.
type Policies struct {
	*Shared
	Scans   *Scans
	Ways    Ways
	Digests Digests

	once  sync.Once
	begun time.Time

	mu sync.Mutex
	// waiting are the policies that wait for the image of an ImageRepository to be listed.
	waiting map[types.NamespacedName]wait

	store *status.Store[*imagev1.ImagePolicy]
}

// wait is for a list of what an ImageRepository names in one generation.
type wait struct {
	uid        types.UID
	generation int64
	since      time.Time
}

// grace is how long the tags of an image may be missing after the start of a process, if it was listed before, or after an
// ImageRepository got another image.
const grace = 2 * time.Minute

// listing is how long to wait for a list that fails before it is looked at again: one that comes wakes its policies.
const listing = 5 * time.Second

// SetupWithManager registers the reconciler.
func (r *Policies) SetupWithManager(ctx context.Context, mgr ctrl.Manager, concurrent int) error {
	r.store = &status.Store[*imagev1.ImagePolicy]{
		Client: r.Client, Live: r.Reader, Manager: ReflectorController, New: func() *imagev1.ImagePolicy { return &imagev1.ImagePolicy{} },
		Meta:       func(o *imagev1.ImagePolicy) *metav1.ObjectMeta { return &o.ObjectMeta },
		CopyStatus: func(to, from *imagev1.ImagePolicy) { from.Status.DeepCopyInto(&to.Status) },
	}
	err := wake.AddIndexes(ctx, mgr, &imagev1.ImagePolicy{}, map[string]func(*imagev1.ImagePolicy) []string{
		wake.SourceIndex: func(p *imagev1.ImagePolicy) []string {
			return []string{wake.SourceKey(source.Key{Kind: imagev1.ImageRepositoryKind, NamespacedName: repositoryOf(p)})}
		},
	})
	if err != nil {
		return err
	}
	index := wake.Index{Client: r.Client, List: func() client.ObjectList { return &imagev1.ImagePolicyList{} }}
	b, complete := r.setup(mgr, imagev1.ImagePolicyKind, &imagev1.ImagePolicy{}, r, concurrent)
	b.Watches(&imagev1.ImageRepository{}, index.UsersOf(imagev1.ImageRepositoryKind), builder.WithPredicates(predicate.GenerationChangedPredicate{}))
	b.WatchesRawSource(ctrlsource.Func(func(ctx context.Context, queue wake.Queue) error {
		r.Scans.onChange(func(name types.NamespacedName) {
			key := wake.SourceKey(source.Key{Kind: imagev1.ImageRepositoryKind, NamespacedName: name})
			for _, request := range index.Requests(ctx, wake.SourceIndex, key) {
				// The ImageRepository has its new status soon.
				wake.Enqueue(queue, request.NamespacedName, wake.PriorityChanged, wake.TouchDelay)
			}
		})
		return nil
	}))
	return complete()
}

// Reconcile chooses the tag of one policy.
func (r *Policies) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	r.once.Do(func() { r.begun = r.Now() })
	return reconcileKind(ctx, r.Shared, r, r.store, req.NamespacedName)
}

func (r *Policies) describe(obj *imagev1.ImagePolicy) fields {
	return fields{
		kind: imagev1.ImagePolicyKind, suspend: obj.Spec.Suspend,
		observed: &obj.Status.ObservedGeneration, handled: &obj.Status.LastHandledReconcileAt,
	}
}

func (r *Policies) forget(name types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, name)
}

func (r *Policies) rest(context.Context, *imagev1.ImagePolicy) {}

func repositoryOf(p *imagev1.ImagePolicy) types.NamespacedName {
	name := types.NamespacedName{Namespace: p.Spec.ImageRepositoryRef.Namespace, Name: p.Spec.ImageRepositoryRef.Name}
	if name.Namespace == "" {
		name.Namespace = p.Namespace
	}
	return name
}

func (r *Policies) run(ctx context.Context, obj *imagev1.ImagePolicy) outcome {
	out := r.choose(ctx, obj)
	if out.failed != nil {
		// What comes after a failure is no step from one image to the next.
		obj.Status.ObservedPreviousRef = nil
	}
	return out
}

func (r *Policies) choose(ctx context.Context, obj *imagev1.ImagePolicy) outcome {
	name := repositoryOf(obj)
	if r.NoCrossNamespaceRefs && name.Namespace != obj.Namespace {
		return stalled(reasonAccessDenied, fmt.Errorf("cannot access ImageRepository %s: references to other namespaces are forbidden by --no-cross-namespace-refs", name))
	}
	repository := &imagev1.ImageRepository{}
	if err := r.Client.Get(ctx, name, repository); err != nil {
		if apierrors.IsNotFound(err) {
			err = fmt.Errorf("referenced ImageRepository %s does not exist", name)
		}
		return failed(imagev1.DependencyNotReadyReason, err)
	}
	if err := r.mayAccess(ctx, obj.Namespace, repository); err != nil {
		return failed(reasonAccessDenied, err)
	}
	tags, ok := r.Scans.Of(repository)
	if !ok {
		current := obj.Status.LatestRef != nil && obj.Status.ObservedGeneration == obj.Generation && apimeta.IsStatusConditionTrue(obj.Status.Conditions, meta.ReadyCondition)
		if current && !tried(repository) && r.waited(client.ObjectKeyFromObject(obj), repository) < grace {
			// Of another image than before: it is listed at this moment.
			return outcome{waits: true, next: listing}
		}
		// The cache may still lack what was listed before a restart.
		if since := r.Now().Sub(r.begun); current && repository.Status.LastScanResult != nil && since < grace {
			return outcome{waits: true, next: grace - since}
		}
		return failed(imagev1.DependencyNotReadyReason, fmt.Errorf("the tags of ImageRepository %s are not known here yet: its image was not listed, or is suspended or of another shard", name))
	}
	matching, cancel := context.WithTimeout(ctx, mostMatching)
	defer cancel()
	tag, err := policy.Latest(matching, obj.Spec.Policy, obj.Spec.FilterTags, tags)
	switch {
	case errors.As(err, new(*policy.Invalid)):
		return stalled(reasonInvalidPolicy, err)
	case err != nil:
		return failed(reasonFailure, err)
	}
	latest := &imagev1.ImageRef{Name: repository.Spec.Image, Tag: tag}
	if latest.Digest, err = r.digest(ctx, obj, repository, latest); err != nil {
		return failed(reasonOf(err), err)
	}
	before := obj.Status.LatestRef
	out := outcome{message: fmt.Sprintf("Latest image tag for '%s' resolved to %s", latest.Name, latest.Tag), next: obj.GetInterval()}
	if latest.Digest != "" {
		out.message += " with digest " + latest.Digest
	}
	switch {
	case before == nil:
		out.event = out.message
	case *before != *latest:
		obj.Status.ObservedPreviousRef = before.DeepCopy()
		out.event = fmt.Sprintf("%s (previously %s)", out.message, before)
	default:
		out.trace = out.message
	}
	obj.Status.LatestRef = latest
	return out
}

// waited is for how long a policy has waited for what an ImageRepository names by now. Whoever lists for that may be away.
func (r *Policies) waited(name types.NamespacedName, repository *imagev1.ImageRepository) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	w, now := r.waiting[name], r.Now()
	if w.uid != repository.UID || w.generation != repository.Generation {
		if r.waiting == nil {
			r.waiting = map[types.NamespacedName]wait{}
		}
		w = wait{uid: repository.UID, generation: repository.Generation, since: now}
		r.waiting[name] = w
	}
	return now.Sub(w.since)
}

// tried reports whether a list of what an ImageRepository names by now was asked for, or nobody asks.
func tried(repository *imagev1.ImageRepository) bool {
	ready := apimeta.FindStatusCondition(repository.Status.Conditions, meta.ReadyCondition)
	return repository.Spec.Suspend || !repository.DeletionTimestamp.IsZero() || ready == nil || ready.ObservedGeneration == repository.Generation
}

// mayAccess is an error if a namespace may not use an ImageRepository.
func (r *Policies) mayAccess(ctx context.Context, namespace string, repository *imagev1.ImageRepository) error {
	if namespace == repository.Namespace {
		return nil
	}
	denied := fmt.Errorf("cannot access ImageRepository %s: its spec.accessFrom does not have namespace %s", client.ObjectKeyFromObject(repository), namespace)
	if repository.Spec.AccessFrom == nil {
		return denied
	}
	of := &corev1.Namespace{}
	if err := r.Reader.Get(ctx, types.NamespacedName{Name: namespace}, of); err != nil {
		return fmt.Errorf("cannot read Namespace %s: %w", namespace, err)
	}
	if !slices.ContainsFunc(repository.Spec.AccessFrom.NamespaceSelectors, func(s acl.NamespaceSelector) bool {
		selector, err := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchLabels: s.MatchLabels})
		return err == nil && selector.Matches(labels.Set(of.Labels))
	}) {
		return denied
	}
	return nil
}

// digest is what spec.digestReflectionPolicy wants beside a tag.
func (r *Policies) digest(ctx context.Context, obj *imagev1.ImagePolicy, repository *imagev1.ImageRepository, latest *imagev1.ImageRef) (string, error) {
	switch obj.GetDigestReflectionPolicy() {
	case imagev1.ReflectNever:
		return "", nil
	case imagev1.ReflectIfNotPresent:
		if known := obj.Status.LatestRef; known != nil && known.Name == latest.Name && known.Tag == latest.Tag && known.Digest != "" {
			return known.Digest, nil
		}
	}
	timeout := min(repository.GetTimeout(), mostScanning)
	stall.Allow(ctx, timeout)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	origin, err := originOf(ctx, r.Ways, repository)
	if err != nil {
		return "", err
	}
	found, err := r.Digests.Resolve(ctx, origin, source.ImageReference{Tag: latest.Tag}, "")
	if err != nil {
		return "", fmt.Errorf("cannot find the digest of %s: %w", latest, err)
	}
	if !strings.HasPrefix(found.Digest, "sha256:") {
		return "", fmt.Errorf("cannot use the digest %q of %s: it is not of SHA-256", found.Digest, latest)
	}
	return found.Digest, nil
}
