package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// leasePoll is the pause between two looks at the leases of Flux's controllers.
const leasePoll = 5 * time.Second

// awaitFlux waits until Flux's controllers do not work on the same objects: two
// engines would undo each other's status, and what one prunes the other may
// just have applied. leases are those of the controllers in question.
func awaitFlux(
	ctx context.Context, config *rest.Config, namespace string, leases []string, now func() time.Time, log logr.Logger,
) error {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("cannot make client: %w", err)
	}
	namespaces := []string{namespace}
	if namespace != fluxNamespace {
		namespaces = append(namespaces, fluxNamespace)
	}
	for {
		holder, err := fluxHolder(ctx, clients, namespaces, leases, now())
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

// fluxHolder names one of the leases that somebody holds now; empty if nobody holds
// any.
func fluxHolder(
	ctx context.Context, clients kubernetes.Interface, namespaces, leases []string, now time.Time,
) (string, error) {
	for _, namespace := range namespaces {
		for _, name := range leases {
			lease, err := clients.CoordinationV1().Leases(namespace).Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				continue
			}
			if err != nil {
				return "", fmt.Errorf("cannot read Lease %s/%s: %w", namespace, name, err)
			}
			if held(lease, now) {
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
