package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"
)

const (
	certificateLife = 365 * 24 * time.Hour
	// authorityLife is how long kubeconfigs that people keep know whom they talk to.
	authorityLife = 10 * certificateLife
	// renewalPause is the pause between two looks at the certificates while they serve.
	renewalPause = time.Hour
	// A clock that another process on this machine reads may be behind ours by
	// the precision of the certificate's seconds; an hour also covers a step.
	certificateBackdate = time.Hour
)

// ensurePKI makes sure that dir holds usable certificates for a control plane
// whose first Service address is serviceIP. Keys are made once; the folder appears
// by rename, so a kill leaves all of them or none. Certificates are renewed with
// their keys, each by one rename. If the cluster is to be durable, a cut of power does
// no more than a kill: what is in etcd is of no use without them.
func ensurePKI(dir layout, serviceIP net.IP, now time.Time, durable bool) error {
	folder := dir.path("pki")
	_, err := os.Stat(folder)
	if err == nil {
		if err := checkPKI(dir, serviceIP); err != nil {
			return err
		}
		_, err := renewPKI(dir, now)
		return err
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot read folder %s: %w", folder, err)
	}
	temporary, err := os.MkdirTemp(string(dir), ".pki-*")
	if err != nil {
		return fmt.Errorf("cannot create certificates: %w", err)
	}
	defer func() { _ = os.RemoveAll(temporary) }()
	if err := writePKI(temporary, serviceIP, now); err != nil {
		return err
	}
	if durable {
		if err := syncAll(temporary); err != nil {
			return err
		}
	}
	if err := os.Rename(temporary, folder); err != nil {
		return fmt.Errorf("cannot create certificates: %w", err)
	}
	if durable {
		return syncOne(string(dir))
	}
	return nil
}

// checkPKI refuses a folder whose certificates cannot serve this start, with a
// reason better than the handshake errors that would follow.
func checkPKI(dir layout, serviceIP net.IP) error {
	certificate, err := readCertificate(dir, "apiserver")
	if err != nil {
		return err
	}
	if err := certificate.VerifyHostname(serviceIP.String()); err != nil {
		return fmt.Errorf("cannot use folder %s: it was made for another --service-cidr: %w", dir, err)
	}
	return nil
}

// renewPKI renews what is valid for less than a third of its life any more, or not
// at all, and reports whether there was any. Keys stay as they are: so an authority
// that was renewed is the one that clients know, and each certificate is one file.
func renewPKI(dir layout, now time.Time) (changed bool, err error) {
	for _, of := range []struct {
		authority string
		names     []string
	}{
		{"ca", []string{"apiserver", "admin", "controller-manager", "scheduler", "apiserver-kubelet-client"}},
		{"front-proxy-ca", []string{"front-proxy-client"}},
	} {
		by := &authority{}
		if by.certificate, by.key, err = readPair(dir, of.authority); err != nil {
			return changed, err
		}
		if isDue(by.certificate, now) {
			if by.certificate, err = renewed(by.certificate, nil, by.key, by.key, now); err != nil {
				return changed, fmt.Errorf("cannot renew authority %s: %w", of.authority, err)
			}
			if err := replaceCertificate(dir, of.authority, by.certificate); err != nil {
				return changed, err
			}
			changed = true
		}
		for _, name := range of.names {
			certificate, key, err := readPair(dir, name)
			if err != nil {
				return changed, err
			}
			if !isDue(certificate, now) {
				continue
			}
			if certificate, err = renewed(certificate, by.certificate, key, by.key, now); err != nil {
				return changed, fmt.Errorf("cannot renew certificate %s: %w", name, err)
			}
			if err := replaceCertificate(dir, name, certificate); err != nil {
				return changed, err
			}
			changed = true
		}
	}
	return changed, nil
}

// isDue reports whether a certificate is to be renewed. One of the future is as
// useless as one of the past: the clock was set back.
func isDue(c *x509.Certificate, now time.Time) bool {
	return now.Before(c.NotBefore) || c.NotAfter.Sub(now) < c.NotAfter.Sub(c.NotBefore)/3
}

// renewed is a certificate of the same key for the same purpose.
func renewed(c, parent *x509.Certificate, key, signer *ecdsa.PrivateKey, now time.Time) (*x509.Certificate, error) {
	return sign(x509.Certificate{
		Subject: c.Subject, KeyUsage: c.KeyUsage, ExtKeyUsage: c.ExtKeyUsage, DNSNames: c.DNSNames, IPAddresses: c.IPAddresses,
		IsCA: c.IsCA, BasicConstraintsValid: c.BasicConstraintsValid,
	}, parent, key, signer, now)
}

func readCertificate(dir layout, name string) (*x509.Certificate, error) {
	der, err := readPEM(dir.pki(name + ".crt"))
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("cannot read certificate %s: %w", name, err)
	}
	return certificate, nil
}

// readPair reads a certificate and its key.
func readPair(dir layout, name string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	certificate, err := readCertificate(dir, name)
	if err != nil {
		return nil, nil, err
	}
	der, err := readPEM(dir.pki(name + ".key"))
	if err != nil {
		return nil, nil, err
	}
	key, err := x509.ParseECPrivateKey(der)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read key %s: it is none", name) // the error may quote it
	}
	return certificate, key, nil
}

func readPEM(name string) ([]byte, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("cannot read file %s: %w", name, err)
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("cannot read file %s: not PEM", name)
	}
	return block.Bytes, nil
}

func replaceCertificate(dir layout, name string, certificate *x509.Certificate) error {
	return keepFile(dir.pki(name+".crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw}), 0o600)
}

// keepPKI renews certificates while they serve. kube-apiserver and the components
// read theirs again by themselves; kubeconfigs with certificates embedded are
// written anew. What fails is tried again: there are months for it.
func (c *controlPlane) keepPKI(ctx context.Context, port int) error {
	ticker := time.NewTicker(renewalPause)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		changed, err := renewPKI(c.dir, time.Now())
		if err == nil && changed {
			err = writeKubeconfigs(c.settings, port)
		}
		if err != nil {
			klog.ErrorS(err, "Certificates are not renewed")
		}
	}
}

func writePKI(folder string, serviceIP net.IP, now time.Time) error {
	ca, err := newAuthority("kubernetes", now)
	if err != nil {
		return err
	}
	// Aggregated API servers trust the headers of whoever this authority
	// signed, so it must not be the one that signs ordinary clients.
	front, err := newAuthority("front-proxy", now)
	if err != nil {
		return err
	}
	client := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	for _, entry := range []struct {
		file     string
		by       *authority
		template x509.Certificate
	}{
		{"apiserver", ca, x509.Certificate{
			Subject:     pkix.Name{CommonName: "kube-apiserver"},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
			DNSNames: []string{"localhost", "kubernetes", "kubernetes.default",
				"kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), serviceIP},
		}},
		{"admin", ca, x509.Certificate{
			Subject: pkix.Name{CommonName: "kubernetes-admin", Organization: []string{"system:masters"}}, ExtKeyUsage: client,
		}},
		// The controllers share one identity with all rights. The other way, a
		// service account for each of them, costs a token and a client per
		// controller, in memory and at every start.
		{"controller-manager", ca, x509.Certificate{
			Subject: pkix.Name{CommonName: "system:kube-controller-manager", Organization: []string{"system:masters"}}, ExtKeyUsage: client,
		}},
		{"scheduler", ca, x509.Certificate{
			Subject: pkix.Name{CommonName: "system:kube-scheduler"}, ExtKeyUsage: client,
		}},
		{"apiserver-kubelet-client", ca, x509.Certificate{
			Subject: pkix.Name{CommonName: "kube-apiserver-kubelet-client", Organization: []string{"system:masters"}}, ExtKeyUsage: client,
		}},
		{"front-proxy-client", front, x509.Certificate{
			Subject: pkix.Name{CommonName: frontProxyName}, ExtKeyUsage: client,
		}},
	} {
		if err := entry.by.issue(folder, entry.file, entry.template, now); err != nil {
			return err
		}
	}
	if err := ca.write(folder, "ca"); err != nil {
		return err
	}
	if err := front.write(folder, "front-proxy-ca"); err != nil {
		return err
	}
	accounts, err := newKey()
	if err != nil {
		return err
	}
	return writeKey(folder, "service-account", accounts)
}

// frontProxyName is the only client whose identity headers are believed.
const frontProxyName = "front-proxy-client"

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(name string, now time.Time) (*authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	template := x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	certificate, err := sign(template, nil, key, key, now)
	if err != nil {
		return nil, fmt.Errorf("cannot create authority %s: %w", name, err)
	}
	return &authority{certificate: certificate, key: key}, nil
}

func (a *authority) write(folder, name string) error {
	if err := writeKey(folder, name, a.key); err != nil {
		return err
	}
	return writeCertificate(folder, name, a.certificate)
}

// issue writes a new key and a certificate for it as name.key and name.crt.
func (a *authority) issue(folder, name string, template x509.Certificate, now time.Time) error {
	key, err := newKey()
	if err != nil {
		return err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	certificate, err := sign(template, a.certificate, key, a.key, now)
	if err != nil {
		return fmt.Errorf("cannot create certificate %s: %w", name, err)
	}
	if err := writeKey(folder, name, key); err != nil {
		return err
	}
	return writeCertificate(folder, name, certificate)
}

// sign makes the certificate of key; without a parent it signs itself.
func sign(template x509.Certificate, parent *x509.Certificate, key, signer *ecdsa.PrivateKey, now time.Time) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.NotBefore = now.Add(-certificateBackdate)
	template.NotAfter = now.Add(certificateLife)
	if template.IsCA {
		template.NotAfter = now.Add(authorityLife)
	}
	if parent == nil {
		parent = &template
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, parent, key.Public(), signer)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// newKey makes a P-256 key: a cold start makes nine, and RSA would take longer
// than all the rest of it.
func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("cannot create key: %w", err)
	}
	return key, nil
}

func writeKey(folder, name string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("cannot write key %s: %w", name, err)
	}
	return writePEM(filepath.Join(folder, name+".key"), "EC PRIVATE KEY", der)
}

func writeCertificate(folder, name string, certificate *x509.Certificate) error {
	return writePEM(filepath.Join(folder, name+".crt"), "CERTIFICATE", certificate.Raw)
}

func writePEM(name, kind string, der []byte) error {
	data := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(name, data, 0o600); err != nil {
		return fmt.Errorf("cannot write file %s: %w", name, err)
	}
	return nil
}
