package machine

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// writeFiles writes what the machine has in /etc from the beginning. What the
// computer has in /etc is there besides.
func (s settings) writeFiles() error {
	kubelet, err := s.kubeconfig("system:node:"+s.Name, "system:nodes")
	if err != nil {
		return err
	}
	proxy, err := s.kubeconfig("system:kube-proxy")
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(filepath.Join(s.PKI, "ca.crt"))
	if err != nil {
		return fmt.Errorf("cannot read the authority of the cluster: %w", err)
	}
	files := map[string]string{
		"hostname":                   s.Name + "\n",
		"resolv.conf":                "nameserver " + s.Gateway.String() + "\n",
		"containerd/config.toml":     s.containerdConfig(),
		"kubernetes/kubelet.conf":    kubelet,
		"kubernetes/kube-proxy.conf": proxy,
		"kubernetes/ca.crt":          string(ca),
		"kubernetes/kubelet.yaml":    s.kubeletConfig(),
		"kubernetes/kube-proxy.yaml": s.proxyConfig(),
	}
	for _, registry := range s.Registries {
		files["containerd/certs.d/"+registry+"/hosts.toml"] = fmt.Sprintf("server = %q\n[host.%[1]q]\n  capabilities = [\"pull\", \"resolve\"]\n", "http://"+registry)
	}
	if s.Pods.IsValid() {
		files["cni/net.d/10-pods.conflist"] = BridgeConfig(s.Pods.String())
	}
	for name, text := range files {
		file := filepath.Join(s.Dir, etcDir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return fmt.Errorf("cannot make a directory of machine %s: %w", s.Name, err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return fmt.Errorf("cannot write a file of machine %s: %w", s.Name, err)
		}
	}
	return os.MkdirAll(filepath.Join(s.Dir, logDir), 0o755)
}

// BridgeConfig is a network for the pods of one machine, by plugins of the CNI project: a
// bridge, whose pods reach others as the machine.
func BridgeConfig(pods string) string {
	config := map[string]any{
		"cniVersion": "1.0.0", "name": "pods",
		"plugins": []any{
			map[string]any{
				"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
				"ipam": map[string]any{
					"type": "host-local", "ranges": []any{[]any{map[string]any{"subnet": pods}}}, "routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
				},
			},
			map[string]any{"type": "portmap", "capabilities": map[string]any{"portMappings": true}},
		},
	}
	text, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		panic(err) // it is made of strings
	}
	return string(text) + "\n"
}

func (s settings) containerdConfig() string {
	plugins := "/opt/cni/bin"
	if s.Pods.IsValid() {
		plugins = filepath.Join(s.Bin, "cni")
	}
	return fmt.Sprintf(`version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  # Without the right to lower it (CAP_SYS_RESOURCE) no container would start.
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "/etc/containerd/certs.d"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
`, s.Sandbox, plugins)
}

// kubeletConfig is as kubeadm has it, but for what a computer that does other things asks
// for: nothing is evicted or collected because its disk is full.
func (s settings) kubeletConfig() string {
	return strings.NewReplacer("${cgroup}", "/"+s.Cgroup, "${dns}", s.ClusterDNS.String(), "${socket}", containerdSocket).Replace(
		`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: /etc/kubernetes/ca.crt}}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
cgroupRoot: ${cgroup}
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
clusterDNS: ["${dns}"]
clusterDomain: cluster.local
resolvConf: /etc/resolv.conf
containerRuntimeEndpoint: unix://${socket}
evictionHard: {memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%", imagefs.inodesFree: "0%"}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
`)
}

// proxyConfig leaves the limits of connections as they are: they are of the computer.
func (s settings) proxyConfig() string {
	return `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clientConnection: {kubeconfig: /etc/kubernetes/kube-proxy.conf}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
`
}
