package shapes

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cascade-gitops/cascade/capibridge"
)

// Answers writes down what is said about a cluster, a fact a line, so that what
// is said now can be compared with what was.
func Answers(c capibridge.Cluster, f capibridge.Facts) string {
	var out strings.Builder
	line := func(name string, words ...string) {
		words = slices.DeleteFunc(words, func(w string) bool { return w == "" })
		fmt.Fprintf(&out, "%s: %s\n", name, strings.Join(words, " "))
	}
	state, detail := c.State(f)
	line("state", state, detail)
	if rolling, reason, why := c.Rolling(f); rolling {
		line("rolling", reason, why)
	}
	var is []string
	for _, fact := range []struct {
		name string
		is   bool
	}{
		{"infrastructureProvisioned", c.InfrastructureProvisioned}, {"controlPlaneInitialized", c.ControlPlaneInitialized}, {"available", c.Available},
		{"rollingOut", c.RollingOut}, {"remediating", c.Remediating}, {"paused", c.Paused}, {"deleting", c.Deleting}, {"moved", c.Moved}, {"moveBlocked", c.MoveBlocked},
	} {
		if fact.is {
			is = append(is, fact.name)
		}
	}
	line("cluster", append(is, "remoteConnection="+string(c.RemoteConnection))...)
	if !c.Failure.IsZero() {
		line("failure", c.Failure.Reason, c.Failure.Message)
	}
	line("infrastructure", string(f.Infrastructure.Status), f.Infrastructure.Reason, f.Infrastructure.Message)
	line("control plane", string(f.ControlPlane.Status), f.ControlPlane.Reason, f.ControlPlane.Message)
	kubeconfig := []string{f.Kubeconfig.Secret, f.Kubeconfig.Key}
	if f.Kubeconfig.Life > 0 {
		kubeconfig = append(kubeconfig, f.Kubeconfig.Life.String())
	}
	line("kubeconfig", kubeconfig...)
	for i, name := &f.Identity, "identity"; i != nil; i, name = i.Source, "assumed by" {
		words := []string{string(i.Form)}
		if !i.Object.IsZero() {
			words = append(words, i.Object.String())
		}
		if i.SecretName != "" {
			words = append(words, "Secret "+i.SecretNamespace+"/"+i.SecretName)
		}
		if i.Refused {
			words = append(words, "refused")
		}
		if i.Secretless() {
			words = append(words, "secretless")
		}
		line(name, append(words, i.Principal, i.Message)...)
	}
	vars := f.Into(c).Variables("v1.30.0")
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		// Those of any Cluster are told by tests of their own.
		if vars[name] != "" && !slices.Contains(plain, name) && !strings.HasPrefix(name, "label_") {
			line("  "+name, vars[name])
		}
	}
	return out.String()
}

var plain = []string{"cluster_uid", "cluster_namespace", "cluster_name", "cluster_version", "pod_cidr", "service_cidr"}

const heading = "== "

// Golden is the file of a life, made of the answers by its stages.
func (l Life) Golden(answers map[string]string) []byte {
	var out bytes.Buffer
	for _, s := range l.Stages {
		fmt.Fprintf(&out, "%s%s\n%s\n", heading, s.Name, answers[s.Name])
	}
	return out.Bytes()
}

// wanted reads a golden file.
func wanted(data []byte) map[string]string {
	want := map[string]string{}
	for _, part := range strings.Split("\n"+string(data), "\n"+heading) {
		if name, answers, ok := strings.Cut(part, "\n"); ok && name != "" {
			want[name] = strings.TrimSpace(answers) + "\n"
		}
	}
	return want
}
