package agent

import (
	"context"
	"fmt"
	"path/filepath"

	autov1 "github.com/fluxcd/image-automation-controller/api/v1"
	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/cascade-gitops/cascade/syncer/fetch"
	"github.com/cascade-gitops/cascade/syncer/image"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// registries are the ways to registries, and who goes them.
type registries struct {
	*fetch.Sources
	*source.Images
}

// imageKinds are those of image updates.
func imageKinds() []string {
	return []string{imagev1.ImageRepositoryKind, imagev1.ImagePolicyKind, autov1.ImageUpdateAutomationKind}
}

// tags is the directory in which lists of tags are kept: of the volume that outlives the agent if there is one.
func (s *storage) tags() string {
	if s.snapshots != "" {
		return filepath.Join(s.snapshots, "tags")
	}
	return s.dir("tags")
}

// images sets up the controllers of image updates.
func (w *wiring) images(ctx context.Context) error {
	o, mgr := w.options, w.mgr
	if len(o.sharding.of(imageKinds()...)) == 0 {
		return nil
	}
	of := func(controller string) *image.Shared {
		return &image.Shared{
			Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Events: w.events(controller), Metrics: w.metrics, Stalls: w.stalls,
			Now: w.program.Now, Jitter: w.jitter(), Retries: o.pauses.retries(), Shard: w.selects, NoCrossNamespaceRefs: o.references.noCrossNamespace,
		}
	}
	reflector := of(image.ReflectorController)
	scans := image.NewScans(w.registries.Images, o.storage.tags(), w.program.Now, ctrlmetrics.Registry)
	if o.sharding.reconciles(imagev1.ImageRepositoryKind) {
		r := &image.Repositories{Shared: reflector, Scans: scans, Ways: w.registries.Sources}
		if err := r.SetupWithManager(mgr, o.concurrency.sources); err != nil {
			return fmt.Errorf("cannot set up %s controller: %w", imagev1.ImageRepositoryKind, err)
		}
	}
	if o.sharding.reconciles(imagev1.ImagePolicyKind) {
		r := &image.Policies{Shared: reflector, Scans: scans, Ways: w.registries.Sources, Digests: w.registries.Images}
		if err := r.SetupWithManager(ctx, mgr, o.concurrency.sources); err != nil {
			return fmt.Errorf("cannot set up %s controller: %w", imagev1.ImagePolicyKind, err)
		}
	}
	if o.sharding.reconciles(autov1.ImageUpdateAutomationKind) {
		r := &image.Automations{Shared: of(image.AutomationController), Writer: w.writer, Workers: w.workers, Commits: image.NewCommits(ctrlmetrics.Registry)}
		if err := r.SetupWithManager(ctx, mgr, o.concurrency.sources); err != nil {
			return fmt.Errorf("cannot set up %s controller: %w", autov1.ImageUpdateAutomationKind, err)
		}
	}
	return nil
}
