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

{{- define "lineside.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{- define "lineside.resourcesConfigMap" -}}
{{- if .Values.coordinator.resourcesConfigMap }}{{ .Values.coordinator.resourcesConfigMap }}{{ else if .Values.coordinator.resources }}{{ include "lineside.name" . }}-resources{{ end }}
{{- end }}

{{- define "lineside.coordinatorConfig" -}}
{{- $own := dict "transport" "plaintext" "http" "0.0.0.0:8080" "grpc" "0.0.0.0:9001" "admin" "0.0.0.0:9090" }}
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
{{- $own := dict "transport" "plaintext" "coordinators" $coordinators "resolve" true "metrics" "0.0.0.0:9091" }}
{{- if .Values.agent.checkpoints }}
{{- $_ := set $own "checkpoint_dir" "/var/lib/lineside" }}
{{- end }}
{{- toYaml (mergeOverwrite (deepCopy .Values.agent.config) $own) }}
{{- end }}

{{- /* Whether coordinators share a store. */ -}}
{{- define "lineside.sharedStore" -}}
{{- $store := default "memory" .Values.coordinator.config.store }}
{{- if not (or (eq $store "memory") (hasPrefix "sqlite:" $store) .Values.coordinator.persistence.enabled) }}yes{{ end }}
{{- end }}
