package machine

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// life of the certificate of a machine.
const life = 24 * time.Hour

// serverName is what certificates of control planes have among others: they do not know the
// address at which machines reach them.
const serverName = "localhost"

// kubeconfig is that of a user of the cluster, by a new certificate.
func (s settings) kubeconfig(user string, groups ...string) (string, error) {
	certificate, key, err := issue(s.PKI, user, groups)
	if err != nil {
		return "", err
	}
	ca, err := os.ReadFile(filepath.Join(s.PKI, "ca.crt"))
	if err != nil {
		return "", fmt.Errorf("cannot read the authority of the cluster: %w", err)
	}
	config := api.NewConfig()
	config.Clusters["cluster"] = &api.Cluster{Server: "https://" + s.Server.String(), TLSServerName: serverName, CertificateAuthorityData: ca}
	config.AuthInfos[user] = &api.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key}
	config.Contexts["cluster"] = &api.Context{Cluster: "cluster", AuthInfo: user}
	config.CurrentContext = "cluster"
	text, err := clientcmd.Write(*config)
	if err != nil {
		return "", fmt.Errorf("cannot write the kubeconfig of %s: %w", user, err)
	}
	return string(text), nil
}

// Reachable is a kubeconfig with the API server as machines reach it.
func Reachable(kubeconfig []byte, server netip.AddrPort) ([]byte, error) {
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("cannot parse kubeconfig: %w", err)
	}
	for _, c := range config.Clusters {
		c.Server, c.TLSServerName = "https://"+server.String(), serverName
	}
	return clientcmd.Write(*config)
}

// issue signs a certificate of a client by the authority of a cluster.
func issue(pki, user string, groups []string) (certificate, key []byte, err error) {
	authority, err := tls.LoadX509KeyPair(filepath.Join(pki, "ca.crt"), filepath.Join(pki, "ca.key"))
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read the authority of the cluster: %w", err)
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make a key for %s: %w", user, err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make a certificate for %s: %w", user, err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: user, Organization: groups},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, authority.Leaf, private.Public(), authority.PrivateKey)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot sign the certificate of %s: %w", user, err)
	}
	encoded, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot write the key of %s: %w", user, err)
	}
	certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return certificate, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded}), nil
}
