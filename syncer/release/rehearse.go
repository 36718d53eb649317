package release

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/runtime/conditions"
	"helm.sh/helm/v4/pkg/release/common"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Declares renders what a release would have if it were made now: its manifest and its
// hooks. Nothing is written, no definition of the chart either, so that a chart whose
// objects are of kinds that it defines itself cannot be rendered before its first
// install, but for who asks so (Request.Unserved). The object of the request may not exist yet; its status is not changed.
func (r *Releases) Declares(ctx context.Context, req Request) (objects []*unstructured.Unstructured, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("release panicked: %v", p)
			req.Log.Error(err, "cannot render release", "stack", string(debug.Stack()))
		}
	}()
	req.Object = req.Object.DeepCopy()
	req.Save = func(context.Context) error { return errors.New("a rehearsal has no status") }
	n, err := r.begin(req, nil)
	if err != nil {
		return nil, err
	}
	defer n.giveBack()
	n.aside = true
	_, rel, err := n.newest(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot read release %s/%s: %w", n.namespace, n.name, err)
	}
	next := Install
	if isDeployed(rel) {
		next = Upgrade
	}
	objects, err = n.objectsAfter(ctx, next, nil)
	return objects, n.redacted(err)
}

// UpToDate reports whether a HelmRelease was released with these very inputs, so that
// its inventory has all that it declares. While an action is under way it is not ready.
func UpToDate(obj *v2.HelmRelease, c Chart, values map[string]any) bool {
	return conditions.IsReady(obj) && obj.Status.Inventory != nil && obj.Status.ObservedGeneration == obj.Generation && obj.Status.History.Latest() != nil &&
		obj.Status.LastAttemptedRevision == c.Version && obj.Status.LastAttemptedConfigDigest == ConfigDigest(values).String()
}

func isDeployed(rel *helmrelease.Release) bool {
	return rel != nil && rel.Info != nil && rel.Info.Status == common.StatusDeployed
}
