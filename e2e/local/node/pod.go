package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// pod is the worker of one pod: its goroutine, and those it waits for, own the processes, the directory, the address and the
// status of that pod.
//
// Its end has stages, each a context: when soft ends, processes are asked to end and nothing is started any more; when hard
// ends, they are killed; when wanted ends, the pod is to go altogether (before that, one whose containers have ended stays,
// for others to read its status); when attached ends, the node goes and leaves the object to the next one.
// Each may be asked for any number of times, the earliest wins.
type pod struct {
	host            *host
	namespace, name string
	uid             types.UID
	dir             string
	after           []<-chan struct{} // workers that have to be done first
	done            chan struct{}

	soft, hard, wanted, attached context.Context
	endSoft, endHard, remove     context.CancelFunc
	leave                        context.CancelFunc

	changed chan struct{} // holds one token while the status may need a write

	mu    sync.Mutex
	seen  *corev1.Pod // newest object seen
	facts podFacts
}

func newPod(h *host, object *corev1.Pod) *pod {
	p := &pod{
		host:      h,
		namespace: object.Namespace, name: object.Name, uid: object.UID,
		dir:     filepath.Join(h.Dir, "pods", strings.Join([]string{object.Namespace, object.Name, string(object.UID)}, "_")),
		done:    make(chan struct{}),
		changed: make(chan struct{}, 1),
		seen:    object,
		facts:   podFacts{hostIP: h.ip, podNetwork: h.PodNetwork, started: time.Now(), containers: map[string]*containerFacts{}},
	}
	p.soft, p.endSoft = context.WithCancel(context.Background())
	p.hard, p.endHard = context.WithCancel(context.Background())
	p.wanted, p.remove = context.WithCancel(context.Background())
	p.attached, p.leave = context.WithCancel(context.Background())
	// Restart counts outlive the node: a pod that ran under a former one is restarted by this one.
	restarts := map[string]int32{}
	for _, status := range slices.Concat(object.Status.InitContainerStatuses, object.Status.ContainerStatuses) {
		restarts[status.Name] = restartsSoFar(status)
	}
	for _, container := range allContainers(&object.Spec) {
		p.facts.containers[container.Name] = &containerFacts{
			waiting: waitingFor("PodInitializing", ""), restarts: restarts[container.Name]}
	}
	return p
}

func restartsSoFar(status corev1.ContainerStatus) int32 {
	if status.State.Running != nil || status.State.Terminated != nil {
		return status.RestartCount + 1
	}
	return status.RestartCount
}

func allContainers(spec *corev1.PodSpec) []corev1.Container {
	return slices.Concat(spec.InitContainers, spec.Containers)
}

// object returns the newest object seen, to be read only.
func (p *pod) object() *corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}

// observe takes note of a newer version of the object, and stops the pod if it is being deleted.
func (p *pod) observe(object *corev1.Pod) {
	p.mu.Lock()
	if order, err := resourceversion.CompareResourceVersion(object.ResourceVersion, p.seen.ResourceVersion); err == nil && order < 0 {
		p.mu.Unlock()
		return // the watch lags behind what a status write returned
	}
	p.seen = object
	p.mu.Unlock()
	p.touch()
	if object.DeletionTimestamp != nil {
		grace := int64(0)
		if object.DeletionGracePeriodSeconds != nil {
			grace = *object.DeletionGracePeriodSeconds
		}
		p.stop(time.Duration(grace) * time.Second)
	}
}

// stop has the pod go: it asks the processes to end, and kills them after the grace period.
func (p *pod) stop(grace time.Duration) {
	p.remove()
	p.end(grace)
}

func (p *pod) end(grace time.Duration) {
	p.endSoft()
	if grace <= 0 {
		p.endHard()
		return
	}
	timer := time.AfterFunc(grace, p.endHard)
	context.AfterFunc(p.hard, func() { timer.Stop() })
}

// touch makes the reporter look at the status again.
func (p *pod) touch() {
	select {
	case p.changed <- struct{}{}:
	default: // it will look anyway
	}
}

// update changes the facts and has them reported.
func (p *pod) update(change func(*podFacts)) {
	p.mu.Lock()
	change(&p.facts)
	p.mu.Unlock()
	p.touch()
}

// run is the life of the pod.
func (p *pod) run() {
	defer close(p.done)
	defer p.endHard() // frees the timers
	defer p.leave()
	for _, other := range p.after {
		<-other
	}

	reporting, endReporting := context.WithCancel(context.Background())
	var reporter sync.WaitGroup
	reporter.Go(func() { p.report(reporting) })

	object := p.object()
	if reason := unsupported(&object.Spec); reason != "" {
		p.update(func(f *podFacts) { f.refuse(reason) })
		<-p.wanted.Done()
	} else {
		p.live(object)
	}

	endReporting()
	reporter.Wait()
	p.finish()
}

// live runs the containers until they have all ended for good and the pod is to go.
func (p *pod) live(object *corev1.Pod) {
	ip := p.host.ip
	if !object.Spec.HostNetwork {
		own, ok := p.host.addresses.take()
		if !ok {
			p.update(func(f *podFacts) { f.refuse("the node has no address left for the pod") })
			<-p.wanted.Done()
			return
		}
		ip = own
		defer p.host.addresses.give(ip)
	}
	p.update(func(f *podFacts) { f.podIP = ip })

	account, ok := p.prepare(object)
	if !ok {
		return
	}
	var group sync.WaitGroup
	defer group.Wait()
	defer p.clean()
	if account != nil {
		// Tokens are renewed until the processes have been killed: they may need one to end well.
		group.Go(func() { account.keep(p.hard) })
		defer p.endHard()
	}
	if limit := object.Spec.ActiveDeadlineSeconds; limit != nil {
		timer := time.AfterFunc(time.Duration(*limit)*time.Second, func() {
			p.update(func(f *podFacts) { f.deadlineExceeded = true })
			p.end(graceOf(object))
		})
		defer timer.Stop()
	}

	for i := range object.Spec.InitContainers {
		if !p.supervise(object, &object.Spec.InitContainers[i], true) {
			p.update(func(f *podFacts) { f.initFailed = p.soft.Err() == nil })
			<-p.wanted.Done()
			return
		}
	}
	p.update(func(f *podFacts) { f.initialized = true })

	var containers sync.WaitGroup
	for i := range object.Spec.Containers {
		containers.Go(func() { p.supervise(object, &object.Spec.Containers[i], false) })
	}
	containers.Wait()
	p.update(func(f *podFacts) { f.ended = true })
	<-p.wanted.Done()
}

func graceOf(object *corev1.Pod) time.Duration {
	if seconds := object.Spec.TerminationGracePeriodSeconds; seconds != nil {
		return time.Duration(*seconds) * time.Second
	}
	return 30 * time.Second
}

// prepare makes the directory and the credentials of the pod. It tries until it succeeds or the pod is stopped.
func (p *pod) prepare(object *corev1.Pod) (account *serviceAccount, ok bool) {
	pause := 200 * time.Millisecond
	for {
		account, err := p.tryPrepare(object)
		if err == nil {
			p.update(func(f *podFacts) { f.prepared = true })
			return account, true
		}
		p.host.Log.Warn("cannot prepare pod", "pod", p.namespace+"/"+p.name, "error", err)
		p.update(func(f *podFacts) { f.wait(waitingFor("ContainerCreating", err.Error())) })
		if !sleep(p.soft, pause) {
			return nil, false
		}
		pause = min(2*pause, 10*time.Second)
	}
}

func (p *pod) tryPrepare(object *corev1.Pod) (*serviceAccount, error) {
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return nil, fmt.Errorf("cannot make pod directory: %w", err)
	}
	account := accountOf(p.host, object, p.dir)
	if account == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(p.soft, callTimeout)
	defer cancel()
	return account, account.write(ctx)
}

// clean removes what the pod had on disk except its logs, which are worth most after the pod is gone.
func (p *pod) clean() {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		p.host.Log.Warn("cannot clean pod directory", "error", err)
		return
	}
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name(), logSuffix) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(p.dir, entry.Name())); err != nil {
			p.host.Log.Warn("cannot clean pod directory", "error", err)
		}
	}
}
