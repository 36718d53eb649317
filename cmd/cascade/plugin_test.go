package main

import (
	"bytes"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"
)

func TestInvocation(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		argv   []string
		says   []string
		never  string
	}{
		"Program": {
			"the program by its own name", []string{"/usr/local/bin/cascade", "get", "--help"},
			[]string{"\n  cascade get all -A\n", "\n  cascade get "}, "kubectl",
		},
		"Another": {
			"a file of another name is the program all the same", []string{"/tmp/cascade-v1.2.0", "tree", "--help"},
			[]string{"\n  cascade tree"}, "kubectl cascade",
		},
		"Plugin": {
			"kubectl's plugin tells its users what to type", []string{"/usr/local/bin/kubectl-cascade", "get", "--help"},
			[]string{"\n  kubectl cascade get ", "\n  kubectl cascade get all -A\n  kubectl cascade get kustomizations apps"}, "\n  cascade ",
		},
		"Windows": {
			"names of programs end in .exe there, and case does not matter", []string{"Kubectl-Cascade.EXE", "tree", "--help"},
			[]string{"\n  kubectl cascade tree"}, "kubectl-cascade",
		},
		"Completion": {
			"kubectl asks a program of this name what could follow", []string{"/usr/local/bin/kubectl_complete-cascade", "ap"},
			[]string{"approve\t", ":4\n"}, "Usage",
		},
		"Nothing": {"a process without arguments", nil, []string{"Usage:\n  cascade"}, "kubectl"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			root := newRoot(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &bytes.Buffer{}})
			invokedBy(tc.argv).give(root)
			if err := root.ExecuteContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, want := range tc.says {
				if !strings.Contains(out.String(), want) {
					t.Errorf("%s: it does not say %q:\n%s", tc.reason, want, out.String())
				}
			}
			if strings.Contains(out.String(), tc.never) {
				t.Errorf("%s: it says %q:\n%s", tc.reason, tc.never, out.String())
			}
		})
	}
}
