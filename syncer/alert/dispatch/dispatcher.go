package dispatch

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	notificationv1beta3 "github.com/fluxcd/notification-controller/api/v1beta3"
	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/syncer/alert"
	"github.com/cascade-gitops/cascade/syncer/alert/payload"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// mostInbox and mostInboxBytes bound the events that nobody looked at yet.
const (
	mostInbox      = 2000
	mostInboxBytes = 32 << 20
)

// mostSteps bounds the expressions of all Alerts, which stay compiled, at some 40 bytes each step.
const mostSteps = 1_000_000

// farewell is how long what is left is sent when the process ends.
const farewell = 3 * time.Second

// Options of New.
type Options struct {
	// Client reads Alerts and Providers from a cache.
	Client client.Reader
	// Namespace has the Alerts that are served; empty is all.
	Namespace            string
	NoCrossNamespaceRefs bool
	// RateLimit is how long the same event is not told again.
	RateLimit time.Duration
	// Instance names this process in events.
	Instance string
	// Events records what happens to Alerts and Providers; nobody is alerted of it.
	Events record.EventRecorder
	// Workers evaluate spec.commitStatusExpr.
	Workers worker.Runner
	// Senders make what Providers are reached with.
	Senders  *Senders
	Registry prometheus.Registerer
	Now      func() time.Time
	// Rand returns numbers in [0, 1), safe for concurrent use.
	Rand func() float64
	Log  logr.Logger
	// Windows are those of groups; the zero value is alert.DefaultWindows.
	Windows alert.Windows
}

// Dispatcher takes events and sends messages. It is safe for concurrent use.
type Dispatcher struct {
	o       Options
	metrics *metrics
	places  *places
	// pause, linger, spread and retry are the constants of these names; tests have no time.
	pause, linger, spread, retry time.Duration

	inbox inbox

	// Of Run alone.
	groups *alert.Groups
	// told is what people and programs were told, statuses what was said of commits.
	told, statuses *alert.Told
	rules          map[types.UID]compiled

	queues    queues
	states    states
	incidents incidents
}

// compiled is the rule of an Alert at a generation.
type compiled struct {
	generation int64
	rule       *alert.Rule
	// steps are those of its expressions. over: they are left out, as there are too many with all others.
	steps int
	over  bool
}

// New makes a Dispatcher. Nothing is sent before Run.
func New(o Options) (*Dispatcher, error) {
	if o.Windows == (alert.Windows{}) {
		o.Windows = alert.DefaultWindows()
	}
	m, err := newMetrics(o.Registry)
	if err != nil {
		return nil, err
	}
	return &Dispatcher{
		o: o, metrics: m, places: newPlaces(), pause: pause, linger: linger, spread: spread, retry: retry,
		inbox:  inbox{wake: make(chan struct{}, 1)},
		groups: alert.NewGroups(o.Windows), told: alert.NewTold(o.RateLimit, alert.StateOf), statuses: alert.NewTold(o.RateLimit, alert.StatusOf), rules: map[types.UID]compiled{},
		queues: queues{by: map[types.NamespacedName]*queue{}}, states: states{reasons: map[state]string{}},
	}, nil
}

// inbox has the events that came and were not looked at.
type inbox struct {
	wake chan struct{}

	mu      sync.Mutex // guards waiting and bytes; never held over a call
	waiting []alert.Event
	bytes   int
}

// Take takes an event about an object with labels. It never waits: when too many wait, the
// oldest are dropped and counted.
func (d *Dispatcher) Take(event eventv1.Event, labels map[string]string) {
	event.ReportingInstance = d.o.Instance
	over := d.inbox.add(alert.Event{Event: event, Labels: labels})
	d.metrics.add("unknown", resultDropped, over)
}

func (i *inbox) add(e alert.Event) (over int) {
	i.mu.Lock()
	i.waiting = append(i.waiting, e)
	i.bytes += len(e.Message)
	for len(i.waiting)-over > mostInbox || i.bytes > mostInboxBytes {
		i.bytes -= len(i.waiting[over].Message)
		over++
	}
	i.waiting = slices.Delete(i.waiting, 0, over)
	i.mu.Unlock()
	select {
	case i.wake <- struct{}{}:
	default:
	}
	return over
}

func (i *inbox) take() []alert.Event {
	i.mu.Lock()
	defer i.mu.Unlock()
	waiting := i.waiting
	i.waiting, i.bytes = nil, 0
	return waiting
}

// NeedLeaderElection is false: who does not lead records nothing, and each replica has the
// events of what it reconciles.
func (d *Dispatcher) NeedLeaderElection() bool { return false }

// Start is Run, for a manager.
func (d *Dispatcher) Start(ctx context.Context) error {
	d.Run(ctx)
	return nil
}

// Run sends messages until the context ends, and then what is left for a short while.
func (d *Dispatcher) Run(ctx context.Context) {
	// What is being sent is not broken off when the process is told to end.
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	s := &sending{Dispatcher: d, life: life, ending: ctx.Done()}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		more := s.catchUp()
		now := d.o.Now()
		s.enqueue(d.groups.Due(now)...)
		wait := time.Hour
		if at, ok := d.groups.Next(); ok {
			wait = max(at.Sub(now), 0)
		}
		if more {
			wait = 0
		}
		timer.Reset(wait)
		select {
		case <-d.inbox.wake:
			s.look()
		case <-timer.C:
		case <-ctx.Done():
			s.end()
			return
		}
	}
}

// sending is what Run has while it runs.
type sending struct {
	*Dispatcher
	life   context.Context //nolint:containedctx // the life of the goroutines that Run owns
	ending <-chan struct{}
	wait   sync.WaitGroup
	// known are the rules of the last look.
	known []*alert.Rule
	late  late
}

// end tells what is left, and waits for it a short while.
func (s *sending) end() {
	life, stop := context.WithTimeout(s.life, farewell)
	defer stop()
	s.life = life
	s.look()
	s.enqueue(s.groups.All()...)
	for more := true; more && life.Err() == nil; {
		more = s.catchUp()
	}
	s.enqueue(s.groups.All()...)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.wait.Wait()
	}()
	select {
	case <-done:
	case <-life.Done():
	}
}

// look finds who wants the events that came.
func (s *sending) look() {
	events := s.inbox.take()
	if len(events) == 0 {
		return
	}
	var alerts notificationv1beta3.AlertList
	options := []client.ListOption{client.UnsafeDisableDeepCopy}
	if s.o.Namespace != "" {
		options = append(options, client.InNamespace(s.o.Namespace))
	}
	if err := s.o.Client.List(s.life, &alerts, options...); err != nil {
		s.metrics.add("unknown", resultFailed, len(events))
		s.o.Log.Error(err, "cannot list Alerts: events are told to nobody", "events", len(events))
		return
	}
	s.known = s.compile(&alerts)
	s.late.begin()
	for i := range events {
		if s.life.Err() != nil {
			s.metrics.add("unknown", resultDropped, len(events)-i)
			return
		}
		s.tell(&events[i])
	}
}

// compile returns the rules of Alerts. What is wrong with one is told once.
func (s *sending) compile(alerts *notificationv1beta3.AlertList) []*alert.Rule {
	before := s.rules
	s.rules = make(map[types.UID]compiled, len(alerts.Items))
	have := room{by: map[string]int{}}
	// Those that are known keep what they have, whoever comes.
	for i := range alerts.Items {
		a := &alerts.Items[i]
		if known, ok := before[a.UID]; ok && known.generation == a.Generation && !known.over {
			s.rules[a.UID] = known
			have.take(a.Namespace, known.steps)
		}
	}
	rules := make([]*alert.Rule, 0, len(alerts.Items))
	for i := range alerts.Items {
		a := &alerts.Items[i]
		known, ok := s.rules[a.UID]
		if !ok {
			known = s.compileOne(a, before[a.UID], &have)
			s.rules[a.UID] = known
		}
		rules = append(rules, known.rule)
	}
	return rules
}

// compileOne compiles an Alert that is new, was changed, or had no room.
func (s *sending) compileOne(a *notificationv1beta3.Alert, was compiled, have *room) compiled {
	waits := was.over && was.generation == a.Generation
	if waits && !have.has(a.Namespace, was.steps) {
		return was
	}
	a = a.DeepCopy()
	now := compiled{generation: a.Generation, steps: alert.Steps(a)}
	var wrong []error
	if now.over = !have.has(a.Namespace, now.steps); now.over {
		now.rule = alert.Bare(a)
		wrong = []error{fmt.Errorf(
			"cannot use spec.inclusionList and spec.exclusionList: the expressions of all Alerts are more than %d steps, and those of namespace %s more than its part; make them simpler, or remove Alerts",
			mostSteps, a.Namespace)}
	} else {
		now.rule, wrong = alert.Compile(a)
		have.take(a.Namespace, now.steps)
	}
	for _, err := range wrong {
		s.o.Events.Event(a, corev1.EventTypeWarning, ReasonInvalidAlert, alert.Cut(err.Error(), mostText))
	}
	return now
}

// room is what the expressions of Alerts take: of all, and of those of each namespace.
type room struct {
	all int
	by  map[string]int
}

func (r *room) take(namespace string, steps int) {
	if steps > 0 {
		r.all += steps
		r.by[namespace] += steps
	}
}

// has reports whether there is room for more. A namespace has its part of what there is, whatever others
// have: where all is taken, those get more that have less.
func (r *room) has(namespace string, steps int) bool {
	if steps == 0 || r.all+steps <= mostSteps {
		return true
	}
	namespaces := len(r.by)
	if r.by[namespace] == 0 {
		namespaces++
	}
	return r.by[namespace]+steps <= mostSteps/namespaces
}

// mostText bounds what is said in an event.
const mostText = 900

// telling is an event that is told.
type telling struct {
	*alert.Event
	// Each is asked once at most, and only if somebody would be told: asking remembers.
	toldBefore, statusBefore func() bool
	repeated                 func()
}

// tell hands an event to the Providers of the Alerts that want it. Those of namespaces that are late come later.
func (s *sending) tell(e *alert.Event) {
	s.told.Note(&e.Event)
	s.statuses.Note(&e.Event)
	t := &telling{
		Event:        e,
		toldBefore:   sync.OnceValue(func() bool { return s.told.Again(&e.Event, s.o.Now()) }),
		statusBefore: sync.OnceValue(func() bool { return s.statuses.Again(&e.Event, s.o.Now()) }),
		repeated:     sync.OnceFunc(func() { s.metrics.add("unknown", resultRepeated, 1) }),
	}
	for i, rule := range s.known {
		if !rule.Concerns(e, s.o.NoCrossNamespaceRefs) {
			continue
		}
		namespace := rule.Alert.Namespace
		if s.late.by[namespace] != nil {
			s.metrics.add("unknown", resultDropped, s.late.add(namespace, t))
			continue
		}
		if s.late.spend(namespace, s.tellBy(rule, t)) {
			s.metrics.add("unknown", resultDropped, s.late.add(namespace, t))
			s.late.by[namespace].passed(t, s.known[:i+1])
		}
	}
}

// tellBy hands an event to the Provider of an Alert that it concerns, if the Alert wants it. It returns
// what its expressions took: all else is the same for every event, and a thousand that come at once are told together.
func (s *sending) tellBy(rule *alert.Rule, t *telling) (matching time.Duration) {
	e, now := t.Event, s.o.Now()
	wants := rule.Wants(e, s.o.NoCrossNamespaceRefs)
	matching = s.o.Now().Sub(now)
	if !wants {
		// Who is told errors alone is told of none that is over.
		if alert.StateOf(&e.Event) == alert.Well {
			m, _ := alert.MessageOf(rule.Alert, e)
			s.takeBack(&m)
		}
		return matching
	}
	m, conflicts := alert.MessageOf(rule.Alert, e)
	if len(conflicts) > 0 && s.states.change(rule.Alert.UID, ReasonConflict, strings.Join(conflicts, ",")) {
		s.o.Events.Eventf(rule.Alert, corev1.EventTypeWarning, ReasonConflict,
			"metadata %s is set more than once: what the controller says counts, then the Alert, then the object", alert.Cut(strings.Join(conflicts, ", "), 300))
	}
	provider := s.provider(s.life, rule.Alert, &m)
	if provider == nil {
		return matching
	}
	status, before := payload.IsStatus(provider.Spec.Type), t.toldBefore
	if status {
		before = t.statusBefore
	}
	switch {
	case status && alert.StatusOf(&e.Event) == alert.Unchanged:
		// It must not take the place of a state that waits.
	case m.StatusOnly && !status:
		// Each reconcile has such an event, and others must not wait for it. That of one that
		// ended well may be all that says so.
		switch key, over := payload.Incident(provider.Spec.Type, &m); {
		case over && !s.incidents.isClosed(m.Provider, key):
			m.StatusOnly = false
			s.enqueue(s.groups.Ahead(&m, now)...)
			s.enqueue(m)
		case !over && alert.StateOf(&e.Event) == alert.Well:
			s.takeBack(&m)
		}
	case before():
		t.repeated()
	case over(provider.Spec.Type, &m):
		// Which incidents are open only the service knows, after a restart. So each
		// is closed, after what is to be said of it before.
		s.enqueue(s.groups.Ahead(&m, now)...)
		s.enqueue(m)
	case payload.Together(provider.Spec.Type):
		s.enqueue(s.groups.Add(m, now)...)
	default:
		s.enqueue(m)
	}
	return matching
}

// over reports whether a message closes an incident at a type of Provider.
func over(kind string, m *alert.Message) bool {
	_, over := payload.Incident(kind, m)
	return over
}

// provider is whom a message is for; nil if that is nobody.
func (s *sending) provider(ctx context.Context, a *notificationv1beta3.Alert, m *alert.Message) *notificationv1beta3.Provider {
	p := &notificationv1beta3.Provider{}
	err := s.o.Client.Get(ctx, m.Provider, p)
	switch {
	case apierrors.IsNotFound(err):
		s.metrics.add("unknown", resultRefused, 1)
		if s.states.change(a.UID, ReasonNotFound, m.Provider.Name) {
			s.o.Events.Eventf(a, corev1.EventTypeWarning, ReasonNotFound, "Provider %s does not exist; create it, or correct spec.providerRef", m.Provider)
		}
		return nil
	case err != nil:
		s.metrics.add("unknown", resultFailed, 1)
		s.o.Log.Error(err, "cannot read Provider", "provider", m.Provider.String())
		return nil
	case p.Spec.Suspend, !p.DeletionTimestamp.IsZero():
		return nil
	}
	s.states.clear(a.UID, ReasonNotFound)
	if err := payload.Supported(p.Spec.Type); err != nil {
		s.metrics.add(p.Spec.Type, resultRefused, 1)
		s.report(p, failed(err))
		return nil
	}
	return p
}

// report tells that a Provider fails, if it did not fail for that reason before.
func (d *Dispatcher) report(p *notificationv1beta3.Provider, f *failure) {
	if d.states.change(p.UID, stateOfProvider, f.reason) {
		d.o.Events.Event(p, corev1.EventTypeWarning, f.reason, alert.Cut("cannot send notifications: "+f.text, mostText))
	}
}

// recovered tells that a Provider is well, if it failed before.
func (d *Dispatcher) recovered(p *notificationv1beta3.Provider) {
	if d.states.clear(p.UID, stateOfProvider) {
		d.o.Events.Event(p, corev1.EventTypeNormal, ReasonRecovered, "notifications are sent again")
	}
}

// states remembers what was told of Alerts and Providers. It is safe for concurrent use.
type states struct {
	mu      sync.Mutex // guards reasons; never held over a call
	reasons map[state]string
}

type state struct {
	of   types.UID
	what string
}

const (
	// stateOfProvider is whether notifications arrive.
	stateOfProvider = "delivery"
	// stateOfArrival is the generation of a Provider that has taken something. Commits come hours apart, and
	// the line of the one before is closed by then.
	stateOfArrival = "arrival"
)

// mostStates bounds them. What is forgotten is told once more.
const mostStates = 10_000

// change notes a state, and reports whether it is another one than before.
func (s *states) change(of types.UID, what, is string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := state{of, what}
	if s.reasons[key] == is {
		return false
	}
	if len(s.reasons) >= mostStates {
		clear(s.reasons)
	}
	s.reasons[key] = is
	return true
}

// is reports whether a state is the one of now.
func (s *states) is(of types.UID, what, is string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reasons[state{of, what}] == is
}

// has reports whether there is a state.
func (s *states) has(of types.UID, what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.reasons[state{of, what}]
	return ok
}

// clear forgets a state, and reports whether there was one.
func (s *states) clear(of types.UID, what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := state{of, what}
	_, ok := s.reasons[key]
	delete(s.reasons, key)
	return ok
}

// Results of messages, by which they are counted.
const (
	resultSent     = "sent"
	resultFailed   = "failed"
	resultDropped  = "dropped"
	resultRefused  = "refused"
	resultRepeated = "repeated"
)

// metrics count messages by type of Provider and result: types are those of the API.
type metrics struct {
	total  *prometheus.CounterVec
	queued *prometheus.GaugeVec
}

func newMetrics(registry prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cascade_notifications_total",
			Help: "Messages for Providers by type and result: sent, failed, dropped, refused, repeated.",
		}, []string{"type", "result"}),
		queued: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cascade_notifications_queued", Help: "Messages that wait to be sent, by type of Provider.",
		}, []string{"type"}),
	}
	for _, c := range []prometheus.Collector{m.total, m.queued} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("cannot register metrics of notifications: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) add(kind, result string, n int) {
	if n > 0 {
		m.total.WithLabelValues(kind, result).Add(float64(n))
	}
}

// asObject is an object as an expression sees it.
func asObject(o runtime.Object) (map[string]any, error) {
	out, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, err
	}
	// What the API server keeps for itself is no part of it.
	if metadata, ok := out["metadata"].(map[string]any); ok {
		maps.DeleteFunc(metadata, func(k string, _ any) bool { return k == "managedFields" })
	}
	return out, nil
}
