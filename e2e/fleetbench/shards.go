package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// measureShards seeds a fleet that two replicas share, kills the one that leads, and
// measures how long its children are without one, and what rest and a change take then. Memory
// is that of the replica which is left.
func measureShards(ctx context.Context, o options) (results []result, err error) {
	s, err := setUp(ctx, o, o.sharded)
	if s != nil {
		defer func() { err = errors.Join(err, s.close(err)) }()
	}
	if err != nil {
		return nil, err
	}
	add := func(r result, err error) error {
		if err == nil {
			tell(r)
			results = append(results, r)
		}
		return err
	}
	if err := s.startReplica("first"); err != nil {
		return nil, err
	}
	victim := s.Agent
	defer func() {
		_ = victim.Process.Kill() // which may be done already
		_ = victim.Wait()
	}()
	// The first one leads before there is a second.
	if err := s.until(ctx, "the first replica drives children", func() (bool, error) {
		driven, err := s.driven(ctx)
		return err == nil && len(driven) > 0, nil
	}); err != nil {
		return nil, err
	}
	r := s.result("seed by two")
	if err := s.startReplica("second"); err != nil {
		return nil, err
	}
	if err := add(r, s.cost(ctx, &r, nil, func() error {
		begin := time.Now()
		times, err := s.await(ctx, s.names, "ready", func(c state) bool { return c.ready })
		if err == nil {
			r.spread(begin, times)
		}
		return err
	})); err != nil {
		return results, err
	}
	if err := pause(ctx, o.settle); err != nil {
		return results, err
	}
	driven, err := s.driven(ctx)
	if err != nil {
		return results, err
	}
	r = s.result(fmt.Sprintf("take-over of %d", len(s.names)-len(driven)))
	profiled := make(chan error, 1)
	err = s.cost(ctx, &r, nil, func() error {
		go func() { profiled <- s.profileCPU(ctx, "take-over", 16*time.Second, 10*time.Second) }()
		if err := victim.Process.Kill(); err != nil {
			return err
		}
		return s.until(ctx, "the children of the replica that was killed have another", func() (bool, error) {
			reached, err := s.control.Reached(ctx, "get leases")
			for _, name := range reached {
				driven[name] = true
			}
			return len(driven) == len(s.names), err
		})
	})
	if err := add(r, errors.Join(err, <-profiled)); err != nil {
		return results, err
	}
	if err := pause(ctx, o.settle); err != nil {
		return results, err
	}
	if err := add(s.rest(ctx, nil, o.rest)); err != nil {
		return results, err
	}
	return results, add(s.change(ctx, nil))
}

// startReplica starts one of several agents that share the children.
func (s *stand) startReplica(name string) error {
	s.Env = []string{"POD_NAME=" + name}
	return s.startAgent("--enable-leader-election=true", "--shards=4", "--storage-path", filepath.Join(s.Dir, "storage-"+name))
}

// driven are the children that the agent which was started last drives, as its metrics
// say.
func (s *stand) driven(ctx context.Context) (map[string]bool, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.metrics+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("cannot read metrics: %w", err)
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("cannot parse metrics: %w", err)
	}
	driven := map[string]bool{}
	for _, m := range families["cascade_child_condition"].GetMetric() {
		for _, label := range m.GetLabel() {
			if label.GetName() == "name" {
				driven[label.GetValue()] = true
			}
		}
	}
	return driven, nil
}

// until waits until something is so.
func (s *stand) until(ctx context.Context, what string, is func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, s.limit())
	defer cancel()
	for {
		if ok, err := is(); err != nil || ok {
			return err
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("gave up waiting until %s: %w", what, err)
		}
	}
}
