package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/cmd/cascade/difference"
)

func TestExitCode(t *testing.T) {
	for _, tc := range []struct {
		reason string
		err    error
		code   int
		told   string
	}{
		{"a plan with changes", errChanges, 2, ""},
		{"a verb that has said why", errNotReady, 1, ""},
		{"anything else", errors.New("no route"), 1, "✗ no route\n"},
		{"wrapped", fmt.Errorf("cannot: %w", errChanges), 2, ""},
	} {
		streams, _, _, told := genericiooptions.NewTestIOStreams()
		if code := exitCode(streams, tc.err); code != tc.code || told.String() != tc.told {
			t.Errorf("%s: %d and %q, want %d and %q", tc.reason, code, told, tc.code, tc.told)
		}
	}
}

func TestPlanSource(t *testing.T) {
	namespace := "fleet"
	c, _ := newCLI(t)
	c.flags.Namespace = &namespace
	for _, tc := range []struct {
		reason, name string
		there        []string
		want, err    string
	}{
		{"the one that is named", "apps", []string{"apps", "base"}, "apps", ""},
		{"one of another namespace", "fleet/apps", nil, "apps", ""},
		{"the only one", "", []string{"apps"}, "apps", ""},
		{"one of several has to be named", "", []string{"apps", "base"}, "", "choose one with --source: apps, base"},
		{"there is none", "", nil, "", "there is no GitRepository in namespace fleet"},
	} {
		var objects []client.Object
		for _, name := range tc.there {
			objects = append(objects, &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name}})
		}
		got, err := c.planSource(t.Context(), rolloutClient(objects...), map[bool]string{true: "other"}[strings.Contains(tc.name, "/")], tc.name)
		if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: %v, want %q", tc.reason, err, tc.err)
		}
		if err == nil && (got.Name != tc.want || got.Namespace != "fleet") {
			t.Errorf("%s: %s, want %s", tc.reason, got, tc.want)
		}
	}
}

func TestPlanCommit(t *testing.T) {
	const commit = "1111111111111111111111111111111111111111"
	none := t.TempDir()
	if clone, got, err := planCommit(none, commit); err != nil || clone != nil || got != commit {
		t.Errorf("without a clone a whole commit is fetched: %v, %s, %v", clone, got, err)
	}
	if _, _, err := planCommit(none, "HEAD"); err == nil || !strings.Contains(err.Error(), "name one with --path") {
		t.Errorf("without a clone there is no HEAD: %v", err)
	}
}

func TestPrintPlan(t *testing.T) {
	r := &difference.Report{Schema: difference.Schema, Source: "fleet/apps", Commit: "1111111111111111111111111111111111111111", Owners: []difference.Owner{}}
	for output, want := range map[string]string{"": "no changes", "json": `"schema": "cascade.dev/plan/v1"`, "yaml": "schema: cascade.dev/plan/v1", "markdown": "### Plan of"} {
		c, out := newCLI(t)
		if err := c.printPlan(r, output); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%q: %v: %s", output, err, out)
		}
	}
	c, _ := newCLI(t)
	if err := c.printPlan(r, "toml"); err == nil || !strings.Contains(err.Error(), "json, yaml or markdown") {
		t.Errorf("an unknown format: %v", err)
	}
}
