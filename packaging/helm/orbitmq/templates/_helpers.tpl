{{- define "orbitmq.name" -}}
{{- .Release.Name | trunc 30 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels that select: component is the last part of the name of the StatefulSet. */}}
{{- define "orbitmq.selector" -}}
app.kubernetes.io/name: orbitmq
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "orbitmq.labels" -}}
{{ include "orbitmq.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end -}}

{{- define "orbitmq.podLabels" -}}
{{ include "orbitmq.labels" . }}
{{- with .broker }}
orbitmq/broker: {{ . }}
{{- end }}
{{- end -}}

{{/* The address that the brokers register, host and port. */}}
{{- define "orbitmq.brokerHost" -}}
{{ .pod }}.{{ .service }}.{{ .root.Release.Namespace }}.svc.{{ .root.Values.clusterDomain }}
{{- end -}}

{{/* Pods of all brokers in the order of their external ports, as JSON: name, service. */}}
{{- define "orbitmq.pods" -}}
{{- $root := . -}}
{{- $pods := list -}}
{{- range $name := .Values.broker.names -}}
{{- $full := printf "%s-%s" (include "orbitmq.name" $root) $name -}}
{{- if $root.Values.failover.enabled -}}
{{- range $i := until (int (add1 $root.Values.broker.slaves)) -}}
{{- $pods = append $pods (dict "pod" (printf "%s-%d" $full (int (add1 $i))) "service" $full) -}}
{{- end -}}
{{- else -}}
{{- $pods = append $pods (dict "pod" (printf "%s-master-0" $full) "service" $full) -}}
{{- range $i := until (int $root.Values.broker.slaves) -}}
{{- $pods = append $pods (dict "pod" (printf "%s-slave-%d" $full (int (add1 $i))) "service" $full) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $pods -}}
{{- end -}}

{{/* registered=advertised;... for clients outside. */}}
{{- define "orbitmq.advertised" -}}
{{- $root := . -}}
{{- $pairs := list -}}
{{- range $i, $pod := fromJsonArray (include "orbitmq.pods" .) -}}
{{- $host := include "orbitmq.brokerHost" (dict "root" $root "pod" $pod.pod "service" $pod.service) -}}
{{- $port := int (add $root.Values.external.brokerPortsFrom $i) -}}
{{- $pairs = append $pairs (printf "%s:10911=%s:%d" $host $root.Values.external.host $port) -}}
{{- end -}}
{{- join ";" $pairs -}}
{{- end -}}

{{/* Every name server, those of clients outside included: all brokers register with all of them. */}}
{{- define "orbitmq.namesrvAddr" -}}
{{- $root := . -}}
{{- $name := include "orbitmq.name" . -}}
{{- $addresses := list -}}
{{- $services := list "namesrv" -}}
{{- if .Values.external.enabled }}{{- $services = append $services "namesrv-external" }}{{- end -}}
{{- range $service := $services -}}
{{- range $i := until (int $root.Values.namesrv.replicas) -}}
{{- $addresses = append $addresses (printf "%s-%s-%d.%s-%s.%s.svc.%s:9876" $name $service $i $name $service $root.Release.Namespace $root.Values.clusterDomain) -}}
{{- end -}}
{{- end -}}
{{- join ";" $addresses -}}
{{- end -}}

{{- define "orbitmq.podSpec" -}}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "orbitmq.image" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end -}}

{{/* Options that name servers and brokers share. */}}
{{- define "orbitmq.options" -}}
- --set=metricsExporterType=PROM
- --set=metricsPromExporterHost=0.0.0.0
{{- if .root.Values.tls.enabled }}
- --set=tls.enable=true
- --set=tls.server.mode=enforcing
- --set=tls.server.certPath=/etc/orbitmq/tls/tls.crt
- --set=tls.server.keyPath=/etc/orbitmq/tls/tls.key
- --set=tls.client.authServer=true
- --set=tls.client.trustCertPath=/etc/orbitmq/tls/ca.crt
{{- end }}
{{- range $key, $value := .options }}
- {{ printf "--set=%s=%v" $key $value | quote }}
{{- end }}
{{- end -}}

{{- define "orbitmq.probes" -}}
startupProbe: # a store that was not closed in order is recovered first
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 5
  failureThreshold: {{ .startFailures }}
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 5
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
volumeMounts:
  - {name: data, mountPath: /var/lib/orbitmq}
{{- if .root.Values.tls.enabled }}
  - {name: tls, mountPath: /etc/orbitmq/tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "orbitmq.volumes" -}}
{{- if .Values.tls.enabled }}
volumes:
  - name: tls
    secret:
      secretName: {{ .Values.tls.existingSecret }}
{{- end }}
{{- end -}}

{{- define "orbitmq.claim" -}}
volumeClaimTemplates:
  - metadata:
      name: data
    spec:
      accessModes: [ReadWriteOnce]
      {{- with .className }}
      storageClassName: {{ . }}
      {{- end }}
      resources:
        requests:
          storage: {{ .size }}
{{- end -}}

{{- define "orbitmq.annotations" -}}
{{- if not .root.Values.metrics.podMonitor }}
annotations:
  prometheus.io/scrape: "true"
  prometheus.io/port: {{ .port | quote }}
{{- end }}
{{- end -}}
