package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// leasePoll is the pause between two looks at the leases of Flux's controllers.
const leasePoll = 5 * time.Second

// fluxLeases are those of the controllers whose work this process does.
func (o agentOptions) fluxLeases() []string {
	var names []string
	if slices.ContainsFunc(sourceKinds(), o.reconciles) {
		names = append(names, "source-controller-leader-election")
	}
	if o.reconciles(kustomizev1.KustomizationKind) {
		names = append(names, "kustomize-controller-leader-election")
	}
	if o.reconciles(helmv2.HelmReleaseKind) {
		names = append(names, "helm-controller-leader-election")
	}
	return names
}

// awaitFlux waits until Flux's controllers do not work on the same objects: two
// engines would undo each other's status, and what one prunes the other may
// just have applied.
func (o agentOptions) awaitFlux(ctx context.Context, config *rest.Config, log logr.Logger) error {
	config = rest.CopyConfig(config)
	config.Timeout = localTimeout
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("cannot make client: %w", err)
	}
	namespaces := []string{o.namespace}
	if o.namespace != fluxNamespace {
		namespaces = append(namespaces, fluxNamespace)
	}
	for {
		holder, err := o.fluxHolder(ctx, clients, namespaces)
		if err == nil && holder == "" {
			return nil
		}
		if err != nil {
			log.Error(err, "cannot tell whether Flux's controllers run; waiting")
		} else {
			log.Info("waiting: Flux's controllers work on the same objects; scale them to zero", "lease", holder)
		}
		timer := time.NewTimer(leasePoll)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}

// fluxNamespace is where Flux's controllers are, by default.
const fluxNamespace = "flux-system"

func (o agentOptions) fluxHolder(ctx context.Context, clients kubernetes.Interface, namespaces []string) (string, error) {
	for _, namespace := range namespaces {
		for _, name := range o.fluxLeases() {
			lease, err := clients.CoordinationV1().Leases(namespace).Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				continue
			}
			if err != nil {
				return "", fmt.Errorf("cannot read Lease %s/%s: %w", namespace, name, err)
			}
			if held(lease, time.Now()) {
				return namespace + "/" + name, nil
			}
		}
	}
	return "", nil
}

// held reports whether somebody holds a lease now.
func held(lease *coordinationv1.Lease, now time.Time) bool {
	s := lease.Spec
	if s.HolderIdentity == nil || *s.HolderIdentity == "" || s.RenewTime == nil || s.LeaseDurationSeconds == nil {
		return false
	}
	return now.Before(s.RenewTime.Add(time.Duration(*s.LeaseDurationSeconds) * time.Second))
}
