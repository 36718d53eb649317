package agent

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// sshAlgorithms are those that Git servers may use.
type sshAlgorithms struct{ keyExchange, hostKey []string }

func (s *sshAlgorithms) bind(f *pflag.FlagSet) {
	f.StringSliceVar(&s.keyExchange, "ssh-kex-algos", nil, "key exchanges with Git servers, the best first; empty are those of the library")
	f.StringSliceVar(&s.hostKey, "ssh-hostkey-algos", nil, "host keys of Git servers, the best first; empty are all that cannot be forged")
}

func (s *sshAlgorithms) check() error {
	if err := source.CheckKeyExchanges(s.keyExchange); err != nil {
		return fmt.Errorf("cannot use --ssh-kex-algos: %w", err)
	}
	if err := source.CheckHostKeys(s.hostKey); err != nil {
		return fmt.Errorf("cannot use --ssh-hostkey-algos: %w", err)
	}
	return nil
}

// restrict lets mirrors use these algorithms only.
func (s *sshAlgorithms) restrict(m *source.Mirrors) *source.Mirrors {
	m.KeyExchanges, m.HostKeys = s.keyExchange, s.hostKey
	return m
}
