package source

import (
	"slices"
	"testing"

	"github.com/go-git/go-git/v5/plumbing/transport"
	"golang.org/x/crypto/ssh"
)

func TestRestrictedAlgorithms(t *testing.T) {
	known := []string{ssh.KeyAlgoED25519, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
	for name, tc := range map[string]struct {
		reason        string
		kex, keys     []string
		wantKeys      []string
		wantExchanges int
		fails         bool
	}{
		"None":      {"nothing is restricted", nil, nil, known, 0, false},
		"Order":     {"the flag's order counts", nil, []string{ssh.KeyAlgoRSASHA256, ssh.KeyAlgoED25519}, []string{ssh.KeyAlgoRSASHA256, ssh.KeyAlgoED25519}, 0, false},
		"Unknown":   {"what known_hosts does not have cannot be verified", nil, []string{ssh.KeyAlgoECDSA256, ssh.KeyAlgoED25519}, []string{ssh.KeyAlgoED25519}, 0, false},
		"Nothing":   {"no key is left", nil, []string{ssh.KeyAlgoECDSA256}, nil, 0, true},
		"Exchanges": {"of the other algorithms all are left", []string{ssh.KeyExchangeCurve25519}, nil, known, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := &dialer{ssh: &ssh.ClientConfig{HostKeyAlgorithms: slices.Clone(known)}, endpoint: &transport.Endpoint{Host: "git.example"}}
			err := d.restrict(tc.kex, tc.keys)
			if (err != nil) != tc.fails || err == nil && (!slices.Equal(d.ssh.HostKeyAlgorithms, tc.wantKeys) || len(d.ssh.KeyExchanges) != tc.wantExchanges) {
				t.Errorf("%s: host keys %q, key exchanges %q, %v", tc.reason, d.ssh.HostKeyAlgorithms, d.ssh.KeyExchanges, err)
			}
			if err := (&dialer{}).restrict(tc.kex, tc.keys); err != nil {
				t.Errorf("%s: a connection without SSH: %v", tc.reason, err)
			}
		})
	}
	for name, fails := range map[string]bool{ssh.KeyExchangeCurve25519: false, ssh.InsecureKeyExchangeDH1SHA1: true, "magic": true} {
		if err := CheckKeyExchanges([]string{name}); (err != nil) != fails {
			t.Errorf("CheckKeyExchanges(%q) = %v", name, err)
		}
	}
	for name, fails := range map[string]bool{ssh.KeyAlgoED25519: false, ssh.KeyAlgoRSA: true, "magic": true} {
		if err := CheckHostKeys([]string{name}); (err != nil) != fails {
			t.Errorf("CheckHostKeys(%q) = %v", name, err)
		}
	}
}
