package credential

import "time"

// Action is what is done next.
type Action string

// Actions.
const (
	// Issue gets a credential where there is none that is valid, Replace one in place of
	// another.
	Issue   Action = "Issue"
	Replace Action = "Replace"
	// Renew makes the life of the lease longer.
	Renew Action = "Renew"
	// Revoke ends a lease; Forget drops what has ended by itself from the journal.
	Revoke Action = "Revoke"
	Forget Action = "Forget"
	// Keep waits: until something is due.
	Keep Action = "Keep"
	// Finish lets go of a Credential that is being deleted.
	Finish Action = "Finish"
)

// Why something is done, or waited for.
type Why string

// Whys.
const (
	NoSecret    Why = "there is no credential"
	Changed     Why = "the Credential asks for something else"
	Tampered    Why = "the Secret does not have what was written into it"
	Lapsed      Why = "the credential has lapsed"
	Due         Why = "it is due"
	Ahead       Why = "a clock that was ahead said when it is due"
	LeaseGone   Why = "the lease was revoked, or cannot be made longer"
	Unused      Why = "it was leased, and never written into the Secret"
	Superseded  Why = "another credential has taken its place"
	Deleted     Why = "the Credential is being deleted"
	Over        Why = "it has lapsed"
	BackingOff  Why = "the last attempt failed"
	Full        Why = "too many leases are not revoked yet"
	Readers     Why = "who reads the credential at the start is restarting"
	Suspended   Why = "it is suspended"
	NothingToDo Why = "nothing is due"
)

// skew is how far ahead of ours the clock may be of whoever wrote when a credential ends.
const skew = time.Minute

// Step is what is done next, and why.
type Step struct {
	Do  Action
	Why Why
	// Lease is the number of what is renewed, revoked or forgotten.
	Lease int64
	// Until is when a Keep ends; zero for one that only an event ends.
	Until time.Time
}

// Held is what the Secret has.
type Held struct {
	// Number of the credential; each has a higher one than those before.
	Number int64
	// Declared identifies what was asked for.
	Declared string
	// Intact: the content is what was written.
	Intact bool
	// Issued is when it was written there, and Renewed when its life was made longer last.
	Issued, Renewed time.Time
	// RenewAt, and Expires, zero if nothing says when.
	RenewAt, Expires time.Time
}

// Lease is a login, and what was leased in it.
type Lease struct {
	Number int64
	// ID is empty while nothing was leased.
	ID        string
	Renewable bool
	// RenewAt and Expires of the lease; zero while there is none.
	RenewAt, Expires time.Time
	// LoginExpires is when the login ends, and the lease with it; zero if it does not.
	LoginExpires time.Time
	// NotBefore is when the next attempt to revoke it is made.
	NotBefore time.Time
	// Gone: the server knows the lease no more.
	Gone bool
	// Batch: the login cannot be revoked. Nothing is left of it when the lease has ended.
	Batch bool
}

// End is when the lease ends, and whether that is known.
func (l *Lease) End() (time.Time, bool) {
	switch {
	case l.Expires.IsZero():
		return l.LoginExpires, !l.LoginExpires.IsZero()
	case l.LoginExpires.IsZero() || l.Expires.Before(l.LoginExpires):
		return l.Expires, true
	}
	return l.LoginExpires, true
}

// over reports whether nothing of the lease is left that could be revoked.
func (l *Lease) over(now time.Time) bool {
	if end, ends := l.End(); l.Batch && ends && !now.Before(end) {
		return true
	}
	return !l.LoginExpires.IsZero() && !now.Before(l.LoginExpires)
}

// Facts about one Credential.
type Facts struct {
	Deleting, Suspended bool
	// Revokes what is left when the Credential is deleted.
	Revokes bool
	// Declared identifies what is asked for.
	Declared string
	// Secret is what the Secret has, nil without one.
	Secret *Held
	// Leases that the journal has, in the order of their numbers.
	Leases []Lease
	// Grace is for how long what was replaced stays valid, Settled: who reads at the start
	// has what the Secret has.
	Grace   time.Duration
	Settled bool
	// NotBefore is when the next attempt is made to get or renew a credential.
	NotBefore time.Time
}

// MostLeases bounds what one Credential has leased at a time.
const MostLeases = 16

// Current is the lease of what the Secret has, nil if that is none.
func (f *Facts) Current() *Lease {
	if f.Secret == nil {
		return nil
	}
	for i := range f.Leases {
		if f.Leases[i].Number == f.Secret.Number && f.Leases[i].ID != "" {
			return &f.Leases[i]
		}
	}
	return nil
}

// Life is when what the Secret has is renewed and when it ends, as the journal has it, which
// is written first. A zero end is none.
func (f *Facts) Life() (renewAt, expires time.Time) {
	if f.Secret == nil {
		return time.Time{}, time.Time{}
	}
	renewAt, expires = f.Secret.RenewAt, f.Secret.Expires
	if l := f.Current(); l != nil {
		renewAt, expires = l.RenewAt, l.Expires
		if end, known := l.End(); known {
			expires = end
		}
	}
	return renewAt, expires
}

// Plan says what is done next.
func Plan(f Facts, now time.Time) Step {
	if f.Deleting {
		return f.ending(now)
	}
	if f.Suspended {
		return Step{Do: Keep, Why: Suspended}
	}
	// What is due comes first: a server that is slow to revoke keeps nobody from what is valid.
	fresh, due := f.fresh(now)
	if due && fresh.Do != Keep {
		return fresh
	}
	wait := Step{Do: Keep, Why: NothingToDo}
	if due {
		wait = fresh
	}
	if step, done := f.unused(now, &wait); done {
		return step
	}
	if f.Secret == nil {
		return wait
	}
	return f.superseded(now, wait)
}

// ending ends all that is leased.
func (f *Facts) ending(now time.Time) Step {
	wait := Step{Do: Keep, Why: Deleted}
	for i := range f.Leases {
		l := &f.Leases[i]
		switch {
		case !f.Revokes || l.over(now):
			return Step{Do: Forget, Why: Deleted, Lease: l.Number}
		case now.Before(l.NotBefore):
			wait = sooner(wait, Step{Do: Keep, Why: BackingOff, Until: l.NotBefore})
		default:
			return Step{Do: Revoke, Why: Deleted, Lease: l.Number}
		}
	}
	if len(f.Leases) > 0 {
		return wait
	}
	return Step{Do: Finish, Why: Deleted}
}

// unused ends what has ended by itself, and what an earlier process leased and did not come to
// write into the Secret.
func (f *Facts) unused(now time.Time, wait *Step) (Step, bool) {
	for i := range f.Leases {
		l := &f.Leases[i]
		if l == f.Current() {
			continue
		}
		// What a Secret has that somebody changed is not known. It is replaced first.
		lost := f.Secret != nil && f.Secret.Intact && l.Number >= f.Secret.Number
		if f.Secret == nil {
			// Readers may have what the Secret had, until another one is written. Where there is no
			// room for that, the last is the least likely to be what they have.
			end, ends := l.End()
			lost = l.ID == "" || ends && !now.Before(end) || len(f.Leases) >= MostLeases && i == len(f.Leases)-1
		}
		switch {
		case l.over(now):
			return Step{Do: Forget, Why: Over, Lease: l.Number}, true
		case lost && now.Before(l.NotBefore):
			*wait = sooner(*wait, Step{Do: Keep, Why: BackingOff, Until: l.NotBefore})
		case lost:
			return Step{Do: Revoke, Why: Unused, Lease: l.Number}, true
		}
	}
	return Step{}, false
}

// fresh gets, renews or replaces what the Secret has, if that is due.
func (f *Facts) fresh(now time.Time) (Step, bool) {
	renewAt, expires := f.Life()
	current := f.Current()
	var step Step
	switch {
	case f.Secret == nil:
		step = Step{Do: Issue, Why: NoSecret}
	case f.Secret.Declared != f.Declared:
		step = Step{Do: Replace, Why: Changed}
	case !f.Secret.Intact:
		step = Step{Do: Replace, Why: Tampered}
	case !expires.IsZero() && !now.Before(expires):
		step = Step{Do: Issue, Why: Lapsed}
	case f.Secret.Issued.Sub(now) > skew || f.Secret.Renewed.Sub(now) > skew:
		// When it ends was counted from that clock. It ends sooner, and nobody knows when.
		step = Step{Do: Replace, Why: Ahead}
	case current != nil && current.Gone:
		step = Step{Do: Replace, Why: LeaseGone}
	case renewAt.IsZero() || now.Before(renewAt):
		return Step{}, false
	case current != nil && current.Renewable:
		step = Step{Do: Renew, Why: Due, Lease: current.Number}
	default:
		step = Step{Do: Replace, Why: Due}
	}
	switch {
	case now.Before(f.NotBefore):
		until := f.NotBefore
		if !expires.IsZero() && now.Before(expires) && expires.Before(until) {
			until = expires // it is told at once that it has lapsed
		}
		return Step{Do: Keep, Why: BackingOff, Until: until}, true
	case step.Do != Renew && len(f.Leases) >= MostLeases:
		// The first that ends by itself makes room.
		return Step{Do: Keep, Why: Full, Until: f.firstEnd(now)}, true
	}
	return step, true
}

func (f *Facts) firstEnd(now time.Time) time.Time {
	var first time.Time
	for i := range f.Leases {
		for _, at := range []time.Time{f.Leases[i].NotBefore, f.Leases[i].LoginExpires} {
			if at.After(now) && (first.IsZero() || at.Before(first)) {
				first = at
			}
		}
	}
	return first
}

// superseded revokes what another credential has taken the place of, when its readers had
// time.
func (f *Facts) superseded(now time.Time, wait Step) Step {
	renewAt, expires := f.Life()
	for _, at := range []time.Time{renewAt, expires} {
		if at.After(now) {
			wait = sooner(wait, Step{Do: Keep, Why: NothingToDo, Until: at})
		}
	}
	due := f.Secret.Issued.Add(f.Grace)
	for i := range f.Leases {
		l := &f.Leases[i]
		end, ends := l.End()
		lapsed := ends && !now.Before(end)
		switch {
		case l.Number >= f.Secret.Number:
			continue
		case now.Before(l.NotBefore):
			wait = sooner(wait, Step{Do: Keep, Why: BackingOff, Until: l.NotBefore})
		case lapsed || f.Settled && !now.Before(due):
			return Step{Do: Revoke, Why: Superseded, Lease: l.Number}
		case now.Before(due):
			wait = sooner(wait, Step{Do: Keep, Why: Superseded, Until: due})
			if ends {
				wait = sooner(wait, Step{Do: Keep, Why: Superseded, Until: end})
			}
		default:
			wait.Why = Readers
			if ends {
				wait = sooner(wait, Step{Do: Keep, Why: Readers, Until: end})
			}
		}
	}
	return wait
}

// sooner is the wait that ends first.
func sooner(a, b Step) Step {
	switch {
	case b.Until.IsZero():
		return a
	case a.Until.IsZero() || b.Until.Before(a.Until):
		if a.Why != NothingToDo && b.Why == NothingToDo {
			b.Why = a.Why
		}
		return b
	}
	return a
}

// RenewAt is when something that is valid from issued to expires is renewed: when about two
// thirds of its life are over, or before as long as is asked for, but not in the first half.
// random is in [0, 1), and spreads what was issued at the same time.
func RenewAt(issued, expires time.Time, before time.Duration, random float64) time.Time {
	if expires.IsZero() {
		return time.Time{}
	}
	life := max(expires.Sub(issued), 0)
	after := life * 2 / 3
	if before > 0 {
		after = max(life-before, life/2)
	}
	return issued.Add(after - time.Duration(random*float64(after)/10))
}

// Spent reports whether a renewal brought so little that the next one is not worth it: the
// lease is near the end of what the server allows. life is what it had at first.
func Spent(now, expires time.Time, life time.Duration) bool {
	return expires.Sub(now) < life/2
}

// Pause between attempts after some that failed: it grows to most, and is shorter by chance.
func Pause(failures int, most time.Duration, random float64) time.Duration {
	pause := min(time.Second<<min(failures, 10), most)
	return pause - time.Duration(random*float64(pause)/5)
}

// MostPause between two attempts for something that lives so long: a minute, or less where a
// minute is much of its life.
func MostPause(life time.Duration) time.Duration {
	if life <= 0 {
		return time.Minute
	}
	return min(max(life/12, time.Second), time.Minute)
}

// Standing is how a credential stands.
type Standing string

// Standings.
const (
	Good    Standing = "Good"
	Lapsing Standing = "Lapsing"
	Gone    Standing = "Lapsed"
	Missing Standing = "Missing"
)

// Stands tells whether what the Secret has is valid: Lapsing in the last sixth of its life.
func (f *Facts) Stands(now time.Time) Standing {
	_, expires := f.Life()
	switch {
	case f.Secret == nil:
		return Missing
	case expires.IsZero():
		return Good
	case !now.Before(expires):
		return Gone
	case expires.Sub(now) < expires.Sub(f.Secret.Renewed)/6:
		return Lapsing
	}
	return Good
}
