{{- /* Names, labels, and the two configuration files. */ -}}

{{- define "lineside.name" -}}
{{- if contains "lineside" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-lineside" (.Release.Name | trunc 31 | trimSuffix "-") }}{{ end }}
{{- end }}

{{- /* Takes (list . COMPONENT). */ -}}
{{- define "lineside.selector" -}}
app.kubernetes.io/name: lineside
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- /* Our pods of a component, as a peer in any namespace's NetworkPolicy. */ -}}
{{- define "lineside.peer" -}}
namespaceSelector:
  matchLabels:
    kubernetes.io/metadata.name: {{ (index . 0).Release.Namespace }}
podSelector:
  matchLabels: {{- include "lineside.selector" . | nindent 4 }}
{{- end }}

{{- define "lineside.labels" -}}
{{ include "lineside.selector" . }}
app.kubernetes.io/part-of: lineside
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
{{- end }}

{{- define "lineside.image" -}}
{{ index (index . 0).Values.images (index . 1) }}:{{ default (index . 0).Chart.AppVersion (index . 0).Values.images.tag }}
{{- end }}

{{- define "lineside.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- /* The kubelet's socket is root's; root without capabilities may use what belongs to root. */ -}}
{{- define "lineside.agentPodSecurity" -}}
{{- if .Values.agent.gpu.podResources }}
runAsNonRoot: false
runAsUser: 0
runAsGroup: 0
fsGroup: 0
seccompProfile: { type: RuntimeDefault }
{{- else }}
{{- include "lineside.podSecurity" . }}
{{- end }}
{{- end }}

{{- define "lineside.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{- define "lineside.resourcesConfigMap" -}}
{{- if .Values.coordinator.resourcesConfigMap }}{{ .Values.coordinator.resourcesConfigMap }}{{ else if .Values.coordinator.resources }}{{ include "lineside.name" . }}-resources{{ end }}
{{- end }}

{{- /* Whether coordinators ask the API server. */ -}}
{{- define "lineside.asksApi" -}}
{{- if or .Values.coordinator.kubernetes.enabled (eq .Values.agent.proof "service-account") }}yes{{ end }}
{{- end }}

{{- /* Namespaces that are read, as a list in JSON. */ -}}
{{- define "lineside.namespaces" -}}
{{- toJson (default (list .Release.Namespace) .Values.coordinator.kubernetes.namespaces) }}
{{- end }}

{{- define "lineside.coordinatorConfig" -}}
{{- $own := dict "http" "0.0.0.0:8080" "grpc" "0.0.0.0:9001" "admin" "0.0.0.0:9090" }}
{{- if eq .Values.tls.source "plaintext" }}
{{- $_ := set $own "transport" "plaintext" }}
{{- else }}
{{- $_ := set $own "tls" (dict "cert_file" "/etc/lineside/agents-tls/tls.crt" "key_file" "/etc/lineside/agents-tls/tls.key") }}
{{- end }}
{{- if eq .Values.agent.proof "service-account" }}
{{- $_ := set $own "node_proof" "service-account" }}
{{- $account := printf "%s/%s-agent" .Release.Namespace (include "lineside.name" .) }}
{{- $_ := set $own "service_accounts" (dict "accounts" (list $account) "needs_node" .Values.agent.needsNode) }}
{{- end }}
{{- if .Values.coordinator.kubernetes.enabled }}
{{- $_ := set $own "kubernetes" (dict "access" "in-cluster" "namespaces" (include "lineside.namespaces" . | fromJsonArray)) }}
{{- if .Values.coordinator.kubernetes.engineKeySecret }}
{{- $_ := set $own.kubernetes "engine_key_file" "/etc/lineside/engines/key" }}
{{- end }}
{{- with .Values.coordinator.kubernetes.keyVariables }}
{{- $_ := set $own.kubernetes "key_variables" . }}
{{- end }}
{{- if .Values.coordinator.kubernetes.podDeletionCost }}
{{- $_ := set $own.kubernetes "pod_deletion_cost" true }}
{{- end }}
{{- end }}
{{- if include "lineside.resourcesConfigMap" . }}
{{- $_ := set $own "resources" "/etc/lineside/resources" }}
{{- end }}
{{- if .Values.coordinator.persistence.enabled }}
{{- $_ := set $own "store" "sqlite:/var/lib/lineside/state.db" }}
{{- end }}
{{- if .Values.coordinator.route.enabled }}
{{- $_ := set $own "route" "0.0.0.0:9002" }}
{{- $files := dict "self_signed_dir" "/var/lib/lineside" }}
{{- if ne .Values.coordinator.route.tls.source "self-signed" }}
{{- $files = dict "cert_file" "/etc/lineside/tls/tls.crt" "key_file" "/etc/lineside/tls/tls.key" }}
{{- end }}
{{- $_ := set $own "gateways" (mergeOverwrite (deepCopy (default dict .Values.coordinator.config.gateways)) $files) }}
{{- end }}
{{- toYaml (mergeOverwrite (deepCopy .Values.coordinator.config) $own) }}
{{- end }}

{{- define "lineside.agentConfig" -}}
{{- $coordinators := list (printf "%s-agents.%s.svc:9001" (include "lineside.name" .) .Release.Namespace) }}
{{- $own := dict "coordinators" $coordinators "resolve" true "metrics" "0.0.0.0:9091" }}
{{- if eq .Values.tls.source "plaintext" }}
{{- $_ := set $own "transport" "plaintext" }}
{{- else }}
{{- $_ := set $own "tls" (dict "ca_file" "/etc/lineside/tls/ca.crt") }}
{{- end }}
{{- if eq .Values.agent.proof "service-account" }}
{{- $_ := set $own "token_file" "/var/run/lineside/token" }}
{{- end }}
{{- if .Values.agent.checkpoints }}
{{- $_ := set $own "checkpoint_dir" "/var/lib/lineside" }}
{{- end }}
{{- if .Values.agent.gpu.podResources }}
{{- $_ := set $own "pod_resources" "/var/lib/kubelet/pod-resources/kubelet.sock" }}
{{- end }}
{{- toYaml (mergeOverwrite (deepCopy .Values.agent.config) $own) }}
{{- end }}

{{- /* Whether coordinators share a store. */ -}}
{{- define "lineside.sharedStore" -}}
{{- $store := default "memory" .Values.coordinator.config.store }}
{{- if not (or (eq $store "memory") (hasPrefix "sqlite:" $store) .Values.coordinator.persistence.enabled) }}yes{{ end }}
{{- end }}
