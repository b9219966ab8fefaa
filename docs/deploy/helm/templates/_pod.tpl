{{/* The container; for the service's pod, and for a broker's. */}}
{{- define "resnap.container" -}}
- name: resnap
  image: {{ .Values.image | quote }}
  imagePullPolicy: {{ .Values.imagePullPolicy }}
  args: ["serve", "--config", "/etc/resnap/resnap.toml", "--listen", "0.0.0.0:{{ .Values.service.port }}", "--auth", "token"]
  env:
    - name: RESNAP_TOKENS_FILE
      value: /etc/resnap-tokens/tokens
    {{- with .Values.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.storeSecret }}
  envFrom:
    - secretRef: { name: {{ . }} }
  {{- end }}
  ports:
    - name: resnap
      containerPort: {{ .Values.service.port }}
  startupProbe:
    httpGet: { path: /livez, port: resnap }
    periodSeconds: 5
    failureThreshold: 24
  livenessProbe:
    httpGet: { path: /livez, port: resnap }
    periodSeconds: 20
    timeoutSeconds: 5
  resources:
    {{- toYaml .Values.resources | nindent 4 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: {{ .Values.runAsUser }}
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: { drop: [ALL] }
    seccompProfile: { type: RuntimeDefault }
  volumeMounts:
    - { name: resnap-config, mountPath: /etc/resnap, readOnly: true }
    - { name: resnap-tokens, mountPath: /etc/resnap-tokens, readOnly: true }
    - { name: resnap-state, mountPath: /var/lib/resnap }
    - { name: resnap-tmp, mountPath: /tmp }
    {{- with .Values.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* Its volumes; of a broker's pod, all of them: there is no claim for the state. */}}
{{- define "resnap.volumes" -}}
- name: resnap-config
  configMap: { name: {{ .Release.Name }}-resnap }
- name: resnap-tokens
  secret: { secretName: {{ required "tokensSecret: name a Secret with the key `tokens`, lines of NAME ROLE SECRET" .Values.tokensSecret }} }
- name: resnap-tmp
  emptyDir: { sizeLimit: 10Gi }
{{- if not (and .Values.service.enabled .Values.persistence.enabled) }}
- name: resnap-state
  emptyDir: {}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
