package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// treeView is which part of a tree is shown.
type treeView struct {
	// path of names from this tier down, `<namespace>/<name>` each, joined by `>`.
	path string
	// depth of tiers below the first one that is shown; zero shows all.
	depth  int
	status statusSelector
	fields fields.Selector
}

// treeFields are what a tree can be filtered by.
func treeFields() []string {
	return append([]string{"name", byReason, byRevision}, sortedColumns()...)
}

func newTreeView(path, selector, status string, depth int) (treeView, error) {
	v := treeView{path: path, depth: depth}
	if depth < 0 {
		return v, fmt.Errorf("cannot use --depth %d: use 1 for the children of this tier, 2 for theirs, or 0 for all", depth)
	}
	var err error
	if v.status, err = parseStatusSelector(status); err != nil {
		return v, err
	}
	if status != "" && !strings.EqualFold(v.status.condition, v1alpha1.ReadyCondition) {
		return v, fmt.Errorf("cannot use --status-selector %q: of what is below only ready is known", status)
	}
	if v.fields, err = fields.ParseSelector(selector); err != nil {
		return v, fmt.Errorf("cannot read --filter: %w", err)
	}
	for _, r := range v.fields.Requirements() {
		if !slices.Contains(treeFields(), r.Field) {
			return v, fmt.Errorf("cannot filter by %q: use %s", r.Field, strings.Join(treeFields(), ", "))
		}
	}
	return v, nil
}

// of is the part of the tree; the tree is not usable by itself afterwards.
func (v treeView) of(root *tier) (*tier, error) {
	at := root
	if v.path != "" {
		for _, name := range strings.Split(v.path, ">") {
			i := slices.IndexFunc(at.Children, func(t *tier) bool { return t.Name == strings.TrimSpace(name) })
			if i < 0 {
				return nil, fmt.Errorf("found no %s below %s: names are <namespace>/<name>, of tiers below joined by >", name, at.Name)
			}
			at = at.Children[i]
		}
		at.Held = nil
	}
	v.filter(at)
	if v.depth > 0 {
		cut(at, v.depth)
	}
	return at, nil
}

// filters reports whether anything is left out.
func (v treeView) filters() bool { return v.status.condition != "" || !v.fields.Empty() }

// filter leaves what passes and the tiers above that. It reports whether anything did.
func (v treeView) filter(t *tier) bool {
	if !v.filters() {
		return true
	}
	passes := v.passes(t)
	if !passes {
		t.Unlisted, t.unlistedReady = 0, 0 // nobody knows what they are
	}
	t.Children = slices.DeleteFunc(t.Children, func(c *tier) bool { return !v.filter(c) })
	return passes || len(t.Children) > 0
}

func (v treeView) passes(t *tier) bool {
	if v.status.condition != "" && strings.EqualFold(truth(t.Ready), v.status.status) == v.status.not {
		return false
	}
	return v.fields.Matches(fields.Set{
		"name": t.Name, byReason: t.Reason, byRevision: t.Revision, "cause": t.Cause.String(), "owner": t.Owner, "provider": t.Provider, "region": t.Region, "version": t.Version,
	})
}

// Bounds of what has one cause: of more clusters than mostAlike the first shownAlike have a row.
const mostAlike, shownAlike = 10, 3

// fold counts clusters beside one another that are not ready for one cause, where there are
// many of them. The first of them stay.
func fold(t *tier) {
	counts := map[alike]int{}
	for _, c := range t.Children {
		fold(c)
		counts[alikeOf(c)]++
	}
	shown := map[alike]int{}
	t.Children = slices.DeleteFunc(t.Children, func(c *tier) bool {
		a := alikeOf(c)
		if a == (alike{}) || counts[a] <= mostAlike {
			return false
		}
		shown[a]++
		return shown[a] > shownAlike
	})
	for a, n := range counts {
		if a != (alike{}) && n > mostAlike {
			t.folded = append(t.folded, folded{a, n - shownAlike})
		}
	}
	slices.SortFunc(t.folded, func(a, b folded) int {
		return cmp.Or(cmp.Compare(b.count, a.count), strings.Compare(a.reason, b.reason), strings.Compare(a.cause, b.cause))
	})
}

// alike is what clusters have in common that are not ready for one cause.
type alike struct{ reason, cause string }

// alikeOf is zero for a cluster that has a row of its own: it is ready, or there is something
// below it.
func alikeOf(t *tier) alike {
	if t.Ready || len(t.Children)+t.Unlisted+t.Below > 0 {
		return alike{}
	}
	return alike{t.Reason, t.Cause.String()}
}

// folded is how many clusters more are alike than have a row.
type folded struct {
	alike
	count int
}

// cut counts what is deeper instead of showing it.
func cut(t *tier, depth int) {
	if depth > 0 {
		for _, c := range t.Children {
			cut(c, depth-1)
		}
		return
	}
	all, ready := count(t)
	t.Children = nil
	t.Unlisted, t.unlistedReady = 0, 0
	t.Below, t.BelowReady = all, ready
}

// count returns how many clusters are below, and how many of these are ready.
func count(t *tier) (all, ready int) {
	all, ready = t.Unlisted, t.unlistedReady
	for _, c := range t.Children {
		below, well := count(c)
		all, ready = all+below+1, ready+well
		if c.Ready {
			ready++
		}
	}
	return all, ready
}

// treePause is how long a tree waits for more changes before it is printed again.
const treePause = 500 * time.Millisecond

// watchTree prints a tree again whenever it is another one. print writes it.
func (c *cli) watchTree(ctx context.Context, cl client.WithWatch, print func(context.Context, io.Writer) error) error {
	changes := make(chan struct{}, 1)
	changed := func() {
		select {
		case changes <- struct{}{}:
		default:
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, word := range []string{"children", "rollouts", "layers"} {
		g, _ := kindOf(word)
		f := &followed{
			list: func(ctx context.Context) ([]client.Object, string, error) {
				return listWithVersion(ctx, cl, g, listing{})
			},
			watch: func(ctx context.Context, version string) (watch.Interface, error) {
				return cl.Watch(ctx, g.list(), fromVersion(version))
			},
			listed:  func([]client.Object) error { changed(); return nil },
			changed: func(watch.EventType, client.Object) error { changed(); return nil },
		}
		group.Go(func() error { return f.run(ctx, func(error) {}) })
	}
	group.Go(func() error {
		// Ages grow without a change of any object.
		minute := time.NewTicker(time.Minute)
		defer minute.Stop()
		var shown *sheet
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-minute.C:
			case <-changes:
				if !pause(ctx, treePause) {
					return nil
				}
			}
			text := &sheet{colours: paints(c.streams.Out)}
			if err := print(ctx, text); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				if shown == nil {
					return err
				}
				c.tell(err)
				continue
			}
			if shown != nil && slices.Equal(text.parts, shown.parts) {
				continue
			}
			if shown != nil {
				fmt.Fprintf(c.streams.Out, "\n%s\n", c.now().Format(time.TimeOnly))
			}
			shown = text
			if err := shown.show(c.streams.Out); err != nil {
				return err
			}
		}
	})
	return group.Wait()
}

// pause reports whether the context is still good after it.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
