{{/*
Machines, and the templates that they are made of. The charts of the clouds have
the same copy of this file; a test keeps them equal.
*/}}

{{/*
cluster.templateName is a name with the hash of a spec. A template is therefore
never edited, which Cluster API forbids: another spec is another template. The
argument has base and spec, which is YAML; its layout does not count.
*/}}
{{- define "cluster.templateName" -}}
{{ .base }}-{{ .spec | fromYaml | toJson | sha256sum | trunc 8 }}
{{- end -}}

{{/*
cluster.template is such a template. The argument has root, apiVersion, kind, base
and spec. It is kept when nothing refers to it any more, because machines of the
rollout under way may still be made of it; it goes with the Cluster that owns it.
*/}}
{{- define "cluster.template" -}}
apiVersion: {{ .apiVersion }}
kind: {{ .kind }}
{{ include "cluster.metadata" (dict "root" .root "name" (include "cluster.templateName" .) "labels" (include "cluster.label" .root | fromYaml) "keep" true) }}
spec:
  {{- .spec | trim | nindent 2 }}
{{- end -}}

{{/* cluster.label says to which cluster an object belongs, as Cluster API does. */}}
{{- define "cluster.label" -}}
cluster.x-k8s.io/cluster-name: {{ include "cluster.name" . }}
{{- end -}}

{{/* cluster.args is the list of arguments that kubeadm wants, of a map. */}}
{{- define "cluster.args" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{/*
cluster.nodeLabels is the value of the kubelet's flag, without the labels that
Cluster API puts on nodes itself.
*/}}
{{- define "cluster.nodeLabels" -}}
{{- $labels := list -}}
{{- range $key, $value := . -}}
{{- if not (include "cluster.syncedLabel" $key) -}}
{{- $labels = append $labels (printf "%s=%s" $key $value) -}}
{{- end -}}
{{- end -}}
{{- join "," $labels -}}
{{- end -}}

{{/*
cluster.syncedLabel is not empty for labels that Cluster API copies from machines
to their nodes, at any time. All others are given to the kubelet, once.
*/}}
{{- define "cluster.syncedLabel" -}}
{{- if regexMatch "^(node-role\\.kubernetes\\.io|([^/]+\\.)?node-restriction\\.kubernetes\\.io|([^/]+\\.)?node\\.cluster\\.x-k8s\\.io)/" . -}}
yes
{{- end -}}
{{- end -}}

{{/* cluster.machineLabels is the map of the labels that Cluster API copies. */}}
{{- define "cluster.machineLabels" -}}
{{- range $key, $value := . }}
{{- if include "cluster.syncedLabel" $key }}
{{ $key }}: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/*
cluster.autoscaling is the map of annotations that hand the number of replicas over
to the Cluster API provider of the cluster autoscaler.
*/}}
{{- define "cluster.autoscaling" -}}
{{- if hasKey . "min" }}
cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size: {{ .min | int | quote }}
cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size: {{ .max | int | quote }}
{{- end }}
{{- end -}}

{{/*
cluster.version is the Kubernetes version of a pool, which may lag behind that of
the control plane. The argument has root and pool.
*/}}
{{- define "cluster.version" -}}
{{- .pool.version | default .root.Values.version -}}
{{- end -}}

{{/*
cluster.machineDeployment is one MachineDeployment. The argument has root, pool,
name, infrastructureRef, bootstrapRef and, if wanted, failureDomain.
*/}}
{{- define "cluster.machineDeployment" -}}
{{- $cluster := include "cluster.name" .root -}}
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineDeployment
{{ include "cluster.metadata" (dict "root" .root "name" .name "labels" (include "cluster.label" .root | fromYaml) "annotations" (include "cluster.autoscaling" .pool | fromYaml) "confirmed" (eq (.pool.deletion | default "") "confirmed")) }}
spec:
  clusterName: {{ $cluster }}
  {{- if not (hasKey .pool "min") }}
  replicas: {{ .pool.replicas | int }}
  {{- end }}
  selector:
    matchLabels:
      cluster.x-k8s.io/cluster-name: {{ $cluster }}
      cluster.x-k8s.io/deployment-name: {{ .name }}
  rollout:
    strategy:
      type: RollingUpdate
      rollingUpdate:
        maxSurge: {{ dig "maxSurge" 1 .pool }}
        maxUnavailable: {{ dig "maxUnavailable" 0 .pool }}
  template:
    metadata:
      labels:
        cluster.x-k8s.io/cluster-name: {{ $cluster }}
        cluster.x-k8s.io/deployment-name: {{ .name }}
        {{- include "cluster.machineLabels" .pool.labels | trim | nindent 8 }}
    spec:
      clusterName: {{ $cluster }}
      version: {{ .version }}
      {{- with .failureDomain }}
      failureDomain: {{ . | quote }}
      {{- end }}
      {{- if hasKey .pool "drainSeconds" }}
      deletion:
        nodeDrainTimeoutSeconds: {{ .pool.drainSeconds | int }}
      {{- end }}
      bootstrap:
        configRef:
          {{- toYaml .bootstrapRef | nindent 10 }}
      infrastructureRef:
        {{- toYaml .infrastructureRef | nindent 8 }}
{{- end -}}

{{/*
cluster.healthCheck is a MachineHealthCheck. The argument has root, name, selector
and, for the machines of a pool, pool: of those only a part is replaced at a time,
which control planes see to themselves. It is confirmed for deletion from the start:
nothing goes with it.
*/}}
{{- define "cluster.healthCheck" -}}
{{- $check := .root.Values.healthCheck -}}
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineHealthCheck
{{ include "cluster.metadata" (dict "root" .root "name" .name "labels" (include "cluster.label" .root | fromYaml) "confirmed" true) }}
spec:
  clusterName: {{ include "cluster.name" .root }}
  selector:
    matchLabels:
      {{- toYaml .selector | nindent 6 }}
  checks:
    nodeStartupTimeoutSeconds: {{ $check.nodeStartupSeconds | int }}
    unhealthyNodeConditions:
      - type: Ready
        status: Unknown
        timeoutSeconds: {{ $check.unhealthySeconds | int }}
      - type: Ready
        status: "False"
        timeoutSeconds: {{ $check.unhealthySeconds | int }}
  {{- if .pool }}
  remediation:
    triggerIf:
      unhealthyLessThanOrEqualTo: {{ $check.maxUnhealthy }}
  {{- end }}
{{- end -}}

{{/*
cluster.checkPool fails if the size of a pool makes no sense. The argument has name
and pool.
*/}}
{{- define "cluster.checkPool" -}}
{{- $pool := .pool -}}
{{- if not (eq (hasKey $pool "min") (hasKey $pool "max")) -}}
{{- fail (printf "pools.%s has only one of min and max: set both, or replicas" .name) -}}
{{- end -}}
{{- if eq (hasKey $pool "min") (hasKey $pool "replicas") -}}
{{- fail (printf "pools.%s needs either replicas, or min and max" .name) -}}
{{- end -}}
{{- if hasKey $pool "min" -}}
{{- if gt (int $pool.min) (int $pool.max) -}}
{{- fail (printf "pools.%s has min %d above max %d" .name (int $pool.min) (int $pool.max)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
cluster.checkFields fails if a pool has one of the fields that do not apply to it.
The argument has name, pool, fields and to, which says what they apply to.
*/}}
{{- define "cluster.checkFields" -}}
{{- $ := . -}}
{{- range .fields -}}
{{- if hasKey $.pool . -}}
{{- fail (printf "pools.%s.%s applies to %s only" $.name . $.to) -}}
{{- end -}}
{{- end -}}
{{- end -}}
