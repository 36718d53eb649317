package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// completeWithin bounds what a person waits for who presses the tabulator.
const completeWithin = 2 * time.Second

// mostCompletions is how many names a list is asked for.
const mostCompletions = 500

type completion = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// completeKindAndName completes one of the words, then the name of an object of that kind.
func (c *cli) completeKindAndName(words func() []string) completion {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		switch len(args) {
		case 0:
			return beginning(words(), begun), cobra.ShellCompDirectiveNoFileComp
		case 1:
			if g, ok := kindOf(args[0]); ok {
				return c.names(cmd.Context(), g, begun), cobra.ShellCompDirectiveNoFileComp
			}
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeName completes the name of an object of a kind.
func (c *cli) completeName(kind string) completion {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		g, ok := kindOf(kind)
		if !ok || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return c.names(cmd.Context(), g, begun), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeObject completes <kind>/<name>: one of the words, then the name.
func (c *cli) completeObject(words func() []string) completion {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		kind, name, named := strings.Cut(begun, "/")
		if !named {
			var kinds []string
			for _, w := range beginning(words(), begun) {
				kinds = append(kinds, w+"/")
			}
			return kinds, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		}
		g, ok := kindOf(kind)
		if !ok {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var objects []string
		for _, n := range c.names(cmd.Context(), g, name) {
			objects = append(objects, kind+"/"+n)
		}
		return objects, cobra.ShellCompDirectiveNoFileComp
	}
}

// names of the objects of a kind, as the cluster has them. Whatever fails, or takes longer
// than a person waits, completes nothing.
func (c *cli) names(ctx context.Context, g getter, begun string) []string {
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completeWithin)
	defer cancel()
	found := make(chan []string, 1)
	// Discovery takes no context, and may hang longer than that.
	go func() {
		quiet := &cli{streams: genericiooptions.NewTestIOStreamsDiscard(), flags: c.flags, now: c.now}
		cl, err := quiet.client()
		if err != nil {
			found <- nil
			return
		}
		found <- namesOf(ctx, cl, g, c.namespace())
	}()
	select {
	case <-ctx.Done():
		return nil
	case names := <-found:
		return beginning(names, begun)
	}
}

func namesOf(ctx context.Context, cl client.Client, g getter, namespace string) []string {
	l := listing{options: []client.ListOption{client.InNamespace(namespace), &client.ListOptions{Limit: mostCompletions}}}
	objects, err := listObjects(ctx, cl, g, l)
	if err != nil {
		return nil
	}
	names := make([]string, 0, len(objects))
	for _, o := range objects {
		names = append(names, o.GetName())
	}
	return names
}

func beginning(words []string, begun string) []string {
	var fit []string
	for _, w := range words {
		if strings.HasPrefix(w, begun) {
			fit = append(fit, w)
		}
	}
	return fit
}
