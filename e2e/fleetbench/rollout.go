package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/fleetsim"
)

// waveLabel of a Cluster says in which wave of the Rollout it is: a canary of a hundred, or
// one of four larger ones.
const waveLabel = "wave"

// rolloutWaves are the names of the waves.
var rolloutWaves = [...]string{"canary", "early", "half", "most", "rest"}

// waveOf is the wave of a cluster.
func waveOf(name string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	switch n := h.Sum32() % 100; {
	case n < 1:
		return rolloutWaves[0]
	case n < 10:
		return rolloutWaves[1]
	case n < 40:
		return rolloutWaves[2]
	case n < 70:
		return rolloutWaves[3]
	}
	return rolloutWaves[4]
}

// rolloutDeadline of one cluster.
const rolloutDeadline = 30 * time.Second

// rolloutOf is the Rollout of the layer with the agent.
func rolloutOf() *unstructured.Unstructured {
	waves := []any{}
	for i, name := range rolloutWaves {
		wave := map[string]any{"name": name, "maxConcurrent": "10%", "maxFailures": "10%"}
		if i < len(rolloutWaves)-1 {
			wave["selector"] = map[string]any{"matchLabels": map[string]any{waveLabel: name}}
		}
		waves = append(waves, wave)
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "Rollout",
		"metadata": map[string]any{"name": layerName, "namespace": namespace},
		"spec":     map[string]any{"moves": map[string]any{"layerRef": map[string]any{"name": layerName}}, "deadline": rolloutDeadline.String(), "waves": waves},
	}}
}

// measureRollout brings a commit over a fleet in waves, a part of which is dead or fails, and
// lets the dead ones return.
func measureRollout(ctx context.Context, o options) (results []result, err error) {
	s, err := setUp(ctx, o, o.rollout)
	if s != nil {
		defer func() { err = errors.Join(err, s.close(err)) }()
	}
	if err != nil {
		return nil, err
	}
	steps := []func(context.Context) (result, error){
		s.seed,
		func(ctx context.Context) (result, error) { return s.change(ctx, nil) },
		s.adopt, s.rolledOut,
		func(ctx context.Context) (result, error) { return s.rest(ctx, nil, o.rest) },
	}
	for _, step := range steps {
		r, err := step(ctx)
		if err != nil {
			return results, err
		}
		tell(r)
		results = append(results, r)
		if err := pause(ctx, o.settle); err != nil {
			return results, err
		}
	}
	dead, err := s.kill(ctx, 0.02)
	if err != nil {
		return results, err
	}
	failing := s.failing(dead)
	if err := s.control.SetFaults(ctx, failing, fleetsim.Faults{DeadWebhook: webhookTimeout, Latency: o.latency}); err != nil {
		return results, err
	}
	fmt.Fprintf(os.Stderr, "%d children fail\n", len(failing))
	for _, step := range []func(context.Context) (result, error){
		s.rolledOut,
		func(ctx context.Context) (result, error) { return s.comeBack(ctx, append(dead, failing...)) },
	} {
		r, err := step(ctx)
		if err != nil {
			return results, err
		}
		r.Dead = len(dead)
		tell(r)
		results = append(results, r)
	}
	return results, nil
}

// failing is one in a hundred of the children that are not dead.
func (s *stand) failing(dead []string) []string {
	var names []string
	for i, name := range s.names {
		if i%100 == 50 && !slices.Contains(dead, name) {
			names = append(names, name)
		}
	}
	return names
}

// passed waits until a commit passed all waves. Each time that it looks, it holds what
// clusters have against what may be changing.
func (s *stand) passed(ctx context.Context, commit string) (*v1alpha1.Rollout, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*s.limit())
	defer cancel()
	for {
		o := &v1alpha1.Rollout{}
		if err := s.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: layerName}, o); err != nil {
			return nil, fmt.Errorf("cannot read the Rollout: %w", err)
		}
		if good := o.Status.LastGood; good != nil && strings.HasSuffix(good.Revision, commit) {
			return o, nil
		}
		if run := o.Status.Run; run != nil && run.Phase == v1alpha1.RolloutHalted {
			return nil, fmt.Errorf("the Rollout halted: %+v, failing %+v", o.Status.Clusters, o.Status.Failing)
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return nil, fmt.Errorf("the Rollout is at %+v, %+v: %w", o.Status.Run, o.Status.Clusters, err)
		}
	}
}

// adopt creates the Rollout of a fleet in which the layer is in place.
func (s *stand) adopt(ctx context.Context) (result, error) {
	r := s.result("adopt")
	return r, s.cost(ctx, &r, nil, func() error {
		if err := s.Client.Create(ctx, rolloutOf()); err != nil {
			return fmt.Errorf("cannot create the Rollout: %w", err)
		}
		_, err := s.passed(ctx, "")
		return err
	})
}

// rolledOut commits one line, and waits until it passed all waves.
func (s *stand) rolledOut(ctx context.Context) (result, error) {
	r := s.result("rollout")
	commit, err := s.commit(ctx, strconv.FormatInt(time.Now().UnixNano(), 10))
	if err != nil {
		return r, err
	}
	return r, s.cost(ctx, &r, map[string]int{"PATCH gitrepositories": 1}, func() error {
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, fluxmeta.ReconcileRequestAnnotation, commit)
		if err := s.Client.Patch(ctx, s.GitRepository(namespace, repository), client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
			return err
		}
		o, err := s.passed(ctx, commit)
		if err == nil {
			fmt.Fprintf(os.Stderr, "the Rollout has %+v\n", o.Status.Clusters)
		}
		return err
	})
}

// comeBack lets children answer again, and waits until all have the commit that passed.
func (s *stand) comeBack(ctx context.Context, names []string) (result, error) {
	r := s.result("return")
	return r, s.cost(ctx, &r, nil, func() error {
		if err := s.control.SetFaults(ctx, names, fleetsim.Faults{Latency: s.options.latency}); err != nil {
			return err
		}
		o := &v1alpha1.Rollout{}
		if err := s.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: layerName}, o); err != nil {
			return fmt.Errorf("cannot read the Rollout: %w", err)
		}
		begin := time.Now()
		times, err := s.await(ctx, s.names, "at the revision that passed", func(c state) bool { return c.ready && c.revision == o.Status.LastGood.Revision })
		if err != nil {
			return err
		}
		r.spread(begin, times)
		return nil
	})
}
