package credential

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/syncer/vault/vaultserver"
)

// told are the events since the last look: type and reason.
func (g *rig) told() []string {
	var all []string
	for {
		select {
		case e := <-g.events.Events:
			words := strings.Fields(e)
			all = append(all, words[0]+" "+words[1])
		default:
			return all
		}
	}
}

// TestEvents: that it cannot be renewed, is about to lapse and has lapsed is one event each,
// and so is that its source answers again, whether or not it was ever not valid.
func TestEvents(t *testing.T) {
	g := newRig(t, vaultserver.Role{Lease: time.Hour, Login: 10 * time.Hour}, nil)
	g.must()
	g.pass(time.Minute)
	expect := func(when string, want ...string) {
		t.Helper()
		if got := g.told(); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	expect("it is issued", "Normal Succeeded")
	g.pass(4 * time.Minute)
	g.vault.SetDown(true)
	g.pass(10 * time.Minute)
	expect("the server is down", "Warning VaultUnreachable")
	g.vault.SetDown(false)
	g.pass(2 * time.Minute)
	expect("it is back before anything was due", "Normal Succeeded")
	g.pass(20 * time.Minute)
	expect("nothing is new")
	g.vault.SetDown(true)
	g.pass(16 * time.Minute)
	g.wants("Ready", "False", "CredentialLapsing")
	expect("it is about to lapse", "Warning VaultUnreachable", "Warning CredentialLapsing")
	g.pass(10 * time.Minute)
	expect("it has lapsed", "Warning CredentialLapsed")
	g.vault.SetDown(false)
	g.pass(2 * time.Minute)
	expect("there is another one", "Normal Succeeded")
}
