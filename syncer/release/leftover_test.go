package release

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

func TestDropped(t *testing.T) {
	at := func(namespace, kind string) inventory.Entry {
		return inventory.Entry{Namespace: namespace, Name: "web", Group: "apps", Kind: kind, Version: "v1"}
	}
	for name, tc := range map[string]struct {
		reason             string
		recorded, has, all []inventory.Entry
	}{
		"Same":        {"nothing was dropped", []inventory.Entry{at("shop", "Deployment")}, []inventory.Entry{at("shop", "Deployment")}, nil},
		"Dropped":     {"the release has it no more", []inventory.Entry{at("shop", "Deployment")}, nil, []inventory.Entry{at("shop", "Deployment")}},
		"Moved":       {"it is in another namespace now", []inventory.Entry{at("shop", "Deployment")}, []inventory.Entry{at("cart", "Deployment")}, []inventory.Entry{at("shop", "Deployment")}},
		"OtherKind":   {"a name is not enough", []inventory.Entry{at("shop", "Deployment")}, []inventory.Entry{at("", "StatefulSet")}, []inventory.Entry{at("shop", "Deployment")}},
		"UnknownNow":  {"discovery failed: nobody knows the namespace, and the object is declared", []inventory.Entry{at("shop", "Deployment")}, []inventory.Entry{at("", "Deployment")}, nil},
		"UnknownThen": {"discovery had failed when it was recorded", []inventory.Entry{at("", "Deployment")}, []inventory.Entry{at("shop", "Deployment")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.all, dropped(tc.recorded, tc.has)); diff != "" && len(tc.all)+len(dropped(tc.recorded, tc.has)) > 0 {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestUndeleted(t *testing.T) {
	settings := inventory.Entry{Namespace: "shop", Name: "settings", Kind: "ConfigMap", Version: "v1"}
	definition := inventory.Entry{Name: "carts.shop.io", Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Version: "v1"}
	if diff := cmp.Diff([]inventory.Entry{settings}, undeleted([]inventory.Entry{definition, settings})); diff != "" {
		t.Errorf("undeleted(): -want, +got:\n%s", diff)
	}
}

func TestLogsTellNoValues(t *testing.T) {
	hide := func(text string) string { return strings.ReplaceAll(text, "hunter2", "*****") }
	l := newLogs(logr.Discard(), time.Now, hide)
	l.add(`error: hook failed: unknown flag "hunter2"`)
	if told := l.after("Helm install failed"); strings.Contains(told, "hunter2") || !strings.Contains(told, "unknown flag") {
		t.Errorf("an event ends with %q", told)
	}
	cause := errors.New("invalid value: hunter2")
	n := &run{req: Request{Redact: hide}}
	if err := n.redacted(cause); strings.Contains(err.Error(), "hunter2") || !errors.Is(err, cause) {
		t.Errorf("redacted() = %v, want the same error without the secret", err)
	}
	if err := n.redacted(nil); err != nil {
		t.Errorf("redacted(nil) = %v", err)
	}
}

func TestSessionsOfRenewedConnectionsGo(t *testing.T) {
	var s sessions
	now := time.Unix(0, 0)
	use := func() {
		t.Helper()
		if _, err := s.of(&apply.Cluster{Config: &rest.Config{Host: "https://127.0.0.1:1"}}, now); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		use()
	}
	now = now.Add(sessionHolds + time.Second)
	use()
	if len(s.open) != 1 {
		t.Errorf("%d sessions are kept, want the one that is in use", len(s.open))
	}
}
