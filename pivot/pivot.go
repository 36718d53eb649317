package pivot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge/graph"
)

// Side is one of the two management clusters.
type Side struct {
	// Name for people.
	Name string
	// Client reads from the API server and writes to it. Its calls have deadlines.
	Client client.Client
	// Namespace of the agent there, which has journals and the record of the first sync.
	Namespace string
	// Kubeconfig is the Secret that the credentials of Client are of; empty if they are of no
	// Secret of Cluster API. While its Cluster is paused or elsewhere, nobody here renews them.
	Kubeconfig types.NamespacedName
}

// Event is told of a pivot while it goes on.
type Event struct {
	Step Step
	// Action that was done, as text; empty at the beginning of a step.
	Action string
	// Waits is what is waited for.
	Waits string
}

// Pivot moves Clusters from one side to the other. It drives one pivot at a time.
type Pivot struct {
	Source, Target Side
	Clusters       []types.NamespacedName
	// Keep leaves the kubeconfigs in the source, where a parent goes on to connect.
	Keep bool
	// Own is for who acts in the name of others: what a Cluster refers to in other namespaces
	// may be nothing of whoever wrote it, and is not copied.
	Own bool
	// UnderWay drives a pivot that is under way, and begins none.
	UnderWay bool
	// Tolerated are reasons that do not keep the pivot from going on.
	Tolerated []string
	// Holder names this process, and no other one ever; Program is its version.
	Holder, Program string
	Now             func() time.Time
	// Wait waits, until the context ends.
	Wait func(ctx context.Context, d time.Duration) error
	// Rest is how long the source has to rest after it was paused: a controller that is in
	// the middle of a reconcile ends it, and writes down what it made.
	Rest time.Duration
	// Tell is told what happens; it may be nil.
	Tell func(Event)

	// journal as it was written last, in config.
	journal Journal
	config  *corev1.ConfigMap
	// last is the pivot of the same Clusters before, which is over; its Step is empty if there
	// was none.
	last Journal
	// kinds of the source, and theirs: those of the target.
	kinds, theirs graph.Kinds
	// digest of the source, and since when it is the same.
	digest string
	since  time.Time
}

// Numbers of a pivot.
const (
	// DefaultRest is Rest where nobody says something else.
	DefaultRest = 5 * time.Second
	// holds is for how long a process holds a journal; it renews it before a third of that
	// is over, and a call takes less than another third.
	holds = time.Minute
	// skew is how far the clocks of two processes may be apart.
	skew = 30 * time.Second
	// look is the pause between two looks at what is waited for.
	look = time.Second
	// mostLooks bounds the looks of one step at which something was left to do.
	mostLooks = 200
	// mostEpoch is one to which no pivot comes: whoever may write in the target can have its journal say more.
	mostEpoch = 1 << 40
	// callTimeout bounds a call.
	callTimeout = 15 * time.Second
)

// manager is the field manager of what a pivot writes.
const manager = "cascade-pivot"

// ErrIdle: no pivot is under way, and none was to be begun.
var ErrIdle = errors.New("no pivot is under way")

// ErrLost: another process drives the pivot by now.
var ErrLost = errors.New("another process drives the pivot by now")

// Preview looks at both sides and says what speaks against a pivot and what it would do. It
// changes nothing.
func (p *Pivot) Preview(ctx context.Context) (Preview, error) {
	if err := p.meet(ctx); err != nil {
		return Preview{}, err
	}
	f, err := p.checkFacts(ctx)
	if err != nil {
		return Preview{}, err
	}
	out := Preview{}
	if p.config != nil && p.journal.ID != "" {
		out.Journal = p.journal
		f.Journal = p.journal
		if out.Problems = problemsOf(p.journal, check(f)); !p.journal.Step.Revocable() {
			out.Problems = nil // it only goes on
			return out, nil
		}
	} else {
		out.Problems = check(f)
	}
	out.Lines = preview(f.Journal, f)
	return out, nil
}

// problemsOf are the problems of a pivot that is under way: what it did itself is none.
func problemsOf(j Journal, problems []Problem) []Problem {
	return slices.DeleteFunc(problems, func(p Problem) bool { return j.Step != Freeze && p.Reason == ReasonHalfProvisioned })
}

// Run takes the pivot to its end, from wherever it is. Before step switch it turns back what
// cannot go through while the Clusters are paused; the error is a BlockedError then, and the
// journal is over.
func (p *Pivot) Run(ctx context.Context) (Journal, error) {
	if err := p.begin(ctx); err != nil {
		return p.journal, err
	}
	return p.drive(ctx)
}

// Abort turns the pivot back: the target loses what it was given, and the source goes on. It
// is refused from the step switch on.
func (p *Pivot) Abort(ctx context.Context) (Journal, error) {
	if err := p.meet(ctx); err != nil {
		return p.journal, err
	}
	if p.config == nil || p.journal.ID == "" {
		return p.journal, fmt.Errorf("cannot turn back: no pivot of these Clusters is under way")
	}
	if err := p.hold(ctx); err != nil {
		return p.journal, err
	}
	if !p.journal.Step.Revocable() {
		return p.journal, errors.Join(fmt.Errorf("cannot turn back pivot %s: it is at step %s, and the target has the Clusters: let it end, and move them back then", p.journal.ID, p.journal.Step), p.yield(ctx))
	}
	p.journal.Why = nil
	if err := p.step(ctx, Undo, nil); err != nil {
		return p.journal, err
	}
	return p.drive(ctx)
}

// meet finds out who both sides are, and reads the journal of the source if there is one.
func (p *Pivot) meet(ctx context.Context) error {
	if len(p.Clusters) == 0 {
		return errors.New("cannot move Clusters: none is named")
	}
	if err := CheckTolerated(p.Tolerated); err != nil {
		return err
	}
	from, err := Identify(ctx, p.Source, Source)
	if err != nil {
		return err
	}
	to, err := Identify(ctx, p.Target, Target)
	if err != nil {
		return err
	}
	p.journal = Journal{Format: format, From: from, To: to, Keep: p.Keep, Own: p.Own, Tolerated: p.Tolerated, Program: p.Program}
	for _, name := range p.Clusters {
		p.journal.Clusters = append(p.journal.Clusters, Cluster{Namespace: name.Namespace, Name: name.Name})
	}
	cm := &corev1.ConfigMap{}
	err = get(ctx, p.Source.Client, types.NamespacedName{Namespace: p.Source.Namespace, Name: p.journal.nameOf(Source)}, cm)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read the journal in %s: %w", p.Source.Name, err)
	}
	j, err := decode(cm)
	if err != nil {
		return err
	}
	if !j.isOf(p.journal) {
		return &BlockedError{Step: j.Step, Problems: []Problem{problem(ReasonJournalForeign, "ConfigMap %s/%s of %s is no journal of this pivot", cm.Namespace, cm.Name, p.Source.Name)}}
	}
	p.config = cm
	if j.Step.Over() {
		// The next one has another ID.
		p.journal.Epoch, p.last = j.Epoch, j
		return nil
	}
	p.journal = j
	// For whom it is copied, this process knows and no journal says: a person who goes on with
	// what was declared may do it, and what a person began gives whoever declares nothing.
	p.journal.Own = p.Own
	return nil
}

// Identify asks a side, of which the pivot is from or to, which cluster it is.
func Identify(ctx context.Context, s Side, role Role) (Tier, error) {
	ns := &corev1.Namespace{}
	err := get(ctx, s.Client, types.NamespacedName{Name: "kube-system"}, ns)
	switch {
	case apierrors.IsUnauthorized(err) && s.Kubeconfig.Name != "":
		// The command goes from the cluster that it is run in: there it has the journal.
		by := "--to <file>"
		if role == Source {
			by = "--kubeconfig <file> --to <file of the target>"
		}
		return Tier{}, fmt.Errorf("cannot reach %s: %w; nobody renews the kubeconfig of a Cluster that is paused, or managed elsewhere and out of reach: "+
			"put a valid one into Secret %s, or use cascade pivot with a kubeconfig of your own, %s, with --abort to turn back", s.Name, err, s.Kubeconfig, by)
	case err != nil:
		return Tier{}, fmt.Errorf("cannot reach %s: %w", s.Name, err)
	}
	return Tier{UID: string(ns.UID), Name: s.Name}, nil
}

// begin checks and writes the journal, or takes the one that is there.
func (p *Pivot) begin(ctx context.Context) error {
	if err := p.meet(ctx); err != nil {
		return err
	}
	if p.config != nil && p.journal.ID != "" {
		return p.hold(ctx)
	}
	if p.UnderWay {
		return ErrIdle
	}
	if p.config == nil {
		// A source that lost its journal, or has it elsewhere by now, does not know what a former pivot was called: what the target has
		// of that would count for this one.
		former, err := p.receipt(ctx)
		if err != nil {
			return err
		}
		if former.isOf(p.journal) && former.Epoch > 0 && former.Epoch < mostEpoch {
			p.journal.Epoch = former.Epoch
		}
	}
	p.journal.ID = fmt.Sprintf("%s-%d", p.journal.set(), p.journal.Epoch+1)
	f, err := p.checkFacts(ctx)
	if err != nil {
		return err
	}
	if p.last.Step == Done && !slices.ContainsFunc(f.Journal.Clusters, func(c Cluster) bool { return c.UID != "" }) {
		p.journal = p.last // the same command again, and it was through
		return nil
	}
	if problems := check(f); len(problems) > 0 {
		return &BlockedError{Problems: problems}
	}
	p.journal = f.Journal
	if err := p.journal.fits(recorded(p.journal, f.Source)); err != nil {
		return err
	}
	now := p.Now()
	p.journal.Step, p.journal.Began, p.journal.Stepped = Freeze, now, now
	p.journal.Holder, p.journal.Epoch, p.journal.Until = p.Holder, p.journal.Epoch+1, now.Add(holds)
	return p.save(ctx)
}

// hold makes this process the one that drives the pivot.
func (p *Pivot) hold(ctx context.Context) error {
	now := p.Now()
	// A hold that lasts longer than any is of a clock that was ahead, and would keep the Clusters paused until
	// then. What its process still writes is refused: each write is held to what was read.
	if left := p.journal.Until.Sub(now); p.journal.Holder != p.Holder && left > 0 && left <= holds+skew {
		return &BlockedError{Step: p.journal.Step, Problems: []Problem{
			problem(ReasonPivotHeld, "%s drives pivot %s until %s", p.journal.Holder, p.journal.ID, p.journal.Until.UTC().Format(time.RFC3339)),
		}}
	}
	if p.journal.Holder != p.Holder {
		// What the process before asked for, or did not come to ask for, may be hours old: the
		// controllers have their time from now on.
		p.journal.Stepped = now
	}
	p.journal.Holder, p.journal.Program, p.journal.Until = p.Holder, p.Program, now.Add(holds)
	p.journal.Epoch++
	for _, reason := range p.Tolerated {
		if !slices.Contains(p.journal.Tolerated, reason) {
			p.journal.Tolerated = append(p.journal.Tolerated, reason)
		}
	}
	return p.renew(ctx)
}

// yield lets the next process have the journal at once. The context may have ended.
func (p *Pivot) yield(ctx context.Context) error {
	p.journal.Until = p.Now()
	return p.save(context.WithoutCancel(ctx))
}

// save writes the journal where it was read, or creates it. Whoever wrote in between wins.
func (p *Pivot) save(ctx context.Context) error {
	cm, err := p.journal.encode(p.Source.Namespace, Source)
	if err != nil {
		return err
	}
	if p.config == nil {
		err = create(ctx, p.Source.Client, cm)
	} else {
		cm.UID, cm.ResourceVersion = p.config.UID, p.config.ResourceVersion
		err = update(ctx, p.Source.Client, cm)
	}
	switch {
	case apierrors.IsAlreadyExists(err), apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return fmt.Errorf("cannot write the journal of pivot %s: %w", p.journal.ID, ErrLost)
	case err != nil:
		return fmt.Errorf("cannot write the journal of pivot %s: %w", p.journal.ID, err)
	}
	p.config = cm
	return nil
}

// owned fails if another process wrote the journal since this one did: by the other's clock
// the hold of this one may be over.
func (p *Pivot) owned(ctx context.Context) error {
	cm := &corev1.ConfigMap{}
	err := get(ctx, p.Source.Client, types.NamespacedName{Namespace: p.config.Namespace, Name: p.config.Name}, cm)
	switch {
	case apierrors.IsNotFound(err), err == nil && (cm.UID != p.config.UID || cm.ResourceVersion != p.config.ResourceVersion):
		return fmt.Errorf("cannot go on with pivot %s: %w", p.journal.ID, ErrLost)
	case err != nil:
		return fmt.Errorf("cannot read the journal in %s: %w", p.Source.Name, err)
	}
	return nil
}

// fence fails if this process does not hold the journal any more, and renews the hold before
// it is a third over. It is called before each write.
func (p *Pivot) fence(ctx context.Context) error {
	now := p.Now()
	if p.journal.Until.Sub(now) > holds*2/3 {
		return p.owned(ctx)
	}
	p.journal.Until = now.Add(holds)
	return p.renew(ctx)
}

// renew writes the journal with another hold. Once the target has one that it could finish, it
// is told as well that somebody drives the pivot.
func (p *Pivot) renew(ctx context.Context) error {
	if err := p.save(ctx); err != nil || p.journal.Step.Revocable() {
		return err
	}
	cm, still, err := switched(ctx, p.Target, p.journal)
	if err != nil || !still {
		return err
	}
	j := p.journal
	j.Step = Switch
	there, err := j.encode(p.Target.Namespace, Target)
	if err != nil {
		return err
	}
	there.UID, there.ResourceVersion = cm.UID, cm.ResourceVersion
	err = update(ctx, p.Target.Client, there)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // it was finished there, and is read again
	}
	if err != nil {
		return fmt.Errorf("cannot write the journal in %s: %w", p.Target.Name, err)
	}
	return nil
}

// step goes on to a step, which is written down before anything of it is done.
func (p *Pivot) step(ctx context.Context, s Step, objects []Object) error {
	if objects != nil {
		p.journal.Objects = objects
	}
	now := p.Now()
	p.journal.Step, p.journal.Stepped, p.journal.Until = s, now, now.Add(holds)
	if s.Over() {
		p.journal.Objects, p.journal.Until = nil, now
	}
	return p.save(ctx)
}

// drive takes step after step.
func (p *Pivot) drive(ctx context.Context) (_ Journal, err error) {
	defer func() {
		if err != nil && !errors.Is(err, ErrLost) {
			// Whoever goes on need not wait. That it cannot be written changes nothing.
			_ = p.yield(ctx)
		}
	}()
	told, looks, rounds := Step(""), 0, 0
	for !p.journal.Step.Over() {
		if told != p.journal.Step {
			told, looks, rounds = p.journal.Step, 0, 0
			p.tell(Event{Step: told})
		}
		f, err := p.facts(ctx, rounds)
		if err != nil {
			return p.journal, err
		}
		if clusters, changed := alsoPaused(p.journal, f); changed {
			p.journal.Clusters = clusters
			if err := p.save(ctx); err != nil {
				return p.journal, err
			}
		}
		next := plan(p.journal, f, p.Now())
		switch {
		case len(next.Problems) > 0:
			return p.journal, &BlockedError{Step: p.journal.Step, Problems: next.Problems}
		case next.Rests:
			p.journal.Why = next.Why
			if err := p.step(ctx, next.Step, next.Objects); err != nil {
				return p.journal, err
			}
		case len(next.Actions) > 0:
			if looks++; looks > mostLooks {
				return p.journal, fmt.Errorf("cannot end step %s: %s is left to do, however often it is done", p.journal.Step, next.Actions[0])
			}
			if next.Objects != nil {
				p.journal.Objects = next.Objects
			}
			if slices.ContainsFunc(next.Actions, func(a Action) bool { return a.Verb == Mend }) {
				rounds++
			}
			if slices.ContainsFunc(next.Actions, func(a Action) bool { return a.Verb == Mend && a.Object.Before != "" }) {
				// The annotation that tells what it was goes by this: to turn back, it is on record.
				if err := p.save(ctx); err != nil {
					return p.journal, err
				}
			}
			if err := p.act(ctx, next.Actions); err != nil {
				return p.journal, err
			}
		case next.Waits != "":
			p.tell(Event{Step: p.journal.Step, Waits: next.Waits})
			if err := p.Wait(ctx, look); err != nil {
				return p.journal, fmt.Errorf("cannot wait for %s: %w", next.Waits, err)
			}
			if err := p.fence(ctx); err != nil {
				return p.journal, err
			}
		default:
			if err := p.step(ctx, next.Step, next.Objects); err != nil {
				return p.journal, err
			}
		}
	}
	p.tell(Event{Step: p.journal.Step})
	if len(p.journal.Why) > 0 {
		return p.journal, &BlockedError{Step: p.journal.Step, Problems: p.journal.Why}
	}
	return p.journal, nil
}

func (p *Pivot) tell(e Event) {
	if p.Tell != nil {
		p.Tell(e)
	}
}

// act does the actions of one look. What changed since it was read is read again: the look
// ends there.
func (p *Pivot) act(ctx context.Context, actions []Action) error {
	for _, a := range actions {
		if err := p.fence(ctx); err != nil {
			return err
		}
		err := p.do(ctx, a)
		switch {
		case errors.Is(err, ErrLost):
			return err
		case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
			if err := p.Wait(ctx, look/10); err != nil {
				return fmt.Errorf("cannot %s: %w", a, err)
			}
			return nil
		case err != nil:
			return fmt.Errorf("cannot %s: %w", a, err)
		}
		p.tell(Event{Step: p.journal.Step, Action: a.String()})
	}
	return nil
}

// restful notes whether the source changed since the last look.
func (p *Pivot) restful(g *graph.Graph) (resting bool) {
	h := sha256.New()
	for _, group := range g.InOrder() {
		for _, n := range group {
			text, err := json.Marshal(n.Portable().Object)
			if err != nil {
				continue // it was decoded of JSON
			}
			fmt.Fprintf(h, "%s %d ", n.Object.GetUID(), len(text))
			h.Write(text)
		}
	}
	digest, now := hex.EncodeToString(h.Sum(nil)), p.Now()
	if digest != p.digest {
		p.digest, p.since = digest, now
	}
	return now.Sub(p.since) < p.Rest
}

// get, create and update are calls with a deadline.
func get(ctx context.Context, c client.Reader, name types.NamespacedName, into client.Object) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.Get(ctx, name, into)
}

func create(ctx context.Context, c client.Client, o client.Object) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.Create(ctx, o, client.FieldOwner(manager))
}

func update(ctx context.Context, c client.Client, o client.Object) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.Update(ctx, o, client.FieldOwner(manager))
}

// Journals of a tier, by the role that it has in each. Where some cannot be read, the others
// come with the error.
func Journals(ctx context.Context, c client.Reader, namespace string) (map[Role][]Journal, error) {
	list := &corev1.ConfigMapList{}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := c.List(ctx, list, client.InNamespace(namespace), client.HasLabels{v1alpha1.PivotLabel}); err != nil {
		return nil, fmt.Errorf("cannot list journals of pivots: %w", err)
	}
	out := map[Role][]Journal{}
	var unread error
	for i := range list.Items {
		j, err := decode(&list.Items[i])
		if err != nil {
			unread = errors.Join(unread, err)
			continue
		}
		role := Role(list.Items[i].Labels[v1alpha1.PivotLabel])
		out[role] = append(out[role], j)
	}
	return out, unread
}
