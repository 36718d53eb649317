package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/fleetsim"
	"github.com/cascade-gitops/cascade/e2e/gauge"
)

// webhookTimeout is how long an API server waits for a webhook by default.
const webhookTimeout = 10 * time.Second

// result of one step. Times are in seconds, memory in MB.
type result struct {
	Children int     `json:"children"`
	Dead     int     `json:"dead"`
	Step     string  `json:"step"`
	Seconds  float64 `json:"seconds"`
	// P50, P99 and Last are of the time until a healthy child was done.
	P50  float64 `json:"p50,omitempty"`
	P99  float64 `json:"p99,omitempty"`
	Last float64 `json:"last,omitempty"`
	// CPU time of the agent, of the simulation, of the hub's API server, and of
	// everything besides.
	CPU   float64 `json:"cpuSeconds"`
	Sim   float64 `json:"simCpuSeconds"`
	Hub   float64 `json:"hubCpuSeconds"`
	Other float64 `json:"otherCpuSeconds"`
	// RSS of the agent at the end, what of it is no page of a file, and its peak.
	RSS     float64 `json:"rss"`
	Anon    float64 `json:"anon"`
	PeakRSS float64 `json:"peakRss"`
	SimRSS  float64 `json:"simRss"`
	// Requests to the children and to the hub, and the writes among them. A token
	// request is none.
	ToChildren     int `json:"toChildren"`
	ChildWrites    int `json:"childWrites"`
	ToHub          int `json:"toHub"`
	HubWrites      int `json:"hubWrites"`
	Goroutines     int `json:"goroutines"`
	ChildrenByVerb map[string]int
	HubByVerb      map[string]int
	// HubMB is what the hub's etcd wrote into its log, in MB, and Written what of that are
	// objects, by resource.
	HubMB   float64                  `json:"hubMB"`
	Written map[string]gauge.Written `json:"written,omitempty"`
	// ChildPerHour and HubPerHour are requests for each child, of a step that does
	// nothing.
	ChildPerHour float64 `json:"childPerHour,omitempty"`
	HubPerHour   float64 `json:"hubPerHour,omitempty"`
	// Milli is the agent's use of a processor, in thousandths.
	Milli float64 `json:"milliCores,omitempty"`
	// Messages that people were told.
	Messages int `json:"messages,omitempty"`
}

// measure runs all steps on one fleet.
func measure(ctx context.Context, o options) (results []result, err error) {
	s, err := setUp(ctx, o, o.children)
	if s != nil {
		defer func() { err = errors.Join(err, s.close(err)) }()
	}
	if err != nil {
		return nil, err
	}
	add := func(r result, err error) error {
		if err != nil {
			return err
		}
		tell(r)
		results = append(results, r)
		return nil
	}
	if err := add(s.seed(ctx)); err != nil {
		return results, err
	}
	if err := pause(ctx, o.settle); err != nil {
		return results, err
	}
	if err := add(s.rest(ctx, nil, o.rest)); err != nil {
		return results, err
	}
	if err := add(s.tree(ctx)); err != nil {
		return results, err
	}
	if err := add(s.restart(ctx)); err != nil {
		return results, err
	}
	if err := pause(ctx, o.settle); err != nil {
		return results, err
	}
	// The new process does not know yet what it would have to compare with.
	first, err := s.change(ctx, nil)
	first.Step = "first change"
	if err := add(first, err); err != nil {
		return results, err
	}
	// What is remembered of a change stays, so rest is measured once more.
	changes := func(dead []string) error {
		for range o.repeat {
			if err := pause(ctx, o.settle); err != nil {
				return err
			}
			if err := add(s.change(ctx, dead)); err != nil {
				return err
			}
		}
		if err := pause(ctx, o.settle); err != nil {
			return err
		}
		return add(s.rest(ctx, dead, o.restAfter))
	}
	if err := changes(nil); err != nil {
		return results, err
	}
	for _, part := range o.dead {
		dead, err := s.kill(ctx, part)
		if err != nil {
			return results, err
		}
		if err := changes(dead); err != nil {
			return results, err
		}
		if err := add(s.recover(ctx, dead)); err != nil {
			return results, err
		}
	}
	if o.sick == 0 {
		return results, nil
	}
	sick, err := s.sicken(ctx, o.sick)
	if err != nil {
		return results, err
	}
	return results, changes(sick)
}

// measureLarge seeds a larger fleet and measures it at rest.
func measureLarge(ctx context.Context, o options) (results []result, err error) {
	s, err := setUp(ctx, o, o.large)
	if s != nil {
		defer func() { err = errors.Join(err, s.close(err)) }()
	}
	if err != nil {
		return nil, err
	}
	rest := func(ctx context.Context) (result, error) { return s.rest(ctx, nil, o.rest) }
	for _, step := range []func(context.Context) (result, error){s.seed, rest} {
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
	return results, nil
}

// close ends the stand; after a failure it shows the end of the agent's log.
func (s *stand) close(failure error) error {
	if failure != nil && s.Log != nil {
		if text, err := os.ReadFile(s.Log.Name()); err == nil {
			fmt.Fprintf(os.Stderr, "the agent's log ends with:\n%s\n", text[max(0, len(text)-2000):])
		}
	}
	return s.Close()
}

func tell(r result) {
	fmt.Fprintf(os.Stderr, "%d children, %d dead, %s: %.1f s (p50 %.1f, p99 %.1f, last %.1f), CPU %.1f s, simulation %.1f s, hub %.1f s, RSS %.0f MB (anonymous %.0f, peak %.0f), %d requests to children (%d writes), %d to the hub (%d writes, %.1f MB), other CPU %.1f s\n",
		r.Children, r.Dead, r.Step, r.Seconds, r.P50, r.P99, r.Last, r.CPU, r.Sim, r.Hub, r.RSS, r.Anon, r.PeakRSS, r.ToChildren, r.ChildWrites, r.ToHub, r.HubWrites, r.HubMB, r.Other)
	if text := r.writtenByKind(); text != "" {
		fmt.Fprintf(os.Stderr, "%d children, %d dead, %s: the hub stored %s\n", r.Children, r.Dead, r.Step, text)
	}
}

// cost runs f and fills in what it took. own are requests to the hub that are
// the benchmark's.
func (s *stand) cost(ctx context.Context, r *result, own map[string]int, f func() error) error {
	if err := s.control.Reset(ctx); err != nil {
		return err
	}
	hubBefore, err := gauge.Requests(ctx, s.Config)
	if err != nil {
		return err
	}
	written, err := gauge.WrittenBytes(ctx, s.Etcd())
	if err != nil {
		return err
	}
	objects, err := s.writes.Total()
	if err != nil {
		return err
	}
	pids := []int{s.fleet.Process.Pid, s.Server}
	agentBefore := time.Duration(0)
	if s.Agent != nil {
		if agentBefore, err = gauge.CPU(s.Agent.Process.Pid); err != nil {
			return err
		}
		if err := gauge.ResetPeak(s.Agent.Process.Pid); err != nil {
			return err
		}
	}
	read := func() (times []time.Duration, err error) {
		for _, pid := range pids {
			t, err := gauge.CPU(pid)
			if err != nil {
				return nil, err
			}
			times = append(times, t)
		}
		all, err := gauge.Machine()
		return append(times, all), err
	}
	before, err := read()
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := f(); err != nil {
		return err
	}
	r.Seconds = time.Since(begin).Seconds()
	after, err := read()
	if err != nil {
		return err
	}
	total, err := gauge.WrittenBytes(ctx, s.Etcd())
	if err != nil {
		return err
	}
	r.HubMB = (total - written) / 1e6
	if r.Written, err = s.writes.Total(); err != nil {
		return err
	}
	for resource, before := range objects {
		now := r.Written[resource]
		r.Written[resource] = gauge.Written{Writes: now.Writes - before.Writes, Bytes: now.Bytes - before.Bytes}
	}
	agent, err := gauge.CPU(s.Agent.Process.Pid)
	if err != nil {
		return err
	}
	r.CPU = (agent - agentBefore).Seconds()
	r.Sim, r.Hub = (after[0] - before[0]).Seconds(), (after[1] - before[1]).Seconds()
	r.Other = (after[2] - before[2]).Seconds() - r.CPU - r.Sim - r.Hub
	for field, to := range map[string]*float64{"VmHWM": &r.PeakRSS, "VmRSS": &r.RSS, "RssAnon": &r.Anon} {
		if *to, err = gauge.Memory(s.Agent.Process.Pid, field); err != nil {
			return err
		}
	}
	if r.SimRSS, err = gauge.Memory(s.fleet.Process.Pid, "VmRSS"); err != nil {
		return err
	}
	if r.ChildrenByVerb, err = s.control.Counts(ctx); err != nil {
		return err
	}
	for key, n := range r.ChildrenByVerb {
		r.ToChildren += n
		verb, resource, _ := strings.Cut(key, " ")
		if slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, verb) && resource != "serviceaccounts/token" {
			r.ChildWrites += n
		}
	}
	hub, err := gauge.Requests(ctx, s.Config)
	if err != nil {
		return err
	}
	r.HubByVerb = map[string]int{}
	for key, n := range hub {
		n := int(n-hubBefore[key]) - own[key]
		if n <= 0 {
			continue
		}
		r.HubByVerb[key] = n
		r.ToHub += n
		if verb, _, _ := strings.Cut(key, " "); verb != "GET" && verb != "LIST" {
			r.HubWrites += n
		}
	}
	return nil
}

func (s *stand) result(step string) result { return result{Children: len(s.names), Step: step} }

// spread fills in how long the children took.
func (r *result) spread(begin time.Time, times []time.Time) {
	var took []float64
	for _, t := range times {
		took = append(took, max(0, t.Sub(begin).Seconds()))
	}
	slices.Sort(took)
	at := func(part float64) float64 { return took[min(int(part*float64(len(took))), len(took)-1)] }
	r.P50, r.P99, r.Last = at(0.5), at(0.99), took[len(took)-1]
}

// seed starts the agent for the first time and waits until every child is ready.
func (s *stand) seed(ctx context.Context) (result, error) {
	r := s.result("seed")
	profiled := make(chan error, 1)
	err := s.cost(ctx, &r, nil, func() error {
		begin := time.Now()
		if err := s.startAgent(); err != nil {
			return err
		}
		go func() { profiled <- s.profileCPU(ctx, "seed", 3*time.Second, 10*time.Second) }()
		times, err := s.await(ctx, s.names, "ready", func(c state) bool { return c.ready })
		if err != nil {
			return err
		}
		r.spread(begin, times)
		return nil
	})
	return r, errors.Join(err, <-profiled)
}

// rest measures what the agent does when there is nothing to do.
func (s *stand) rest(ctx context.Context, dead []string, long time.Duration) (result, error) {
	r := s.result("rest")
	r.Dead = len(dead)
	n := fmt.Sprintf("%d-%d", len(s.names), r.Dead)
	err := errors.Join(s.profile(ctx, "rest-"+n+"-heap", "heap?gc=1"), s.profile(ctx, "rest-"+n+"-goroutines", "goroutine"))
	if err != nil {
		return r, err
	}
	err = s.cost(ctx, &r, nil, func() error { return pause(ctx, long) })
	hours := r.Seconds / 3600
	r.ChildPerHour = float64(r.ToChildren) / float64(r.Children) / hours
	r.HubPerHour = float64(r.ToHub) / float64(r.Children) / hours
	r.Milli = r.CPU / r.Seconds * 1000
	return r, err
}

// tree counts the fleet by its revisions, as a person does.
func (s *stand) tree(ctx context.Context) (result, error) {
	r := s.result("tree")
	return r, s.cost(ctx, &r, nil, func() error {
		command := exec.CommandContext(ctx, filepath.Join(s.options.programs, "cascade"), "tree", "--group-by", "revision", "--kubeconfig", s.Kubeconfig())
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("cannot show the tree: %w: %s", err, out)
		}
		return nil
	})
}

// restart ends the agent and starts another, which is done when it has looked at
// the agent of every child, and at the record of every layer.
func (s *stand) restart(ctx context.Context) (result, error) {
	r := s.result("restart")
	s.StopAgent()
	return r, s.cost(ctx, &r, nil, func() error {
		if err := s.startAgent(); err != nil {
			return err
		}
		for {
			n, err := s.control.Reached(ctx, "get leases")
			if err != nil {
				return err
			}
			// The records of more than two layers come in one list.
			listed, err := s.control.Reached(ctx, "list configmaps")
			if err != nil {
				return err
			}
			counts, err := s.control.Counts(ctx)
			if err != nil || len(n) == len(s.names) && (len(listed) == len(n) || counts["get configmaps"] >= len(n)*s.options.layers) {
				return err
			}
			if err := pause(ctx, 100*time.Millisecond); err != nil {
				return err
			}
		}
	})
}

// change commits one line and waits until every child that is not dead has it.
func (s *stand) change(ctx context.Context, dead []string) (result, error) {
	r := s.result("change")
	r.Dead = len(dead)
	var healthy []string
	for _, name := range s.names {
		if !slices.Contains(dead, name) {
			healthy = append(healthy, name)
		}
	}
	commit, err := s.commit(ctx, strconv.FormatInt(time.Now().UnixNano(), 10))
	if err != nil {
		return r, err
	}
	return r, s.cost(ctx, &r, map[string]int{"PATCH gitrepositories": 1}, func() error {
		begin := time.Now()
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, fluxmeta.ReconcileRequestAnnotation, commit)
		if err := s.Client.Patch(ctx, s.GitRepository(namespace, repository), client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
			return err
		}
		times, err := s.await(ctx, healthy, "changed", func(c state) bool { return c.ready && strings.HasSuffix(c.revision, commit) })
		if err != nil {
			return err
		}
		r.spread(begin, times)
		return nil
	})
}

// kill makes a part of the children black holes, and returns when the hub says so
// of all of them.
func (s *stand) kill(ctx context.Context, part float64) ([]string, error) {
	plan := fleetsim.Plan(1, s.names, fleetsim.Share{Part: part, Faults: fleetsim.Faults{BlackHole: true}})
	var dead []string
	for name := range plan {
		dead = append(dead, name)
	}
	slices.Sort(dead)
	if err := s.control.SetFaults(ctx, dead, fleetsim.Faults{BlackHole: true}); err != nil {
		return nil, err
	}
	begin := time.Now()
	_, err := s.await(ctx, dead, "unreachable", func(c state) bool { return !c.connected })
	fmt.Fprintf(os.Stderr, "%d children are dead; the hub says so of all after %.1f s\n", len(dead), time.Since(begin).Seconds())
	return dead, err
}

// sicken makes n children hang in the middle of their answers, lets n others wait for a
// webhook in vain, and makes n others black holes. It does not wait until that is known.
func (s *stand) sicken(ctx context.Context, n int) ([]string, error) {
	if 3*n >= len(s.names) {
		return nil, fmt.Errorf("cannot make three times %d of %d children sick", n, len(s.names))
	}
	for i, faults := range []fleetsim.Faults{{Hang: true, Latency: s.options.latency}, {DeadWebhook: webhookTimeout, Latency: s.options.latency}, {BlackHole: true}} {
		if err := s.control.SetFaults(ctx, s.names[i*n:(i+1)*n], faults); err != nil {
			return nil, err
		}
	}
	return slices.Clone(s.names[:3*n]), nil
}

// recover lets dead children answer again and waits until they are ready.
func (s *stand) recover(ctx context.Context, dead []string) (result, error) {
	r := s.result("recover")
	r.Dead = len(dead)
	return r, s.cost(ctx, &r, nil, func() error {
		begin := time.Now()
		if err := s.control.SetFaults(ctx, dead, fleetsim.Faults{Latency: s.options.latency}); err != nil {
			return err
		}
		times, err := s.await(ctx, s.names, "ready", func(c state) bool { return c.ready && c.connected })
		if err != nil {
			return err
		}
		r.spread(begin, times)
		return nil
	})
}
