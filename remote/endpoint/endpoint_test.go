package endpoint

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		texts  []string
		path   string
		err    string
	}{
		"Agent":      {"the agent of the child, by the pod that leads", []string{"agent"}, "/api/v1/namespaces/cascade-system/pods/pod-0:8080/proxy/metrics", ""},
		"AgentPort":  {"an agent with another --metrics-addr", []string{"agent:9090"}, "/api/v1/namespaces/cascade-system/pods/pod-0:9090/proxy/metrics", ""},
		"AgentAt":    {"a port is a number: a pod's name is not asked for it", []string{"agent:x/../y"}, "", "port"},
		"Service":    {"a Service by the name of its port", []string{"ksm=monitoring/kube-state-metrics:http/metrics"}, "/api/v1/namespaces/monitoring/services/kube-state-metrics:http/proxy/metrics", ""},
		"TLS":        {"a Service that serves HTTPS", []string{"a=n/https:s:8443/a/b.c"}, "/api/v1/namespaces/n/services/https:s:8443/proxy/a/b.c", ""},
		"Nothing":    {"a name alone says nothing", []string{"ksm"}, "", "neither agent"},
		"NoPort":     {"the API server would take the first port", []string{"a=n/s/metrics"}, "", "neither agent"},
		"Up":         {"a path must not leave the Service", []string{"a=n/s:1/../../secrets"}, "", "no path"},
		"Dots":       {"nor with a word between", []string{"a=n/s:1/x/../../../secrets"}, "", "no path"},
		"Escaped":    {"nor by letters that are escaped", []string{"a=n/s:1/%2e%2e/x"}, "", "no path"},
		"Query":      {"a query could ask for something else", []string{"a=n/s:1/metrics?x=y"}, "", "no path"},
		"Slashes":    {"an API server may clean it", []string{"a=n/s:1//metrics"}, "", "no path"},
		"Namespace":  {"a namespace is one word", []string{"a=../s:1/metrics"}, "", "no name"},
		"Scheme":     {"other schemes there are none", []string{"a=n/ftp:s:1/metrics"}, "", "neither agent"},
		"Port":       {"a number of a port", []string{"a=n/s:70000/metrics"}, "", "port"},
		"PortName":   {"a name of a port", []string{"a=n/s:Up_/metrics"}, "", "port"},
		"Twice":      {"one name, one endpoint", []string{"a=n/s:1/m", "a=n/s:2/m"}, "", "another one"},
		"AgentOther": {"agent is the agent's", []string{"agent=n/s:1/m"}, "", "agent's own"},
		"Many":       {"each is a target of every child", strings.Split(strings.Repeat("agent,", most)+"agent", ","), "", "the most"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(tc.texts)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("%s: error %v, want %q", tc.reason, err, tc.err)
			}
			if err == nil && got[0].path("pod-0") != tc.path {
				t.Errorf("%s: path %s, want %s", tc.reason, got[0].path("pod-0"), tc.path)
			}
		})
	}
}

// FuzzParse: what is accepted leads to one Service, whatever letters it has.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"agent", "a=n/s:1/metrics", "a=n/https:s:http/a/b", "a=n/s:1/../x", "a=n/s:1/%2e"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e, err := parse(text)
		if err != nil {
			return
		}
		at := e.path("pod")
		if strings.Contains(at, "..") && strings.Contains(at, "/..") || strings.ContainsAny(at, "%?# \\") || strings.Contains(at, "//") || strings.Count(at, "/proxy/") < 1 {
			t.Errorf("%q leads to %q", text, at)
		}
	})
}

// TestPermission: a parent gets what the endpoints take, and to get it only.
func TestPermission(t *testing.T) {
	all, err := Parse([]string{"agent", "ksm=monitoring/kube-state-metrics:http/metrics"})
	if err != nil {
		t.Fatal(err)
	}
	p, err := all.Permission()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, u := range p.Objects {
		line := u.GetKind() + " " + u.GetNamespace() + "/" + u.GetName()
		if rules, ok := u.Object["rules"].([]any); ok {
			for _, rule := range rules {
				rule := rule.(map[string]any)
				for _, part := range []string{"resources", "resourceNames", "verbs"} {
					for _, word := range anys(rule[part]) {
						line += " " + word
					}
				}
			}
		}
		got = append(got, line)
	}
	want := "Role cascade-system/cascade-parent.metrics pods/proxy get\n" +
		"RoleBinding cascade-system/cascade-parent.metrics\n" +
		"ClusterRole /cascade-parent.metrics services/proxy kube-state-metrics:http get\n" +
		"ClusterRoleBinding /cascade-parent.metrics"
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("the parent gets\n%s\nwant\n%s", text, want)
	}
	if one, err := all[:1].Permission(); err != nil || one.Digest == p.Digest || len(one.Objects) != 2 {
		t.Errorf("without Services: %d objects, digest %s, %v", len(one.Objects), one.Digest, err)
	}
}

func anys(list any) []string {
	var words []string
	if list, ok := list.([]any); ok {
		for _, word := range list {
			words = append(words, word.(string))
		}
	}
	return words
}
