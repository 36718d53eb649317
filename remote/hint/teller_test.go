package hint

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/remote/link"
)

// fleet are children that take a while for each call, or hang.
type fleet struct {
	n     int
	takes time.Duration
	// hangs: the first so many do not answer. err is what the others answer.
	hangs int
	err   error

	mu       sync.Mutex
	now, max int
	told     map[string][]time.Time
	entries  []string
}

func (f *fleet) Hinted() []types.NamespacedName {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []types.NamespacedName
	for i := range f.n {
		all = append(all, types.NamespacedName{Namespace: "fleet", Name: fmt.Sprint(i)})
	}
	return all
}

func (f *fleet) Hint(ctx context.Context, child types.NamespacedName, entry string) error {
	f.mu.Lock()
	f.now++
	f.max = max(f.max, f.now)
	f.mu.Unlock()
	var i int
	_, _ = fmt.Sscan(child.Name, &i)
	if i < f.hangs {
		<-ctx.Done()
	} else {
		time.Sleep(f.takes)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now--
	if ctx.Err() != nil || f.err != nil {
		return errors.Join(ctx.Err(), f.err)
	}
	if f.told == nil {
		f.told = map[string][]time.Time{}
	}
	f.told[child.Name] = append(f.told[child.Name], time.Now())
	f.entries = append(f.entries, entry)
	return nil
}

// running is a Teller at work.
func running(t *testing.T, f *fleet, perSecond float64) *Teller {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	var mu sync.Mutex
	teller := NewTeller(Options{
		Children: f, PerSecond: perSecond, Now: time.Now, Log: logr.Discard(), Registry: prometheus.NewRegistry(),
		Random: func() float64 { mu.Lock(); defer mu.Unlock(); return random.Float64() },
	})
	ctx, end := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { _ = teller.Start(ctx) })
	t.Cleanup(func() { end(); all.Wait() })
	return teller
}

// TestTell: how a thousand children are told of one push.
func TestTell(t *testing.T) {
	for name, tc := range map[string]struct {
		reason    string
		fleet     *fleet
		perSecond float64
		// told are how many know after so long.
		after   time.Duration
		told    int
		results map[string]float64
	}{
		"One":       {"a tier with one child tells it at once", &fleet{n: 1, takes: 10 * time.Millisecond}, 100, 20 * time.Millisecond, 1, map[string]float64{"told": 1}},
		"All":       {"a thousand know within 15 s", &fleet{n: 1000, takes: 100 * time.Millisecond}, 100, 15 * time.Second, 1000, map[string]float64{"told": 1000}},
		"NotAtOnce": {"and not at the same moment, which would be a storm on the Git server", &fleet{n: 1000, takes: 100 * time.Millisecond}, 100, time.Second, 32 + 90, nil},
		"Hanging":   {"those that hang delay the others by no more than what they take", &fleet{n: 1000, hangs: 200, takes: 50 * time.Millisecond}, 100, 25 * time.Second, 800, map[string]float64{"told": 800, "failed": 200}},
		"Refusing":  {"what cannot be delivered is dropped, once", &fleet{n: 10, err: errors.New("forbidden")}, 100, time.Hour, 0, map[string]float64{"failed": 10}},
		"Earlier":   {"agents of an earlier version are no failure", &fleet{n: 10, err: link.ErrNoHints}, 100, time.Hour, 0, map[string]float64{"dropped": 10}},
		"TooSlow":   {"what is a minute old is told to nobody any more", &fleet{n: 1000}, 1, time.Hour, 32 + 60, map[string]float64{"told": 32 + 60, "dropped": 1000 - 32 - 60}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := tc.fleet
				teller := running(t, f, tc.perSecond)
				teller.Tell(hints(1))
				time.Sleep(tc.after)
				f.mu.Lock()
				got, most := len(f.told), f.max
				f.mu.Unlock()
				if slack := tc.told / 20; got < tc.told-slack || got > tc.told+slack {
					t.Errorf("%s: %d are told after %s, want %d", tc.reason, got, tc.after, tc.told)
				}
				if most > mostCalls {
					t.Errorf("%s: %d calls at a time", tc.reason, most)
				}
				for result, want := range tc.results {
					if got := testutil.ToFloat64(teller.told.WithLabelValues(result)); got < want-2 || got > want+2 {
						t.Errorf("%s: %s %g, want %g", tc.reason, result, got, want)
					}
				}
			})
		})
	}
}

// TestPushes: a busy repository wakes a child at once, and then every other second, and the
// last push is told.
func TestPushes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{n: 1}
		teller := running(t, f, 100)
		repository := hints(1)[0].Repository
		for i := range 600 {
			teller.Tell([]Hint{{ID: fmt.Sprint(i), Repository: repository}})
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		f.mu.Lock()
		defer f.mu.Unlock()
		if n := len(f.told["0"]); n < 20 || n > childBurst+30/2+2 {
			t.Errorf("600 pushes in 30 s are told %d times", n)
		}
		if last := Parse(f.entries[len(f.entries)-1]); len(last) != 1 || last[0].ID != "599" {
			t.Errorf("the last that is told is %v", last)
		}
	})
}

// TestTwoBranches: of two pushes to one repository a child is told both.
func TestTwoBranches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{n: 1}
		teller := running(t, f, 100)
		first, second := hints(1)[0], hints(1)[0]
		first.Revision, second.ID, second.Revision = strings.Repeat("a", 40), "second", strings.Repeat("b", 40)
		teller.Tell([]Hint{first})
		teller.Tell([]Hint{second})
		time.Sleep(time.Second)
		f.mu.Lock()
		defer f.mu.Unlock()
		if last := Parse(f.entries[len(f.entries)-1]); !slices.Equal(last, []Hint{first, second}) {
			t.Errorf("told is %v, want both", last)
		}
	})
}

// TestShuffled: children are told in another order than that of their names.
func TestShuffled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{n: 100}
		teller := running(t, f, 1)
		teller.Tell(hints(1))
		time.Sleep(100 * time.Millisecond)
		f.mu.Lock()
		defer f.mu.Unlock()
		low := 0
		for name := range f.told {
			if len(name) == 1 {
				low++
			}
		}
		if len(f.told) != burst || low == 10 {
			t.Errorf("%d are told at once, %d of the first ten", len(f.told), low)
		}
	})
}

// TestNobody: a tier without children keeps nothing that is old.
func TestNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		teller := running(t, &fleet{}, 100)
		teller.Tell(hints(3))
		teller.Tell(nil)
		time.Sleep(freshFor + 2*lookEach)
		teller.mu.Lock()
		defer teller.mu.Unlock()
		if len(teller.recent)+len(teller.waiting) > 0 {
			t.Errorf("kept: %v, %v", teller.recent, teller.waiting)
		}
	})
}

// TestReachedLater: a child that is reached only after a push, as by a process that has just
// begun, is told of it; once the push is a minute old it is not.
func TestReachedLater(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		after  time.Duration
		told   int
	}{
		"Moment": {"the webhook comes while the children are being reached", 5 * time.Second, 3},
		"Old":    {"what is a minute old is told to nobody any more", 2 * time.Minute, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fleet{n: 2}
				teller := running(t, f, 100)
				teller.Tell(hints(1))
				time.Sleep(tc.after)
				f.mu.Lock()
				f.n = 3
				f.mu.Unlock()
				time.Sleep(2 * lookEach)
				f.mu.Lock()
				defer f.mu.Unlock()
				if got := len(f.told); got != tc.told {
					t.Errorf("%s: %d are told, want %d", tc.reason, got, tc.told)
				}
				for child, times := range f.told {
					if len(times) != 1 {
						t.Errorf("%s: child %s is told %d times of one push", tc.reason, child, len(times))
					}
				}
			})
		})
	}
}
