package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// holders are children c00, c01, ... that have the layer, of which the first ones are to
// lose it.
func holders(all, leave int) []Holder {
	hs := make([]Holder, 0, all)
	for i := range all {
		name := fmt.Sprintf("c%02d", i)
		hs = append(hs, Holder{Name: name, UID: types.UID("uid-" + name), Leaves: i < leave})
	}
	return hs
}

// waited is the record after the same children waited for a while.
func waited(hs []Holder, d time.Duration, change ...func(*v1alpha1.Removal)) *v1alpha1.Removal {
	r := &v1alpha1.Removal{}
	setWaiting(r, "layer", now.Add(-d), waitingOf(hs, nil))
	for _, c := range change {
		c(r)
	}
	return r
}

func spentAt(ago time.Duration, children int32) func(*v1alpha1.Removal) {
	return func(r *v1alpha1.Removal) {
		r.Spent = append(r.Spent, v1alpha1.Spent{At: metav1.NewTime(now.Add(-ago)), Children: children})
	}
}

func isHeld(r *v1alpha1.Removal) { r.Held = true }

// unknown are the same holders, of so many of which nobody can tell whether they are to lose the layer.
func unknown(hs []Holder, first int) []Holder {
	for i := range first {
		hs[i].Leaves, hs[i].Unknown = false, true
	}
	return hs
}

func grants(names ...string) func(*v1alpha1.Removal) {
	return func(r *v1alpha1.Removal) {
		for _, n := range names {
			r.Granted = append(r.Granted, v1alpha1.Grant{Name: n, UID: types.UID("uid-" + n), At: metav1.NewTime(now)})
		}
	}
}

func TestGuard(t *testing.T) {
	long := time.Minute
	reborn := holders(12, 2)
	reborn[0].UID = "another"
	for name, tc := range map[string]struct {
		reason    string
		holders   []Holder
		before    *v1alpha1.Removal
		approve   bool
		approved  string
		confirmed bool
		// granted, held and again are what is wanted.
		granted string
		held    bool
		again   time.Duration
	}{
		"None":         {"nobody is to lose the layer", holders(12, 0), nil, false, "", false, "", false, 0},
		"One":          {"one of twelve is looked at for a moment", holders(12, 1), nil, false, "", false, "", false, RemovalSettle},
		"OneSettled":   {"then it goes", holders(12, 1), waited(holders(12, 1), long), false, "", false, "c00", false, 0},
		"NotYet":       {"not before", holders(12, 1), waited(holders(12, 1), 5*time.Second), false, "", false, "", false, RemovalSettle - 5*time.Second},
		"TwoOfTwo":     {"fewer than three go by themselves, whatever they are of", holders(2, 2), waited(holders(2, 2), long), false, "", false, "c00 c01", false, 0},
		"ThreeOfThree": {"three are more than a tenth", holders(3, 3), waited(holders(3, 3), long), false, "", false, "", true, 0},
		"All":          {"a typo in the selector (C4)", holders(12, 12), nil, false, "", false, "", true, 0},
		"Tenth":        {"no more than a tenth goes by itself", holders(30, 3), waited(holders(30, 3), long), false, "", false, "c00 c01 c02", false, 0},
		"MoreThanTen":  {"one more does not", holders(30, 4), waited(holders(30, 4), long), false, "", false, "", true, 0},
		"Another":      {"while they settle another one joins: they wait anew", holders(30, 3), waited(holders(30, 2), long), false, "", false, "", false, RemovalSettle},
		"Trickle":      {"labels drop one after the other: what went within the hour counts", holders(12, 1), waited(holders(12, 1), long, spentAt(long, 2)), false, "", false, "", true, 0},
		"LongAgo":      {"what went before does not", holders(12, 1), waited(holders(12, 1), long, spentAt(RemovalWindow, 2)), false, "", false, "c00", false, 0},
		"StaysHeld":    {"a hold does not end because the hour does", holders(12, 1), waited(holders(12, 1), RemovalWindow, isHeld, spentAt(RemovalWindow, 2)), false, "", false, "", true, 0},
		"FewerHeld":    {"nor because there are fewer, nobody having decided", holders(12, 1), waited(holders(12, 12), long, isHeld), false, "", false, "", true, 0},
		"Corrected":    {"it ends when nobody is to lose the layer", holders(12, 0), waited(holders(12, 12), long, isHeld), false, "", false, "", false, 0},
		"Approved":     {"a person approved these", holders(4, 4), waited(holders(4, 4), 0, isHeld), true, "", false, "c00 c01 c02 c03", false, 0},
		"OtherHash":    {"a person approved others", holders(4, 4), waited(holders(4, 4), long, isHeld), false, hashOfRemoval("layer", now.Add(-long), holders(3, 3)), false, "", true, 0},
		"OlderWait": {"the same children were approved the last time; a person put that right since", holders(4, 4), nil, false,
			hashOfRemoval("layer", now.Add(-long), holders(4, 4)), false, "", true, 0},
		"OtherLayer":    {"a Layer of the same name was approved", holders(4, 4), waited(holders(4, 4), long, isHeld), false, hashOfRemoval("other", now.Add(-long), holders(4, 4)), false, "", true, 0},
		"Confirmed":     {"two commits delete the Layer", holders(12, 12), nil, false, "", true, "c00 c01 c02 c03 c04 c05 c06 c07 c08 c09 c10 c11", false, 0},
		"Going":         {"who was let go is not counted twice", holders(12, 3), waited(holders(12, 0), 0, grants("c00", "c01", "c02")), false, "", false, "c00 c01 c02", false, 0},
		"Back":          {"a grant ends when the child is to have the layer again", holders(12, 0), waited(holders(12, 0), 0, grants("c00")), false, "", false, "", false, 0},
		"Gone":          {"a grant ends when the child has nothing of the layer, or is gone", holders(12, 0)[1:], waited(holders(12, 0), 0, grants("c00")), false, "", false, "", false, 0},
		"Reborn":        {"a Child of the same name that was made again was not let go", reborn, waited(reborn, 0, grants("c00", "c01")), false, "", false, "c01", false, RemovalSettle},
		"Unknown":       {"the selector cannot be used, and nobody has decided", unknown(holders(12, 0), 12), waited(holders(12, 4), long, isHeld), false, "", false, "", true, 0},
		"UnknownAlone":  {"the selector cannot be used, and nobody was asked", unknown(holders(12, 0), 12), waited(holders(12, 2), long), false, "", false, "", false, 0},
		"UnknownOther":  {"what was held is to have the layer again", unknown(holders(12, 0), 1), waited(holders(12, 4)[1:], long, isHeld), false, "", false, "", false, 0},
		"UnknownGoes":   {"a person approved these, of which one is elsewhere", unknown(holders(4, 4), 1), waited(holders(4, 4), 0, isHeld), true, "", false, "c01 c02 c03", false, 0},
		"UnknownGrant":  {"a grant ends when nobody can tell", unknown(holders(12, 0), 12), waited(holders(12, 0), 0, grants("c00")), false, "", false, "", false, 0},
		"ClockWentBack": {"the clock went back: the wait begins anew", holders(12, 1), waited(holders(12, 1), -time.Hour), false, "", false, "", false, RemovalSettle},
	} {
		t.Run(name, func(t *testing.T) {
			f := Removal{Layer: "layer", Holders: tc.holders, Recorded: tc.before, Approved: tc.approved, Confirmed: tc.confirmed}
			if tc.approve {
				f.Approved = tc.before.Hash
			}
			got, again := Guard(f, now)
			var granted []string
			held := false
			if got != nil {
				held = got.Held
				for _, g := range got.Granted {
					granted = append(granted, g.Name)
				}
			}
			if diff := cmp.Diff(tc.granted, strings.Join(granted, " ")); diff != "" || held != tc.held || again != tc.again {
				t.Errorf("%s: held %t, again in %s, want %t, %s; granted -want, +got:\n%s", tc.reason, held, again, tc.held, tc.again, diff)
			}
			if held && (got.Hash == "" || int(got.Waiting) < len(got.Names)) {
				t.Errorf("%s: what is held cannot be approved: %+v", tc.reason, got)
			}
		})
	}
}

// TestGuardOfThousands: an approved removal of more children than the record has room for
// goes on by itself, part by part, and stops when the rest changes.
func TestGuardOfThousands(t *testing.T) {
	const all = 3*mostGranted + 7
	hs := make([]Holder, 0, all)
	for i := range all {
		name := fmt.Sprintf("c%04d", i)
		hs = append(hs, Holder{Name: name, UID: types.UID(name), Leaves: true})
	}
	r, _ := Guard(Removal{Layer: "layer", Holders: hs}, now)
	if !r.Held || len(r.Names) != mostNamed || r.Waiting != all {
		t.Fatalf("%d wait, held %t, %d are named", r.Waiting, r.Held, len(r.Names))
	}
	approved := r.Hash
	for parts := 1; len(hs) > 0; parts++ {
		at := now.Add(time.Duration(parts) * time.Hour)
		r, _ = Guard(Removal{Layer: "layer", Holders: hs, Recorded: r, Approved: approved}, at)
		want := min(mostGranted, len(hs))
		if len(r.Granted) != want || r.Held || len(r.Spent) > 0 {
			t.Fatalf("part %d: %d are let go, want %d; held %t, spent %v", parts, len(r.Granted), want, r.Held, r.Spent)
		}
		if parts == 2 {
			changed, _ := Guard(Removal{Layer: "layer", Holders: append([]Holder{{Name: "a", UID: "a", Leaves: true}}, hs...), Recorded: r, Approved: approved}, at)
			if !changed.Held || len(changed.Granted) != want {
				t.Errorf("one who was not approved joins the rest: held %t, %d are let go", changed.Held, len(changed.Granted))
			}
		}
		hs = hs[want:]
	}
	if r, _ = Guard(Removal{Layer: "layer", Recorded: r}, now); r != nil {
		t.Errorf("nothing is left to do, and %+v is on record", r)
	}
}

// TestGuardProperties: whatever happens, in whatever order, no more children are let go
// within a window than the limit says, unless a person approved exactly them.
func TestGuardProperties(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := &guardWalk{t: t, seed: seed, r: r, now: now, hs: holders(1+r.IntN(60), 0)}
		for range 400 {
			w.step()
		}
	}
}

// guardWalk is a random history of one layer.
type guardWalk struct {
	t    *testing.T
	seed uint64
	r    *rand.Rand
	now  time.Time
	hs   []Holder
	made int
	// record is durable. approved is what a person approved, and for are the children
	// that the person saw.
	record   *v1alpha1.Removal
	approved string
	allowed  map[types.UID]bool
	// unapproved grants, by time, and how many had the layer then.
	unapproved []grantAt
}

type grantAt struct {
	at time.Time
	of int
}

func (w *guardWalk) step() {
	w.now = w.now.Add(time.Second) // a wait is told from another by the second in which it began
	switch w.r.IntN(10) {
	case 0, 1: // labels of one drop, or come back
		if len(w.hs) > 0 {
			i := w.r.IntN(len(w.hs))
			w.hs[i].Leaves = !w.hs[i].Leaves
		}
	case 2: // a typo, or its correction
		leave := w.r.IntN(3) == 0
		for i := range w.hs {
			w.hs[i].Leaves = leave
		}
	case 3: // a Cluster is deleted
		if len(w.hs) > 0 {
			i := w.r.IntN(len(w.hs))
			w.hs = slices.Delete(w.hs, i, i+1)
		}
	case 4: // a new one gets the layer
		w.made++
		name := fmt.Sprintf("n%03d", w.made)
		w.hs = append(w.hs, Holder{Name: name, UID: types.UID(name)})
	case 5: // who was let go is done
		if w.record != nil {
			for _, g := range w.record.Granted {
				w.hs = slices.DeleteFunc(w.hs, func(h Holder) bool { return h.UID == g.UID && w.r.IntN(2) == 0 })
			}
		}
	case 6: // a person approves what is held, or something else
		if w.record != nil && w.record.Held {
			w.approved, w.allowed = w.record.Hash, map[types.UID]bool{}
			for _, h := range waitingOf(w.hs, w.record.Granted) {
				w.allowed[h.UID] = true
			}
			if again := hashOfRemoval("layer", w.record.Since.Time, waitingOf(w.hs, w.record.Granted)); again != w.approved {
				w.allowed = nil // the children changed since: the person saw others
			}
			if w.r.IntN(3) == 0 {
				w.approved, w.allowed = "0123456789abcdef", nil
			}
		}
	case 7:
		w.now = w.now.Add(time.Duration(w.r.IntN(40)) * time.Minute)
	default:
		w.now = w.now.Add(time.Duration(w.r.IntN(30)) * time.Second)
	}
	w.decide()
}

func (w *guardWalk) decide() {
	before := map[types.UID]bool{}
	if w.record != nil {
		for _, g := range w.record.Granted {
			before[g.UID] = true
		}
	}
	next, _ := Guard(Removal{Layer: "layer", Holders: w.hs, Recorded: w.record, Approved: w.approved}, w.now)
	w.record = next
	if next == nil {
		return
	}
	isApproved := len(next.Granted) > 0
	var fresh []types.UID
	for _, g := range next.Granted {
		if !before[g.UID] {
			fresh = append(fresh, g.UID)
			isApproved = isApproved && w.allowed[g.UID]
		}
	}
	if len(fresh) == 0 {
		return
	}
	if isApproved {
		w.allowed = nil // once
		return
	}
	for range fresh {
		w.unapproved = append(w.unapproved, grantAt{w.now, len(w.hs)})
	}
	within, most := 0, 0
	for _, u := range w.unapproved {
		if w.now.Sub(u.at) < RemovalWindow {
			within, most = within+1, max(most, u.of)
		}
	}
	if within >= RemovalFloor && within*100 > most*RemovalPercent {
		w.t.Fatalf("seed %d: %d of at most %d children were let go within an hour, and nobody approved it", w.seed, within, most)
	}
	if len(next.Spent) > 64 || len(next.Granted) > mostGranted {
		w.t.Fatalf("seed %d: the record grows: %d, %d", w.seed, len(next.Spent), len(next.Granted))
	}
}
