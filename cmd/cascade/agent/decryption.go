package agent

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/syncer/decrypt"
)

// decryption is what Kustomizations decrypt with that do not say.
type decryption struct {
	account        string
	ageSecret      string
	vaultConfigMap string
	vaultAddresses []string
}

func (d *decryption) bind(f *pflag.FlagSet) {
	f.StringVar(&d.account, "default-decryption-service-account", "", "service account for key services, of Kustomizations that name none")
	f.StringVar(&d.ageSecret, "sops-age-secret", "",
		"namespace/name of a Secret with age keys, for Kustomizations whose decryption names no Secret")
	f.StringVar(&d.vaultConfigMap, "sops-vault-configmap", "",
		"namespace/name of the ConfigMap with the Vault servers that service accounts may log in to")
	f.StringSliceVar(&d.vaultAddresses, "sops-vault-address", nil,
		"address of a Vault server that gets the tokens of decryption Secrets which name none; may be given several times")
}

func (*decryption) check() error { return nil }

// build returns the options of decryption, but for its client and tokens.
func (d *decryption) build() (decrypt.Options, error) {
	o := decrypt.Options{
		ServiceAccount: d.account, VaultAddresses: d.vaultAddresses,
	}
	for _, to := range []struct {
		flag, text string
		name       *types.NamespacedName
	}{
		{"sops-age-secret", d.ageSecret, &o.AgeSecret},
		{"sops-vault-configmap", d.vaultConfigMap, &o.VaultConfig},
	} {
		if to.text == "" {
			continue
		}
		namespace, name, ok := strings.Cut(to.text, "/")
		if !ok || namespace == "" || name == "" {
			return decrypt.Options{}, fmt.Errorf("cannot use --%s %q: write namespace/name", to.flag, to.text)
		}
		*to.name = types.NamespacedName{Namespace: namespace, Name: name}
	}
	return o, nil
}
