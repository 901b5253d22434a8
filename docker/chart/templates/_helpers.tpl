{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- define "tritonctl.labels" -}}
app.kubernetes.io/name: tritonctl
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* The release's name, without the digest of its manifest. */ -}}
{{- define "tritonctl.release" -}}
{{ splitList "@" .Values.release | first }}
{{- end }}

{{- /* Two slots, if the project has rollout.user_header: a rollout's Deployments are in `b`. */ -}}
{{- define "tritonctl.slots" -}}
{{- ternary "a b" "a" (ne (.Files.Get "files/routes.json") "") -}}
{{- end }}
{{- /* The name of an object in a slot: (list "x" SLOT). */ -}}
{{- define "tritonctl.in-slot" -}}
{{ index . 0 }}{{ ternary "" (printf "-%s" (index . 1)) (eq (index . 1) "a") }}
{{- end }}

{{- /* The live spec of a Deployment that a rollout has changed: an upgrade keeps it. */ -}}
{{- define "tritonctl.held" -}}
{{- $live := lookup "apps/v1" "Deployment" (index . 0).Release.Namespace (index . 1) -}}
{{- if dig "metadata" "annotations" "tritonctl/held" "" $live -}}
{{- toYaml $live.spec -}}
{{- end -}}
{{- end }}

{{- define "tritonctl.triton" -}}{{ .Release.Name }}-triton{{- end }}
{{- define "tritonctl.frontend" -}}{{ .Release.Name }}-frontend{{- end }}

{{- /* A file of the chart with this installation's names inserted: (list . "files/x"). */ -}}
{{- define "tritonctl.file" -}}
{{- $root := index . 0 -}}
{{- $root.Files.Get (index . 1)
  | replace "__TRITON__" (include "tritonctl.triton" $root)
  | replace "__FRONTEND__" (include "tritonctl.frontend" $root)
  | replace "__RELEASE__" (include "tritonctl.release" $root) -}}
{{- end }}

{{- /* The grace period: readiness ends, streams finish, models unload, without a kill in between. */ -}}
{{- define "tritonctl.grace" -}}
{{ add .Values.drain.gapSeconds .Values.drain.streamsSeconds .Values.drain.marginSeconds }}
{{- end }}

{{- /* Waits while a Service still routes new connections to the pod. */ -}}
{{- define "tritonctl.gap" -}}
preStop:
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version }}
  sleep: {seconds: {{ .Values.drain.gapSeconds }}}
{{- else }}
  exec: {command: [sleep, {{ .Values.drain.gapSeconds | quote }}]}
{{- end }}
{{- end }}

{{- define "tritonctl.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
serviceAccountName: {{ .Release.Name }}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
terminationGracePeriodSeconds: {{ include "tritonctl.grace" . }}
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  runAsGroup: 1000
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "tritonctl.container" -}}
imagePullPolicy: {{ .Values.images.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
terminationMessagePolicy: FallbackToLogsOnError
{{- end }}

{{- /* Spreads the pods of a component over the nodes: (list . "triton"). */ -}}
{{- define "tritonctl.spread" -}}
{{- $root := index . 0 -}}
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "tritonctl.labels" $root | nindent 8 }}
        app.kubernetes.io/component: {{ index $ 1 }}
    {{- if semverCompare ">=1.27.0-0" $root.Capabilities.KubeVersion.Version }}
    matchLabelKeys: [pod-template-hash]
    {{- end }}
  {{- end }}
{{- end }}

{{- /* Volume with the certificates and keys, one file each; none without secrets. */ -}}
{{- define "tritonctl.secret-mount" -}}
{{- if .Values.secrets.name }}
- {name: secrets, mountPath: /run/secrets, readOnly: true}
{{- end }}
{{- end }}
{{- define "tritonctl.secret-volume" -}}
{{- if .Values.secrets.name }}
- name: secrets
  secret: {secretName: {{ .Values.secrets.name | quote }}, defaultMode: 0444}
{{- end }}
{{- end }}

{{- /* Source and target of a release: two volumes, or one for both. */ -}}
{{- define "tritonctl.weights-volumes" -}}
- name: weights-program
  configMap: {name: {{ .Release.Name }}-weights}
- name: source
  {{- if eq .Values.weights.from "image" }}
  {{- if not (or .Values.weights.imageVolumes (semverCompare ">=1.35.0-0" .Capabilities.KubeVersion.Version)) }}
  {{- fail (printf "weights.from is image, and Kubernetes %s has no image volumes by default (from 1.35 on): set weights.from to claim, or weights.imageVolumes to true where the feature ImageVolume is on" .Capabilities.KubeVersion.Version) }}
  {{- end }}
  image: {reference: {{ required "weights.image: NAME@sha256:... of the image with the release" .Values.weights.image | quote }}, pullPolicy: {{ .Values.images.pullPolicy }}}
  {{- else }}
  persistentVolumeClaim: {claimName: {{ .Values.weights.claim.name | default (printf "%s-releases" .Release.Name) | quote }}, readOnly: true}
  {{- end }}
{{- end }}

{{- /* Verifies the release, and copies it to the pods' folder: (list . IMAGE TARGET PATTERN). */ -}}
{{- define "tritonctl.weights" -}}
{{- $root := index . 0 -}}
name: weights
image: {{ index . 1 | quote }}
{{ include "tritonctl.container" $root }}
command:
  - python3
  - /opt/weights/weights.py
  - --release={{ $root.Values.release }}
  - --source=/source
  {{- with index . 2 }}
  - --target={{ . }}
  {{- end }}
  {{- with index . 3 }}
  - --only={{ . }}
  {{- end }}
resources:
  requests: {cpu: 100m, memory: 64Mi}
  limits: {memory: 256Mi}
volumeMounts:
  - {name: weights-program, mountPath: /opt/weights, readOnly: true}
  - {name: source, mountPath: /source, readOnly: true}
  {{- with index . 2 }}
  - {name: cache, mountPath: {{ . }}}
  {{- end }}
{{- end }}

{{- /* The autoscaler, if it replaces `triton.replicas`; "" without one. */ -}}
{{- define "tritonctl.scaled" -}}
{{- $keda := .Capabilities.APIVersions.Has "keda.sh/v1alpha1" -}}
{{- if or (eq .Values.scaling.by "adapter") (and (eq .Values.scaling.by "keda") $keda) -}}
{{ .Values.scaling.by }}
{{- end -}}
{{- end }}

{{- /* Scales up at once, and down one server at a time, each drained before the next. */ -}}
{{- define "tritonctl.scaling-behaviour" -}}
{{- $grace := include "tritonctl.grace" . | int -}}
scaleUp:
  stabilizationWindowSeconds: 0
  selectPolicy: Max
  policies:
    - {type: Percent, value: 100, periodSeconds: 15}
    - {type: Pods, value: 4, periodSeconds: 15}
scaleDown:
  stabilizationWindowSeconds: {{ min 3600 (max 300 $grace) }}
  policies:
    - {type: Pods, value: 1, periodSeconds: {{ min 1800 (max 60 $grace) }}}
{{- end }}
