{{/*
Names and metadata. The cluster charts have the same copy of this file; a test
keeps them equal.
*/}}

{{/*
cluster.name is the name of the cluster and of its main objects. Everything else
is named after it, so it is short enough for the longest of those names.
*/}}
{{- define "cluster.name" -}}
{{- $name := .Values.name | default .Release.Name -}}
{{- if or (gt (len $name) 40) (not (regexMatch "^[a-z]([a-z0-9-]*[a-z0-9])?$" $name)) -}}
{{- fail (printf "cannot name a cluster %q: a name has at most 40 lower case letters, digits and dashes, begins with a letter and does not end with a dash; set the value name" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/*
cluster.metadata is the metadata of an object. The argument has root, name and,
if wanted, labels, annotations, keep and confirmed.

keep leaves the deletion of the object to Cluster API, which deletes what belongs
to a cluster in the right order: Helm only deletes what begins a deletion.
confirmed says that the object may be deleted by whoever maintains it from Git.
*/}}
{{- define "cluster.metadata" -}}
{{- $metadata := dict "name" .name "namespace" .root.Release.Namespace -}}
{{- $labels := merge (dict) (.labels | default dict) -}}
{{- $annotations := merge (dict) (.annotations | default dict) -}}
{{- if .keep -}}
{{- $_ := set $annotations "helm.sh/resource-policy" "keep" -}}
{{- end -}}
{{- if or .confirmed (eq (.root.Values.deletion | default "") "confirmed") -}}
{{- $_ := set $annotations "cascade.dev/deletion" "confirmed" -}}
{{- end -}}
{{- if $labels -}}{{- $_ := set $metadata "labels" $labels -}}{{- end -}}
{{- if $annotations -}}{{- $_ := set $metadata "annotations" $annotations -}}{{- end -}}
metadata:
  {{- toYaml $metadata | nindent 2 }}
{{- end -}}

{{/*
cluster.clusterMetadata is the metadata of the Cluster: what layers select by, and
the variables that they are rendered with.
*/}}
{{- define "cluster.clusterMetadata" -}}
{{- $annotations := merge (dict) (.Values.annotations | default dict) -}}
{{- range $name, $value := .Values.variables -}}
{{- $_ := set $annotations (printf "vars.cascade.dev/%s" $name) $value -}}
{{- end -}}
{{- include "cluster.metadata" (dict "root" . "name" (include "cluster.name" .) "labels" .Values.labels "annotations" $annotations) -}}
{{- end -}}
