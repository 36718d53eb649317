package apply

import (
	"context"
	"fmt"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/health"
)

// Health of a set of objects.
type Health []health.Result

// Done: every object is as it should be.
func (h Health) Done() bool { return health.Judge(h, false) == health.Healthy }

// Pending are the objects that are not as they should be.
func (h Health) Pending() []inventory.Entry {
	var pending []inventory.Entry
	for _, r := range h {
		if !r.Current() {
			pending = append(pending, r.Entry)
		}
	}
	return pending
}

// Message names what is not done.
func (h Health) Message() string {
	var lines []string
	const most = 10
	for _, r := range h {
		if r.Current() {
			continue
		}
		line := fmt.Sprintf("%s status: '%s'", r.Entry, r.Status)
		if r.Err != nil {
			line += ": " + r.Err.Error()
		} else if r.Message != "" {
			line += ": " + r.Message
		}
		lines = append(lines, line)
	}
	if len(lines) > most {
		lines = append(lines[:most], fmt.Sprintf("and %d more", len(lines)-most))
	}
	return strings.Join(lines, ", ")
}

// Health reads each object and computes its status. Without a checker it is
// kstatus's. An error means that the cluster could not be asked, not that
// something is unhealthy.
func (a *Applier) Health(ctx context.Context, entries []inventory.Entry, checker *health.Checker) (Health, error) {
	if checker == nil {
		var err error
		if checker, err = health.New(nil, nil); err != nil {
			return nil, err
		}
	}
	results := make(Health, len(entries))
	errs := make([]error, len(entries))
	var workers sync.WaitGroup
	next := make(chan int)
	for range min(a.client.parallel, len(entries)) {
		workers.Go(func() {
			for i := range next {
				results[i], errs[i] = a.healthOf(ctx, entries[i], checker)
			}
		})
	}
	var failed error
	for i := range entries {
		next <- i
	}
	close(next)
	workers.Wait()
	for _, err := range errs {
		if failed == nil {
			failed = err
		}
	}
	return results, failed
}

func (a *Applier) healthOf(ctx context.Context, e inventory.Entry, checker *health.Checker) (health.Result, error) {
	var u *unstructured.Unstructured
	// spec.healthChecks may name a version that is not served any more.
	err := a.client.inServed(e, func(served *meta.RESTMapping) error {
		u = e.Object()
		u.SetGroupVersionKind(served.GroupVersionKind)
		return a.client.Get(ctx, client.ObjectKeyFromObject(u), u)
	})
	switch {
	case meta.IsNoMatchError(err):
		return health.Missing(e, nil), nil
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return health.Missing(e, err), nil
	case err != nil:
		return health.Result{Entry: e}, fmt.Errorf("cannot read %s: %w", e, err)
	}
	var pods []*unstructured.Unstructured
	if selector := health.Pods(u); selector != nil {
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion("v1")
		list.SetKind("PodList")
		if err := a.client.List(ctx, list, client.InNamespace(e.Namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil && !apierrors.IsForbidden(err) {
			return health.Result{Entry: e}, fmt.Errorf("cannot list pods of %s: %w", e, err)
		}
		for i := range list.Items {
			pods = append(pods, &list.Items[i])
		}
	}
	r := checker.Status(ctx, u, pods)
	r.Entry = e
	return r, nil
}
