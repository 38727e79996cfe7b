{{- define "sluicegate.image" -}}
{{- .Values.image.repository }}{{ with .Values.image.tag }}:{{ . }}{{ end }}
{{- end }}

{{- define "sluicegate.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
{{- end }}

{{- define "sluicegate.subject" -}}
- kind: ServiceAccount
  name: sluicegate
  namespace: {{ .Release.Namespace }}
{{- end }}
