package nodes

import (
	"fmt"
	"strings"

	"github.com/cascade-gitops/cascade/e2e/machine"
)

// corednsManifests are CoreDNS as kubeadm installs it, in one replica: with the Corefile of
// kubeadm, but for Prometheus.
func corednsManifests(image string) string {
	return strings.NewReplacer("${image}", image, "${address}", clusterDNS).Replace(`apiVersion: v1
kind: ServiceAccount
metadata: {name: coredns, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "system:coredns"}
rules:
- {apiGroups: [""], resources: [endpoints, services, pods, namespaces], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "system:coredns"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:coredns"}
subjects: [{kind: ServiceAccount, name: coredns, namespace: kube-system}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns, namespace: kube-system}
data:
  Corefile: |
    .:53 {
        errors
        health {
           lameduck 5s
        }
        ready
        kubernetes cluster.local in-addr.arpa ip6.arpa {
           pods insecure
           fallthrough in-addr.arpa ip6.arpa
           ttl 30
        }
        forward . /etc/resolv.conf {
           max_concurrent 1000
        }
        cache 30
        loop
        reload
        loadbalance
    }
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec:
  clusterIP: ${address}
  selector: {k8s-app: kube-dns}
  ports:
  - {name: dns, port: 53, protocol: UDP}
  - {name: dns-tcp, port: 53, protocol: TCP}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: coredns, namespace: kube-system}
spec:
  replicas: 1
  selector: {matchLabels: {k8s-app: kube-dns}}
  template:
    metadata: {labels: {k8s-app: kube-dns}}
    spec:
      priorityClassName: system-cluster-critical
      serviceAccountName: coredns
      dnsPolicy: Default
      tolerations:
      - {key: CriticalAddonsOnly, operator: Exists}
      - {key: node-role.kubernetes.io/control-plane, effect: NoSchedule}
      containers:
      - name: coredns
        image: ${image}
        args: [-conf, /etc/coredns/Corefile]
        ports: [{containerPort: 53, protocol: UDP}, {containerPort: 53, protocol: TCP}]
        livenessProbe: {httpGet: {path: /health, port: 8080}, initialDelaySeconds: 60, timeoutSeconds: 5}
        readinessProbe: {httpGet: {path: /ready, port: 8181}, periodSeconds: 1}
        securityContext:
          allowPrivilegeEscalation: false
          capabilities: {add: [NET_BIND_SERVICE], drop: [ALL]}
          readOnlyRootFilesystem: true
        volumeMounts: [{name: config, mountPath: /etc/coredns, readOnly: true}]
      volumes:
      - {name: config, configMap: {name: coredns, items: [{key: Corefile, path: Corefile}]}}
`)
}

// networkManifests are a network for pods as a DaemonSet brings it: it copies plugins and a
// configuration to its node. It is for one node; between nodes there are no routes.
func networkManifests(image string) string {
	config := strings.ReplaceAll(strings.TrimSpace(machine.BridgeConfig(podRange)), "\n", "\n    ")
	return strings.NewReplacer("${image}", image, "${config}", config).Replace(`apiVersion: v1
kind: ConfigMap
metadata: {name: pod-network, namespace: kube-system}
data:
  10-pods.conflist: |
    ${config}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: pod-network, namespace: kube-system}
spec:
  selector: {matchLabels: {app: pod-network}}
  template:
    metadata: {labels: {app: pod-network}}
    spec:
      hostNetwork: true
      priorityClassName: system-node-critical
      tolerations: [{operator: Exists}]
      terminationGracePeriodSeconds: 1
      containers:
      - name: install
        image: ${image}
        args: [/plugins=/host/bin, /config=/host/config]
        volumeMounts:
        - {name: config, mountPath: /config}
        - {name: bin, mountPath: /host/bin}
        - {name: net, mountPath: /host/config}
      volumes:
      - {name: config, configMap: {name: pod-network}}
      - {name: bin, hostPath: {path: /opt/cni/bin, type: DirectoryOrCreate}}
      - {name: net, hostPath: {path: /etc/cni/net.d, type: DirectoryOrCreate}}
`)
}

// gitService gives the Git server, which is outside of the cluster, a name in it.
func gitService(address string, port uint16) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: git, namespace: cascade-system}
spec: {ports: [{name: http, port: 80, protocol: TCP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: git, namespace: cascade-system, labels: {kubernetes.io/service-name: git}}
addressType: IPv4
endpoints: [{addresses: [%q], conditions: {ready: true}}]
ports: [{name: http, port: %d, protocol: TCP}]
`, address, port)
}

// source is a GitRepository of the agent's namespace, and the Kustomization of its directory
// app.
func source(name, url string) string {
	return fmt.Sprintf(`apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: %[1]s, namespace: cascade-system}
spec:
  url: %[2]s
  ref: {branch: main}
  secretRef: {name: git-auth}
  interval: 2s
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: %[1]s, namespace: cascade-system}
spec:
  sourceRef: {kind: GitRepository, name: %[1]s}
  path: ./app
  prune: true
  interval: 10m
  retryInterval: 1s
`, name, url)
}

// chart is a chart of one Deployment.
func chart() map[string]string {
	return map[string]string{
		"chart/Chart.yaml": "apiVersion: v2\nname: web\nversion: 1.0.0\n",
		"chart/templates/web.yaml": `apiVersion: apps/v1
kind: Deployment
metadata: {name: {{ .Release.Name }}}
spec:
  replicas: 2
  selector: {matchLabels: {app.kubernetes.io/name: web}}
  template:
    metadata: {labels: {app.kubernetes.io/name: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: web, image: {{ .Values.image | quote }}}]
`,
	}
}

// release is a HelmRelease of the chart that a source has.
func release(name, source, image string) string {
	return fmt.Sprintf(`apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: %s, namespace: default}
spec:
  interval: 10m
  chart: {spec: {chart: ./chart, sourceRef: {kind: GitRepository, name: %s, namespace: cascade-system}}}
  values: {image: %q}
`, name, source, image)
}
