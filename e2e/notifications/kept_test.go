package notifications

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// TestKeptKinds: Alerts may name Credentials and StateBackups, and are told why one is not
// kept, and why the state is not saved.
func TestKeptKinds(t *testing.T) {
	scenario.Alongside(t)
	s := &alerts{scenario.StartTier(t)}
	r, in := s.row(t), newInbound(t, nil)
	s.Apply(t, provider(r, "to", "generic", "address: "+in.URL)+
		alert(r, "to", "eventSeverity: error\neventSources: [{kind: Credential, name: '*'}, {kind: StateBackup, name: '*'}]"))
	s.Apply(t, fmt.Sprintf(`apiVersion: cascade.dev/v1alpha1
kind: Credential
metadata: {name: keys, namespace: %[1]s}
spec:
  serviceAccountToken: {serviceAccountName: nobody, audiences: [somebody]}
---
apiVersion: cascade.dev/v1alpha1
kind: StateBackup
metadata: {name: tier, namespace: %[1]s}
spec:
  interval: 15m
  destination: {url: "s3://state/tier"}
  encryption: {recipients: [age192trcm4y0u7ednvzpkqeu9huz7d6f4fpt068teg39mydxu8eq35sh0xahu]}
`, r.Namespace))
	for _, words := range [][]string{{`"kind":"Credential"`, "CredentialMissing"}, {`"kind":"StateBackup"`, "BackupRefused"}} {
		if got := in.gets(t, words...); !strings.Contains(got.body, `"severity":"error"`) {
			t.Errorf("got %s", got.body)
		}
	}
}
