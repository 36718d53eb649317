package agent

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
)

// fluxRow is a row of the table of flags in docs/flux-compatibility.md.
type fluxRow struct{ controllers, here, how string }

func fluxRows(t *testing.T) map[string]fluxRow {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "flux-compatibility.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]fluxRow{}
	for _, m := range regexp.MustCompile("(?m)^\\| `--([A-Za-z-]+)` \\| ([a-z, ]+) \\| (followed|no effect|default only|refused) \\| (.*) \\|$").FindAllStringSubmatch(string(page), -1) {
		rows[m[1]] = fluxRow{m[2], m[3], m[4]}
	}
	return rows
}

// start parses flags and checks them, as the program does.
func start(args ...string) (*options, *pflag.FlagSet, error) {
	o := &options{}
	flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	for _, g := range o.groups() {
		g.bind(flags)
	}
	if err := flags.Parse(args); err != nil {
		return o, flags, err
	}
	for _, g := range o.groups() {
		if err := g.check(); err != nil {
			return o, flags, err
		}
	}
	return o, flags, nil
}

// TestFluxFlags: every flag of Flux's controllers has its row, and does what the row says.
// testdata/flux-flags.txt has them by their name and the controllers that have them.
func TestFluxFlags(t *testing.T) {
	bare(t)
	list, err := os.ReadFile(filepath.Join("testdata", "flux-flags.txt"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for line := range strings.Lines(string(list)) {
		name, of, _ := strings.Cut(strings.TrimSpace(line), " ")
		want[name] = strings.ReplaceAll(of, " ", ", ")
	}
	rows := fluxRows(t)
	got := map[string]string{}
	for name, row := range rows {
		got[name] = row.controllers
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("flags of Flux (-want +in the table):\n%s", diff)
	}
	table := map[string]*fluxFlag{}
	for _, f := range notFollowed() {
		table[f.name] = f
	}
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		row, mine := rows[name], table[name]
		if (mine == nil) != (row.here == "followed") {
			t.Errorf("--%s is said to be %s, and the program follows it: %t", name, row.here, mine == nil)
			continue
		}
		if mine == nil {
			if _, flags, _ := start(); flags.Lookup(name) == nil || flags.Lookup(name).Hidden {
				t.Errorf("--%s is not followed", name)
			}
			continue
		}
		if row.how != mine.why {
			t.Errorf("--%s: the table says %q, the program %q", name, row.how, mine.why)
		}
		_, _, err := start("--" + name + "=1h2m")
		if refused := err != nil; refused != (row.here != "no effect") || refused && !strings.Contains(err.Error(), "cannot use --"+name+"=1h2m: "+mine.why) {
			t.Errorf("--%s is %s: %v", name, row.here, err)
		}
		for _, value := range mine.fits {
			if _, _, err := start("--" + name + "=" + value); err != nil {
				t.Errorf("--%s=%s: %v", name, value, err)
			}
		}
		if mine.plain && !slices.Contains(mine.fits, "true") {
			if _, _, err := start("--" + name); err == nil {
				t.Errorf("--%s without a value is accepted", name)
			}
		}
	}
}

// TestCheckTogether: arguments that an agent refuses together are told before it gets them.
func TestCheckTogether(t *testing.T) {
	for _, tc := range []struct {
		reason string
		args   []string
		want   string // in the error
	}{
		{"as the manifests have it", []string{"--metrics-addr=$(POD_IP):8080", "--health-addr=$(POD_IP):9440", "--receiver-addr=$(POD_IP):9292"}, ""},
		{"replicas share the Children out, or labels do", []string{"--shards=4", "--watch-label-selector=team=a"}, "cannot use --shards with --watch-label-selector"},
		{"who has which of them a Lease says", []string{"--shards=4", "--enable-leader-election=false"}, "cannot use --shards without leader election"},
		{"the last one counts", []string{"--watch-label-selector=team=a", "--watch-label-selector=", "--shards=4"}, ""},
		{"flags of several groups", []string{"--child-endpoints=agent"}, "cannot use --child-endpoints without --metrics-auth"},
		{"what a variable has nobody knows", []string{"--shards=$(SHARDS)"}, ""},
		{"it is said, with a value that nobody knows", []string{"--web-addr=$(HOST_IP):8443", "--web-cert-dir=/etc/web"}, ""},
		{"the flag before it has another's value", []string{"--web-addr", "$(HOST_IP):8443", "--web-cert-dir=/etc/web"}, ""},
		{"the address is of this host", []string{"--events-receive-addr=$(HOST_IP):9090", "--events-receive-token-file=/etc/token"}, ""},
		{"Kubernetes makes it $(AUTH), and looks for no variable", []string{"--metrics-auth=$$(AUTH)"}, `--metrics-auth "$(AUTH)"`},
		{"another version may have it", []string{"--of-a-later-version=2"}, ""},
		{"a gate that does not exist", []string{"--feature-gates=None=true"}, "None"},
	} {
		if err := Check(tc.args); (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.reason, err, tc.want)
		}
	}
}

// TestFollows: what the agent does by an argument of Flux it says before it gets it.
func TestFollows(t *testing.T) {
	bare(t)
	for arg, want := range map[string]struct {
		follows bool
		err     string
	}{
		"--no-cross-namespace-refs=true": {true, ""}, "--concurrent-releases=3": {true, ""}, "--feature-gates=ExternalArtifact=true": {true, ""}, "--kube-api-qps=500": {false, ""},
		"--insecure-kubeconfig-exec=false": {false, ""}, "--insecure-kubeconfig-exec=true": {false, "cannot use --insecure-kubeconfig-exec=true"},
		"--no-remote-bases=false": {false, "cannot use --no-remote-bases=false"}, "--feature-gates=Unheard=true": {false, "the gates are"}, "--unheard=1": {false, "unknown flag"},
	} {
		got, err := Follows(arg)
		if got != want.follows || (err == nil) != (want.err == "") || err != nil && !strings.Contains(err.Error(), want.err) {
			t.Errorf("%s: %t, %v", arg, got, err)
		}
	}
}

// TestFollowedFlags: what a Deployment of Flux has in its arguments starts the agent, and
// arrives.
func TestFollowedFlags(t *testing.T) {
	bare(t)
	o, _, err := start("--events-addr=http://notification-controller.flux-system.svc.cluster.local./", "--watch-all-namespaces=true", "--log-level=info", "--log-encoding=json",
		"--enable-leader-election", "--storage-path=/data", "--storage-adv-addr=source-controller.flux-system.svc.cluster.local.", "--kube-api-qps=500", "--kube-api-burst=1000",
		"--concurrent=10", "--requeue-dependency=5s", "--interval-jitter-percentage=10", "--min-retry-delay=1s", "--max-retry-delay=5m", "--http-retry=9", "--storage-addr=:9090",
		"--graceful-shutdown-timeout=10m", "--feature-gates=ObjectLevelWorkloadIdentity=true,ExternalArtifact=true", "--artifact-retention-ttl=60s", "--insecure-kubeconfig-exec=false")
	if err != nil {
		t.Fatal(err)
	}
	if o.storage.advertisedAddr != "source-controller.flux-system.svc.cluster.local." || o.storage.addr != ":9090" || o.pauses.shutdown.Minutes() != 10 ||
		o.pauses.retries().Max.Minutes() != 5 || !o.sharding.allNamespaces {
		t.Errorf("flags did not arrive: %+v %+v", o.storage, o.pauses)
	}
	if _, err := o.gates.build(true); err != nil {
		t.Error(err)
	}
}

// TestTokenMetrics: the cache of tokens counts under Flux's names.
func TestTokenMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	if _, err := (&tokens{size: 10, duration: 1}).build(registry); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
	}
	if !slices.Contains(names, "gotk_token_cached_items") || slices.ContainsFunc(names, func(n string) bool { return !strings.HasPrefix(n, "gotk_token_") }) {
		t.Errorf("metrics are %q", names)
	}
}
