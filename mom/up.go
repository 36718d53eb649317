//go:build linux

package mom

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/mom/supervise"
	"github.com/cascade-gitops/cascade/state/archive"
	"github.com/cascade-gitops/cascade/state/store"
	"github.com/cascade-gitops/cascade/syncer/answer"
)

const (
	// logBytes bounds each of the two files of what a program prints.
	logBytes = 16 << 20
	// startPatience bounds the start of one program, on a machine that is busy.
	startPatience = 5 * time.Minute
	// lookEvery is the pause between two looks at the tier, and lookPatience bounds one.
	lookEvery    = 2 * time.Second
	lookPatience = 30 * time.Second
	// planeGrace and writerGrace are how long programs may take to end.
	planeGrace  = 10 * time.Second
	writerGrace = 20 * time.Second
)

// ErrNotReady says that the time was over, or somebody stopped it, before the tier might go.
var ErrNotReady = errors.New("the tier is not ready")

// errOver is the cause of a context whose time, as a person said it, is over.
var errOver = errors.New("its time is over")

// run is one call of Up.
type run struct {
	Options
	board      *board
	supervisor *supervise.Supervisor
	config     *rest.Config
	client     client.Client
	managers   []*manager
	// ports are two for each provider, and for the agent after these.
	ports     [][]int
	beginning Beginning
	origin    Origin
	// saved is the state to restore, and newest the newest one, if that is another.
	saved, newest *archive.Snapshot
	lease         *lease
	saver         *saver
	// request is what the objects that sync the tier say when the agent looked at them.
	request string

	// writers are the providers and the agent; they end with their context.
	writers    sync.WaitGroup
	writing    context.Context
	endWriting context.CancelCauseFunc
}

// Up brings a management cluster up, and ends it when the context ends or it has done what it
// was to do. It returns when nothing of it runs any more: ErrNotReady where it was to run until
// the tier is ready, and the time was over or it was stopped before.
func Up(ctx context.Context, o Options) error {
	lock, err := o.Folder.acquire()
	if err != nil {
		return err
	}
	defer lock.Close()
	if o.For > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, o.For, errOver)
		defer stop()
	}
	r := &run{Options: o, board: &board{folder: o.Folder}}
	tier := o.Repository.tier()
	r.board.change(func(s *Status) {
		*s = Status{PID: os.Getpid(), Phase: PhaseStarting, Since: o.Now(), Kubeconfig: o.Folder.Kubeconfig(), Repository: tier.Repository, Branch: tier.Branch, Path: tier.Path}
	})
	err = r.up(ctx)
	r.board.change(func(s *Status) {
		s.Phase, s.Since = PhaseStopped, o.Now()
		if r.supervisor != nil {
			s.Programs = r.supervisor.States()
		}
		missed := err == nil && o.UntilReady && !s.Verdict.Ready
		if missed && errors.Is(context.Cause(ctx), errOver) {
			err, missed = s.Verdict.missed("after "+o.For.String()), false
		}
		if err != nil {
			s.Message = err.Error()
		}
		if missed {
			// It went as whoever stopped it wanted, which the status says to them. Who waits for it has less.
			err = s.Verdict.missed("when it was stopped; nothing was deleted")
		}
	})
	return err
}

// missed says that what was waited for did not come.
func (v Verdict) missed(when string) error {
	err := fmt.Errorf("cannot wait for the tier any longer: %w %s", ErrNotReady, when)
	if len(v.Waiting) > 0 {
		err = fmt.Errorf("%w: it waits for %s", err, strings.Join(v.Waiting, "; "))
	}
	return err
}

func (r *run) up(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.writing, r.endWriting = context.WithCancelCause(context.WithoutCancel(ctx))
	defer r.endWriting(nil)
	if r.State != nil {
		var before Origin
		if _, err := readJSON(r.Folder.origin(), &before); err != nil {
			return err
		}
		r.lease = &lease{state: r.State, board: r.board, now: r.Now, say: r.Say, before: before.Holder, onLost: func(why error) {
			r.endWriting(fmt.Errorf("%w: %w", why, supervise.ErrAtOnce))
			cancel(why)
		}}
		if err := r.lease.take(ctx); err != nil {
			return r.orCause(ctx, err)
		}
		defer func() { err = errors.Join(err, r.lease.release(ctx)) }()
	}
	if err := r.begin(ctx); err != nil {
		return r.orCause(ctx, err)
	}
	r.supervisor = supervise.New(supervise.Options{Logs: r.Folder.logs(), LogBytes: logBytes, Now: r.Now, Rand: r.Rand, Ended: func(state supervise.State) {
		r.Say("%s ended and is started again: %s; see %s", state.Name, state.Ended, state.Log)
	}})
	defer r.supervisor.Close()

	planeContext, endPlane := context.WithCancel(context.WithoutCancel(ctx))
	var plane sync.WaitGroup
	defer plane.Wait()
	defer endPlane()
	plane.Go(func() {
		if err := r.supervisor.Keep(planeContext, r.plane()); err != nil {
			cancel(err)
		}
	})
	// What writes has ended before the cluster that it writes to does.
	defer func() { err = errors.Join(err, r.down(ctx)) }()
	defer r.writers.Wait()
	defer func() { r.endWriting(nil) }()

	if err := r.bringUp(ctx); err != nil {
		return r.orCause(ctx, err)
	}
	return r.orCause(ctx, r.watch(ctx))
}

// orCause is why a context ended, where that is the reason of an error; nil if a person ended
// it, or said when it is to end.
func (r *run) orCause(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, context.Canceled):
		return nil
	case errors.Is(cause, errOver):
		r.Say("%s are over", r.For)
		return nil
	default:
		return cause
	}
}

// begin decides what to begin with, and puts aside what does not count.
func (r *run) begin(ctx context.Context) error {
	s := Situation{Tier: r.Repository.tier(), Moved: r.Moved}
	if _, err := os.Stat(filepath.Join(r.Folder.plane(), "etcd")); err == nil {
		s.Cluster = true
	}
	if _, err := readJSON(r.Folder.origin(), &s.Origin); err != nil {
		return err
	}
	if r.State != nil {
		versions, err := r.State.versions(ctx)
		if err != nil && (!s.Cluster || !errors.Is(err, store.ErrGone)) { // the folder has it still
			return err
		}
		s.State, s.Versions, s.Wanted = r.State.Address, versions, r.State.Version
	}
	var err error
	if r.beginning, err = Begin(s); err != nil {
		return err
	}
	r.origin = s.Origin
	switch r.beginning.How {
	case Fresh:
		r.origin.Tier = Tier{}
	case Restore:
		// What cannot be read or opened is found out before anything gives way to it.
		if r.saved, err = r.State.load(ctx, r.beginning.Version); err != nil {
			return err
		}
		if !r.beginning.Newest {
			if r.newest, err = r.State.load(ctx, ""); err != nil {
				return err
			}
		}
		of := tierOf(r.saved, r.newest)
		if of == (Tier{}) && s.Origin.State == s.State {
			of = s.Origin.Tier // the folder worked on this state
		}
		if s.ofAnother(of) {
			return fmt.Errorf("cannot use state %s: it is of %s, not of %s, whose Clusters would be built a second time; "+
				"use another --state, or say --moved if this is the same tier", s.State, of, s.Tier)
		}
		r.origin.Tier = of
	}
	if r.beginning.Aside {
		aside := r.Folder.path("controlplane." + r.Now().UTC().Format("20060102T150405Z"))
		if err := os.Rename(r.Folder.plane(), aside); err != nil {
			return fmt.Errorf("cannot put the cluster of the folder aside: %w", err)
		}
		r.Say("the state is another one than that of this folder, whose cluster is put aside as %s", aside)
	}
	if r.State != nil {
		r.origin.State, r.origin.Epoch, r.origin.Holder = r.State.Address, r.lease.current().Epoch, r.State.Holder
		r.origin.Saving, r.origin.Restoring = false, r.beginning.How == Restore
	}
	return writeJSON(r.Folder.origin(), r.origin)
}

// bringUp starts everything in its order.
func (r *run) bringUp(ctx context.Context) error {
	began := r.Now()
	if err := r.awaitPlane(ctx); err != nil {
		return err
	}
	r.Say("the control plane is up after %s", r.since(began))
	if err := r.connect(); err != nil {
		return err
	}
	for _, objects := range r.Agent {
		if err := applyAll(ctx, r.client, objects); err != nil {
			return err
		}
	}
	if err := r.goOn(ctx); err != nil {
		return err
	}
	if err := r.takePorts(); err != nil {
		return err
	}
	if err := r.prepareProviders(ctx); err != nil {
		return err
	}
	if err := r.restore(ctx); err != nil {
		return err
	}
	if err := r.startProviders(ctx); err != nil {
		return err
	}
	r.Say("Cluster API and %d providers are up after %s", len(r.managers)-1, r.since(began))
	if err := applyAll(ctx, r.client, r.Objects); err != nil {
		return err
	}
	r.request = r.Now().UTC().Format(time.RFC3339Nano)
	sync, err := r.Repository.objects(r.request)
	if err != nil {
		return err
	}
	if err := applyAll(ctx, r.client, sync); err != nil {
		return err
	}
	if err := r.startAgent(ctx); err != nil {
		return err
	}
	r.Say("the agent is up after %s; kubeconfig: %s", r.since(began), r.Folder.Kubeconfig())
	return nil
}

func (r *run) since(began time.Time) time.Duration {
	return r.Now().Sub(began).Round(100 * time.Millisecond)
}

// plane is the control plane.
func (r *run) plane() supervise.Program {
	return supervise.Program{
		Name: PlaneProgram, File: filepath.Join(r.Programs, PlaneProgram), Env: r.Environment, Grace: planeGrace,
		Args: []string{"run", "--dir=" + r.Folder.plane(), "--name=" + r.Name, "--durable", "--owner-pid=" + strconv.Itoa(os.Getpid())},
	}
}

// awaitPlane waits until the process that runs says that it is usable.
func (r *run) awaitPlane(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	err := poll(ctx, "the control plane", func(context.Context) error {
		text, err := os.ReadFile(filepath.Join(r.Folder.plane(), "ready"))
		if err != nil {
			return err
		}
		pid := r.pidOf(PlaneProgram)
		if pid == 0 || strings.TrimSpace(string(text)) != strconv.Itoa(pid) {
			return errors.New("it is not usable yet")
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%w; see %s", err, filepath.Join(r.Folder.logs(), PlaneProgram+".log"))
	}
	return r.Folder.handOut()
}

func (r *run) pidOf(program string) int {
	for _, state := range r.supervisor.States() {
		if state.Name == program {
			return state.PID
		}
	}
	return 0
}

func (r *run) connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", r.Folder.programs())
	if err != nil {
		return fmt.Errorf("cannot load kubeconfig: %w", err)
	}
	config.QPS, config.UserAgent = -1, fieldManager
	answer.Guard(config)
	r.config = config
	if r.client, err = client.New(config, client.Options{Scheme: r.Scheme}); err != nil {
		return fmt.Errorf("cannot connect to the control plane: %w", err)
	}
	return nil
}

// goOn asks the cluster of a folder that does not know a tier which one it is of: the process may
// have been killed just after it had begun to apply it. It asks for the branch, too, which a folder of
// an earlier program does not know.
func (r *run) goOn(ctx context.Context) error {
	if r.beginning.How != GoOn || r.origin.Branch != "" {
		return nil
	}
	facts, err := r.readFacts(ctx)
	if err != nil {
		return err
	}
	declared := facts.declared()
	switch {
	case r.origin.Tier == (Tier{}):
		r.origin.Tier = facts.tier(Tier{}, declared)
	case r.origin.Tier.is(declared):
		r.origin.Branch = facts.branch()
	}
	if err := writeJSON(r.Folder.origin(), r.origin); err != nil {
		return err
	}
	_, err = Situation{Tier: r.Repository.tier(), Moved: r.Moved, Origin: r.origin}.goOn()
	return err
}

// readFacts reads what the tier says about itself.
func (r *run) readFacts(ctx context.Context) (Facts, error) {
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	return readFacts(ctx, r.client, r.request)
}

// know keeps on record which tier the cluster is of, when that is another one than before.
func (r *run) know(facts Facts) {
	of := facts.tier(r.origin.Tier, r.Repository.tier())
	if of == r.origin.Tier {
		return
	}
	r.origin.Tier = of
	if r.saver != nil {
		r.saver.know(of)
	} else if err := writeJSON(r.Folder.origin(), r.origin); err != nil {
		r.Say("the folder does not know that its cluster is of %s: %v", of, err)
	}
}

// restore brings a saved state into the cluster, and saves that it is in use from now on: who
// finds it so cannot take it for one that nothing was added to.
func (r *run) restore(ctx context.Context) error {
	if r.State == nil {
		return nil
	}
	if r.beginning.How == Restore {
		snapshot, newest := r.saved, r.newest
		r.saved, r.newest = nil, nil
		if newest != nil {
			opened(newest, Beginning{})
		}
		taken := snapshot.Taken
		settled := opened(snapshot, r.beginning)
		r.Say("restoring version %s of %s: %s", r.beginning.Version, taken.UTC().Format(time.RFC3339), kindsOf(snapshot))
		if err := r.State.Restore(ctx, r.client, snapshot, newest); err != nil {
			return fmt.Errorf("cannot restore version %s of the state: %w", r.beginning.Version, err)
		}
		if settled {
			if err := settle(ctx, r.client); err != nil {
				return err
			}
		} else {
			r.Say("Clusters that Git declares and this version does not have are held: it is not known that none was made after it was saved")
		}
		r.origin.Version, r.origin.Restoring = r.beginning.Version, false
		if err := writeJSON(r.Folder.origin(), r.origin); err != nil {
			return err
		}
	}
	r.saver = &saver{
		state: r.State, client: r.client, folder: r.Folder, origin: r.origin, lease: r.lease, board: r.board, say: r.Say, now: r.Now,
		tier: r.origin.Tier, changed: make(chan struct{}, 1),
	}
	return r.saver.save(ctx, false)
}

// firstSync is what the agent does where nothing is on record. Where something was restored,
// the tier is not a new one, whatever a person says.
func (r *run) firstSync() string {
	if r.beginning.How == Restore {
		return "adopt"
	}
	return r.FirstSync
}

// startAgent starts the agent and waits until it works.
func (r *run) startAgent(ctx context.Context) error {
	ports := r.ports[len(r.Providers)]
	health := loopback(ports[0])
	args := append([]string{
		"agent", "--health-addr=" + health, "--metrics-addr=" + loopback(ports[1]), "--enable-leader-election=false",
		"--storage-path=" + r.Folder.path("agent"), "--first-sync=" + r.firstSync(),
	}, r.AgentArgs...)
	kubeconfig, err := r.account(ctx)
	if err != nil {
		return err
	}
	r.write(supervise.Program{
		Name: "agent", File: filepath.Join(r.Programs, AgentProgram), Args: args, Grace: writerGrace,
		Env: append(slices.Clone(r.Environment), "KUBECONFIG="+kubeconfig),
	})
	return r.awaitHealth(ctx, "agent", health)
}

// write runs a program that writes.
func (r *run) write(p supervise.Program) {
	r.writers.Go(func() {
		if err := r.supervisor.Keep(r.writing, p); err != nil {
			r.Say("%v", err)
		}
	})
}

// watch looks at the tier until it has done what it was to do, and saves what changes.
func (r *run) watch(ctx context.Context) error {
	var beside sync.WaitGroup
	defer beside.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if r.saver != nil {
		w := &watcher{client: r.client, config: r.config, touch: r.saver.touch}
		beside.Go(func() {
			if err := w.run(ctx); err != nil {
				cancel(err)
			}
		})
		beside.Go(func() { r.saver.run(ctx) })
	}
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	r.board.change(func(s *Status) { s.Phase, s.Since = PhaseRunning, r.Now() })
	var last Verdict
	for first := true; ; first = false {
		verdict := r.look(ctx)
		if ctx.Err() == nil {
			r.tell(ctx, last, verdict, first)
			last = verdict
			if verdict.Ready && r.UntilReady {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// look judges the tier as it is now. One that cannot be read is not ready, whatever it was.
func (r *run) look(ctx context.Context) Verdict {
	looking, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	facts, err := readFacts(looking, r.client, r.request)
	if ctx.Err() != nil {
		return Verdict{} // it ends, and what was said last stays
	}
	if err == nil {
		r.know(facts)
		err = r.ask(looking, facts.toAsk())
	}
	verdict := Judge(facts)
	if err != nil {
		verdict = Verdict{Waiting: []string{"the management cluster, which does not answer: " + err.Error()}}
	}
	r.board.change(func(s *Status) { s.Verdict, s.Programs, s.Looked = verdict, r.supervisor.States(), r.Now() })
	return verdict
}

// ask has the agent look at objects.
func (r *run) ask(ctx context.Context, objects []client.Object) error {
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, fluxmeta.ReconcileRequestAnnotation, r.request))
	for _, o := range objects {
		// What is judged is what was read.
		if err := r.client.Patch(ctx, o.DeepCopyObject().(client.Object), patch, client.FieldOwner(fieldManager)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("cannot ask for %s/%s to be looked at: %w", o.GetNamespace(), o.GetName(), err)
		}
	}
	return nil
}

// tell says what changed between two looks.
func (r *run) tell(ctx context.Context, before, now Verdict, first bool) {
	for _, line := range news(before.Held, now.Held) {
		r.Say("held: %s", line)
	}
	if now.Ready == before.Ready && !first {
		return
	}
	if !now.Ready {
		r.Say("waiting for %s", strings.Join(now.Waiting, "; "))
		return
	}
	r.Say("everything that Git declares is ready, and this mom may go")
	if table, err := r.children(ctx); err == nil {
		r.Show(table)
	}
	for _, line := range now.Depends {
		r.Say("but: %s", line)
	}
}

// down ends what writes, and saves the state for the last time.
func (r *run) down(ctx context.Context) error {
	r.board.change(func(s *Status) { s.Phase, s.Since = PhaseStopping, r.Now() })
	if errors.Is(context.Cause(r.writing), ErrLockLost) {
		return nil // whoever has the lock saves from now on
	}
	if r.request != "" {
		// What was applied since the last look counts, too. Where it cannot be read, nor can a state be taken.
		if facts, err := r.readFacts(context.WithoutCancel(ctx)); err == nil {
			r.know(facts)
		}
	}
	if r.saver == nil {
		return nil
	}
	if err := r.saver.save(context.WithoutCancel(ctx), true); err != nil {
		return fmt.Errorf("cannot save the state at the end; this folder has it, and cascade mom up goes on with it here: %w", err)
	}
	r.Say("saved version %s", r.saver.origin.Version)
	return nil
}
