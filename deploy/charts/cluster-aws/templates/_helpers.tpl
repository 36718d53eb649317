{{/* aws.managed is not empty if a pool is one of EKS's managed node groups. */}}
{{- define "aws.managed" -}}
{{- if eq (.pool.type | default (ternary "managed" "machines" (eq .root.Values.controlPlane.type "eks"))) "managed" -}}
yes
{{- end -}}
{{- end -}}

{{/* aws.eksVersion is a version as EKS has it, without the patch. */}}
{{- define "aws.eksVersion" -}}
{{- regexFind "^v[0-9]+\\.[0-9]+" . -}}
{{- end -}}

{{/* aws.network is the network of AWSCluster and AWSManagedControlPlane. */}}
{{- define "aws.network" -}}
{{- $network := .Values.network -}}
vpc:
  {{- if $network.vpc.id }}
  id: {{ $network.vpc.id }}
  {{- else }}
  cidrBlock: {{ $network.vpc.cidr | default "10.0.0.0/16" }}
  availabilityZoneUsageLimit: {{ $network.vpc.availabilityZones | default 3 | int }}
  {{- end }}
{{- with $network.subnets }}
subnets:
  {{- range . }}
  - id: {{ .id }}
    {{- with .zone }}
    availabilityZone: {{ . }}
    {{- end }}
    {{- with .cidr }}
    cidrBlock: {{ . }}
    {{- end }}
    {{- if .public }}
    isPublic: true
    {{- end }}
    {{- with .tags }}
    tags:
      {{- toYaml . | nindent 6 }}
    {{- end }}
  {{- end }}
{{- end }}
{{- with $network.cniIngressRules }}
cni:
  cniIngressRules:
    {{- range . }}
    - description: {{ .description | quote }}
      protocol: {{ .protocol | quote }}
      fromPort: {{ .fromPort | int }}
      toPort: {{ .toPort | int }}
    {{- end }}
{{- end }}
{{- with $network.nodePortCIDRs }}
nodePortIngressRuleCidrBlocks:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/*
aws.machineTemplateSpec is the spec of an AWSMachineTemplate. The argument has root
and machine, which is a pool or a control plane, and the default instanceProfile.
*/}}
{{- define "aws.machineTemplateSpec" -}}
{{- $machine := .machine -}}
{{- $disk := $machine.disk | default dict -}}
{{- $type := $disk.type | default "gp3" -}}
{{- if and $disk.throughput (ne $type "gp3") -}}
{{- fail (printf "a disk of type %s has no throughput, which only gp3 has" $type) -}}
{{- end -}}
{{- if and $disk.iops (eq $type "gp2") -}}
{{- fail "a disk of type gp2 has no iops" -}}
{{- end -}}
template:
  spec:
    instanceType: {{ $machine.instanceType }}
    iamInstanceProfile: {{ $machine.instanceProfile | default .instanceProfile }}
    sshKeyName: {{ .root.Values.sshKeyName | quote }}
    instanceMetadataOptions:
      httpEndpoint: enabled
      httpTokens: required
      httpPutResponseHopLimit: {{ $machine.metadataHops | default 1 | int }}
    {{- $image := $machine.image | default dict }}
    {{- if $image.id }}
    ami:
      id: {{ $image.id }}
    {{- else if eq .root.Values.controlPlane.type "eks" }}
    ami:
      eksLookupType: AmazonLinux2023
    {{- else }}
    {{- with $image.format }}
    imageLookupFormat: {{ . | quote }}
    {{- end }}
    {{- with $image.owner }}
    imageLookupOrg: {{ . | quote }}
    {{- end }}
    {{- with $image.os }}
    imageLookupBaseOS: {{ . | quote }}
    {{- end }}
    {{- end }}
    rootVolume:
      size: {{ $disk.size | default 80 | int }}
      type: {{ $type }}
      {{- with $disk.iops }}
      iops: {{ . | int }}
      {{- end }}
      {{- with $disk.throughput }}
      throughput: {{ . | int }}
      {{- end }}
      encrypted: {{ dig "encrypted" true $disk }}
      {{- with $disk.kmsKey }}
      encryptionKey: {{ . }}
      {{- end }}
    {{- if $machine.spot }}
    spotMarketOptions:
      {{- with $machine.spotMaxPrice }}
      maxPrice: {{ . | quote }}
      {{- else }} {}
      {{- end }}
    {{- end }}
    {{- with $machine.securityGroups }}
    additionalSecurityGroups:
      {{- range . }}
      - id: {{ . }}
      {{- end }}
    {{- end }}
    {{- with $machine.tags }}
    additionalTags:
      {{- toYaml . | nindent 6 }}
    {{- end }}
{{- end -}}

{{/*
aws.kubeletArgs is the map of arguments of a self-managed node. The argument has
labels and args; what a person says wins.
*/}}
{{- define "aws.kubeletArgs" -}}
{{- $args := dict "cloud-provider" "external" -}}
{{- with include "cluster.nodeLabels" .labels -}}
{{- $_ := set $args "node-labels" . -}}
{{- end -}}
{{- toYaml (mergeOverwrite $args (.args | default dict)) -}}
{{- end -}}

{{/* aws.nodeRegistration is how kubeadm registers a node. */}}
{{- define "aws.nodeRegistration" -}}
name: "{{ "{{ ds.meta_data.local_hostname }}" }}"
kubeletExtraArgs:
  {{- include "cluster.args" (include "aws.kubeletArgs" . | fromYaml) | trim | nindent 2 }}
{{- with .taints }}
taints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* aws.files is a list of files for kubeadm's machines. */}}
{{- define "aws.files" -}}
{{- range . }}
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

{{/* aws.joinSpec is the spec of the KubeadmConfigTemplate of a pool. */}}
{{- define "aws.joinSpec" -}}
template:
  spec:
    joinConfiguration:
      nodeRegistration:
        {{- include "aws.nodeRegistration" (dict "labels" .labels "taints" .taints "args" .kubeletArgs) | nindent 8 }}
    {{- with .files }}
    files:
      {{- include "aws.files" . | trim | nindent 6 }}
    {{- end }}
    {{- with .preKubeadmCommands }}
    preKubeadmCommands:
      {{- toYaml . | nindent 6 }}
    {{- end }}
{{- end -}}

{{/* aws.nodeadmSpec is the spec of the NodeadmConfigTemplate of a pool on EKS. */}}
{{- define "aws.nodeadmSpec" -}}
{{- $flags := list -}}
{{- with include "cluster.nodeLabels" .labels -}}
{{- $flags = append $flags (printf "--node-labels=%s" .) -}}
{{- end -}}
{{- $taints := list -}}
{{- range .taints -}}
{{- $taints = append $taints (printf "%s=%s:%s" .key (.value | default "") .effect) -}}
{{- end -}}
{{- with $taints -}}
{{- $flags = append $flags (printf "--register-with-taints=%s" (join "," .)) -}}
{{- end -}}
{{- range $name, $value := .kubeletArgs -}}
{{- $flags = append $flags (printf "--%s=%s" $name $value) -}}
{{- end -}}
template:
  spec:
    {{- with $flags }}
    kubelet:
      flags:
        {{- toYaml . | nindent 8 }}
    {{- else }} {}
    {{- end }}
{{- end -}}

{{/* aws.check fails if values do not go together; what one value may be says the schema. */}}
{{- define "aws.check" -}}
{{- $values := .Values -}}
{{- $eks := eq $values.controlPlane.type "eks" -}}
{{- if and (not $eks) (not (regexMatch "^v[0-9]+\\.[0-9]+\\.[0-9]+$" $values.version)) -}}
{{- fail (printf "version %s lacks the patch, which a self-managed control plane needs, as in %s.0" $values.version $values.version) -}}
{{- end -}}
{{- if and $values.network.private $values.network.publicCIDRs -}}
{{- fail "network.publicCIDRs is set, but network.private says that there is no public endpoint" -}}
{{- end -}}
{{- if and $values.network.vpc.id (or $values.network.vpc.cidr $values.network.vpc.availabilityZones) -}}
{{- fail "network.vpc.id names a VPC that is there: cidr and availabilityZones are for one that is to be made" -}}
{{- end -}}
{{- if and $values.network.vpc.id (not $values.network.subnets) -}}
{{- fail "network.vpc.id names a VPC that is there: name its subnets in network.subnets too" -}}
{{- end -}}
{{- if and $values.network.secondaryCIDR (not $eks) -}}
{{- fail "network.secondaryCIDR, for the addresses of pods, applies to EKS only" -}}
{{- end -}}
{{- if and $values.network.pods $eks -}}
{{- fail "network.pods applies to self-managed control planes only: EKS takes the addresses of pods from the VPC, or from network.secondaryCIDR" -}}
{{- end -}}
{{- range $name, $pool := $values.pools -}}
{{- include "cluster.checkPool" (dict "name" $name "pool" $pool) -}}
{{- $managed := include "aws.managed" (dict "root" $ "pool" $pool) -}}
{{- if and $managed (not $eks) -}}
{{- fail (printf "pools.%s.type is managed, which only EKS has" $name) -}}
{{- end -}}
{{- range $pool.zones -}}
{{- if not (hasPrefix $values.region .) -}}
{{- fail (printf "pools.%s.zones has %s, which is not in region %s" $name . $values.region) -}}
{{- end -}}
{{- end -}}
{{- if and $pool.version $eks (not $managed) (not (regexMatch "^v[0-9]+\\.[0-9]+" $pool.version)) -}}
{{- fail (printf "pools.%s.version %s is no version" $name $pool.version) -}}
{{- end -}}
{{- if $managed -}}
{{- include "cluster.checkFields" (dict "name" $name "pool" $pool "fields" (list "image" "instanceProfile" "securityGroups" "spotMaxPrice" "metadataHops" "kubeletArgs" "files" "preKubeadmCommands" "maxSurge" "drainSeconds" "healthCheck") "to" "pools of type machines") -}}
{{- range $field := list "type" "iops" "throughput" "encrypted" "kmsKey" -}}
{{- if hasKey ($pool.disk | default dict) $field -}}
{{- fail (printf "pools.%s.disk.%s applies to pools of type machines only" $name $field) -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- include "cluster.checkFields" (dict "name" $name "pool" $pool "fields" (list "amiType" "roleName" "subnetIDs") "to" "pools of type managed") -}}
{{- if and $pool.spotMaxPrice (not $pool.spot) -}}
{{- fail (printf "pools.%s.spotMaxPrice is set, but spot is not" $name) -}}
{{- end -}}
{{- if and $eks (or $pool.files $pool.preKubeadmCommands) -}}
{{- fail (printf "pools.%s has files or preKubeadmCommands, which need kubeadm; on EKS there is none" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
