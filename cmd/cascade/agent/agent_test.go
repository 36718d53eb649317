package agent

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
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
	one, other := sharding{selector: "shard=one"}, sharding{selector: "shard=other"}
	switch {
	case (&sharding{}).lease("l") != "l":
		t.Error("an agent of all objects has another lease than the one that is looked for")
	case one.lease("l") == other.lease("l"), one.lease("l") == "l":
		t.Error("agents of different objects compete for one lease")
	case one.lease("l") != (&sharding{selector: "shard=one"}).lease("l"):
		t.Error("agents of the same objects do not compete")
	}
}
