package main

import (
	"fmt"
	"os"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// writeKubeconfigs writes the administrator's kubeconfig for callers, and those
// of the components that find the API server the ordinary way. These name the files of
// their certificates, which they read again when they are renewed.
func writeKubeconfigs(s settings, port int) error {
	for _, entry := range []struct {
		file, certificate string
		embed             bool
	}{
		{s.dir.kubeconfig(), "admin", true},
		{s.dir.controllerKubeconfig(), "controller-manager", false},
		{s.dir.schedulerKubeconfig(), "scheduler", false},
	} {
		if err := writeKubeconfig(s, port, entry.file, entry.certificate, entry.embed); err != nil {
			return err
		}
	}
	return nil
}

func writeKubeconfig(s settings, port int, file, certificate string, embed bool) error {
	user := s.name + "-" + certificate
	config := api.NewConfig()
	cluster := api.NewCluster()
	cluster.Server = fmt.Sprintf("https://127.0.0.1:%d", port)
	login := api.NewAuthInfo()
	for _, entry := range []struct {
		into *[]byte
		at   *string
		name string
	}{
		{&cluster.CertificateAuthorityData, &cluster.CertificateAuthority, "ca.crt"},
		{&login.ClientCertificateData, &login.ClientCertificate, certificate + ".crt"},
		{&login.ClientKeyData, &login.ClientKey, certificate + ".key"},
	} {
		if !embed {
			*entry.at = s.dir.pki(entry.name)
			continue
		}
		data, err := os.ReadFile(s.dir.pki(entry.name))
		if err != nil {
			return fmt.Errorf("cannot write kubeconfig %s: %w", file, err)
		}
		*entry.into = data
	}
	context := api.NewContext()
	context.Cluster = s.name
	context.AuthInfo = user
	config.Clusters[s.name] = cluster
	config.AuthInfos[user] = login
	config.Contexts[s.name] = context
	config.CurrentContext = s.name
	data, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("cannot write kubeconfig %s: %w", file, err)
	}
	return replaceFile(file, data, 0o600)
}
