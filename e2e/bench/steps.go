package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/gauge"
)

const (
	// settleTime lets what a step stirred up come to rest.
	settleTime = 5 * time.Second
	// idleTime is how long doing nothing is measured.
	idleTime = 60 * time.Second
)

// result of one run of a step. Times are in seconds, memory in MB.
type result struct {
	Workload string  `json:"workload"`
	Step     string  `json:"step"`
	Seconds  float64 `json:"seconds"`
	// Applied is when the one object that the step changed had the change.
	Applied float64 `json:"applied,omitempty"`
	// CPU time of the agent, of its workers, of the API server, and of everything else.
	CPU     float64 `json:"cpuSeconds"`
	Workers float64 `json:"workersCpuSeconds"`
	Server  float64 `json:"serverCpuSeconds"`
	Other   float64 `json:"otherCpuSeconds"`
	// Requests at the API server but for those of the benchmark and of the API server
	// itself, and the writes among them, by verb and resource.
	Requests float64            `json:"requests"`
	Writes   float64            `json:"writes"`
	ByVerb   map[string]float64 `json:"byVerb"`
	PeakRSS  float64            `json:"peakRss"`
	RSS      float64            `json:"rss"`
	Anon     float64            `json:"rssAnon"`
	// WorkersPeak is the sum of what each of the workers that run at the end of the step
	// had at most.
	WorkersPeak float64 `json:"workersPeakRss"`
	// Charts and Indexes are what was downloaded from the chart repository.
	Charts  int `json:"charts,omitempty"`
	Indexes int `json:"indexes,omitempty"`
}

// measure runs all steps of a workload on a stand of its own.
func measure(ctx context.Context, o options, w workload) (results []result, err error) {
	s, err := setUp(ctx, o)
	if s != nil {
		defer func() { err = errors.Join(err, s.Close()) }()
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := s.follow(ctx); err != nil {
		return nil, err
	}
	step := func(name string, own map[string]float64, f func(*result) error) error {
		if err := pause(ctx, settleTime); err != nil {
			return err
		}
		r := result{Workload: w.name, Step: name}
		if err := s.cost(ctx, &r, own, f); err != nil {
			return fmt.Errorf("cannot run step %s: %w", name, err)
		}
		fmt.Fprintf(os.Stderr, "%s %s: %.2f s, applied %.2f s, %.0f requests, %.1f CPU-s, peak RSS %.0f MB, other CPU %.1f s\n",
			w.name, name, r.Seconds, r.Applied, r.Requests, r.CPU, r.PeakRSS, r.Other)
		results = append(results, r)
		return nil
	}
	idle := func(*result) error { return pause(ctx, idleTime) }
	if w.kustomizations == 0 {
		return results, step("idle", nil, idle)
	}
	if _, err := s.commit(ctx, "Begin", w.write); err != nil {
		return results, err
	}
	n := float64(w.kustomizations)
	if err := step("sync", map[string]float64{"POST kustomizations": n, "POST gitrepositories": 1}, func(*result) error { return s.sync(ctx, w) }); err != nil {
		return results, err
	}
	for range o.repeat {
		if err := step("change", map[string]float64{"PATCH gitrepositories": 1}, func(r *result) error { return s.change(ctx, w, r) }); err != nil {
			return results, err
		}
	}
	for range o.repeat {
		if w.bases == 0 {
			break
		}
		if err := step("change of a base", map[string]float64{"PATCH gitrepositories": 1}, func(r *result) error { return s.changeBase(ctx, w) }); err != nil {
			return results, err
		}
	}
	for range o.repeat {
		if err := step("no change", map[string]float64{"PATCH kustomizations": n}, func(*result) error { return s.ask(ctx, w) }); err != nil {
			return results, err
		}
	}
	for range o.repeat {
		if err := step("drift", map[string]float64{"PATCH configmaps": 1}, func(r *result) error { return s.drift(ctx, w, r) }); err != nil {
			return results, err
		}
	}
	return results, step("idle", nil, idle)
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// cost runs f and fills in what it took. own are the requests of the benchmark.
func (s *stand) cost(ctx context.Context, r *result, own map[string]float64, f func(*result) error) error {
	before, err := gauge.Requests(ctx, s.Config)
	if err != nil {
		return err
	}
	if err := gauge.ResetPeak(s.Agent.Process.Pid); err != nil {
		return err
	}
	times := func() (used [4]time.Duration, err error) {
		for i, read := range []func() (time.Duration, error){
			func() (time.Duration, error) { return gauge.CPU(s.Agent.Process.Pid) },
			func() (time.Duration, error) { return gauge.CPUOfChildren(s.Agent.Process.Pid) },
			func() (time.Duration, error) { return gauge.CPU(s.Server) },
			gauge.Machine,
		} {
			if used[i], err = read(); err != nil {
				return used, err
			}
		}
		return used, nil
	}
	used, err := times()
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := f(r); err != nil {
		return err
	}
	r.Seconds = time.Since(begin).Seconds()
	now, err := times()
	if err != nil {
		return err
	}
	r.CPU, r.Workers, r.Server = (now[0] - used[0]).Seconds(), (now[1] - used[1]).Seconds(), (now[2] - used[2]).Seconds()
	r.Other = (now[3] - used[3]).Seconds() - r.CPU - r.Workers - r.Server
	workers, err := gauge.Children(s.Agent.Process.Pid)
	if err != nil {
		return err
	}
	for _, pid := range workers {
		if peak, err := gauge.Memory(pid, "VmHWM"); err == nil { // it may end at any time
			r.WorkersPeak += peak
		}
	}
	for field, to := range map[string]*float64{"VmHWM": &r.PeakRSS, "VmRSS": &r.RSS, "RssAnon": &r.Anon} {
		if *to, err = gauge.Memory(s.Agent.Process.Pid, field); err != nil {
			return err
		}
	}
	after, err := gauge.Requests(ctx, s.Config)
	if err != nil {
		return err
	}
	r.ByVerb = map[string]float64{}
	for key, n := range after {
		n -= before[key] + own[key]
		if verb, resource, _ := strings.Cut(key, " "); n <= 0 || verb == "POST" && resource == "ipaddresses" {
			continue // the API server records the address of each Service by a request to itself
		}
		r.ByVerb[key] = n
		r.Requests += n
		if verb, _, _ := strings.Cut(key, " "); verb != "GET" && verb != "LIST" {
			r.Writes += n
		}
	}
	return nil
}

func (s *stand) commit(ctx context.Context, message string, change func(dir string) error) (string, error) {
	return s.Git.Commit(ctx, repository, "main", message, change)
}

// sync creates the source and the Kustomizations and waits until all are ready.
func (s *stand) sync(ctx context.Context, w workload) error {
	if err := s.Client.Create(ctx, s.GitRepository(system, repository)); err != nil {
		return err
	}
	for i := range w.kustomizations {
		if err := s.Client.Create(ctx, kustomization(i)); err != nil {
			return err
		}
	}
	return s.await(ctx, w.kustomizations, func(k state) bool { return k.ready })
}

// change commits one line and asks the source to look.
func (s *stand) change(ctx context.Context, w workload, r *result) error {
	i := rand.IntN(w.kustomizations)
	value := strconv.FormatInt(time.Now().UnixNano(), 10)
	commit, err := s.commit(ctx, "Change", func(dir string) error { return w.settings(dir, i, value) })
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := s.request(ctx, s.GitRepository(system, repository)); err != nil {
		return err
	}
	if err := s.value(ctx, i, value); err != nil {
		return err
	}
	r.Applied = time.Since(begin).Seconds()
	return s.await(ctx, w.kustomizations, func(k state) bool { return k.ready && strings.HasSuffix(k.revision, commit) })
}

// changeBase commits one line of the first base and asks the source to look.
func (s *stand) changeBase(ctx context.Context, w workload) error {
	commit, err := s.commit(ctx, "Change a base", func(dir string) error {
		return os.WriteFile(filepath.Join(dir, base(0), "changed.yaml"), []byte(strings.ReplaceAll(changed, "VALUE", strconv.FormatInt(time.Now().UnixNano(), 10))), 0o644)
	})
	if err != nil {
		return err
	}
	if err := s.request(ctx, s.GitRepository(system, repository)); err != nil {
		return err
	}
	return s.await(ctx, w.kustomizations, func(k state) bool { return k.ready && strings.HasSuffix(k.revision, commit) })
}

// value waits until the first ConfigMap of an app has a value.
func (s *stand) value(ctx context.Context, i int, want string) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	watcher, err := s.Client.Watch(ctx, &corev1.ConfigMapList{}, client.InNamespace(namespace), client.MatchingFields{"metadata.name": app(i) + "-settings"})
	if err != nil {
		return err
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		if c, ok := event.Object.(*corev1.ConfigMap); ok && c.Data["revision"] == want {
			return nil
		}
	}
	return fmt.Errorf("ConfigMap %s-settings did not get its value: %w", app(i), context.Cause(ctx))
}

// ask asks every Kustomization for a reconcile in which nothing changed.
func (s *stand) ask(ctx context.Context, w workload) error {
	value := strconv.FormatInt(time.Now().UnixNano(), 10)
	for i := range w.kustomizations {
		if err := s.requestAt(ctx, kustomization(i), value); err != nil {
			return err
		}
	}
	return s.await(ctx, w.kustomizations, func(k state) bool { return k.ready && k.handled == value })
}

// drift changes a ConfigMap and waits until it is as it was.
func (s *stand) drift(ctx context.Context, w workload, r *result) error {
	i := rand.IntN(w.kustomizations)
	c := &corev1.ConfigMap{}
	name := client.ObjectKey{Namespace: namespace, Name: app(i) + "-settings"}
	if err := s.Client.Get(ctx, name, c); err != nil {
		return err
	}
	was := c.Data["revision"]
	begin := time.Now()
	if err := s.Client.Patch(ctx, c, client.RawPatch("application/merge-patch+json", []byte(`{"data":{"revision":"drifted"}}`))); err != nil {
		return err
	}
	if err := s.value(ctx, i, was); err != nil {
		return err
	}
	r.Applied = time.Since(begin).Seconds()
	return nil
}

func (s *stand) request(ctx context.Context, u *unstructured.Unstructured) error {
	return s.requestAt(ctx, u, strconv.FormatInt(time.Now().UnixNano(), 10))
}

func (s *stand) requestAt(ctx context.Context, u *unstructured.Unstructured, value string) error {
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, meta.ReconcileRequestAnnotation, value)
	return s.Client.Patch(ctx, u, client.RawPatch("application/merge-patch+json", []byte(patch)))
}

// table has the median of the runs of each step.
func table(results []result) string {
	var b strings.Builder
	b.WriteString("| workload | step | runs | all | applied | requests | writes | CPU | workers' CPU | API server's CPU | peak RSS | workers' peak | RSS (anonymous) | charts, indexes | other CPU |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for len(results) > 0 {
		first := results[0]
		n := 1
		for n < len(results) && results[n].Workload == first.Workload && results[n].Step == first.Step {
			n++
		}
		runs := results[:n]
		results = results[n:]
		of := func(f func(result) float64) float64 { return median(runs, f) }
		applied := "-"
		if a := of(func(r result) float64 { return r.Applied }); a > 0 {
			applied = fmt.Sprintf("%.2f s", a)
		}
		fmt.Fprintf(&b, "| %s | %s | %d | %.1f s | %s | %.0f | %.0f | %.1f s | %.1f s | %.1f s | %.0f MB | %.0f MB | %.0f (%.0f) MB | %.0f, %.0f | %.1f s |\n", first.Workload, first.Step, n,
			of(func(r result) float64 { return r.Seconds }), applied, of(func(r result) float64 { return r.Requests }), of(func(r result) float64 { return r.Writes }),
			of(func(r result) float64 { return r.CPU }), of(func(r result) float64 { return r.Workers }), of(func(r result) float64 { return r.Server }),
			of(func(r result) float64 { return r.PeakRSS }), of(func(r result) float64 { return r.WorkersPeak }),
			of(func(r result) float64 { return r.RSS }), of(func(r result) float64 { return r.Anon }),
			of(func(r result) float64 { return float64(r.Charts) }), of(func(r result) float64 { return float64(r.Indexes) }), of(func(r result) float64 { return r.Other }))
	}
	return b.String()
}

func median(runs []result, f func(result) float64) float64 {
	values := make([]float64, 0, len(runs))
	for _, r := range runs {
		values = append(values, f(r))
	}
	slices.Sort(values)
	return values[len(values)/2]
}
