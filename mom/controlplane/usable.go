package main

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
)

const (
	// pollInterval is short because every start waits half of it on average,
	// several times over; it is only polled while starting.
	pollInterval = 20 * time.Millisecond
	// requestTimeout bounds one request to our own process.
	requestTimeout = 5 * time.Second
)

// waitUsable returns when a client may rely on the control plane.
func waitUsable(ctx context.Context, client kubernetes.Interface, schedulerSynced func(context.Context) error) error {
	if err := waitServing(ctx, client, "/readyz"); err != nil {
		return err
	}
	if err := schedulerSynced(ctx); err != nil {
		return fmt.Errorf("cannot wait for kube-scheduler: %w", err)
	}
	if err := waitAccount(ctx, client); err != nil {
		return err
	}
	return waitCollector(ctx, client)
}

// waitServing returns when the API server answers path with success.
func waitServing(ctx context.Context, client kubernetes.Interface, path string) error {
	return poll(ctx, "answer to "+path, func(ctx context.Context) (bool, error) {
		_, err := client.Discovery().RESTClient().Get().AbsPath(path).DoRaw(ctx)
		return err == nil, err
	})
}

// waitAccount returns when pods can be created in the namespace default:
// admission refuses them before their service account exists.
func waitAccount(ctx context.Context, client kubernetes.Interface) error {
	return poll(ctx, "default service account", func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, err
	})
}

// waitCollector returns when the garbage collector has collected a lease whose
// owner does not exist. The collector is the last controller to be ready,
// because it watches every kind; after a restart nothing else would tell, as the
// objects that the controllers make are all there. A lease, because they are not
// audited, and because the collector also removes one that a kill left behind.
func waitCollector(ctx context.Context, client kubernetes.Interface) error {
	leases := client.CoordinationV1().Leases(metav1.NamespaceSystem)
	var name string
	err := poll(ctx, "lease to collect", func(ctx context.Context) (bool, error) {
		lease, err := leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			GenerateName: "controlplane-probe-",
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "ConfigMap", Name: "controlplane-probe", UID: types.UID(uuid.NewUUID()),
			}},
		}}, metav1.CreateOptions{})
		if err != nil {
			return false, err
		}
		name = lease.Name
		return true, nil
	})
	if err != nil {
		return err
	}
	return poll(ctx, "garbage collector", func(ctx context.Context) (bool, error) {
		_, err := leases.Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), err
	})
}

// poll calls try until it succeeds or ctx ends; then it says what was missing
// and why.
func poll(ctx context.Context, what string, try func(context.Context) (bool, error)) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		attempt, cancel := context.WithTimeout(ctx, requestTimeout)
		done, err := try(attempt)
		cancel()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			if err != nil {
				return fmt.Errorf("cannot wait for %s: %w (last: %w)", what, context.Cause(ctx), err)
			}
			return fmt.Errorf("cannot wait for %s: %w", what, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}
