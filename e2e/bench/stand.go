package main

import (
	"context"
	"fmt"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/e2e/testbed"
)

const (
	system     = "flux-system"
	repository = "mono"
	stepLimit  = 15 * time.Minute
)

// stand is what is measured and what it works on.
type stand struct {
	*testbed.Testbed
	// seen are the Kustomizations or HelmReleases, by name.
	seen *testbed.Seen[state]
}

// state of a Kustomization or HelmRelease as far as steps wait for it; the revision
// of a HelmRelease is its chart's version.
type state struct {
	ready    bool
	revision string
	handled  string
}

// set up the servers and the agent. The caller closes what is returned, also
// with an error.
func setUp(ctx context.Context, o options) (*stand, error) {
	b, err := testbed.Start(ctx, o.programs, "bench", repository, clientgoscheme.AddToScheme, sourcev1.AddToScheme, kustomizev1.AddToScheme, helmv2.AddToScheme)
	s := &stand{Testbed: b}
	if err != nil {
		return s, err
	}
	crds, err := deploy.CRDs()
	if err != nil {
		return s, err
	}
	if err := s.Define(ctx, crds, []string{system, namespace},
		&kustomizev1.KustomizationList{}, &sourcev1.GitRepositoryList{}, &sourcev1.HelmRepositoryList{}, &helmv2.HelmReleaseList{}); err != nil {
		return s, err
	}
	health, err := testbed.FreeAddress()
	if err != nil {
		return s, err
	}
	if err := s.StartAgent(health, append([]string{"--metrics-addr", "0", "--namespace", system, "--concurrent", "8"}, o.agent...)...); err != nil {
		return s, err
	}
	return s, s.AgentReady(ctx, health)
}

// follow keeps seen up to date until the context ends.
func (s *stand) follow(ctx context.Context) error {
	return s.followList(ctx, &kustomizev1.KustomizationList{}, func(o client.Object) (now state, ok bool) {
		k, ok := o.(*kustomizev1.Kustomization)
		if ok {
			now = state{
				ready:    meta.IsStatusConditionTrue(k.Status.Conditions, fluxmeta.ReadyCondition),
				revision: k.Status.LastAppliedRevision, handled: k.Status.LastHandledReconcileAt,
			}
		}
		return now, ok
	})
}

// followList follows the objects of a kind.
func (s *stand) followList(ctx context.Context, list client.ObjectList, read func(client.Object) (state, bool)) error {
	// Of ten thousand objects the API server ends a watch that is not read fast enough.
	if err := s.Client.List(ctx, list, client.InNamespace(system)); err != nil {
		return fmt.Errorf("cannot list %T: %w", list, err)
	}
	w, err := watchtools.NewRetryWatcherWithContext(ctx, list.GetResourceVersion(), &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return s.Client.Watch(ctx, list.DeepCopyObject().(client.ObjectList), client.InNamespace(system), &client.ListOptions{Raw: &o})
		},
	})
	if err != nil {
		return fmt.Errorf("cannot watch %T: %w", list, err)
	}
	s.seen = testbed.Follow(w.ResultChan(), func(event watch.Event, _ func(string) state) (string, state, error) {
		o, ok := event.Object.(client.Object)
		if !ok {
			return "", state{}, fmt.Errorf("the watch says %s: %+v", event.Type, event.Object)
		}
		now, ok := read(o)
		if !ok {
			return "", state{}, fmt.Errorf("the watch says %s: %+v", event.Type, event.Object)
		}
		return o.GetName(), now, nil
	})
	return nil
}

// await returns when n objects are as wanted.
func (s *stand) await(ctx context.Context, n int, ok func(state) bool) error {
	done := 0
	err := s.seen.Await(ctx, stepLimit, 0, func(states map[string]state) bool {
		done = 0
		for _, k := range states {
			if ok(k) {
				done++
			}
		}
		return done >= n
	})
	if err != nil {
		return fmt.Errorf("only %d of %d objects came so far: %w", done, n, err)
	}
	return nil
}

func kustomization(i int) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization",
		"metadata": map[string]any{"name": app(i), "namespace": system},
		"spec": map[string]any{
			"interval": "1h", "prune": true, "path": "./" + app(i), "sourceRef": map[string]any{"kind": "GitRepository", "name": repository},
		},
	}}
}
