package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// eventOptions say which events are listed.
type eventOptions struct {
	namespace       string
	of              string
	types           []string
	watch, noHeader bool
	print           *genericclioptions.PrintFlags
}

func newEventOptions() *eventOptions {
	return &eventOptions{print: genericclioptions.NewPrintFlags("").WithTypeSetter(newScheme())}
}

func (c *cli) newEvents() *cobra.Command {
	var all bool
	o := newEventOptions()
	cmd := &cobra.Command{
		Use:   "events [kind name]",
		Short: "List what happened to an object, or to all of a namespace, the latest last",
		Long: "List what happened to an object, or to all of a namespace, the latest last. Those of an object come with\n" +
			"those of its source, and of a Child with those of its Cluster. docs/events.md has the reasons.",
		Example: "  cascade events -A --types Warning\n" +
			"  cascade events --for layer/tenants -n fleet --watch\n" +
			"  cascade events child shop -n fleet",
		Args:              cobra.MatchAll(cobra.MaximumNArgs(2), notOne),
		ValidArgsFunction: c.completeKindAndName(kinds),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				if o.of != "" {
					return fmt.Errorf("cannot list events: say the object once, as %s/%s or with --for", args[0], args[1])
				}
				o.of = args[0] + "/" + args[1]
			}
			if o.namespace = c.namespace(); all {
				o.namespace = ""
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			return c.events(cmd.Context(), cl, o)
		},
	}
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "list the events of all namespaces")
	cmd.Flags().StringVar(&o.of, "for", "", "only those of this object: kind/name")
	cmd.Flags().StringSliceVar(&o.types, "types", nil, "only those of these types: Normal, Warning")
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "go on to print events as they come")
	cmd.Flags().BoolVar(&o.noHeader, "no-header", false, "leave out the header")
	o.print.AddFlags(cmd)
	cmd.Flags().Lookup("output").Usage = "name, json, yaml, jsonpath=... or go-template=... instead of a table"
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

// notOne refuses a kind without a name.
func notOne(cmd *cobra.Command, args []string) error {
	if len(args) == 1 {
		return fmt.Errorf("cannot tell which %s: %s takes a kind and a name, as in kind name", args[0], cmd.Name())
	}
	return nil
}

// involved is an object that events are about.
type involved struct{ kind, namespace, name string }

func (i involved) is(e *corev1.Event) bool {
	o := e.InvolvedObject
	return o.Kind == i.kind && o.Name == i.name && (i.namespace == "" || o.Namespace == i.namespace)
}

// involvedIn are the object that --for names and those that it depends on directly.
func (o *eventOptions) involvedIn(ctx context.Context, cl client.Client) ([]involved, error) {
	if o.of == "" {
		return nil, nil
	}
	word, name, found := strings.Cut(o.of, "/")
	if !found || word == "" || name == "" {
		return nil, fmt.Errorf("cannot read %q: use kind/name", o.of)
	}
	g, known := kindOf(word)
	if !known {
		// Events are about objects of any kind; one that we do not know is named exactly.
		return []involved{{word, o.namespace, name}}, nil
	}
	gvk, err := cl.GroupVersionKindFor(g.object())
	if err != nil {
		return nil, err
	}
	about := []involved{{gvk.Kind, o.namespace, name}}
	s, err := newSubject(g.single, client.ObjectKey{Namespace: o.namespace, Name: name})
	if err != nil || o.namespace == "" {
		return about, nil
	}
	if err := cl.Get(ctx, client.ObjectKeyFromObject(s.object), s.object); err != nil {
		// What is gone has events as well.
		return about, client.IgnoreNotFound(err)
	}
	if child, ok := s.object.(*v1alpha1.Child); ok && child.Spec.ClusterRef != nil {
		about = append(about, involved{"Cluster", child.Namespace, child.Spec.ClusterRef.Name})
	}
	if s.source != nil {
		if ref := s.source(); ref != nil {
			about = append(about, involved{ref.kind, ref.key.Namespace, ref.key.Name})
		}
	}
	return about, nil
}

func (o *eventOptions) passes(about []involved, e *corev1.Event) bool {
	if len(o.types) > 0 && !slices.ContainsFunc(o.types, func(t string) bool { return strings.EqualFold(t, e.Type) }) {
		return false
	}
	return len(about) == 0 || slices.ContainsFunc(about, func(i involved) bool { return i.is(e) })
}

// lastSeen is when an event happened last.
func lastSeen(e *corev1.Event) metav1.Time {
	switch {
	case e.Series != nil && !e.Series.LastObservedTime.IsZero():
		return metav1.NewTime(e.Series.LastObservedTime.Time)
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp
	case !e.EventTime.IsZero():
		return metav1.NewTime(e.EventTime.Time)
	}
	return e.CreationTimestamp
}

func (c *cli) events(ctx context.Context, cl client.WithWatch, o *eventOptions) error {
	about, err := o.involvedIn(ctx, cl)
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", o.of, err)
	}
	var printer printers.ResourcePrinter
	if output := *o.print.OutputFormat; output != "" {
		if printer, err = o.print.ToPrinter(); err != nil {
			return fmt.Errorf("cannot print as %q: use name, json, yaml, jsonpath=... or go-template=...: %w", output, err)
		}
	}
	if o.watch {
		return c.watchEvents(ctx, cl, o, about, printer)
	}
	found, _, err := listEvents(ctx, cl, o, about)
	if err != nil {
		return err
	}
	if printer != nil {
		return c.printAll(printer, *o.print.OutputFormat, found)
	}
	if len(found) == 0 {
		fmt.Fprintln(c.streams.ErrOut, "► there are no such events; a cluster forgets them after an hour")
		return nil
	}
	var header []string
	if !o.noHeader {
		header = o.header()
	}
	return table(c.streams.Out, header, o.rows(found, c.now()))
}

// listEvents returns those that pass, the latest last, and the version of the list.
func listEvents(ctx context.Context, cl client.Client, o *eventOptions, about []involved) ([]client.Object, string, error) {
	selections := [][]client.ListOption{{client.InNamespace(o.namespace)}}
	if len(about) > 0 {
		selections = nil
		for _, i := range about {
			selections = append(selections, []client.ListOption{
				client.InNamespace(i.namespace), client.MatchingFields{"involvedObject.kind": i.kind, "involvedObject.name": i.name},
			})
		}
	}
	var found []client.Object
	version := ""
	for _, options := range selections {
		list := &corev1.EventList{}
		if err := cl.List(ctx, list, options...); err != nil {
			return nil, "", fmt.Errorf("cannot list events: %w", err)
		}
		if version == "" {
			version = list.ResourceVersion // what comes while the others are listed comes again
		}
		for i := range list.Items {
			e := &list.Items[i]
			e.APIVersion, e.Kind = "v1", "Event"
			if o.passes(about, e) {
				found = append(found, e)
			}
		}
	}
	slices.SortStableFunc(found, func(a, b client.Object) int {
		return cmp.Or(lastSeen(a.(*corev1.Event)).Compare(lastSeen(b.(*corev1.Event)).Time), strings.Compare(a.GetName(), b.GetName()))
	})
	return found, version, nil
}

func (o *eventOptions) header() []string {
	header := []string{"LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"}
	if o.namespace == "" {
		header = append([]string{"NAMESPACE"}, header...)
	}
	return header
}

func (o *eventOptions) rows(events []client.Object, now time.Time) [][]string {
	rows := make([][]string, 0, len(events))
	for _, item := range events {
		e := item.(*corev1.Event)
		row := []string{age(lastSeen(e), now), e.Type, e.Reason, e.InvolvedObject.Kind + "/" + e.InvolvedObject.Name, strings.Join(strings.Fields(e.Message), " ")}
		if o.namespace == "" {
			row = append([]string{e.Namespace}, row...)
		}
		rows = append(rows, row)
	}
	return rows
}

func (c *cli) watchEvents(ctx context.Context, cl client.WithWatch, o *eventOptions, about []involved, printer printers.ResourcePrinter) error {
	rows, shown := newStream(c.streams.Out), map[client.ObjectKey]string{}
	if printer == nil && !o.noHeader {
		if err := rows.print(o.header()); err != nil {
			return err
		}
	}
	show := func(events []client.Object) error {
		for _, e := range events {
			key := client.ObjectKeyFromObject(e)
			if shown[key] == e.GetResourceVersion() {
				continue
			}
			shown[key] = e.GetResourceVersion()
			if printer != nil {
				if err := c.print(printer, e); err != nil {
					return err
				}
				continue
			}
			if err := rows.print(o.rows([]client.Object{e}, c.now())...); err != nil {
				return err
			}
		}
		return nil
	}
	f := &followed{
		list: func(ctx context.Context) ([]client.Object, string, error) { return listEvents(ctx, cl, o, about) },
		watch: func(ctx context.Context, version string) (watch.Interface, error) {
			namespace := o.namespace
			if slices.ContainsFunc(about, func(i involved) bool { return i.namespace != namespace }) {
				namespace = "" // the source is in another one
			}
			w, err := cl.Watch(ctx, &corev1.EventList{}, client.InNamespace(namespace), fromVersion(version))
			if err != nil {
				return nil, fmt.Errorf("cannot watch events: %w", err)
			}
			return w, nil
		},
		listed: show,
		changed: func(kind watch.EventType, item client.Object) error {
			e, ok := item.(*corev1.Event)
			if !ok || !o.passes(about, e) {
				return nil
			}
			if kind == watch.Deleted {
				delete(shown, client.ObjectKeyFromObject(e))
				return nil
			}
			e.APIVersion, e.Kind = "v1", "Event"
			return show([]client.Object{e})
		},
	}
	return f.run(ctx, c.tell)
}
