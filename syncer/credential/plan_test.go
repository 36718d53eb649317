package credential

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }

// held is a Secret with credential number n, issued at second 0, that is due at 40 and ends at
// 60.
func held(n int64) *Held {
	return &Held{Number: n, Declared: "d", Intact: true, Issued: epoch, Renewed: epoch, RenewAt: at(40), Expires: at(60)}
}

func lease(n int64, more ...func(*Lease)) Lease {
	l := Lease{Number: n, ID: fmt.Sprint("lease", n), RenewAt: at(40), Expires: at(60), LoginExpires: at(1000)}
	for _, f := range more {
		f(&l)
	}
	return l
}

func renewable(l *Lease) { l.Renewable = true }

// TestPlan goes through the steps, one cause in each row.
func TestPlan(t *testing.T) {
	base := func(change func(*Facts)) Facts {
		f := Facts{Declared: "d", Revokes: true, Settled: true, Grace: 20 * time.Second, Secret: held(3), Leases: []Lease{lease(3)}}
		if change != nil {
			change(&f)
		}
		return f
	}
	for name, tc := range map[string]struct {
		reason string
		facts  Facts
		now    int
		want   Step
	}{
		"First":         {"without a Secret one is issued", base(func(f *Facts) { f.Secret, f.Leases = nil, nil }), 0, Step{Do: Issue, Why: NoSecret}},
		"Kept":          {"nothing is due before two thirds", base(nil), 39, Step{Do: Keep, Why: NothingToDo, Until: at(40)}},
		"Replaced":      {"what cannot be renewed is replaced", base(nil), 40, Step{Do: Replace, Why: Due}},
		"Renewed":       {"what can be renewed is", base(func(f *Facts) { renewable(&f.Leases[0]) }), 40, Step{Do: Renew, Why: Due, Lease: 3}},
		"JournalCounts": {"the journal is written before the Secret says so", base(func(f *Facts) { f.Leases[0].RenewAt, f.Leases[0].Expires = at(80), at(120) }), 70, Step{Do: Keep, Why: NothingToDo, Until: at(80)}},
		"LoginEnds": {"what is leased ends with the login", base(func(f *Facts) { f.Leases[0].LoginExpires = at(30) }), 30,
			Step{Do: Issue, Why: Lapsed}},
		"Gone":     {"what somebody revoked is replaced at once", base(func(f *Facts) { f.Leases[0].Gone = true }), 5, Step{Do: Replace, Why: LeaseGone}},
		"Changed":  {"another request is made at once", base(func(f *Facts) { f.Declared = "e" }), 5, Step{Do: Replace, Why: Changed}},
		"Tampered": {"what somebody changed in the Secret is replaced, and revoked after that", base(func(f *Facts) { f.Secret.Intact, f.Secret.Number = false, 0 }), 5, Step{Do: Replace, Why: Tampered}},
		"Ahead": {"by a clock that was ahead nothing is due while it lapses (read 697)", base(func(f *Facts) {
			f.Secret.Issued, f.Secret.Renewed, f.Secret.RenewAt, f.Secret.Expires = at(21600), at(21600), at(21640), at(21660)
			f.Leases[0].RenewAt, f.Leases[0].Expires, f.Leases[0].LoginExpires = at(21640), at(21660), at(22600)
		}), 5, Step{Do: Replace, Why: Ahead}},
		"RenewedAhead": {"nor where such a one renewed it", base(func(f *Facts) {
			f.Secret.Renewed, f.Leases[0].RenewAt, f.Leases[0].Expires = at(21600), at(21640), at(21660)
		}), 5, Step{Do: Replace, Why: Ahead}},
		"Skewed": {"the clocks of two processes are a little apart", base(func(f *Facts) { f.Secret.Issued, f.Secret.Renewed = at(60), at(60) }), 5,
			Step{Do: Keep, Why: NothingToDo, Until: at(40)}},
		"Lapsed":     {"what has lapsed is replaced", base(nil), 60, Step{Do: Issue, Why: Lapsed}},
		"BackingOff": {"an attempt that failed is not made again at once", base(func(f *Facts) { f.NotBefore = at(50) }), 45, Step{Do: Keep, Why: BackingOff, Until: at(50)}},
		"BackOffUntilLapse": {"that it lapses is told at once", base(func(f *Facts) { f.NotBefore = at(90) }), 45,
			Step{Do: Keep, Why: BackingOff, Until: at(60)}},
		"Unused": {"what an earlier process leased and did not write is revoked", base(func(f *Facts) { f.Leases = append(f.Leases, lease(4)) }), 5, Step{Do: Revoke, Why: Unused, Lease: 4}},
		"UnusedLogin": {"so is a login of which is not known what it leased", base(func(f *Facts) { f.Leases = append(f.Leases, lease(4, func(l *Lease) { l.ID = "" })) }), 5,
			Step{Do: Revoke, Why: Unused, Lease: 4}},
		"IssuedFirst": {"but not before there is something valid", base(func(f *Facts) { f.Secret = nil; f.Leases = []Lease{lease(1)} }), 5,
			Step{Do: Issue, Why: NoSecret}},
		"UnusedMeanwhile": {"while no attempt is made, a login in which nothing was leased is", base(func(f *Facts) {
			f.Secret, f.NotBefore = nil, at(9)
			f.Leases = []Lease{lease(1), lease(2, func(l *Lease) { l.ID = "" })}
		}), 5, Step{Do: Revoke, Why: Unused, Lease: 2}},
		"SecretGone": {"readers may have what a Secret had that somebody deleted", base(func(f *Facts) { f.Secret, f.NotBefore = nil, at(9) }), 5,
			Step{Do: Keep, Why: BackingOff, Until: at(9)}},
		"SecretGoneLapsed": {"as long as it is valid", base(func(f *Facts) { f.Secret, f.NotBefore = nil, at(90) }), 60, Step{Do: Revoke, Why: Unused, Lease: 3}},
		"SecretGoneReplaced": {"and until the next one is written", base(func(f *Facts) {
			f.Secret, f.Leases = held(5), []Lease{lease(3), lease(4), lease(5)}
		}), 20, Step{Do: Revoke, Why: Superseded, Lease: 3}},
		"SecretGoneFull": {"the next one needs room", base(func(f *Facts) {
			f.Secret, f.Leases = nil, nil
			for n := range MostLeases {
				f.Leases = append(f.Leases, lease(int64(n+1)))
			}
		}), 5, Step{Do: Revoke, Why: Unused, Lease: MostLeases}},
		"UnusedLater": {"a revocation that failed does not keep a credential from being issued", base(func(f *Facts) {
			f.Secret = nil
			f.Leases = []Lease{lease(1, func(l *Lease) { l.NotBefore = at(90) })}
		}), 5, Step{Do: Issue, Why: NoSecret}},
		"Grace":      {"what was replaced stays for those who have not read the new one", base(func(f *Facts) { f.Leases = []Lease{lease(2), lease(3)} }), 19, Step{Do: Keep, Why: Superseded, Until: at(20)}},
		"Superseded": {"and is revoked after that", base(func(f *Facts) { f.Leases = []Lease{lease(2), lease(3)} }), 20, Step{Do: Revoke, Why: Superseded, Lease: 2}},
		"Readers": {"but not while its readers restart", base(func(f *Facts) { f.Leases, f.Settled = []Lease{lease(2), lease(3)}, false }), 30,
			Step{Do: Keep, Why: Readers, Until: at(40)}},
		"LapsedLogin": {"the login of what has lapsed is ended, whoever restarts", base(func(f *Facts) {
			f.Leases, f.Settled = []Lease{lease(2, func(l *Lease) { l.Expires = at(10) }), lease(3)}, false
		}), 11, Step{Do: Revoke, Why: Superseded, Lease: 2}},
		"OverBatch": {"of a login that cannot be revoked nothing is left after the lease", base(func(f *Facts) {
			f.Leases = []Lease{lease(2, func(l *Lease) { l.Expires, l.Batch = at(10), true }), lease(3)}
		}), 11, Step{Do: Forget, Why: Over, Lease: 2}},
		"Over": {"what ended by itself is forgotten without a call", base(func(f *Facts) {
			f.Leases = []Lease{lease(2, func(l *Lease) { l.LoginExpires = at(10) }), lease(3)}
		}), 11, Step{Do: Forget, Why: Over, Lease: 2}},
		"Full": {"no lease is added to many that cannot be revoked; that it lapses is told at once", base(func(f *Facts) {
			f.Leases = nil
			for n := range MostLeases {
				f.Leases = append(f.Leases, lease(int64(n+1), func(l *Lease) { l.NotBefore = at(500) }))
			}
			f.Secret.Number = MostLeases
		}), 45, Step{Do: Keep, Why: Full, Until: at(60)}},
		"Suspended": {"nothing is renewed", base(func(f *Facts) { f.Suspended = true }), 55, Step{Do: Keep, Why: Suspended}},
		"Deleting":  {"all leases are revoked", base(func(f *Facts) { f.Deleting = true }), 5, Step{Do: Revoke, Why: Deleted, Lease: 3}},
		"DeletingSuspended": {"also those of one that is suspended", base(func(f *Facts) { f.Deleting, f.Suspended = true, true }), 5,
			Step{Do: Revoke, Why: Deleted, Lease: 3}},
		"DeletingLater": {"a server that does not answer is asked again", base(func(f *Facts) { f.Deleting = true; f.Leases[0].NotBefore = at(9) }), 5,
			Step{Do: Keep, Why: BackingOff, Until: at(9)}},
		"DeletingOver": {"until all has ended by itself", base(func(f *Facts) { f.Deleting = true; f.Leases[0].NotBefore = at(2000) }), 1000,
			Step{Do: Forget, Why: Deleted, Lease: 3}},
		"DeletingKeeps": {"unless nothing is to be revoked", base(func(f *Facts) { f.Deleting, f.Revokes = true, false }), 5, Step{Do: Forget, Why: Deleted, Lease: 3}},
		"Finished":      {"then it goes", base(func(f *Facts) { f.Deleting, f.Leases = true, nil }), 5, Step{Do: Finish, Why: Deleted}},
		"NoEnd": {"what has no end is read again", base(func(f *Facts) {
			f.Leases = nil
			f.Secret.Expires, f.Secret.RenewAt = time.Time{}, at(600)
		}), 600, Step{Do: Replace, Why: Due}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Plan(tc.facts, at(tc.now)); got != tc.want {
				t.Errorf("%s\ngot  %+v\nwant %+v", tc.reason, got, tc.want)
			}
		})
	}
}

func TestStands(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		facts  Facts
		now    int
		want   Standing
	}{
		"Missing": {"no Secret", Facts{}, 0, Missing},
		"Good":    {"before the last sixth", Facts{Secret: held(1)}, 50, Good},
		"Lapsing": {"in the last sixth", Facts{Secret: held(1)}, 51, Lapsing},
		"Lapsed":  {"at the end", Facts{Secret: held(1)}, 60, Gone},
		"NoEnd":   {"what has no end is good", Facts{Secret: &Held{}}, 1 << 20, Good},
		"Renewed": {"the sixth is of the life since the renewal", Facts{Secret: &Held{Issued: epoch, Renewed: at(1000), Expires: at(1060)}}, 1045, Good},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.facts.Stands(at(tc.now)); got != tc.want {
				t.Errorf("%s: %s, want %s", tc.reason, got, tc.want)
			}
		})
	}
}

func TestRenewAt(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		expires time.Time
		before  time.Duration
		random  float64
		want    time.Time
	}{
		"TwoThirds": {"of its life", at(60), 0, 0, at(40)},
		"Spread":    {"sooner by chance", at(60), 0, 1, at(36)},
		"Before":    {"as long before its end as is asked for", at(60), 10 * time.Second, 0, at(50)},
		"NotAtOnce": {"but not in the first half", at(60), time.Hour, 0, at(30)},
		"NoEnd":     {"what has no end is due never", time.Time{}, 0, 0, time.Time{}},
		"Over":      {"what ended before it began is due now", at(-5), 0, 0, at(0)},
	} {
		t.Run(name, func(t *testing.T) {
			if got := RenewAt(epoch, tc.expires, tc.before, tc.random); !got.Equal(tc.want) {
				t.Errorf("%s: %s, want %s", tc.reason, got, tc.want)
			}
		})
	}
}

// TestPause: pauses grow, are never longer than the most, and always some time.
func TestPause(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for failures := 1; failures < 100; failures++ {
		for _, life := range []time.Duration{0, 6 * time.Second, time.Minute, time.Hour, 30 * 24 * time.Hour} {
			most := MostPause(life)
			if p := Pause(failures, most, random.Float64()); p <= 0 || p > most || most > time.Minute {
				t.Fatalf("after %d failures of a life of %s: %s, most %s", failures, life, p, most)
			}
		}
	}
}

// world is a server and a cluster, as far as Plan knows them.
type world struct {
	now    time.Time
	random *rand.Rand
	// up: the server answers.
	up bool
	// valid has when each lease ends at the server, by its number; a revoked one is not there.
	valid map[int64]time.Time
	most  map[int64]time.Time
	facts Facts
	next  int64

	life, mostLife, login time.Duration
	renewable             bool
	failures              int
	revoking              map[int64]int
	issued                int
}

// step does what a process does: it asks, acts, and may be killed within the act.
func (w *world) step(kill bool) (step Step, killed bool) {
	step = Plan(w.facts, w.now)
	fail := func() {
		w.failures++
		life := time.Duration(0)
		if _, end := w.facts.Life(); !end.IsZero() && w.facts.Secret != nil {
			life = end.Sub(w.facts.Secret.Renewed)
		}
		w.facts.NotBefore = w.now.Add(Pause(w.failures, MostPause(life), w.random.Float64()))
	}
	succeed := func() { w.failures, w.facts.NotBefore = 0, time.Time{} }
	find := func(n int64) *Lease {
		for i := range w.facts.Leases {
			if w.facts.Leases[i].Number == n {
				return &w.facts.Leases[i]
			}
		}
		return nil
	}
	switch step.Do {
	case Issue, Replace:
		if !w.up {
			fail()
			return step, false
		}
		n := w.next
		w.next++
		l := Lease{Number: n, LoginExpires: w.now.Add(w.login)}
		if w.login == 0 {
			l.LoginExpires = time.Time{}
		}
		w.facts.Leases = append(w.facts.Leases, l)
		if kill && w.random.IntN(3) == 0 {
			return step, true // logged in, nothing leased
		}
		w.issued++
		end := w.now.Add(w.life)
		w.valid[n], w.most[n] = end, w.now.Add(w.mostLife)
		if !l.LoginExpires.IsZero() && l.LoginExpires.Before(end) {
			w.valid[n] = l.LoginExpires
		}
		if kill && w.random.IntN(2) == 0 {
			return step, true // leased, nothing noted
		}
		at := find(n)
		at.ID, at.Renewable, at.Expires = "l", w.renewable, end
		e, _ := at.End()
		at.RenewAt = RenewAt(w.now, e, 0, w.random.Float64())
		if kill {
			return step, true // noted, not written
		}
		w.facts.Secret = &Held{Number: n, Declared: w.facts.Declared, Intact: true, Issued: w.now, Renewed: w.now, RenewAt: at.RenewAt, Expires: e}
		succeed()
	case Renew:
		if !w.up {
			fail()
			return step, false
		}
		l := find(step.Lease)
		if _, there := w.valid[step.Lease]; !there {
			l.Gone = true
			return step, false
		}
		end := w.now.Add(w.life)
		if w.most[step.Lease].Before(end) {
			end = w.most[step.Lease]
		}
		if !l.LoginExpires.IsZero() && l.LoginExpires.Before(end) {
			end = l.LoginExpires
		}
		w.valid[step.Lease] = end
		l.Expires, l.RenewAt, l.Renewable = end, RenewAt(w.now, end, 0, w.random.Float64()), !Spent(w.now, end, w.life)
		if kill {
			return step, true
		}
		w.facts.Secret.Renewed, w.facts.Secret.RenewAt, w.facts.Secret.Expires = w.now, l.RenewAt, end
		succeed()
	case Revoke:
		if !w.up {
			w.revoking[step.Lease]++
			find(step.Lease).NotBefore = w.now.Add(Pause(w.revoking[step.Lease], 2*time.Minute, w.random.Float64()))
			return step, false
		}
		delete(w.valid, step.Lease)
		if kill {
			return step, true
		}
		fallthrough
	case Forget:
		w.facts.Leases = slices.DeleteFunc(w.facts.Leases, func(l Lease) bool { return l.Number == step.Lease })
	}
	return step, false
}

// TestLives goes through many lives of Credentials, at a virtual clock, with outages of the
// server and processes that are killed within steps, and holds after each second that
//
//   - the Secret has a valid credential whenever the server has answered for some time;
//   - nobody revoked what the Secret has;
//   - what is valid at the server is what the journal has;
//   - after the deletion nothing is valid.
func TestLives(t *testing.T) {
	const lives = 400
	for seed := range uint64(lives) {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { live(t, seed) }) {
			return
		}
	}
}

func live(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 7))
	pick := func(all ...time.Duration) time.Duration { return all[random.IntN(len(all))] }
	w := &world{
		now: epoch, random: random, up: true, valid: map[int64]time.Time{}, most: map[int64]time.Time{}, revoking: map[int64]int{}, next: 1,
		life: pick(12*time.Second, time.Minute, 5*time.Minute), renewable: random.IntN(2) == 0,
		facts: Facts{Declared: "d", Revokes: true, Settled: true, Grace: pick(0, 10*time.Second, time.Minute)},
	}
	w.mostLife = w.life * time.Duration(1+random.IntN(5))
	w.login = pick(0, w.life/2, w.life, w.life*10)
	upSince, kills := w.now, 0
	settle := func(kill bool) {
		for range 4 * MostLeases {
			step, killed := w.step(kill && random.IntN(8) == 0)
			if killed {
				kills++
				// The next process knows what is written down, and nothing of attempts.
				w.failures, w.facts.NotBefore, w.revoking = 0, time.Time{}, map[int64]int{}
				for i := range w.facts.Leases {
					w.facts.Leases[i].NotBefore = time.Time{}
				}
				continue
			}
			if step.Do == Keep || step.Do == Finish {
				if !step.Until.IsZero() && !step.Until.After(w.now) {
					t.Fatalf("at %s: a wait that is over: %+v", w.now.Sub(epoch), step)
				}
				return
			}
		}
		t.Fatalf("at %s: steps without an end: %+v", w.now.Sub(epoch), w.facts)
	}
	const length = 900
	for second := range length {
		w.now = epoch.Add(time.Duration(second) * time.Second)
		for n, end := range w.valid {
			if !w.now.Before(end) {
				delete(w.valid, n)
			}
		}
		if random.IntN(120) == 0 && second < length-200 {
			if w.up = !w.up; w.up {
				upSince = w.now
			}
		}
		if second == length-200 {
			if !w.up {
				upSince = w.now
			}
			w.up = true
		}
		if random.IntN(300) == 0 {
			w.facts.Declared += "x"
		}
		settle(second < length-100)
		if s := w.facts.Secret; s != nil {
			_, end := w.facts.Life()
			valid, there := w.valid[s.Number]
			if w.now.Before(end) && !there {
				t.Fatalf("at %s: the Secret has credential %d, which was revoked", w.now.Sub(epoch), s.Number)
			}
			if there && valid.Before(end) {
				t.Fatalf("at %s: credential %d ends at %s, and %s is told", w.now.Sub(epoch), s.Number, valid.Sub(epoch), end.Sub(epoch))
			}
		}
		if w.up && w.now.Sub(upSince) > 75*time.Second {
			if w.facts.Secret == nil || w.valid[w.facts.Secret.Number].IsZero() {
				t.Fatalf("at %s: the server has answered since %s, and the Secret has nothing valid: %+v", w.now.Sub(epoch), upSince.Sub(epoch), w.facts)
			}
		}
		for n := range w.valid {
			if !slices.ContainsFunc(w.facts.Leases, func(l Lease) bool { return l.Number == n }) {
				t.Fatalf("at %s: lease %d is valid, and nobody knows of it", w.now.Sub(epoch), n)
			}
		}
	}
	w.facts.Deleting = true
	settle(false)
	if len(w.valid) > 0 || len(w.facts.Leases) > 0 {
		t.Fatalf("after the deletion %d leases are valid, and %d known", len(w.valid), len(w.facts.Leases))
	}
	if w.issued == 0 {
		t.Fatal("nothing was issued")
	}
}
