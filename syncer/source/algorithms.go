package source

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
)

// CheckKeyExchanges refuses key exchanges of SSH that there are not, or that are known to
// be weak.
func CheckKeyExchanges(names []string) error {
	return among(names, ssh.SupportedAlgorithms().KeyExchanges)
}

// CheckHostKeys refuses algorithms of host keys that there are not, or that can be forged.
func CheckHostKeys(names []string) error { return among(names, hostKeyAlgorithms) }

func among(names, known []string) error {
	for _, name := range names {
		if !slices.Contains(known, name) {
			return fmt.Errorf("there is no %q, or it is not safe; there are %s", name, strings.Join(known, ", "))
		}
	}
	return nil
}

// restrict leaves a connection by SSH only these algorithms; none are all. Other
// connections are not concerned.
func (d *dialer) restrict(keyExchanges, hostKeys []string) error {
	if d.ssh == nil {
		return nil
	}
	if len(keyExchanges) > 0 {
		d.ssh.KeyExchanges = keyExchanges
	}
	if len(hostKeys) == 0 {
		return nil
	}
	known := d.ssh.HostKeyAlgorithms
	d.ssh.HostKeyAlgorithms = slices.DeleteFunc(slices.Clone(hostKeys), func(a string) bool { return !slices.Contains(known, a) })
	if len(d.ssh.HostKeyAlgorithms) == 0 {
		return failf(ReasonAuthenticationFailed, "cannot trust %s: known_hosts has keys for %s, and --ssh-hostkey-algos allows %s",
			d.endpoint.Host, strings.Join(known, ", "), strings.Join(hostKeys, ", "))
	}
	return nil
}
