package provider

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"time"
)

const (
	// certificateLife is far more than a management cluster runs without a restart; each start
	// makes new ones.
	certificateLife = 5 * 365 * 24 * time.Hour
	// backdate allows for clocks that differ, and for one that was set back.
	backdate = time.Hour
)

// Certificate is what a webhook server shows, and who signed it.
type Certificate struct {
	// Authority, Certificate and Key in PEM. The authority's key is not kept: nothing else is
	// ever to be signed with it.
	Authority, Certificate, Key []byte
}

// NewCertificate makes a certificate for an address.
func NewCertificate(host string, now time.Time, random io.Reader) (Certificate, error) {
	var c Certificate
	ip := net.ParseIP(host)
	if ip == nil {
		return c, fmt.Errorf("cannot make certificate for %q: it is no address", host)
	}
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), random)
	if err != nil {
		return c, fmt.Errorf("cannot make key: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), random)
	if err != nil {
		return c, fmt.Errorf("cannot make key: %w", err)
	}
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "cascade mom webhooks"},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(certificateLife),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano() + 1), Subject: pkix.Name{CommonName: host},
		NotBefore: authority.NotBefore, NotAfter: authority.NotAfter, IPAddresses: []net.IP{ip},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	authorityDER, err := x509.CreateCertificate(random, authority, authority, authorityKey.Public(), authorityKey)
	if err != nil {
		return c, fmt.Errorf("cannot make certificate: %w", err)
	}
	serverDER, err := x509.CreateCertificate(random, server, authority, key.Public(), authorityKey)
	if err != nil {
		return c, fmt.Errorf("cannot make certificate: %w", err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return c, fmt.Errorf("cannot encode key: %w", err)
	}
	return Certificate{
		Authority:   pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authorityDER}),
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: serverDER}),
		Key:         pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}),
	}, nil
}

// encoded is how JSON has bytes.
func encoded(bytes []byte) string { return base64.StdEncoding.EncodeToString(bytes) }
