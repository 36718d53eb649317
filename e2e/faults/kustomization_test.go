package faults

import (
	"context"
	"maps"
	"slices"
	"strings"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// many is how many objects a Kustomization has.
const many = 30

// app is a repository in which ./app has ConfigMaps with a value.
func app(value string) map[string]string {
	return map[string]string{"app/objects.yaml": manifests("o", 0, many, value)}
}

func create(p *place, ctx context.Context) error { return p.kustomization(ctx, "app") }

func begun(p *place, ctx context.Context) error { return p.applied(ctx, "app", p.commits.before) }

func done(p *place, ctx context.Context) error { return p.applied(ctx, "app", p.commits.after) }

// fetched: the source is, and nothing else is there yet.
func fetched(p *place, ctx context.Context) error { return p.fetched(ctx, p.commits.before) }

// expecting are objects of Kustomization app that must be there, and others that go.
func expecting(there map[string]string, goes ...string) func(*place) expectation {
	return func(*place) expectation {
		return expectation{there: union(there, map[string]string{"kustomizations/app": ""}), owners: []string{"app"}, goes: goes}
	}
}

// names of objects.
func names(objects map[string]string) []string { return slices.Sorted(maps.Keys(objects)) }

// kustomizationKills are the scenarios of Kustomizations.
var kustomizationKills = []killing{
	{
		name: "Create", files: app("one"), begun: fetched, change: create, done: begun,
		expect: expecting(ids("o", 0, many, "one")),
	},
	{
		name: "Update", files: app("one"), commit: app("two"), begin: create, begun: begun, change: (*place).commit, done: done,
		expect: expecting(ids("o", 0, many, "two")),
	},
	{
		// As many as go without an approval.
		name: "Prune", files: app("one"), commit: map[string]string{"app/objects.yaml": manifests("o", 0, many-10, "one")},
		begin: create, begun: begun, change: (*place).commit, done: done,
		expect: expecting(ids("o", 0, many-10, "one"), names(ids("o", many-10, many, ""))...),
	},
	{
		// A Kustomization declares another, which gets another name in one commit.
		name:   "Rename",
		files:  map[string]string{"fleet/app.yaml": renamed("old"), "app/objects.yaml": manifests("o", 0, many, "one")},
		commit: map[string]string{"fleet/app.yaml": renamed("new")},
		begin:  func(p *place, ctx context.Context) error { return p.kustomization(ctx, "fleet") },
		begun: func(p *place, ctx context.Context) error {
			return firstError(p.applied(ctx, "fleet", p.commits.before), p.applied(ctx, "old", p.commits.before))
		},
		change: (*place).commit,
		done: func(p *place, ctx context.Context) error {
			return firstError(p.applied(ctx, "fleet", p.commits.after), p.applied(ctx, "new", p.commits.after), p.gone(ctx, &kustomizev1.Kustomization{}, "old"), p.forgotten(ctx, "fleet", "old"))
		},
		expect: func(*place) expectation {
			return expectation{
				there:  union(ids("o", 0, many, "one"), map[string]string{"kustomizations/fleet": "", "kustomizations/new": ""}),
				owners: []string{"fleet", "new"}, goes: []string{"kustomizations/old"},
			}
		},
	},
	{
		name: "Definition", definitions: true, begun: fetched, change: create, done: begun,
		files: map[string]string{
			"app/definition.yaml": strings.NewReplacer("things.$ns.example.com", `"things.${ns}.example.com"`, "$ns", "${ns}").Replace(scenario.ThingCRD),
			"app/things.yaml":     things("a", "b", "c", "d", "e"), "app/objects.yaml": manifests("o", 0, many, "one"),
		},
		expect: func(p *place) expectation {
			return expectation{
				there: union(ids("o", 0, many, "one"), map[string]string{
					"kustomizations/app": "", "customresourcedefinitions/things." + p.ns + ".example.com": "",
					"things/a": "", "things/b": "", "things/c": "", "things/d": "", "things/e": "",
				}),
				owners: []string{"app"},
			}
		},
	},
	{
		name: "Delete", files: app("one"), begin: create, begun: begun,
		change: drop, done: dropped, expect: nothing,
	},
	{
		// Some of what it was about to create is not declared any more when it comes back.
		name: "CreateThenPrune", files: app("one"), commit: map[string]string{"app/objects.yaml": manifests("o", 0, many-10, "one")},
		begun: fetched, change: create, through: begun, meanwhile: (*place).commit, done: done,
		expect: expecting(ids("o", 0, many-10, "one"), names(ids("o", many-10, many, ""))...),
	},
	{
		name: "CreateThenDelete", files: app("one"), begun: fetched, change: create, through: begun, meanwhile: drop, done: dropped, expect: nothing,
	},
}

// drop deletes the Kustomization, with what it applied.
func drop(p *place, ctx context.Context) error {
	k := &kustomizev1.Kustomization{}
	k.Namespace, k.Name = p.ns, "app"
	return p.client.Delete(ctx, k)
}

func dropped(p *place, ctx context.Context) error {
	return p.gone(ctx, &kustomizev1.Kustomization{}, "app")
}

// nothing is there any more.
func nothing(*place) expectation {
	return expectation{goes: append(names(ids("o", 0, many, "")), "kustomizations/app")}
}

// renamed is the manifest of a Kustomization of a name that is declared by another.
func renamed(name string) string {
	return strings.NewReplacer("path: ./"+name, "path: ./app").Replace(kustomization(name, "${ns}", "${worker}"))
}

func things(names ...string) string {
	var all []string
	for _, name := range names {
		all = append(all, "apiVersion: ${ns}.example.com/v1\nkind: Thing\nmetadata: {name: "+name+"}\nspec: {size: 1}\n")
	}
	return strings.Join(all, "---\n")
}

// firstError of some; nil if there is none.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
