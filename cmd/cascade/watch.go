package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// watchPause is how long a verb waits before it watches again: an API server ends each
// watch after a while, and one that is gone is asked once a second.
const watchPause = time.Second

// stream prints rows as they come. Columns keep the width that they had.
type stream struct {
	to interface {
		io.Writer
		Flush() error
	}
	// paints: cells below READY are coloured. ready is the column, once its header was printed.
	paints bool
	ready  int
}

func newStream(out io.Writer) *stream {
	s := &stream{paints: paints(out), ready: -1}
	if s.paints {
		out = cells{out.(painter)}
	}
	s.to = printers.GetNewTabWriter(out)
	return s
}

func (s *stream) print(rows ...[]string) error {
	for _, row := range rows {
		if row == nil {
			continue
		}
		if s.paints && s.ready < 0 {
			s.ready = slices.Index(row, "READY")
		}
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = strings.Map(printable, cell)
			if i == s.ready {
				cells[i] = coloured(cells[i])
			}
		}
		if _, err := fmt.Fprintln(s.to, strings.Join(cells, "\t")); err != nil {
			return err
		}
	}
	return s.to.Flush()
}

// followed is a list that goes on as a watch.
type followed struct {
	// list returns the objects there are, and the version of the list.
	list func(context.Context) ([]client.Object, string, error)
	// watch begins behind a version.
	watch func(ctx context.Context, version string) (watch.Interface, error)
	// listed is told all objects after each list, changed one after it.
	listed  func([]client.Object) error
	changed func(watch.EventType, client.Object) error
}

// run follows until the context ends, which is no error. What fails after the first list is
// told and tried again: to watch is what a person does while things fail.
func (f *followed) run(ctx context.Context, tell func(error)) error {
	for first := true; ; first = false {
		objects, version, err := f.list(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && first:
			return err
		case err != nil:
			tell(err)
		default:
			if err := f.listed(objects); err != nil {
				return err
			}
			if err := f.follow(ctx, version, tell); err != nil {
				return err
			}
		}
		if !pause(ctx, watchPause) {
			return nil
		}
	}
}

// follow returns an error only if what came could not be told.
func (f *followed) follow(ctx context.Context, version string, tell func(error)) error {
	w, err := f.watch(ctx, version)
	if err != nil {
		if ctx.Err() == nil {
			tell(err)
		}
		return nil
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, open := <-w.ResultChan():
			if !open || event.Type == watch.Error {
				return nil // it is listed anew
			}
			o, ok := event.Object.(client.Object)
			if !ok || event.Type == watch.Bookmark {
				continue
			}
			if err := f.changed(event.Type, o); err != nil {
				return err
			}
		}
	}
}

// tell says what failed while a verb goes on.
func (c *cli) tell(err error) { fmt.Fprintf(c.streams.ErrOut, "✗ %v; trying again\n", err) }

// watchKind prints the objects of a kind, and then those that change, until a person ends it.
func (c *cli) watchKind(ctx context.Context, cl client.WithWatch, g getter, o *getOptions, l listing, printer printers.ResourcePrinter) error {
	columns, rows := columnsOf(g, o, false), newStream(c.streams.Out)
	if printer == nil {
		if err := rows.print(columns.header(o.noHeader)); err != nil {
			return err
		}
	}
	// shown is what was printed last of each object that there is, as far as anybody knows.
	type printed struct {
		object client.Object
		text   string
	}
	shown := map[client.ObjectKey]printed{}
	show := func(objects []client.Object, gone bool) error {
		var changed [][]string
		for i, row := range columns.rows(objects, c.now()) {
			if gone {
				row[len(row)-1] = "deleted"
			}
			// What nobody sees, as another renewal of a heartbeat, is no change.
			key, text := client.ObjectKeyFromObject(objects[i]), strings.Join(row, "\t")
			if printer != nil {
				text = objects[i].GetResourceVersion()
			}
			switch {
			case gone:
				delete(shown, key)
			case shown[key].text == text:
				continue
			default:
				shown[key] = printed{objects[i], text}
			}
			if printer == nil {
				changed = append(changed, row)
			} else if err := c.print(printer, objects[i]); err != nil {
				return err
			}
		}
		return rows.print(changed...)
	}
	// One that was shown and does not pass any more is shown once more, as what it is.
	wanted := func(o client.Object) bool {
		_, was := shown[client.ObjectKeyFromObject(o)]
		return was || g.passes(l.status, o)
	}
	f := &followed{
		list: func(ctx context.Context) ([]client.Object, string, error) {
			return listWithVersion(ctx, cl, g, listing{options: l.options})
		},
		watch: func(ctx context.Context, version string) (watch.Interface, error) {
			w, err := cl.Watch(ctx, g.list(), append(slices.Clone(l.options), fromVersion(version))...)
			if meta.IsNoMatchError(err) {
				return nil, fmt.Errorf("cannot watch %s: this cluster does not have the kind", g.name)
			}
			if err != nil {
				return nil, fmt.Errorf("cannot watch %s: %w", g.name, err)
			}
			return w, nil
		},
		listed: func(objects []client.Object) error {
			there := map[client.ObjectKey]bool{}
			for _, o := range objects {
				there[client.ObjectKeyFromObject(o)] = true
			}
			var gone []client.Object // while nothing was watched
			for key, is := range shown {
				if !there[key] {
					gone = append(gone, is.object)
				}
			}
			slices.SortFunc(gone, func(a, b client.Object) int {
				return strings.Compare(client.ObjectKeyFromObject(a).String(), client.ObjectKeyFromObject(b).String())
			})
			if err := show(gone, true); err != nil {
				return err
			}
			return show(slices.DeleteFunc(objects, func(o client.Object) bool { return !wanted(o) }), false)
		},
		changed: func(kind watch.EventType, item client.Object) error {
			item, err := named(cl, item)
			if err != nil {
				return fmt.Errorf("cannot read %s: %w", g.single, err)
			}
			if !wanted(item) {
				return nil
			}
			return show([]client.Object{item}, kind == watch.Deleted)
		},
	}
	return f.run(ctx, c.tell)
}

// fromVersion lets a watch begin behind a list.
func fromVersion(version string) client.ListOption {
	return &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true}}
}
