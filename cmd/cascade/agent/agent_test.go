package agent

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var update = flag.Bool("update", false, "write the golden files anew")

// bare is an environment that changes no default.
func bare(t *testing.T) {
	t.Helper()
	for _, name := range []string{"POD_NAMESPACE", "CASCADE_IMAGE"} {
		t.Setenv(name, "")
	}
	t.Setenv("TMPDIR", "/tmp")
}

// TestHelp holds names, defaults and texts of all flags: manifests and scripts of
// others name them.
func TestHelp(t *testing.T) {
	bare(t)
	golden := filepath.Join("testdata", "flags.txt")
	got := New(Program{}).Flags().FlagUsages()
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("flags (-want +got):\n%s", diff)
	}
}

func TestCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		args   []string
		err    string
	}{
		"Defaults":    {"what nobody changed can be used", nil, ""},
		"Kind":        {"a typing mistake must not leave a kind alone", []string{"--controllers=Kustomisation"}, "--controllers"},
		"Layer":       {"layers are rendered from what this process fetches", []string{"--controllers=Layer"}, "GitRepository"},
		"Charts":      {"charts are found in indexes that this process reads", []string{"--controllers=HelmChart"}, "HelmRepository"},
		"NoShards":    {"somebody drives the children", []string{"--shards=0"}, "--shards 0"},
		"Shards":      {"each is a Lease that all look at", []string{"--shards=65"}, "--shards 65"},
		"TwoSplits":   {"a child that moves between labels would stay with its shard", []string{"--shards=2", "--watch-label-selector=a=b"}, "--watch-label-selector"},
		"Shard":       {"one kind alone", []string{"--controllers=Kustomization"}, ""},
		"Drift":       {"two modes", []string{"--drift=ignore"}, "--drift"},
		"Sweep":       {"each sweep asks for all objects", []string{"--sweep-interval=4m59s"}, "--sweep-interval"},
		"Requeue":     {"no time is a busy loop", []string{"--requeue-dependency=0s"}, "--requeue-dependency"},
		"FirstSync":   {"two modes", []string{"--first-sync=maybe"}, "--first-sync"},
		"Bases":       {"a promise that cannot be kept", []string{"--no-remote-bases=false"}, "--no-remote-bases"},
		"Level":       {"a level that there is not", []string{"--log-level=loud"}, "--log-level"},
		"Scrapers":    {"a mistake must not leave metrics open", []string{"--metrics-auth=kubernets"}, "--metrics-auth"},
		"Certificate": {"it would not be used", []string{"--metrics-cert-dir=/tls"}, "--metrics-cert-dir"},
		"Guarded":     {"both together", []string{"--metrics-auth=kubernetes", "--metrics-cert-dir=/tls"}, ""},
		"Encoding":    {"an encoding that there is not", []string{"--log-encoding=xml"}, "--log-encoding"},
		"Trace":       {"a level of Flux", []string{"--log-level=trace", "--log-encoding=console"}, ""},
		"Parallel":    {"somebody has to do it", []string{"--concurrent-ssa=0"}, "--concurrent-ssa"},
		"Jitter":      {"an interval must not become nothing", []string{"--interval-jitter-percentage=100"}, "--interval-jitter-percentage"},
		"Retries":     {"the longest is not shorter than the first", []string{"--min-retry-delay=5m"}, "--max-retry-delay"},
		"Lease":       {"deletes stop a while before its end", []string{"--leader-election-lease-duration=5s"}, "--leader-election-lease-duration"},
		"Renewal":     {"it must be over before the lease is", []string{"--leader-election-renew-deadline=15s"}, "--leader-election-renew-deadline"},
		"FluxLease":   {"what Flux's manifests may have", []string{"--leader-election-lease-duration=35s", "--leader-election-renew-deadline=30s", "--leader-election-retry-period=5s"}, ""},
		"Exchange":    {"one that can be broken", []string{"--ssh-kex-algos=diffie-hellman-group1-sha1"}, "--ssh-kex-algos"},
		"HostKey":     {"one that can be forged", []string{"--ssh-hostkey-algos=ssh-rsa"}, "--ssh-hostkey-algos"},
		"Intake":      {"whoever reaches the port could tell events in the name of others", []string{"--events-receive-addr=:9090"}, "--events-receive-token-file"},
		"IntakeHost":  {"a name may be anybody's", []string{"--events-receive-addr=localhost.example.org:9090"}, "--events-receive-token-file"},
		"IntakeIP":    {"a pod is reached by others", []string{"--events-receive-addr=10.0.0.1:9090"}, "--events-receive-token-file"},
		"IntakePort":  {"an address without its port", []string{"--events-receive-addr=9090"}, "--events-receive-addr"},
		"IntakeToken": {"it would not be asked for", []string{"--events-receive-token-file=/token"}, "--events-receive-addr"},
		"IntakeOwn":   {"containers of the pod", []string{"--events-receive-addr=127.0.0.1:9090"}, ""},
		"IntakeOwn6":  {"by its other name", []string{"--events-receive-addr=[::1]:9090"}, ""},
		"IntakeAll":   {"who has the token", []string{"--events-receive-addr=:9090", "--events-receive-token-file=/token"}, ""},
		"LevelIsRead": {"one that there is", []string{"--log-level=error"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := &options{}
			flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
			for _, g := range o.groups() {
				g.bind(flags)
			}
			if err := flags.Parse(tc.args); err != nil {
				t.Fatal(err)
			}
			var err error
			for _, g := range o.groups() {
				if err = g.check(); err != nil {
					break
				}
			}
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s\nerror %v, want one about %q", tc.reason, err, tc.err)
			}
		})
	}
}

// TestAddresses: what the manifests say of $(POD_IP) is an address where pods have IPv6, too.
func TestAddresses(t *testing.T) {
	for given, want := range map[string]string{
		"fd00::1:9440": "[fd00::1]:9440", "::1:9440": "[::1]:9440", "[::1]:8080": "[::1]:8080",
		"10.0.0.1:8080": "10.0.0.1:8080", ":8080": ":8080", "0": "0", "": "", "localhost:8080": "localhost:8080",
	} {
		if got := bracketed(given); got != want {
			t.Errorf("of %q it makes %q, want %q", given, got, want)
		}
	}
	o := &options{}
	flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	for _, g := range o.groups() {
		g.bind(flags)
	}
	urls := []string{"events-addr"}
	flags.VisitAll(func(f *pflag.Flag) {
		if !strings.HasSuffix(strings.ToLower(f.Name), "addr") || slices.Contains(urls, f.Name) {
			return
		}
		before := f.Value.String()
		if err := f.Value.Set("of " + f.Name); err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(o.addresses(), func(a *string) bool { return *a == "of "+f.Name }) {
			t.Errorf("--%s has an address that is not looked at", f.Name)
		}
		if err := f.Value.Set(before); err != nil {
			t.Fatal(err)
		}
	})
}

func TestDecryption(t *testing.T) {
	t.Setenv("VAULT_ADDR", "https://vault.example") // is for other programs
	for name, tc := range map[string]struct {
		reason string
		flags  decryption
		age    string
		err    string
	}{
		"None":   {"nothing is named", decryption{}, "/", ""},
		"Secret": {"where to find it", decryption{ageSecret: "fleet/keys"}, "fleet/keys", ""},
		"Server": {"who gets tokens", decryption{vaultAddresses: []string{"https://vault.example"}}, "/", ""},
		"Half":   {"a name alone is in no namespace", decryption{ageSecret: "keys"}, "", "--sops-age-secret"},
		"Vault":  {"the same for the other", decryption{vaultConfigMap: "fleet/"}, "", "--sops-vault-configmap"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := tc.flags.build()
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("%s\nerror %v, want one about %q", tc.reason, err, tc.err)
			}
			if err == nil && (got.AgeSecret.String() != tc.age || len(got.VaultAddresses) != len(tc.flags.vaultAddresses)) {
				t.Errorf("%s\ngot %+v", tc.reason, got)
			}
		})
	}
}

func TestLease(t *testing.T) {
	leaseOf := func(selector string, all bool, namespace string) string {
		s := sharding{selector: selector, allNamespaces: all}
		return s.lease(namespace)("l")
	}
	one, again := leaseOf("shard=one", true, "a"), leaseOf("shard=one", true, "a")
	switch {
	case leaseOf("", true, "a") != "l":
		t.Error("an agent of all objects has another lease than the one that is looked for")
	case one == leaseOf("shard=other", true, "a"), one == "l":
		t.Error("agents of different objects compete for one lease")
	case leaseOf("", false, "a") == "l":
		t.Error("an agent of one namespace competes with one of all")
	case one != again:
		t.Error("agents of the same objects do not compete")
	}
}

// TestShard: which objects are reconciled.
func TestShard(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		shard  sharding
		want   string
	}{
		"All":       {"nothing is restricted", sharding{allNamespaces: true}, "own other own-one"},
		"Labels":    {"those with the labels", sharding{allNamespaces: true, selector: "shard=one"}, "own-one"},
		"Namespace": {"--watch-all-namespaces=false", sharding{}, "own own-one"},
		"Both":      {"both hold", sharding{selector: "shard!=one"}, "own"},
	} {
		t.Run(name, func(t *testing.T) {
			passes, err := tc.shard.build("flux-system")
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, o := range []*kustomizev1.Kustomization{
				{ObjectMeta: metav1.ObjectMeta{Namespace: "flux-system", Name: "own"}}, {ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "other"}},
				{ObjectMeta: metav1.ObjectMeta{Namespace: "flux-system", Name: "own-one", Labels: map[string]string{"shard": "one"}}},
			} {
				if passes(o) {
					got = append(got, o.Name)
				}
			}
			if strings.Join(got, " ") != tc.want {
				t.Errorf("%s: %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

// TestTogether: what is served of children is served to those whom the API server lets.
func TestTogether(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		args   []string
		err    string
	}{
		"Off":     {"nothing is served of children", nil, ""},
		"Guarded": {"by the API server", []string{"--child-endpoints=agent", "--metrics-auth=kubernetes"}, ""},
		"Open":    {"whoever reaches the port would read them", []string{"--child-endpoints=agent"}, "--metrics-auth"},
		"Nowhere": {"there is no port", []string{"--child-endpoints=agent", "--metrics-auth=kubernetes", "--metrics-addr=0"}, "--metrics-addr"},
		"Wrong":   {"an endpoint that is none", []string{"--child-endpoints=agent,x", "--metrics-auth=kubernetes"}, "--child-endpoints"},
		"Info":    {"a family that there is not", []string{"--resource-info=ksm"}, "--resource-info"},
	} {
		t.Run(name, func(t *testing.T) {
			o, _, err := start(tc.args...)
			if err == nil {
				err = o.together()
			}
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: error %v, want %q", tc.reason, err, tc.err)
			}
		})
	}
}
