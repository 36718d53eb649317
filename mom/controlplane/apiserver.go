package main

import (
	"context"
	"fmt"
	"net"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

// auditPolicy records who wrote what, which is what tests of pruning and of
// idleness ask for. Heartbeats, events and reviews are the bulk of all writes
// and change no state.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: None
  resources:
  - {group: coordination.k8s.io, resources: [leases]}
  - {group: "", resources: [events]}
  - {group: events.k8s.io, resources: [events]}
  - {group: authentication.k8s.io}
  - {group: authorization.k8s.io}
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
- level: None
`

// auditReadsPolicy records every request besides, for tests that ask who looked,
// how often and with which credential. What the components and the administrator
// read is the bulk of all and of no interest. A refused login has no user, which
// no rule about users matches, and is recorded when the answer begins.
const auditReadsPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: [system:apiserver, "system:kube-controller-manager", "system:kube-scheduler"]
- level: None
  users: [kubernetes-admin]
  verbs: [get, list, watch]
- level: Metadata
`

// apiServerFlags are the flags of kube-apiserver, as one would give them to the
// program of that name.
func apiServerFlags(s settings, port int) []string {
	flags := []string{
		"--etcd-servers=" + etcdEndpoint,
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", port),
		"--advertise-address=127.0.0.1",
		// Endpoints may not be loopback addresses, and there is no other here.
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=" + s.serviceCIDR,
		"--allow-privileged=true",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--profiling=false",

		"--client-ca-file=" + s.dir.pki("ca.crt"),
		"--tls-cert-file=" + s.dir.pki("apiserver.crt"),
		"--tls-private-key-file=" + s.dir.pki("apiserver.key"),
		"--kubelet-client-certificate=" + s.dir.pki("apiserver-kubelet-client.crt"),
		"--kubelet-client-key=" + s.dir.pki("apiserver-kubelet-client.key"),
		// Names of nodes resolve nowhere.
		"--kubelet-preferred-address-types=InternalIP,Hostname",

		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-signing-key-file=" + s.dir.pki("service-account.key"),
		"--service-account-key-file=" + s.dir.pki("service-account.key"),

		"--requestheader-client-ca-file=" + s.dir.pki("front-proxy-ca.crt"),
		"--requestheader-allowed-names=" + frontProxyName,
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + s.dir.pki("front-proxy-client.crt"),
		"--proxy-client-key-file=" + s.dir.pki("front-proxy-client.key"),
		// Without kube-proxy a Service address leads nowhere; its endpoints do.
		"--enable-aggregator-routing=true",

		"--audit-policy-file=" + s.dir.auditPolicy(),
		"--audit-log-path=" + s.dir.auditLog(),
		fmt.Sprintf("--audit-log-maxsize=%d", auditMegabytes(s.durable)),
		"--audit-log-maxbackup=1",
	}
	if s.podNetwork {
		flags = append(flags, "--egress-selector-config-file="+s.dir.egress())
	}
	return flags
}

// auditMegabytes is when the audit log is rotated. Tests follow one file, for which that
// is far away, but bounded; who relies on a cluster needs the disk for something else.
func auditMegabytes(durable bool) int {
	if durable {
		return 32
	}
	return 1024
}

// prepareAPIServer checks the flags and returns the function that serves on
// listener until its context ends.
func prepareAPIServer(ctx context.Context, s settings, listener net.Listener, port int) (func(context.Context) error, error) {
	policy := auditPolicy
	if s.auditReads {
		policy = auditReadsPolicy
	}
	if err := replaceFile(s.dir.auditPolicy(), []byte(policy), 0o644); err != nil {
		return nil, err
	}
	opts := options.NewServerRunOptions()
	if err := parseFlags("kube-apiserver", opts.Flags(), apiServerFlags(s, port)); err != nil {
		return nil, err
	}
	opts.SecureServing.Listener = listener
	// It has no flag.
	opts.Authentication.TokenSuccessCacheTTL = s.tokenCache
	if err := opts.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return nil, fmt.Errorf("cannot configure kube-apiserver: %w", err)
	}
	completed, err := opts.Complete(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot configure kube-apiserver: %w", err)
	}
	for _, err := range completed.Validate() {
		return nil, fmt.Errorf("cannot configure kube-apiserver: %w", err)
	}
	return func(ctx context.Context) error { return app.Run(ctx, completed) }, nil
}

// parseFlags sets the flags of one component. The components share no flag set,
// so their equally named flags do not meet.
func parseFlags(component string, named cliflag.NamedFlagSets, args []string) error {
	flags := pflag.NewFlagSet(component, pflag.ContinueOnError)
	for _, set := range named.FlagSets {
		flags.AddFlagSet(set)
	}
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("cannot configure %s: %w", component, err)
	}
	return nil
}
