package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	automationv1 "github.com/fluxcd/image-automation-controller/api/v1"
	reflectorv1 "github.com/fluxcd/image-reflector-controller/api/v1"
	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	notificationv1beta3 "github.com/fluxcd/notification-controller/api/v1beta3"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/lease"
	"github.com/cascade-gitops/cascade/state/backup"
	"github.com/cascade-gitops/cascade/syncer/credential"
)

// besideController is one of Flux's whose kinds this process may leave to it: nothing that
// an agent syncs depends on who reconciles them. A cluster may also lack the kinds.
type besideController struct {
	// lease is empty for kinds of ours: no other controller has them.
	lease   string
	version schema.GroupVersion
	kinds   []string
}

// beside are all of them, a controller once for each version of an API that it serves.
func beside() []besideController {
	return []besideController{
		// The definitions may be those of an earlier version: a Layer that moves the image of an
		// agent alone leaves them to its parent.
		{"", v1alpha1.GroupVersion, []string{credential.Kind, backup.Kind}},
		{lease.NotificationController, notificationv1.GroupVersion, []string{notificationv1.ReceiverKind}},
		{lease.NotificationController, notificationv1beta3.GroupVersion, []string{notificationv1beta3.AlertKind, notificationv1beta3.ProviderKind}},
		{lease.ImageReflectorController, reflectorv1.GroupVersion, []string{reflectorv1.ImageRepositoryKind, reflectorv1.ImagePolicyKind}},
		{lease.ImageAutomationController, automationv1.GroupVersion, []string{automationv1.ImageUpdateAutomationKind}},
		{lease.SourceWatcher, generatorv1.GroupVersion, []string{generatorv1.ArtifactGeneratorKind}},
	}
}

// isBeside reports whether a kind is one of them, which an agent does without.
func isBeside(kind schema.GroupKind) bool {
	return slices.ContainsFunc(beside(), func(b besideController) bool {
		return b.version.Group == kind.Group && slices.Contains(b.kinds, kind.Kind)
	})
}

// Why a kind is left alone.
const (
	leftToFlux  = "ControllerRunning"
	leftMissing = "DefinitionMissing"
)

// leftKind is a kind that this process was asked to reconcile and leaves alone.
type leftKind struct {
	kind, reason string
	// lease is the one that is held, of leftToFlux.
	lease string
}

// leftPoll is the pause between two looks at the kinds that are left alone. One is taken
// over when two looks in a row found it free: a controller that is only replaced by its next
// version is back within that time.
const leftPoll = 30 * time.Second

// leave finds out which of the kinds are left alone now.
func (f *fluxControllers) leave(ctx context.Context) ([]leftKind, error) {
	var left []leftKind
	for _, b := range beside() {
		kinds := slices.DeleteFunc(slices.Clone(b.kinds), func(kind string) bool { return !slices.Contains(f.kinds, kind) })
		if len(kinds) == 0 {
			continue
		}
		held := ""
		if b.lease != "" {
			var err error
			if held, err = f.heldNow(ctx, b.lease); err != nil {
				return nil, err
			}
		}
		served, err := f.served(ctx, b.version)
		if err != nil {
			return nil, err
		}
		for _, kind := range kinds {
			switch {
			case held != "":
				left = append(left, leftKind{kind, leftToFlux, held})
			case !served[kind]:
				left = append(left, leftKind{kind: kind, reason: leftMissing})
			}
		}
	}
	return left, nil
}

// free are those of the kinds that were left alone which need not be any more.
func (f *fluxControllers) free(ctx context.Context) ([]leftKind, error) {
	if len(f.left) == 0 {
		return nil, nil
	}
	left, err := f.leave(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(f.left), func(l leftKind) bool {
		return slices.ContainsFunc(left, func(o leftKind) bool { return o.kind == l.kind })
	}), nil
}

// served are the kinds of a version that the API server serves. The call ends after
// leasePoll.
func (f *fluxControllers) served(ctx context.Context, version schema.GroupVersion) (map[string]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, leasePoll)
	defer cancel()
	resources, err := discovery.ToDiscoveryInterfaceWithContext(f.clients.Discovery()).ServerResourcesForGroupVersionWithContext(ctx, version.String())
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read which kinds of %s there are: %w", version, err)
	}
	kinds := map[string]bool{}
	for _, r := range resources.APIResources {
		kinds[r.Kind] = true
	}
	return kinds, nil
}

// both are the kinds that are in both.
func both(a, b []leftKind) []leftKind {
	return slices.DeleteFunc(slices.Clone(a), func(l leftKind) bool {
		return !slices.ContainsFunc(b, func(o leftKind) bool { return o.kind == l.kind })
	})
}

func kindsOf(left []leftKind) string {
	names := make([]string, 0, len(left))
	for _, l := range left {
		names = append(names, l.kind)
	}
	return strings.Join(names, ", ")
}
