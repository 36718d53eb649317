{{/* azure.resourceGroup is the name of the cluster's resource group. */}}
{{- define "azure.resourceGroup" -}}
{{- .Values.resourceGroup | default (include "cluster.name" .) -}}
{{- end -}}

{{/*
azure.dnsServiceIP is the address of DNS on AKS: the tenth of the services', as
AKS has it by default.
*/}}
{{- define "azure.dnsServiceIP" -}}
{{- $aks := .Values.controlPlane.aks | default dict -}}
{{- if $aks.dnsServiceIP -}}
{{- $aks.dnsServiceIP -}}
{{- else if regexMatch "\\.0/[0-9]+$" .Values.network.services -}}
{{- regexReplaceAll "\\.0/[0-9]+$" .Values.network.services ".10" -}}
{{- else -}}
{{- fail (printf "cannot tell the address of DNS from network.services %s; set controlPlane.aks.dnsServiceIP" .Values.network.services) -}}
{{- end -}}
{{- end -}}

{{/* azure.checkIdentity fails if an identity names others without being one of them. */}}
{{- define "azure.checkIdentity" -}}
{{- if and .ids (ne (.type | default "") "UserAssigned") -}}
{{- fail "an identity with ids is of type UserAssigned" -}}
{{- end -}}
{{- end -}}

{{/*
azure.machineTemplateSpec is the spec of an AzureMachineTemplate. The argument has
root and machine, which is a pool or a control plane, and role: node or
control-plane.
*/}}
{{- define "azure.machineTemplateSpec" -}}
{{- $machine := .machine -}}
{{- $disk := $machine.disk | default dict -}}
{{- $identity := $machine.identity | default dict -}}
{{- include "azure.checkIdentity" $identity -}}
template:
  spec:
    vmSize: {{ $machine.vmSize }}
    {{- /* Not even empty: the provider fills it in, once. */}}
    {{- with .root.Values.sshPublicKey }}
    sshPublicKey: {{ . | quote }}
    {{- end }}
    {{- with $machine.image }}
    image:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    osDisk:
      osType: Linux
      diskSizeGB: {{ $disk.size | default 128 | int }}
      {{- if $disk.ephemeral }}
      cachingType: ReadOnly
      diffDiskSettings:
        option: Local
      {{- else }}
      managedDisk:
        storageAccountType: {{ $disk.type | default "Premium_LRS" }}
        {{- with $disk.encryptionSetID }}
        diskEncryptionSet:
          id: {{ . }}
        {{- end }}
      {{- end }}
    {{- if eq .role "control-plane" }}
    dataDisks:
      - nameSuffix: etcd
        lun: 0
        diskSizeGB: {{ dig "etcdDisk" "size" 64 $machine | int }}
        cachingType: None
        managedDisk:
          storageAccountType: {{ dig "etcdDisk" "type" "Premium_LRS" $machine }}
    {{- end }}
    {{- if $machine.encryptionAtHost }}
    securityProfile:
      encryptionAtHost: true
    {{- end }}
    {{- if ne ($identity.type | default "None") "None" }}
    identity: {{ $identity.type }}
    {{- end }}
    {{- with $identity.ids }}
    userAssignedIdentities:
      {{- range . }}
      - providerID: {{ printf "azure:///%s" (trimPrefix "/" .) }}
      {{- end }}
    {{- end }}
    {{- if $machine.spot }}
    spotVMOptions:
      evictionPolicy: Delete
      {{- with $machine.spotMaxPrice }}
      maxPrice: {{ . | quote }}
      {{- end }}
    {{- end }}
    {{- if hasKey $machine "acceleratedNetworking" }}
    networkInterfaces:
      - acceleratedNetworking: {{ $machine.acceleratedNetworking }}
        privateIPConfigs: 1
    {{- end }}
    {{- with $machine.tags }}
    additionalTags:
      {{- toYaml . | nindent 6 }}
    {{- end }}
{{- end -}}

{{/*
azure.kubeletArgs is the map of arguments of a self-managed node. The argument has
labels and args; what a person says wins.
*/}}
{{- define "azure.kubeletArgs" -}}
{{- $args := dict "cloud-provider" "external" -}}
{{- with include "cluster.nodeLabels" .labels -}}
{{- $_ := set $args "node-labels" . -}}
{{- end -}}
{{- toYaml (mergeOverwrite $args (.args | default dict)) -}}
{{- end -}}

{{/* azure.nodeRegistration is how kubeadm registers a node. */}}
{{- define "azure.nodeRegistration" -}}
name: {{ "{{ ds.meta_data[\"local_hostname\"] }}" | squote }}
kubeletExtraArgs:
  {{- include "cluster.args" (include "azure.kubeletArgs" . | fromYaml) | trim | nindent 2 }}
{{- with .taints }}
taints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/*
azure.files is a list of files for kubeadm's machines. The argument has template,
the name of the AzureMachineTemplate, by which the provider names the Secret with
the configuration of the cloud provider, role, and files.
*/}}
{{- define "azure.files" -}}
- path: /etc/kubernetes/azure.json
  owner: root:root
  permissions: "0644"
  contentFrom:
    secret:
      name: {{ .template }}-azure-json
      key: {{ .role }}-azure.json
{{- range .files }}
- path: {{ .path }}
  owner: {{ .owner | default "root:root" }}
  permissions: {{ .permissions | default "0644" | quote }}
  {{- if .secret }}
  contentFrom:
    secret:
      name: {{ .secret.name }}
      key: {{ .secret.key }}
  {{- else }}
  content: {{ .content | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* azure.joinSpec is the spec of the KubeadmConfigTemplate of a pool. */}}
{{- define "azure.joinSpec" -}}
template:
  spec:
    joinConfiguration:
      nodeRegistration:
        {{- include "azure.nodeRegistration" (dict "labels" .pool.labels "taints" .pool.taints "args" .pool.kubeletArgs) | nindent 8 }}
    files:
      {{- include "azure.files" (dict "template" .template "role" "worker-node" "files" .pool.files) | nindent 6 }}
    {{- with .pool.preKubeadmCommands }}
    preKubeadmCommands:
      {{- toYaml . | nindent 6 }}
    {{- end }}
{{- end -}}

{{/* azure.credential is the annotation that names the credentials of an ASO object. */}}
{{- define "azure.credential" -}}
annotations:
  serviceoperator.azure.com/credential-from: {{ .Values.identity.name }}
{{- end -}}

{{/* azure.check fails if values do not go together; what one value may be says the schema. */}}
{{- define "azure.check" -}}
{{- $values := .Values -}}
{{- $aks := eq $values.controlPlane.type "aks" -}}
{{- if and (not $aks) (not $values.subscriptionID) -}}
{{- fail "subscriptionID is needed for a self-managed control plane" -}}
{{- end -}}
{{- if and $values.network.private $values.network.publicCIDRs -}}
{{- fail "network.publicCIDRs is set, but network.private says that there is no public endpoint" -}}
{{- end -}}
{{- if and (not $aks) $values.network.publicCIDRs -}}
{{- fail "network.publicCIDRs applies to AKS only; a self-managed cluster has the rules of its control plane's subnet" -}}
{{- end -}}
{{- if and $aks $values.network.vnet -}}
{{- fail "network.vnet applies to self-managed control planes only; on AKS set network.subnetID to a subnet that is there" -}}
{{- end -}}
{{- if and (not $aks) $values.network.subnetID -}}
{{- fail "network.subnetID applies to AKS only; a self-managed cluster has network.vnet" -}}
{{- end -}}
{{- $system := false -}}
{{- range $name, $pool := $values.pools -}}
{{- include "cluster.checkPool" (dict "name" $name "pool" $pool) -}}
{{- if and $pool.spotMaxPrice (not $pool.spot) -}}
{{- fail (printf "pools.%s.spotMaxPrice is set, but spot is not" $name) -}}
{{- end -}}
{{- if $aks -}}
{{- if or (gt (len $name) 12) (contains "-" $name) -}}
{{- fail (printf "cannot name a pool of AKS %q: a name has at most 12 lower case letters and digits" $name) -}}
{{- end -}}
{{- include "cluster.checkFields" (dict "name" $name "pool" $pool "fields" (list "image" "identity" "acceleratedNetworking" "kubeletArgs" "files" "preKubeadmCommands" "maxUnavailable" "drainSeconds" "healthCheck") "to" "self-managed control planes") -}}
{{- if eq ($pool.mode | default "User") "System" -}}
{{- $system = true -}}
{{- if $pool.spot -}}
{{- fail (printf "pools.%s is of mode System, which cannot be spot" $name) -}}
{{- end -}}
{{- if and (hasKey $pool "min") (lt (int $pool.min) 1) -}}
{{- fail (printf "pools.%s is of mode System, which needs min of 1 at least" $name) -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- include "cluster.checkFields" (dict "name" $name "pool" $pool "fields" (list "mode" "maxPods" "os") "to" "AKS") -}}
{{- end -}}
{{- end -}}
{{- if and $aks (not $system) -}}
{{- fail "AKS needs a pool of mode System: set pools.<name>.mode" -}}
{{- end -}}
{{- end -}}
