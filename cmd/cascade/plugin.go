package main

import (
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// Names under which kubectl finds this program: as a plugin, and as what completes the
// plugin's command line.
const (
	pluginName   = "kubectl-cascade"
	completeName = "kubectl_complete-cascade"
)

// invocation is how the program was started.
type invocation struct {
	// name of the program, and how people call it.
	name, display string
	args          []string
}

// invokedBy reads a command line. The program serves kubectl under other names.
func invokedBy(argv []string) invocation {
	if len(argv) == 0 {
		return invocation{name: "cascade", display: "cascade", args: []string{}}
	}
	name := strings.TrimSuffix(strings.ToLower(filepath.Base(argv[0])), ".exe")
	switch name {
	case pluginName:
		return invocation{name: pluginName, display: "kubectl cascade", args: argv[1:]}
	case completeName:
		args := append([]string{cobra.ShellCompRequestCmd}, argv[1:]...)
		return invocation{name: pluginName, display: "kubectl cascade", args: args}
	}
	return invocation{name: "cascade", display: "cascade", args: argv[1:]}
}

// give makes the root command, and the examples of all commands, answer to the name.
func (i invocation) give(root *cobra.Command) {
	root.SetArgs(i.args)
	if i.display == root.Use {
		return
	}
	each(root, func(cmd *cobra.Command) {
		cmd.Example = strings.ReplaceAll("\n"+cmd.Example, "\n  "+root.Use+" ", "\n  "+i.display+" ")[1:]
	})
	root.Use = i.name
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: i.display}
}

// each calls f for a command and for all below it.
func each(cmd *cobra.Command, f func(*cobra.Command)) {
	f(cmd)
	for _, sub := range cmd.Commands() {
		each(sub, f)
	}
}
