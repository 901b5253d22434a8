# SPDX-License-Identifier: Apache-2.0
"""Check whether the project's chart can be installed in a Kubernetes cluster.

The checks change nothing. Objects that the user may not list are reported, not counted as missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tritonctl.doctor.cluster_capacity import (
    gpu_finding,
    quota_finding,
    room_finding,
    schedulable_nodes,
)
from tritonctl.doctor.findings import DoctorFinding, DoctorReport
from tritonctl.runtimes.kubernetes.api_errors import ClusterError, ClusterErrorReason
from tritonctl.runtimes.kubernetes.chart import OLDEST_KUBERNETES
from tritonctl.runtimes.kubernetes.installation import ChartInstallation
from tritonctl.runtimes.kubernetes.kubectl import Kubectl, Object
from tritonctl.runtimes.kubernetes.manifests import NEWEST_KUBERNETES
from tritonctl.runtimes.kubernetes.resource_requests import requested_pods

# Permissions for `helm upgrade --install` of the chart and for tritonctl's commands.
_RIGHTS = (
    *(
        ("create", kind)
        for kind in (
            "deployments.apps",
            "services",
            "configmaps",
            "secrets",
            "serviceaccounts",
            "persistentvolumeclaims",
            "poddisruptionbudgets.policy",
            "networkpolicies.networking.k8s.io",
        )
    ),
    ("patch", "deployments.apps"),
    ("get", "pods/log"),
    ("create", "pods/portforward"),
)
# Optional API groups, without which the chart omits a part: group, name, use.
_OPTIONAL = (
    ("metrics.k8s.io", "metrics server", "`kubectl top`; an HPA on CPU, which we do not use"),
    ("custom.metrics.k8s.io", "custom metrics", "`scaling.by: adapter`"),
    ("external.metrics.k8s.io", "external metrics", "`scaling.by: keda`, which brings it"),
    ("keda.sh", "KEDA", "`scaling.by: keda`"),
    ("gateway.networking.k8s.io", "Gateway API", "routes from a gateway of the cluster's"),
    ("inference.networking.k8s.io", "InferencePool", "llm-d's picker of a server"),
    ("monitoring.coreos.com", "Prometheus operator", "PodMonitor and PrometheusRule"),
)
_REQUIRED_GROUPS = {"adapter": "custom.metrics.k8s.io", "keda": "keda.sh"}  # by `scaling.by`
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
# Provisioners whose volumes several nodes can mount.
_SHARED = re.compile(r"nfs|cephfs|efs\.|file\.csi\.azure|filestore|lustre|gluster|longhorn|weka")
_SKEW = 1  # allowed minor versions between kubectl and the cluster


class ClusterReport(DoctorReport):
    """The report of `tritonctl doctor --on kubernetes`."""

    @property
    def summary(self) -> str:
        """One line on whether the chart can be installed."""
        if not self.healthy:
            return f"Not ready: {', '.join(finding.name for finding in self.missing)}"
        return "Ready for the chart."


@dataclass(frozen=True)
class Chart:
    """The project's chart."""

    name: str  # of the installation in Helm
    values: Mapping[str, Any]


def examine_cluster(kubectl: Kubectl, chart: Chart | None) -> ClusterReport:
    """Examine the cluster. Raises ClusterError if it does not answer, ConfigurationError."""
    findings = [_versions(kubectl), _namespace(kubectl)]
    if findings[-1].status == "missing":
        return ClusterReport(findings)
    findings.append(_rights(kubectl))
    findings += _capacity_findings(kubectl, chart)
    findings += [
        _runtimes(kubectl, chart),
        _storage(kubectl, chart),
        *_api_group_findings(kubectl, chart),
    ]
    if chart is None:
        detail = "none in deploy/chart: quotas and capacity are not compared"
        findings.append(DoctorFinding("chart", "missing", detail, "tritonctl deploy kubernetes"))
    return ClusterReport(findings)


def _versions(kubectl: Kubectl) -> DoctorFinding:
    versions = kubectl.json("version")
    client, server = (_version(versions.get(f"{side}Version")) for side in ("client", "server"))
    detail, reason = (
        f"Kubernetes {server}, kubectl {client}",
        f"the chart is for {OLDEST_KUBERNETES} and later",
    )
    oldest, newest = (
        int(each.partition(".")[2]) for each in (OLDEST_KUBERNETES, NEWEST_KUBERNETES)
    )
    minor = _minor(server)
    if minor is not None and minor < oldest:
        remedy = "upgrade the cluster, or serve with `tritonctl deploy compose`"
        return DoctorFinding("cluster", "missing", detail, remedy, required=True, reason=reason)
    client_minor = _minor(client)
    if minor is not None and client_minor is not None and abs(minor - client_minor) > _SKEW:
        remedy = f"kubectl supports clusters within one minor version: install 1.{minor}"
        return DoctorFinding("cluster", "warning", detail, remedy, required=True)
    if minor is not None and minor > newest:
        remedy = (
            f"the chart was checked up to {NEWEST_KUBERNETES}: try it with `helm upgrade --dry-run`"
        )
        return DoctorFinding("cluster", "warning", detail, remedy, required=True)
    return DoctorFinding("cluster", "ok", detail, required=True)


def _version(version_record: Any) -> str:
    return str((version_record or {}).get("gitVersion") or "unknown").removeprefix("v")


def _minor(version: str) -> int | None:
    match = re.match(r"1\.(\d{1,3})", version)
    return int(match[1]) if match else None


def _namespace(kubectl: Kubectl) -> DoctorFinding:
    try:
        kubectl.require_namespace()
    except ClusterError as error:
        if error.reason is not ClusterErrorReason.NO_NAMESPACE:
            raise
        name = kubectl.effective_namespace
        remedy = f"kubectl create namespace {name}; or name another: --namespace NAME"
        return DoctorFinding(
            "namespace", "missing", f"{name} does not exist", remedy, required=True
        )
    return DoctorFinding("namespace", "ok", kubectl.effective_namespace, required=True)


def _rights(kubectl: Kubectl) -> DoctorFinding:
    missing_rights = [
        f"{verb} {kind}" for verb, kind in _RIGHTS if not kubectl.is_allowed(verb, kind)
    ]
    reason = "Helm installs the chart with your rights"
    if not missing_rights:
        detail = "you may install the chart, read logs and forward ports"
        return DoctorFinding("rights", "ok", detail, required=True, reason=reason)
    remedy = "ask the cluster's owner for a Role with these, bound to you"
    return DoctorFinding(
        "rights",
        "missing",
        f"you may not {', '.join(missing_rights)}",
        remedy,
        required=True,
        reason=reason,
    )


def _capacity_findings(kubectl: Kubectl, chart: Chart | None) -> Iterator[DoctorFinding]:
    """Yield findings on nodes, GPUs, quotas and capacity, without the installation's own pods."""
    pods = requested_pods(chart.values) if chart else []
    own_pods = ChartInstallation(kubectl, chart.name).pods() if chart else []
    own_names = {(each["metadata"].get("namespace"), each["metadata"]["name"]) for each in own_pods}
    resource = next((key for each in pods for key in each.requests if "/" in key), None)
    quotas = _visible_objects(lambda: kubectl.get("resourcequotas"))
    if quotas is not None and chart is not None:
        yield quota_finding(quotas, pods, own_pods)
    node_objects = _visible_objects(lambda: kubectl.get("nodes"))
    if node_objects is None:
        yield DoctorFinding("nodes", "warning", "you may not list nodes: free capacity is unknown")
        return
    all_pods = _visible_objects(lambda: kubectl.get("pods", all_namespaces=True))
    other_pods = [
        pod
        for pod in all_pods or ()
        if (pod["metadata"].get("namespace"), pod["metadata"]["name"]) not in own_names
    ]
    nodes = schedulable_nodes(node_objects, other_pods)
    visibility_note = "" if all_pods is not None else "; you may not list other pods on them"
    detail = f"{len(nodes)} of {len(node_objects)} take pods{visibility_note}"
    yield DoctorFinding("nodes", "ok" if nodes else "missing", detail, required=True)
    yield gpu_finding(nodes, resource)
    if pods:
        yield room_finding(pods, nodes)


def _visible_objects(query: Callable[[], list[Object]]) -> list[Object] | None:
    """Return the objects; None if the user may not list them or the cluster lacks the kind."""
    try:
        return query()
    except ClusterError as error:
        if error.reason in (
            ClusterErrorReason.FORBIDDEN,
            ClusterErrorReason.NO_KIND,
            ClusterErrorReason.NOT_FOUND,
        ):
            return None
        raise


def _chart_value(chart: Chart | None, *path: str) -> Any:
    """Return a value of the chart; None without one."""
    value: Any = chart.values if chart else None
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _runtimes(kubectl: Kubectl, chart: Chart | None) -> DoctorFinding:
    runtime_classes = _visible_objects(lambda: kubectl.get("runtimeclasses"))
    requested = _chart_value(chart, "triton", "runtimeClassName")
    if runtime_classes is None:
        return DoctorFinding("runtime classes", "warning", "no permission to list them")
    names = sorted(str(each["metadata"]["name"]) for each in runtime_classes)
    detail = ", ".join(names) or "none besides the default"
    if requested and requested not in names:
        remedy = "change `triton.runtimeClassName` in your file of values"
        detail = f"{detail}; the chart asks for {requested}"
        return DoctorFinding("runtime classes", "missing", detail, remedy, required=True)
    return DoctorFinding("runtime classes", "ok", detail)


def _storage(kubectl: Kubectl, chart: Chart | None) -> DoctorFinding:
    """Check the storage classes, and whether the chart's claim gets a volume from one."""
    classes = _visible_objects(lambda: kubectl.get("storageclasses"))
    if classes is None:
        return DoctorFinding("storage classes", "warning", "no permission to list them")
    names = [str(each["metadata"]["name"]) for each in classes]
    default = [name for name, each in zip(names, classes, strict=True) if _is_default(each)]
    shared = [
        name
        for name, each in zip(names, classes, strict=True)
        if _SHARED.search(str(each.get("provisioner", "")))
    ]
    listed = (f"{name} (default)" if name in default else name for name in names)
    detail = ", ".join(listed) or "none"
    detail += f"; for several nodes (ReadWriteMany): {', '.join(shared) or 'none known by name'}"
    creates_claim = _chart_value(chart, "weights", "from") == "claim" and not _chart_value(
        chart, "weights", "claim", "name"
    )
    if not creates_claim or chart is None or _is_bound(kubectl, f"{chart.name}-releases"):
        return DoctorFinding("storage classes", "ok" if names else "missing", detail)
    return _claim_finding(chart, detail, names, default, shared)


def _claim_finding(
    chart: Chart, detail: str, names: Sequence[str], default: Sequence[str], shared: Sequence[str]
) -> DoctorFinding:
    """Check whether the chart's claim for releases gets a volume from these classes."""
    requested = _chart_value(chart, "weights", "claim", "storageClass") or ""
    reason = "pods wait until the claim of weights.claim has a volume"
    if requested and requested not in names:
        remedy = "change `weights.claim.storageClass` in your file of values"
        detail = f"{detail}; the chart asks for {requested}"
        return DoctorFinding(
            "storage classes", "missing", detail, remedy, required=True, reason=reason
        )
    if not requested and not default:
        remedy = "name one in `weights.claim.storageClass`, or a claim in `weights.claim.name`"
        detail = f"{detail}; there is no default, and the chart names none"
        return DoctorFinding(
            "storage classes", "missing", detail, remedy, required=True, reason=reason
        )
    needs_shared = _chart_value(chart, "weights", "claim", "accessMode") == "ReadWriteMany"
    if needs_shared and (requested or default[0]) not in shared:
        remedy = "take one of several nodes, or `weights.claim.accessMode: ReadWriteOnce`"
        detail = f"{detail}; whether {requested or default[0]} gives ReadWriteMany is not known"
        return DoctorFinding(
            "storage classes", "warning", detail, remedy, required=True, reason=reason
        )
    return DoctorFinding("storage classes", "ok", detail, required=True, reason=reason)


def _is_default(storage: Object) -> bool:
    return (storage["metadata"].get("annotations") or {}).get(_DEFAULT_CLASS) == "true"


def _is_bound(kubectl: Kubectl, name: str) -> bool:
    try:
        claim = kubectl.find("persistentvolumeclaim", name)
    except ClusterError as error:
        if error.reason is ClusterErrorReason.FORBIDDEN:
            return False
        raise
    return claim is not None and (claim.get("status") or {}).get("phase") == "Bound"


def _api_group_findings(kubectl: Kubectl, chart: Chart | None) -> Iterator[DoctorFinding]:
    """Yield a finding for each optional API group, required if the chart needs it."""
    groups: Sequence[str] = kubectl.run("api-versions").split()
    required_group = _REQUIRED_GROUPS.get(str(_chart_value(chart, "scaling", "by")))
    for group, name, use in _OPTIONAL:
        versions = [each.partition("/")[2] for each in groups if each.partition("/")[0] == group]
        if versions:
            yield DoctorFinding(name, "ok", f"{group} {', '.join(versions)}")
        else:
            required = group == required_group
            remedy = "install it, or set `scaling.by: none` in your file of values"
            detail = f"missing; for {use}"
            yield DoctorFinding(
                name, "missing", detail, remedy if required else "", required=required
            )
