{{- define "lofamo.name" -}}
{{ .Values.nameOverride | default "lofamo" | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "lofamo.fullname" -}}
{{- $name := include "lofamo.name" . -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}{{ else if contains $name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* The service account of a component. Given: root, component, values. */}}
{{- define "lofamo.serviceAccount" -}}
{{- $own := printf "%s-%s" (include "lofamo.fullname" .root) .component -}}
{{- $account := .values.serviceAccount -}}
{{- if $account.create }}{{ $account.name | default $own }}{{ else }}{{ $account.name | default "default" }}{{ end }}
{{- end }}

{{- define "lofamo.labels" -}}
app.kubernetes.io/name: {{ include "lofamo.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The labels that select pods of a component: they never change. Given: root, component. */}}
{{- define "lofamo.selector" -}}
app.kubernetes.io/name: {{ include "lofamo.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Every required value that is missing, so that one error names them all. */}}
{{- define "lofamo.missing" -}}
{{- $missing := list -}}
{{- if not .Values.inventory }}{{ $missing = append $missing "inventory: given nothing: want the inventory's file: --set-file inventory=inventory.yaml" }}{{ end -}}
{{- if and (not .Values.images.registry) (not .Values.images.repositories) }}{{ $missing = append $missing "images.registry: given nothing: want where 'make images' has put the images, such as registry.example.org/lofamo" }}{{ end -}}
{{- join "; " $missing -}}
{{- end }}

{{/* Given: root, name. */}}
{{- define "lofamo.image" -}}
{{- with include "lofamo.missing" .root }}{{ fail . }}{{ end -}}
{{- $repository := index .root.Values.images.repositories .name -}}
{{- if and (not $repository) (not .root.Values.images.registry) }}{{ fail (printf "images.repositories.%s: given nothing without images.registry: want one of them" .name) }}{{ end -}}
{{ $repository | default (printf "%s/%s" .root.Values.images.registry .name) }}:{{ .root.Values.images.tag | default .root.Chart.AppVersion }}
{{- end }}

{{- define "lofamo.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* The inventory file as YAML; refuses a file that is not YAML. */}}
{{- define "lofamo.given" -}}
{{- if not .Values.inventory }}{{ fail (include "lofamo.missing" .) }}{{ else -}}{{/* 'helm lint' goes on after fail */}}
{{- $inv := fromYaml .Values.inventory -}}
{{- if hasKey $inv "Error" }}{{ fail (printf "inventory: is no YAML: %s" $inv.Error) }}{{ end -}}
{{- range $i, $s := $inv.supervisors }}{{ if $s.ports }}{{ fail (printf "inventory: supervisors[%d].ports: given: want none: replicas of one StatefulSet have the same ports" $i) }}{{ end }}{{ end -}}
{{- with len ($inv.supervisors | default list) }}{{ if not (has . (list 1 3 5)) }}{{ fail (printf "inventory: supervisors: given %d: want 1, 3 or 5" .) }}{{ end }}{{ else }}{{ fail "inventory: supervisors: given none: want 1, 3 or 5" }}{{ end -}}
{{ .Values.inventory }}
{{- end -}}
{{- end }}

{{/* The inventory as the pods get it. */}}
{{- define "lofamo.inventory" -}}
{{- $given := include "lofamo.given" . -}}
{{- $inv := fromYaml $given -}}
{{- if eq .Values.topology.from "labels" -}}
  {{- if $inv.nodes }}{{ fail "topology.from: given labels: the inventory has nodes: want an inventory without nodes, or topology.from: inventory" }}{{ end -}}
  {{- $nodes := list -}}
  {{- range (lookup "v1" "Node" "" "").items -}}
    {{- $node := . -}}
    {{- with index (.metadata.labels | default dict) $.Values.topology.coordLabel -}}
      {{- $address := "" -}}
      {{- range $node.status.addresses }}{{ if and (eq .type "InternalIP") (not $address) }}{{ $address = .address }}{{ end }}{{ end -}}
      {{- if not $address }}{{ fail (printf "topology: node %s has the label %s and no InternalIP" $node.metadata.name $.Values.topology.coordLabel) }}{{ end -}}
      {{- $labels := dict -}}
      {{- range $ours, $theirs := $.Values.topology.labels }}{{ with index $node.metadata.labels $theirs }}{{ $_ := set $labels $ours . }}{{ end }}{{ end -}}
      {{- $n := dict "id" $node.metadata.name "coord" (replace "-" "," .) "service" $address -}}
      {{- if $labels }}{{ $_ := set $n "labels" $labels }}{{ end -}}
      {{- $nodes = append $nodes $n -}}
    {{- end -}}
  {{- end -}}
  {{- if not $nodes }}{{ fail (printf "topology.from: given labels: no node with the label %s is seen: label them ('kubectl label node NAME %s=1-0-1'), and install with Helm itself: 'helm template' alone sees no nodes" .Values.topology.coordLabel .Values.topology.coordLabel) }}{{ end -}}
  {{- $_ := set $inv "nodes" $nodes -}}
  {{- toYaml $inv -}}
{{- else -}}
  {{- if and $given (not $inv.nodes) }}{{ fail "inventory: nodes: given none: want all places of the torus, or topology.from: labels" }}{{ end -}}
  {{- $given -}}
{{- end -}}
{{- end }}

{{/* Ports with their defaults: those of internal/inventory. */}}
{{- define "lofamo.ports" -}}
{{- $inv := fromYaml (include "lofamo.given" .) -}}
{{- toYaml (merge (deepCopy ($inv.ports | default dict)) (dict "service" 7100 "nodeGossip" 7101 "links" 7110 "report" 7945 "grpc" 7946 "http" 7947 "web" 7949 "gossip" 7948 "etcdPeer" 2380 "etcdClient" 2379 "agentHTTP" 0)) -}}
{{- end }}

{{- define "lofamo.gossip" -}}
{{- $inv := fromYaml (include "lofamo.given" .) -}}
{{- if hasKey $inv "gossip" }}{{ if $inv.gossip }}true{{ end }}{{ else }}true{{ end }}
{{- end }}

{{/* The overrides of the configuration made from the inventory. */}}
{{- define "lofamo.supervisorSettings" -}}
{{- $s := dict "dataDir" "/var/lib/lofamo/supervisor/store" -}}
{{- with .Values.supervisors.etcd.endpoints }}{{ $_ := set $s "etcd" (dict "endpoints" .) }}{{ end -}}
{{- if .Values.supervisors.kubernetes.enabled -}}
  {{- $k := dict -}}
  {{- with .Values.supervisors.kubernetes.nodeLabel }}{{ $_ := set $k "nodeLabel" . }}{{ end -}}
  {{- with .Values.supervisors.kubernetes.conditions }}{{ $_ := set $k "conditions" (dict "enabled" (eq . "keep")) }}{{ end -}}
  {{- with .Values.supervisors.kubernetes.evidence }}{{ $_ := set $k "evidence" . }}{{ end -}}
  {{- $_ := set $s "responses" (dict "executors" (dict "kubernetes" $k)) -}}
{{- end -}}
{{- if .Values.executor.enabled -}}
  {{- $s = mergeOverwrite $s (dict "responses" (dict "executors" (dict "process" (dict "address" .Values.executor.address)))) -}}
{{- end -}}
{{- toYaml (mergeOverwrite $s (deepCopy .Values.supervisors.config)) -}}
{{- end }}

{{- define "lofamo.agentSettings" -}}
{{- toYaml (mergeOverwrite (dict "stateDir" .Values.agents.stateDir) (deepCopy .Values.agents.config)) -}}
{{- end }}

{{/* The Secret of a member. Given: prefix, id. */}}
{{- define "lofamo.secretName" -}}
{{ .prefix }}{{ .id | lower | replace "_" "-" }}
{{- end }}

{{/* The Deployment that brings a replica's keys into its volume. Given: name, id. */}}
{{- define "lofamo.keysName" -}}
{{ printf "%s-keys-%s" .name (.id | lower | replace "_" "-") }}
{{- end }}
