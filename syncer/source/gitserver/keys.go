package gitserver

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// certificateLife is longer than any test and any demo.
const certificateLife = 365 * 24 * time.Hour

func (s *Server) prepareKeys() (err error) {
	if s.hostPEM, s.host, err = privateKey("host", s.options.HostKey); err != nil {
		return err
	}
	if s.clientPEM, s.client, err = privateKey("client", s.options.ClientKey); err != nil {
		return err
	}
	s.accepted = []ssh.PublicKey{s.client.PublicKey()}
	for rest := bytes.TrimSpace(s.options.AuthorizedKeys); len(rest) > 0; {
		var key ssh.PublicKey
		if key, _, _, rest, err = ssh.ParseAuthorizedKey(rest); err != nil {
			return fmt.Errorf("cannot read authorized keys: %w", err)
		}
		s.accepted = append(s.accepted, key)
		rest = bytes.TrimSpace(rest)
	}
	return nil
}

// privateKey reads a key, or makes one if there is none.
func privateKey(name string, data []byte) ([]byte, ssh.Signer, error) {
	if len(data) == 0 {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return nil, nil, fmt.Errorf("cannot create %s key: %w", name, err)
		}
		block, err := ssh.MarshalPrivateKey(key, "cascade "+name)
		if err != nil {
			return nil, nil, fmt.Errorf("cannot create %s key: %w", name, err)
		}
		data = pem.EncodeToMemory(block)
	}
	signer, err := ssh.ParsePrivateKey(data)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read %s key: %w", name, err)
	}
	return data, signer, nil
}

// DeployKey makes a private key, in PEM, that opens one repository by SSH and no other one.
func (s *Server) DeployKey(repository string) ([]byte, error) {
	name, _, err := s.place(repository)
	if err != nil {
		return nil, err
	}
	text, signer, err := privateKey("deploy", nil)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deploy == nil {
		s.deploy = map[string]string{}
	}
	s.deploy[string(signer.PublicKey().Marshal())] = name
	return text, nil
}

// ReadKey makes a private key, in PEM, that reads one repository by SSH and writes none.
func (s *Server) ReadKey(repository string) ([]byte, error) {
	text, err := s.DeployKey(repository)
	if err != nil {
		return nil, err
	}
	signer, err := ssh.ParsePrivateKey(text)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readOnly == nil {
		s.readOnly = map[string]bool{}
	}
	s.readOnly[string(signer.PublicKey().Marshal())] = true
	return text, nil
}

// onlyReads reports whether a deploy key writes nothing.
func (s *Server) onlyReads(key ssh.PublicKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.readOnly[string(key.Marshal())]
}

// Allow lets a public key, in the format of authorized_keys, open one repository by SSH, as a
// person who adds a deploy key does.
func (s *Server) Allow(repository string, authorized []byte) error {
	name, _, err := s.place(repository)
	if err != nil {
		return err
	}
	key, _, _, _, err := ssh.ParseAuthorizedKey(authorized)
	if err != nil {
		return fmt.Errorf("cannot read a deploy key of %s: %w", repository, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deploy == nil {
		s.deploy = map[string]string{}
	}
	s.deploy[string(key.Marshal())] = name
	return nil
}

// opens tells which repository a deploy key opens.
func (s *Server) opens(key ssh.PublicKey) (repository string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	repository, ok = s.deploy[string(key.Marshal())]
	return repository, ok
}

// KnownHosts is the line of a known_hosts file that names this server.
func (s *Server) KnownHosts() string {
	return knownhosts.Line([]string{s.SSHAddress()}, s.host.PublicKey()) + "\n"
}

// newCertificate makes a certificate for loopback that verifies itself.
func newCertificate(now time.Time) (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("cannot create certificate: %w", err)
	}
	template := x509.Certificate{
		SerialNumber:          big.NewInt(now.UnixNano()),
		Subject:               pkix.Name{CommonName: "git server"},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(certificateLife),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
		DNSNames:              []string{"localhost"},
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("cannot create certificate: %w", err)
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, ca, nil
}
