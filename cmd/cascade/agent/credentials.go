package agent

import (
	"fmt"
	"os"

	"github.com/spf13/pflag"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/cascade-gitops/cascade/syncer/credential"
	"github.com/cascade-gitops/cascade/syncer/vault"
)

// credentials are those that lapse, and where they may come from.
type credentials struct {
	vaults []string
	files  string
}

func (c *credentials) bind(f *pflag.FlagSet) {
	f.StringSliceVar(&c.vaults, "vault-address", nil,
		"address of a Vault server that the logins of Credentials may go to, whoever they are of; may be given several times. Others have to be named by the service account or Secret of the login")
	f.StringVar(&c.files, "credential-files", "", "directory below which Credentials of the agent's own namespace may read files; empty allows none")
}

func (c *credentials) check() error {
	for _, address := range c.vaults {
		if vault.CheckAddress(address) != nil {
			return fmt.Errorf("cannot use --vault-address %q: it is not a URL such as https://vault.example.com:8200", address)
		}
	}
	return nil
}

// mostCredentials are worked on at the same time. They wait for servers.
const mostCredentials = 16

// credentials sets up the controller of Credentials.
func (w *wiring) credentials() error {
	o, mgr, now := w.options, w.mgr, w.program.Now
	r := &credential.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Vault: &vault.Clients{Dial: o.targets.addresses.Dial, Now: now},
		VaultAddresses: o.credentials.vaults, Namespace: o.place.namespace, Events: w.events("cascade"), Metrics: w.metrics, Stalls: w.stalls,
		Now: now, Random: w.program.Rand, Retries: o.pauses.retries(), Shard: w.selects, MayWrite: w.fence,
	}
	if dir := o.credentials.files; dir != "" {
		root, err := os.OpenRoot(dir)
		if err != nil {
			return fmt.Errorf("cannot use --credential-files: %w", err)
		}
		r.Files = root
	}
	elected := mgr.Elected()
	told := &credential.Fleet{Client: mgr.GetClient(), Selects: w.selects, Active: func() bool {
		select {
		case <-elected:
			return true
		default:
			return false
		}
	}}
	if err := ctrlmetrics.Registry.Register(told); err != nil {
		return fmt.Errorf("cannot register the metrics of Credentials: %w", err)
	}
	return r.SetupWithManager(mgr, mostCredentials)
}
