package image

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/syncer/fetch"
	"github.com/cascade-gitops/cascade/syncer/image/policy"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/stall"
	"github.com/cascade-gitops/cascade/syncer/status"
)

// Ways gather what a repository of images is read with.
type Ways interface {
	Registry(ctx context.Context, key source.Key, r fetch.Registry) (source.ImageOrigin, error)
}

// Repositories reconciles ImageRepositories: it lists tags.
type Repositories struct {
	*Shared
	Scans *Scans
	Ways  Ways

	store *status.Store[*imagev1.ImageRepository]
}

// SetupWithManager registers the reconciler.
func (r *Repositories) SetupWithManager(mgr ctrl.Manager, concurrent int) error {
	r.open()
	_, complete := r.setup(mgr, imagev1.ImageRepositoryKind, &imagev1.ImageRepository{}, r, concurrent)
	return complete()
}

// open makes the store; it is called before the first reconcile.
func (r *Repositories) open() {
	r.store = &status.Store[*imagev1.ImageRepository]{
		Client: r.Client, Live: r.Reader, Manager: ReflectorController, New: func() *imagev1.ImageRepository { return &imagev1.ImageRepository{} },
		Meta:       func(o *imagev1.ImageRepository) *metav1.ObjectMeta { return &o.ObjectMeta },
		CopyStatus: func(to, from *imagev1.ImageRepository) { from.Status.DeepCopyInto(&to.Status) },
	}
}

// Reconcile lists the tags of one image.
func (r *Repositories) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	return reconcileKind(ctx, r.Shared, r, r.store, req.NamespacedName)
}

func (r *Repositories) describe(obj *imagev1.ImageRepository) fields {
	return fields{
		kind: imagev1.ImageRepositoryKind, suspend: obj.Spec.Suspend,
		observed: &obj.Status.ObservedGeneration, handled: &obj.Status.LastHandledReconcileAt,
	}
}

func (r *Repositories) forget(name types.NamespacedName) { r.Scans.Forget(name) }

// rest recalls the tags of a suspended repository: its policies go on with them after a restart.
func (r *Repositories) rest(ctx context.Context, obj *imagev1.ImageRepository) {
	if _, ok := r.Scans.Of(obj); ok || obj.Status.LastScanResult == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, mostRest)
	defer cancel()
	if origin, err := originOf(ctx, r.Ways, obj); err == nil {
		r.Scans.Recall(ctx, client.ObjectKeyFromObject(obj), obj.UID, origin, obj.GetExclusionList())
	}
}

// mostRest bounds what is read for a suspended repository.
const mostRest = 30 * time.Second

// originOf is where an image is, and how it is read.
func originOf(ctx context.Context, ways Ways, obj *imagev1.ImageRepository) (source.ImageOrigin, error) {
	key := source.Key{Kind: imagev1.ImageRepositoryKind, NamespacedName: client.ObjectKeyFromObject(obj)}
	return ways.Registry(ctx, key, fetch.Registry{
		Image: obj.Spec.Image, Provider: obj.GetProvider(), Secret: obj.Spec.SecretRef, Certificates: obj.Spec.CertSecretRef,
		Proxy: obj.Spec.ProxySecretRef, Account: obj.Spec.ServiceAccountName, Insecure: obj.Spec.Insecure,
	})
}

// imageURL is the URL of the origin of an image.
func imageURL(obj *imagev1.ImageRepository) string {
	return sourcev1.OCIRepositoryPrefix + obj.Spec.Image
}

// canonicalName is the name of the image with all that a short one implies.
func canonicalName(obj *imagev1.ImageRepository) (string, error) {
	switch image := obj.Spec.Image; {
	case strings.Contains(image, "://"):
		return "", errors.New("cannot use spec.image: it must not begin with a scheme")
	case strings.Contains(image, "@"):
		return "", errors.New("cannot use spec.image: it must have neither a digest nor a credential")
	case strings.Contains(image[strings.LastIndex(image, "/")+1:], ":"):
		return "", errors.New("cannot use spec.image: it must not have a tag; ImagePolicies choose one")
	}
	name, err := source.ImageOrigin{URL: imageURL(obj), Insecure: obj.Spec.Insecure}.Canonical()
	if err != nil {
		return "", fmt.Errorf("cannot use spec.image: %w", err)
	}
	return name, nil
}

// latestTags is how many tags the status shows.
const latestTags = 10

// sharedFor is how old the list of another ImageRepository may be to be used, as a part of the interval.
const sharedFor = 4

// mostScanning bounds a scan. The timeout is the interval unless there is one, which may be a day: a registry that does not
// answer would have the object ready for so long, and one place of those that all slow registries share.
const mostScanning = 10 * time.Minute

func (r *Repositories) run(ctx context.Context, obj *imagev1.ImageRepository) outcome {
	canonical, err := canonicalName(obj)
	if err != nil {
		return stalled(imagev1.ImageURLInvalidReason, err)
	}
	exclusions := obj.GetExclusionList()
	if _, err := policy.Kept(ctx, exclusions, nil); err != nil {
		return stalled(reasonFailure, err)
	}
	obj.Status.CanonicalImageName = canonical
	timeout := min(obj.GetTimeout(), mostScanning)
	stall.Allow(ctx, timeout)
	asking, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	origin, err := originOf(asking, r.Ways, obj)
	if err != nil {
		return failed(reasonOf(err), err)
	}
	interval, now := obj.GetRequeueAfter(), r.Now()
	since := now.Add(-interval / sharedFor)
	switch last := obj.Status.LastScanResult; {
	case asked(obj, obj.Status.LastHandledReconcileAt):
		since = now
	case last != nil && obj.Status.ObservedGeneration == obj.Generation && now.Before(last.ScanTime.Add(interval)) && !last.ScanTime.After(now):
		// It is not time yet: this process has begun, or something else woke the object.
		since = last.ScanTime.Time
	}
	name := client.ObjectKeyFromObject(obj)
	of, err := r.Scans.Scan(asking, name, obj.UID, origin, exclusions, since)
	if err != nil {
		if errors.As(err, new(*policy.Invalid)) {
			return stalled(reasonFailure, err)
		}
		if _, known := r.Scans.Of(obj); !known {
			// This process has begun: its policies go on with what the one before it listed.
			r.Scans.Recall(ctx, name, obj.UID, origin, exclusions)
		}
		return failed(reasonOf(err), err)
	}
	before := obj.Status.LastScanResult
	tags := of.tags()
	result := &imagev1.ScanResult{Revision: of.revision(), TagCount: len(tags), ScanTime: metav1.NewTime(of.list.at)}
	latest := tags[max(0, len(tags)-latestTags):]
	result.LatestTags = slices.Clone(latest)
	slices.Reverse(result.LatestTags)
	obj.Status.LastScanResult, obj.Status.ObservedExclusionList = result, slices.Clone(exclusions)
	// Those who share a list look again at the same time, and the first of them asks for all.
	next := max(interval-now.Sub(of.list.at), time.Second)
	out := outcome{message: fmt.Sprintf("successful scan: found %d tags", len(tags)), next: min(next, interval)}
	if before == nil || before.Revision != result.Revision {
		out.event = out.message
	} else {
		out.trace = out.message
	}
	return out
}
