package rights

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/inventory"
)

// parallel is how many accounts are asked about at a time.
const parallel = 8

// job is an owner to check.
type job struct {
	owner   types.NamespacedName
	user    string
	refused bool
	concern func(namespace string) bool
}

// look does what is due.
func (r *Rights) look(ctx context.Context) {
	begun := r.options.Now()
	jobs, moved := r.due(begun)
	for _, owner := range moved {
		r.owners.Look(owner)
	}
	if r.check(ctx, jobs); len(jobs) > 0 {
		r.mu.Lock()
		r.rested = restAfter(begun, r.options.Now())
		r.mu.Unlock()
	}
}

// newsDue is when the news is acted upon; zero if there is none. The lock is held.
func (r *Rights) newsDue() time.Time {
	due := r.news.due()
	if !due.IsZero() && due.Before(r.rested) {
		return r.rested
	}
	return due
}

// due takes what is to be done now: checks by account, and owners whose account came or
// went.
func (r *Rights) due(now time.Time) (jobs map[string][]job, moved []types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var shown news
	if due := r.newsDue(); !due.IsZero() && !now.Before(due) {
		shown, r.news = r.news, news{}
	}
	inTurns := r.inTurns()
	asked := map[string]bool{}
	for _, s := range r.standing {
		if !s.check.IsZero() && !now.Before(s.check) {
			asked[s.user] = true
		}
	}
	jobs = map[string][]job{}
	for owner, s := range r.standing {
		if missing, known := r.lacks(s.user); known && missing != s.missing && !shown.first.IsZero() {
			moved = append(moved, owner)
		}
		if inTurns && s.check.IsZero() {
			r.schedule(s, time.Duration(r.options.Random()*float64(period)))
		}
		// The owners of an account share its answers.
		full := !s.check.IsZero() && asked[s.user] && s.check.Sub(now) < period/2
		if !full && !shown.ofRights() {
			continue
		}
		j := job{owner: owner, user: s.user, refused: s.refused, concern: shown.concern}
		if full {
			j.concern, s.check = everywhere, time.Time{}
		}
		jobs[s.user] = append(jobs[s.user], j)
	}
	return jobs, moved
}

// check asks about the accounts, some at a time. After an answer that did not come, the
// others are asked for later: an API server that is gone is not asked for each.
func (r *Rights) check(ctx context.Context, jobs map[string][]job) {
	users := make(chan string, len(jobs))
	for _, user := range slices.Sorted(maps.Keys(jobs)) {
		users <- user
	}
	close(users)
	var silent atomic.Bool
	var asking sync.WaitGroup
	for range min(parallel, len(jobs)) {
		asking.Go(func() {
			for user := range users {
				if !silent.Load() {
					silent.Store(!r.checkAccount(ctx, user, jobs[user]))
					continue
				}
				for _, j := range jobs[user] {
					r.postpone(j, false)
				}
			}
		})
	}
	asking.Wait()
}

// checkAccount checks the owners of an account, and reports whether the API server
// answered.
func (r *Rights) checkAccount(ctx context.Context, user string, jobs []job) bool {
	as, err := r.options.As(user)
	a := answers{account: as}
	for _, j := range jobs {
		if err == nil {
			err = r.checkOwner(ctx, &a, j)
		}
		if err != nil {
			r.postpone(j, answersAtAll(err))
		}
	}
	if err != nil && ctx.Err() == nil {
		log.FromContext(ctx).Error(err, "cannot tell what an account may do; it is asked again", "user", user)
	}
	return err == nil || answersAtAll(err)
}

// answersAtAll reports whether an error is an API server's word. Where it has that of a webhook,
// it may be one without a reason.
func answersAtAll(err error) bool { return errors.As(err, new(apierrors.APIStatus)) }

// checkOwner asks about an owner, and acts on the answers.
func (r *Rights) checkOwner(ctx context.Context, a *answers, j job) error {
	facts, err := r.owners.Facts(ctx, j.owner, j.refused)
	if err != nil {
		return err
	}
	if facts.Suspended {
		r.mu.Lock()
		defer r.mu.Unlock()
		if s := r.standing[j.owner]; s != nil {
			s.behind = true
		}
		return nil
	}
	asked := len(a.known)
	gone, err := a.lost(ctx, groupsOf(r.options.Mapper, facts.Verb, facts.Objects, j.concern))
	if err != nil {
		return err
	}
	r.found(j, gone, len(a.known)-asked)
	return nil
}

// postpone has an owner checked in full later. An account that the API server does not
// let ask is asked about seldom.
func (r *Rights) postpone(j job, refused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.standing[j.owner]
	switch {
	case s == nil:
	case refused:
		s.mistaken = min(s.mistaken+1, mostMistaken)
		r.schedule(s, s.pause())
	default:
		r.schedule(s, retry)
	}
}

// found acts on what a check found, unless the owner has another account by now.
func (r *Rights) found(j job, gone []inventory.Entry, questions int) {
	now := r.options.Now()
	verdict, missed := same, false
	r.mu.Lock()
	if s := r.standing[j.owner]; s != nil && s.user == j.user {
		if missed = s.refused != j.refused; !missed {
			verdict = s.judge(len(gone) > 0, now)
		}
		r.settle(s, verdict, missed, questions, now)
	}
	r.mu.Unlock()
	switch verdict {
	case lost:
		r.owners.Lost(j.owner, gone)
	case regained:
		r.owners.Look(j.owner)
	case same, later:
	}
}

// settle notes a verdict and when to check next. The lock is held.
func (r *Rights) settle(s *standing, v verdict, missed bool, questions int, now time.Time) {
	s.questions = max(s.questions, questions)
	switch {
	case missed: // a reconcile ended meanwhile, and the facts were of before
		r.schedule(s, quiet)
		return
	case v == later:
		r.schedule(s, s.at.Add(s.pause()).Sub(now))
		return
	case v == lost, v == regained:
		s.told, s.at = v, now
	case s.told == same:
		s.mistaken = 0
	}
	if r.inTurns() {
		all := 0
		for _, other := range r.standing {
			all += other.questions
		}
		r.schedule(s, s.periodOf(all))
	}
}
