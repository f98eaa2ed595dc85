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
{{- include "lofamo.look" . -}}
{{- if not (or .Values.inventory .Values.seen.chosen .Values.seen.nodes) }}{{ $missing = append $missing "inventory: given nothing: want the inventory's file: --set-file inventory=inventory.yaml, or Helm with a connection to the cluster: 'helm template' alone sees no nodes for the supervisors" }}{{ end -}}
{{- if and (not .Values.images.registry) (not .Values.images.repositories) }}{{ $missing = append $missing "images.registry: given nothing: want where 'make images' has put the images, such as registry.example.org/lofamo" }}{{ end -}}
{{- join "; " $missing -}}
{{- end }}

{{/* Given: root, name. */}}
{{- define "lofamo.image" -}}
{{- with include "lofamo.missing" .root }}{{ fail . }}{{ end -}}
{{- $repository := index .root.Values.images.repositories .name -}}
{{- if and (not $repository) (not .root.Values.images.registry) }}{{ fail (printf "images.repositories.%s: given nothing without images.registry: want one of them" .name) }}{{ end -}}
{{ $repository | default (printf "%s/%s" .root.Values.images.registry .name) }}{{ with index .root.Values.images.digests .name }}@{{ . }}{{ else }}:{{ .root.Values.images.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "lofamo.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* Asks the API server once: for the nodes, and for what an earlier installation has chosen. Supervisors keep their nodes, because their
stores are there. */}}
{{- define "lofamo.look" -}}
{{- if not (hasKey .Values "seen") -}}
{{- $chosen := index ((lookup "v1" "ConfigMap" .Release.Namespace (printf "%s-chosen" (include "lofamo.fullname" .))).data | default dict) "chosen.yaml" | default "" -}}
{{- $nodes := list -}}
{{- if not (or $chosen .Values.inventory) }}{{ $nodes = (lookup "v1" "Node" "" "").items | default list }}{{ end -}}
{{- $_ := set .Values "seen" (dict "chosen" $chosen "nodes" $nodes) -}}
{{- end -}}
{{- end }}

{{/* The inventory of a cluster whose nodes enrol, with supervisors on nodes of Kubernetes. The key nodes maps supervisors to them. */}}
{{- define "lofamo.automatic" -}}
{{- $a := .Values.automatic -}}
{{- include "lofamo.look" . -}}
{{- if .Values.seen.chosen }}{{ .Values.seen.chosen }}{{ else -}}
  {{- $control := list -}}{{- $others := list -}}
  {{- range .Values.seen.nodes -}}
    {{- $labels := .metadata.labels | default dict -}}
    {{- $fits := and (not .spec.unschedulable) (eq (index $labels "kubernetes.io/os" | default "linux") "linux") -}}
    {{- range $key, $value := $a.nodeSelector }}{{ if ne (index $labels $key | default "") $value }}{{ $fits = false }}{{ end }}{{ end -}}
    {{- $ready := false -}}
    {{- range .status.conditions }}{{ if and (eq .type "Ready") (eq .status "True") }}{{ $ready = true }}{{ end }}{{ end -}}
    {{- $address := "" -}}
    {{- range .status.addresses }}{{ if and (eq .type "InternalIP") (not $address) }}{{ $address = .address }}{{ end }}{{ end -}}
    {{- if and $fits $ready $address -}}
      {{- $n := dict "host" (index $labels "kubernetes.io/hostname" | default .metadata.name) "address" $address -}}
      {{- if hasKey $labels "node-role.kubernetes.io/control-plane" }}{{ $control = append $control $n }}{{ else }}{{ $others = append $others $n }}{{ end -}}
    {{- end -}}
  {{- end -}}
  {{- $count := int $a.supervisors -}}
  {{- if not (has $count (list 1 3 5)) }}{{ fail (printf "automatic.supervisors: given %v: want 1, 3 or 5" $a.supervisors) }}{{ end -}}
  {{- $all := concat $control $others -}}
  {{- if not $all }}{{ fail (include "lofamo.missing" . | default "automatic.nodeSelector: no node fits: want at least one node with these labels that is Ready, not cordoned, runs Linux and has an InternalIP") }}{{ else -}}{{/* 'helm lint' goes on after fail */}}
  {{- if lt (len $all) $count }}{{ $count = ternary 3 1 (ge (len $all) 3) }}{{ end -}}
  {{- $supervisors := list -}}{{- $nodes := dict -}}
  {{- range $i := until $count -}}
    {{- $n := index $all $i -}}
    {{- $id := printf "s%d" (add $i 1) -}}
    {{- $supervisors = append $supervisors (dict "id" $id "address" $n.address) -}}
    {{- $_ := set $nodes $id $n.host -}}
  {{- end -}}
  {{- toYaml (dict "supervisors" $supervisors "nodes" $nodes) -}}
  {{- end -}}
{{- end -}}
{{- end }}

{{/* The inventory file as YAML; refuses a file that is not YAML. */}}
{{- define "lofamo.given" -}}
{{- if not .Values.inventory -}}
{{- $a := .Values.automatic -}}
{{- $chosen := fromYaml (include "lofamo.automatic" .) -}}
{{- $inv := dict "cluster" $a.cluster "dims" "0x0x0" "preset" $a.preset "supervisors" $chosen.supervisors "ports" $a.ports -}}
{{- with $a.domainLabels }}{{ $_ := set $inv "domainLabels" . }}{{ end -}}
{{- toYaml $inv -}}
{{- else -}}
{{- $inv := fromYaml .Values.inventory -}}
{{- if hasKey $inv "Error" }}{{ fail (printf "inventory: is no YAML: %s" $inv.Error) }}{{ end -}}
{{- range $i, $s := $inv.supervisors }}{{ if $s.ports }}{{ fail (printf "inventory: supervisors[%d].ports: given: want none: replicas of one StatefulSet have the same ports" $i) }}{{ end }}{{ end -}}
{{- with len ($inv.supervisors | default list) }}{{ if not (has . (list 1 3 5)) }}{{ fail (printf "inventory: supervisors: given %d: want 1, 3 or 5" .) }}{{ end }}{{ else }}{{ fail "inventory: supervisors: given none: want 1, 3 or 5" }}{{ end -}}
{{- if and (ne .Values.topology.from "labels") (not $inv.nodes) (kindIs "bool" $inv.enrolment) (not $inv.enrolment) }}{{ fail "inventory: enrolment: given false without nodes: want true, or nodes, because agents' pods make their nodes enrol" }}{{ end -}}
{{ .Values.inventory }}
{{- end -}}
{{- end }}

{{/* "true" if the agents' pods make their nodes enrol: the inventory has none. */}}
{{- define "lofamo.enrol" -}}
{{- if and (ne .Values.topology.from "labels") (not (fromYaml (include "lofamo.given" .)).nodes) -}}
{{- if semverCompare "<1.32-0" .Capabilities.KubeVersion.Version }}{{ fail (printf "inventory: nodes: given none on Kubernetes %s: want 1.32 or later, whose tokens name the node of a pod, or an inventory with nodes" .Capabilities.KubeVersion.Version) }}{{ end -}}
true
{{- end -}}
{{- end }}

{{/* "true" if supervisors admit nodes that the inventory does not list. They need the issuer for that. */}}
{{- define "lofamo.admits" -}}
{{- if or (include "lofamo.enrol" .) (fromYaml (include "lofamo.given" .)).enrolment }}true{{ end -}}
{{- end }}

{{/* The nodes of Kubernetes by the ids of their supervisors, as YAML. */}}
{{- define "lofamo.supervisorNodes" -}}
{{- $given := .Values.supervisors.nodes | default dict -}}
{{- if .Values.inventory }}{{ toYaml $given }}{{ else }}{{ toYaml (merge (deepCopy $given) ((fromYaml (include "lofamo.automatic" .)).nodes | default dict)) }}{{ end -}}
{{- end }}

{{/* The kind of the supervisors' volumes. */}}
{{- define "lofamo.volume" -}}
{{ .Values.supervisors.persistence.volume | default (ternary "local" "hostPath" (not (not .Values.inventory))) }}
{{- end }}

{{/* Where supervisors' keys come from. */}}
{{- define "lofamo.keysFrom" -}}
{{- $from := .Values.supervisors.keys.from | default (ternary "secrets" "job" (not (not .Values.inventory))) -}}
{{- if not (has $from (list "secrets" "cert-manager" "job")) }}{{ fail (printf "supervisors.keys.from: given %s: want secrets, cert-manager or job" $from) }}{{ end -}}
{{- $enrol := include "lofamo.enrol" . -}}
{{- if and $enrol (eq $from "cert-manager") }}{{ fail "supervisors.keys.from: given cert-manager, and the inventory has no nodes: want job or secrets: nodes that enrol need an issuer that supervisors have" }}{{ end -}}
{{- if and (not $enrol) (include "lofamo.admits" .) (eq $from "cert-manager") }}{{ fail "supervisors.keys.from: given cert-manager, and the inventory has enrolment: true: want secrets, because nodes that enrol need an issuer that supervisors have" }}{{ end -}}
{{- if and (not $enrol) (eq $from "job") }}{{ fail "supervisors.keys.from: given job, and the inventory has nodes: want secrets or cert-manager: the job makes no keys of nodes" }}{{ end -}}
{{- $from -}}
{{- end }}

{{/* The Secret of a supervisor. Given: root, id. */}}
{{- define "lofamo.supervisorSecret" -}}
{{- $prefix := .root.Values.supervisors.keys.secretPrefix -}}
{{- if eq (include "lofamo.keysFrom" .root) "job" }}{{ $prefix = printf "%s-supervisor-" (include "lofamo.fullname" .root) }}{{ end -}}
{{- include "lofamo.secretName" (dict "prefix" $prefix "id" .id) -}}
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
  {{- $given -}}
{{- end -}}
{{- end }}

{{/* Ports with their defaults: those of internal/inventory. */}}
{{- define "lofamo.ports" -}}
{{- $inv := fromYaml (include "lofamo.given" .) -}}
{{- toYaml (merge (deepCopy ($inv.ports | default dict)) (dict "service" 7100 "nodeGossip" 7101 "links" 7110 "enrolment" 7944 "report" 7945 "grpc" 7946 "http" 7947 "web" 7949 "gossip" 7948 "etcdPeer" 2380 "etcdClient" 2379 "agentHTTP" 0)) -}}
{{- end }}

{{- define "lofamo.gossip" -}}
{{- $inv := fromYaml (include "lofamo.given" .) -}}
{{- if hasKey $inv "gossip" }}{{ if $inv.gossip }}true{{ end }}{{ else }}true{{ end }}
{{- end }}

{{/* Not empty: the supervisors work with custom resources. */}}
{{- define "lofamo.objects" -}}
{{- if or .Values.supervisors.kubernetes.faults .Values.supervisors.kubernetes.policies }}true{{ end -}}
{{- end }}

{{/* Refuses ports of supervisors.config that differ from the inventory's, which probes, Services and other members use. Gossip is
optional. */}}
{{- define "lofamo.checkPorts" -}}
{{- $ports := fromYaml (include "lofamo.ports" .) -}}
{{- $c := .Values.supervisors.config | default dict -}}
{{- $given := dict -}}
{{- range $key, $port := dict "http" "http" "grpc" "grpc" "report" "report" "gossipListen" "gossip" -}}
  {{- $_ := set $given $key (list (index $c $key) $port) -}}
{{- end -}}
{{- with $c.enrolment }}{{ if kindIs "map" . }}{{ $_ := set $given "enrolment.listen" (list .listen "enrolment") }}{{ end }}{{ end -}}
{{- range $key, $pair := $given -}}
  {{- $at := index $pair 0 -}}{{- $name := index $pair 1 -}}
  {{- $without := and (eq (toString $at) "") (or (eq $name "gossip") (and (eq $name "enrolment") (not (include "lofamo.admits" $)))) -}}
  {{- if not (or (kindIs "invalid" $at) $without (eq (regexReplaceAll "^.*:" (toString $at) "") (index $ports $name | toString))) -}}
    {{- fail (printf "supervisors.config.%s: given %s: want port %v, which ports.%s of the inventory (or automatic.ports) changes for all members" $key (toString $at | default "nothing") (index $ports $name) $name) -}}
  {{- end -}}
{{- end -}}
{{- end }}

{{/* The overrides of the configuration made from the inventory. */}}
{{- define "lofamo.supervisorSettings" -}}
{{- $s := dict "dataDir" "/var/lib/lofamo/supervisor/store" -}}
{{- with .Values.supervisors.etcd.endpoints }}{{ $_ := set $s "etcd" (dict "endpoints" .) }}{{ end -}}
{{- if include "lofamo.enrol" . -}}
  {{- $account := include "lofamo.serviceAccount" (dict "root" . "component" "agent" "values" .Values.agents) -}}
  {{- $_ := set $s "enrolment" (dict "kubernetes" (dict "audience" (include "lofamo.audience" .) "serviceAccounts" (list (printf "%s/%s" .Release.Namespace $account)) "forgetNodes" true)) -}}
{{- end -}}
{{- if .Values.supervisors.kubernetes.enabled -}}
  {{- $k := dict -}}
  {{- with .Values.supervisors.kubernetes.nodeLabel }}{{ $_ := set $k "nodeLabel" . }}{{ end -}}
  {{- with .Values.supervisors.kubernetes.conditions }}{{ $_ := set $k "conditions" (dict "enabled" (eq . "keep")) }}{{ end -}}
  {{- with .Values.supervisors.kubernetes.evidence }}{{ $_ := set $k "evidence" . }}{{ end -}}
  {{- $_ := set $s "responses" (dict "executors" (dict "kubernetes" $k)) -}}
{{- end -}}
{{- if include "lofamo.objects" . -}}
  {{- $o := dict "namespace" .Release.Namespace "faults" .Values.supervisors.kubernetes.faults -}}
  {{- if .Values.supervisors.kubernetes.policies }}{{ $_ := set $o "policies" true }}{{ end -}}
  {{- $_ := set $s "kubernetes" $o -}}
{{- end -}}
{{- if .Values.executor.enabled -}}
  {{- $s = mergeOverwrite $s (dict "responses" (dict "executors" (dict "process" (dict "address" .Values.executor.address)))) -}}
{{- end -}}
{{- include "lofamo.checkPorts" . -}}
{{- toYaml (mergeOverwrite $s (deepCopy .Values.supervisors.config)) -}}
{{- end }}

{{/* The audience of the tokens with which agents enrol. */}}
{{- define "lofamo.audience" -}}
{{ (fromYaml (include "lofamo.given" .)).cluster }}.lofamo.io
{{- end }}

{{/* The key join of the agents' configuration. */}}
{{- define "lofamo.join" -}}
{{- $ports := fromYaml (include "lofamo.ports" .) -}}
{{- $at := list -}}
{{- range (fromYaml (include "lofamo.given" .)).supervisors }}{{ $at = append $at (printf (ternary "[%s]:%v" "%s:%v" (contains ":" .address)) .address $ports.enrolment) }}{{ end -}}
{{- toYaml (dict "supervisors" $at "serviceAccountTokenFile" "/etc/lofamo/token" "ca" "/etc/lofamo/ca.pem" "ports" (dict "service" $ports.service "gossip" $ports.nodeGossip "links" $ports.links)) -}}
{{- end }}

{{- define "lofamo.agentSettings" -}}
{{- $settings := dict "stateDir" .Values.agents.stateDir -}}
{{- if include "lofamo.enrol" . -}}
  {{- $_ := set $settings "join" (fromYaml (include "lofamo.join" .)) -}}
  {{- $supervisors := (fromYaml (include "lofamo.given" .)).supervisors | default (list dict) -}}{{/* 'helm lint' goes on after fail */}}
  {{- $first := (index $supervisors 0).address | default "" -}}
  {{- with (fromYaml (include "lofamo.ports" .)).agentHTTP }}{{ $_ := set $settings "http" (printf (ternary "[::]:%v" "0.0.0.0:%v" (contains ":" $first)) .) }}{{ end -}}
{{- end -}}
{{- toYaml (mergeOverwrite $settings (deepCopy .Values.agents.config)) -}}
{{- end }}

{{/* The Secret of a member. Given: prefix, id. */}}
{{- define "lofamo.secretName" -}}
{{ .prefix }}{{ .id | lower | replace "_" "-" }}
{{- end }}

{{/* The Deployment that brings a replica's keys into its volume. Given: name, id. */}}
{{- define "lofamo.keysName" -}}
{{ printf "%s-keys-%s" .name (.id | lower | replace "_" "-") }}
{{- end }}
