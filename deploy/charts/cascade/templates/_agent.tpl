{{/* The objects of the manifests, which the chart has as the program has them, changed as deploy.Agent
changes them. A test compares both for sets of values. */}}

{{- define "cascade.image" -}}
{{ .Values.image | default (index (default dict .Chart.Annotations) "cascade.dev/image") | default (printf "cascade:%s" .Chart.AppVersion) }}
{{- end }}

{{- define "cascade.onHost" -}}
{{- if or (not (hasKey .Values "hostNetwork")) (kindIs "invalid" .Values.hostNetwork) .Values.hostNetwork }}true{{ end }}
{{- end }}

{{- define "cascade.policies" -}}
{{- if and (not (include "cascade.onHost" .)) (or (not (hasKey .Values "networkPolicy")) .Values.networkPolicy) }}true{{ end }}
{{- end }}

{{/* The documents of a file, with the namespace of the values. */}}
{{- define "cascade.file" -}}
{{- .root.Files.Get .file | replace "cascade-system" .root.Values.namespace }}
{{- end }}

{{- define "cascade.arguments" -}}
{{- $v := .Values }}
{{- $args := list }}
{{- if eq (default "" $v.firstSync) "Create" }}{{ $args = append $args "--first-sync=create" }}{{ end }}
{{- if hasKey $v "lockdown" }}
{{- $account := default "default" (default dict $v.lockdown).serviceAccount }}
{{- $args = concat $args (list "--no-cross-namespace-refs=true" (printf "--default-service-account=%s" $account)) }}
{{- end }}
{{- with $v.controllers }}{{ $args = append $args (printf "--controllers=%s" (join "," .)) }}{{ end }}
{{- with $v.eventsAddress }}{{ $args = append $args (printf "--events-addr=%s" .) }}{{ end }}
{{- if eq (default "" $v.metricsAuth) "kubernetes" }}{{ $args = append $args "--metrics-auth=kubernetes" }}{{ end }}
{{- if $v.receiver }}{{ $args = append $args "--receiver-addr=$(POD_IP):9292" }}{{ end }}
{{- if kindIs "map" $v.pages }}
{{- $args = append $args "--web-addr=$(POD_IP):8443" }}
{{- if $v.pages.certificateSecretRef }}{{ $args = append $args "--web-cert-dir=/etc/cascade/pages" }}{{ end }}
{{- end }}
{{- if hasKey (default dict $v.storage) "claim" }}
{{- $args = concat $args (list "--storage-path=/var/lib/cascade/sources" "--snapshot-path=/var/lib/cascade/snapshots") }}
{{- end }}
{{- $args = concat $args (default list $v.args) }}
{{- if gt (int $v.replicas) 1 }}
{{- $named := false }}
{{- range $v.args }}{{ if or (eq . "--shards") (hasPrefix "--shards=" .) }}{{ $named = true }}{{ end }}{{ end }}
{{- if not $named }}{{ $args = append $args (printf "--shards=%d" (mul 2 (int $v.replicas))) }}{{ end }}
{{- end }}
{{- toYaml $args }}
{{- end }}

{{/* Ports of the flag with the address that serves artifacts. */}}
{{- define "cascade.artifactPorts" -}}
{{- $ports := list }}
{{- $args := default list .Values.args }}
{{- range $i, $arg := $args }}
{{- range $flag := list "--artifact-addr" "--storage-addr" }}
{{- $address := "" }}
{{- if hasPrefix (printf "%s=" $flag) $arg }}{{ $address = trimPrefix (printf "%s=" $flag) $arg }}{{ end }}
{{- if and (eq $arg $flag) (lt (add1 $i) (len $args)) }}{{ $address = index $args (add1 $i) }}{{ end }}
{{- if $address }}{{ $ports = append $ports (dict "port" (int (last (splitList ":" $address))) "protocol" "TCP") }}{{ end }}
{{- end }}
{{- end }}
{{- toYaml $ports }}
{{- end }}

{{- define "cascade.deployment" -}}
{{- $v := .Values }}
{{- $d := . | dict "file" "manifests/agent/agent.yaml" "root" | include "cascade.file" | splitList "\n---\n" | last | fromYaml }}
{{- $template := $d.spec.template }}
{{- $pod := $template.spec }}
{{- $c := first $pod.containers }}
{{- $_ := set $c "image" (include "cascade.image" .) }}
{{- with $v.imagePullPolicy }}{{ $_ := set $c "imagePullPolicy" . }}{{ end }}
{{- $_ := set $c "args" (concat $c.args (include "cascade.arguments" . | fromYamlArray)) }}
{{- if $v.receiver }}{{ $_ := set $c "ports" (append $c.ports (dict "name" "http-webhook" "containerPort" 9292 "protocol" "TCP")) }}{{ end }}
{{- if kindIs "map" $v.pages }}{{ $_ := set $c "ports" (append $c.ports (dict "name" "https-pages" "containerPort" 8443 "protocol" "TCP")) }}{{ end }}
{{- $onHost := include "cascade.onHost" . }}
{{- $env := list }}
{{- range $c.env }}
{{- if eq .name "CASCADE_IMAGE" }}{{ $_ := set . "value" $c.image }}{{ end }}
{{- if or $onHost (ne .name "CASCADE_CLUSTER_DNS") }}{{ $env = append $env . }}{{ end }}
{{- end }}
{{- $_ := set $c "env" (concat $env (default list $v.env)) }}
{{- range $key, $given := default dict $v.resources }}
{{- $_ := set $c.resources $key (mergeOverwrite (default dict (get $c.resources $key)) $given) }}
{{- end }}
{{- with $v.imagePullSecrets }}{{ $_ := set $pod "imagePullSecrets" . }}{{ end }}
{{- with $v.nodeSelector }}{{ $_ := set $pod "nodeSelector" . }}{{ end }}
{{- with $v.priorityClassName }}{{ $_ := set $pod "priorityClassName" . }}{{ end }}
{{- if not $onHost }}
{{- $pod = omit $pod "hostNetwork" "dnsPolicy" "dnsConfig" }}
{{- range $c.ports }}{{ $_ := set . "hostPort" 0 }}{{ end }}
{{- $dead := dict "key" "node.kubernetes.io/not-ready" "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" 15 }}
{{- $_ := set $pod "tolerations" (prepend (rest $pod.tolerations) $dead) }}
{{- if not (hasKey (default dict $v.storage) "claim") }}{{ $_ := set $d.spec.strategy "rollingUpdate" (dict "maxSurge" 1 "maxUnavailable" 0) }}{{ end }}
{{- end }}
{{- $_ := set $pod "tolerations" (concat $pod.tolerations (default list $v.tolerations)) }}
{{- if gt (int $v.replicas) 1 }}
{{- $_ := set $d.spec "replicas" (int $v.replicas) }}
{{- $spread := dict "maxSkew" 1 "topologyKey" "kubernetes.io/hostname" "whenUnsatisfiable" "ScheduleAnyway" "labelSelector" (dict "matchLabels" (dict "app.kubernetes.io/name" "cascade")) }}
{{- $_ := set $pod "topologySpreadConstraints" (list $spread) }}
{{- end }}
{{- with $v.storage }}
{{- with .sizeLimit }}{{ $_ := set (first $pod.volumes) "emptyDir" (dict "sizeLimit" .) }}{{ end }}
{{- if hasKey . "claim" }}
{{- $claim := default "cascade" .claim.name }}
{{- $_ := set $pod "volumes" (append $pod.volumes (dict "name" "storage" "persistentVolumeClaim" (dict "claimName" $claim))) }}
{{- $_ := set $c "volumeMounts" (append $c.volumeMounts (dict "name" "storage" "mountPath" "/var/lib/cascade")) }}
{{- end }}
{{- end }}
{{- with (default dict $v.pages).certificateSecretRef }}
{{- $_ := set $pod "volumes" (append $pod.volumes (dict "name" "pages-certificate" "secret" (dict "secretName" .name "optional" true))) }}
{{- $_ := set $c "volumeMounts" (append $c.volumeMounts (dict "name" "pages-certificate" "mountPath" "/etc/cascade/pages" "readOnly" true)) }}
{{- end }}
{{- range $v.files }}
{{- $volume := printf "files-%s" .name }}
{{- $_ := set $pod "volumes" (append $pod.volumes (dict "name" $volume "secret" (dict "secretName" .secretRef.name "optional" true))) }}
{{- $_ := set $c "volumeMounts" (append $c.volumeMounts (dict "name" $volume "mountPath" (printf "/etc/cascade/files/%s" .name) "readOnly" true)) }}
{{- end }}
{{- $_ := set $template "spec" $pod }}
{{- $_ := set $template.metadata "labels" (merge $template.metadata.labels (default dict $v.labels)) }}
{{- if eq (default "" $v.metricsAuth) "kubernetes" }}{{ $_ := set $template.metadata.annotations "prometheus.io/scheme" "https" }}{{ end }}
{{- include "cascade.object" (dict "root" . "object" $d) }}
{{- end }}

{{/* An object as it is printed: with the labels of the values. */}}
{{- define "cascade.object" -}}
{{- $_ := set .object.metadata "labels" (merge (default dict .object.metadata.labels) (default dict .root.Values.labels)) }}
---
{{ toYaml .object }}
{{- end }}

{{- define "cascade.binding" -}}
{{- $metadata := dict "name" .role.metadata.name "labels" (dict "app.kubernetes.io/name" "cascade" "app.kubernetes.io/part-of" "flux") }}
{{- with .role.metadata.namespace }}{{ $_ := set $metadata "namespace" . }}{{ end }}
{{- $binding := dict "apiVersion" .role.apiVersion "kind" (printf "%sBinding" .role.kind) "metadata" $metadata
  "roleRef" (dict "apiGroup" "rbac.authorization.k8s.io" "kind" .role.kind "name" .role.metadata.name)
  "subjects" (list (dict "kind" "ServiceAccount" "name" "cascade" "namespace" .root.Values.namespace)) }}
{{- include "cascade.object" (dict "root" .root "object" $binding) }}
{{- end }}

{{/* The roles of a lockdown, each with its binding. */}}
{{- define "cascade.roles" -}}
{{- $root := . }}
{{- $lockdown := default dict .Values.lockdown }}
{{- $text := include "cascade.file" (dict "root" . "file" "manifests/options/lockdown.yaml") }}
{{- if or (eq (default "" .Values.metricsAuth) "kubernetes") (kindIs "map" .Values.pages) }}
{{- $text = printf "%s\n---\n%s" $text (include "cascade.file" (dict "root" . "file" "manifests/options/metrics.yaml")) }}
{{- end }}
{{- range $document := splitList "\n---\n" $text }}
{{- $role := fromYaml $document }}
{{- $needed := true }}
{{- $kinds := get (default dict $role.metadata.annotations) "cascade.dev/controllers" }}
{{- if $kinds }}
{{- $_ := unset $role.metadata "annotations" }}
{{- with $root.Values.controllers }}
{{- $needed = false }}
{{- range . }}{{ if has . (splitList "," $kinds) }}{{ $needed = true }}{{ end }}{{ end }}
{{- end }}
{{- end }}
{{- if and (eq $role.metadata.name "cascade-accounts") $lockdown.impersonates }}
{{- $names := uniq (sortAlpha (append $lockdown.impersonates (default "default" $lockdown.serviceAccount))) }}
{{- range $role.rules }}{{ $_ := set . "resourceNames" $names }}{{ end }}
{{- end }}
{{- if $needed }}
{{ include "cascade.object" (dict "root" $root "object" $role) }}
{{ include "cascade.binding" (dict "root" $root "role" $role) }}
{{- end }}
{{- end }}
{{- end }}
