# SPDX-License-Identifier: Apache-2.0
"""What a Kubernetes cluster has, and whether the project's chart can be installed in it.

Nothing in the cluster is changed. What the user may not see is said, and is no failure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tritonctl.doctor.cluster_room import gpu_finding, nodes_of, quota_finding, room_finding
from tritonctl.doctor.findings import Finding, Report
from tritonctl.server.kubernetes.chart import OLDEST
from tritonctl.server.kubernetes.demand import wanted
from tritonctl.server.kubernetes.installation import Installation
from tritonctl.server.kubernetes.kubectl import Kubectl, Object
from tritonctl.server.kubernetes.manifests import NEWEST
from tritonctl.server.kubernetes.refusals import ClusterError, Reason

# What `helm upgrade --install` of the chart does, and what the verbs here do.
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
# Parts that the chart leaves out where the cluster lacks them: group, what it is, what for.
_OPTIONAL = (
    ("metrics.k8s.io", "metrics server", "`kubectl top`; an HPA on CPU, which we do not use"),
    ("custom.metrics.k8s.io", "custom metrics", "`scaling.by: adapter`"),
    ("external.metrics.k8s.io", "external metrics", "`scaling.by: keda`, which brings it"),
    ("keda.sh", "KEDA", "`scaling.by: keda`"),
    ("gateway.networking.k8s.io", "Gateway API", "routes from a gateway of the cluster's"),
    ("inference.networking.k8s.io", "InferencePool", "llm-d's picker of a server"),
    ("monitoring.coreos.com", "Prometheus operator", "PodMonitor and PrometheusRule"),
)
_NEEDS = {"adapter": "custom.metrics.k8s.io", "keda": "keda.sh"}  # by `scaling.by`
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
# Of provisioners whose volumes several nodes may mount.
_SHARED = re.compile(r"nfs|cephfs|efs\.|file\.csi\.azure|filestore|lustre|gluster|longhorn|weka")
_SKEW = 1  # minor versions that kubectl may be apart from the cluster


class ClusterReport(Report):
    """Everything that `tritonctl doctor --on kubernetes` says."""

    @property
    def summary(self) -> str:
        """Whether the chart can be installed, in one line."""
        if not self.healthy:
            return f"Not ready: {', '.join(finding.name for finding in self.missing)}"
        return "Ready for the chart."


@dataclass(frozen=True)
class Chart:
    """The project's chart: what Helm is to call it, and its values."""

    name: str
    values: Mapping[str, Any]


def examine_cluster(kubectl: Kubectl, chart: Chart | None) -> ClusterReport:
    """Ask the cluster. Raises ClusterError where it does not answer, ConfigurationError."""
    findings = [_versions(kubectl), _namespace(kubectl)]
    if findings[-1].status == "missing":
        return ClusterReport(findings)
    findings.append(_rights(kubectl))
    findings += _rooms(kubectl, chart)
    findings += [_runtimes(kubectl, chart), _storage(kubectl, chart), *_groups(kubectl, chart)]
    if chart is None:
        detail = "none in deploy/chart: quotas and room are not compared"
        findings.append(Finding("chart", "missing", detail, "tritonctl deploy kubernetes"))
    return ClusterReport(findings)


def _versions(kubectl: Kubectl) -> Finding:
    versions = kubectl.json("version")
    client, server = (_version(versions.get(f"{side}Version")) for side in ("client", "server"))
    detail, why = f"Kubernetes {server}, kubectl {client}", f"the chart is for {OLDEST} and later"
    oldest, newest = (int(each.partition(".")[2]) for each in (OLDEST, NEWEST))
    minor = _minor(server)
    if minor is not None and minor < oldest:
        remedy = "upgrade the cluster, or serve with `tritonctl deploy compose`"
        return Finding("cluster", "missing", detail, remedy, required=True, why=why)
    ours = _minor(client)
    if minor is not None and ours is not None and abs(minor - ours) > _SKEW:
        remedy = f"kubectl supports clusters within one minor version: install 1.{minor}"
        return Finding("cluster", "warning", detail, remedy, required=True)
    if minor is not None and minor > newest:
        remedy = f"the chart was checked up to {NEWEST}: try it with `helm upgrade --dry-run`"
        return Finding("cluster", "warning", detail, remedy, required=True)
    return Finding("cluster", "ok", detail, required=True)


def _version(described: Any) -> str:
    return str((described or {}).get("gitVersion") or "unknown").removeprefix("v")


def _minor(version: str) -> int | None:
    match = re.match(r"1\.(\d{1,3})", version)
    return int(match[1]) if match else None


def _namespace(kubectl: Kubectl) -> Finding:
    try:
        kubectl.require_namespace()
    except ClusterError as error:
        if error.reason is not Reason.NO_NAMESPACE:
            raise
        name = kubectl.own_namespace
        remedy = f"kubectl create namespace {name}; or name another: --namespace NAME"
        return Finding("namespace", "missing", f"{name} does not exist", remedy, required=True)
    return Finding("namespace", "ok", kubectl.own_namespace, required=True)


def _rights(kubectl: Kubectl) -> Finding:
    lacking = [f"{verb} {kind}" for verb, kind in _RIGHTS if not kubectl.may(verb, kind)]
    why = "Helm installs the chart with your rights"
    if not lacking:
        detail = "you may install the chart, read logs and forward ports"
        return Finding("rights", "ok", detail, required=True, why=why)
    remedy = "ask the cluster's owner for a Role with these, bound to you"
    return Finding(
        "rights", "missing", f"you may not {', '.join(lacking)}", remedy, required=True, why=why
    )


def _rooms(kubectl: Kubectl, chart: Chart | None) -> Iterator[Finding]:
    """Nodes, GPUs, quotas and room. The installation's own pods count as gone."""
    pods = wanted(chart.values) if chart else []
    own = Installation(kubectl, chart.name).pods() if chart else []
    mine = {(each["metadata"].get("namespace"), each["metadata"]["name"]) for each in own}
    resource = next((key for each in pods for key in each.asks if "/" in key), None)
    quotas = _seen(lambda: kubectl.get("resourcequotas"))
    if quotas is not None and chart is not None:
        yield quota_finding(quotas, pods, own)
    listed = _seen(lambda: kubectl.get("nodes"))
    if listed is None:
        yield Finding("nodes", "warning", "you may not list nodes: free room is unknown")
        return
    everywhere = _seen(lambda: kubectl.get("pods", everywhere=True))
    others = [
        pod
        for pod in everywhere or ()
        if (pod["metadata"].get("namespace"), pod["metadata"]["name"]) not in mine
    ]
    nodes = nodes_of(listed, others)
    blind = "" if everywhere is not None else "; you may not see what others use of them"
    detail = f"{len(nodes)} of {len(listed)} take pods{blind}"
    yield Finding("nodes", "ok" if nodes else "missing", detail, required=True)
    yield gpu_finding(nodes, resource)
    if pods:
        yield room_finding(pods, nodes)


def _seen(ask: Callable[[], list[Object]]) -> list[Object] | None:
    """Objects; None where the user may not see them or the cluster does not know the kind."""
    try:
        return ask()
    except ClusterError as error:
        if error.reason in (Reason.FORBIDDEN, Reason.NO_KIND, Reason.NOT_FOUND):
            return None
        raise


def _value(chart: Chart | None, *path: str) -> Any:
    """A value of the chart; None without one."""
    found: Any = chart.values if chart else None
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _runtimes(kubectl: Kubectl, chart: Chart | None) -> Finding:
    found = _seen(lambda: kubectl.get("runtimeclasses"))
    asked = _value(chart, "triton", "runtimeClassName")
    if found is None:
        return Finding("runtime classes", "warning", "you may not look at them")
    names = sorted(str(each["metadata"]["name"]) for each in found)
    detail = ", ".join(names) or "none besides the default"
    if asked and asked not in names:
        remedy = "change `triton.runtimeClassName` in your file of values"
        detail = f"{detail}; the chart asks for {asked}"
        return Finding("runtime classes", "missing", detail, remedy, required=True)
    return Finding("runtime classes", "ok", detail)


def _storage(kubectl: Kubectl, chart: Chart | None) -> Finding:
    """The storage classes there are, and whether the chart's claim gets a volume of one."""
    found = _seen(lambda: kubectl.get("storageclasses"))
    if found is None:
        return Finding("storage classes", "warning", "you may not look at them")
    names = [str(each["metadata"]["name"]) for each in found]
    default = [name for name, each in zip(names, found, strict=True) if _is_default(each)]
    shared = [
        name
        for name, each in zip(names, found, strict=True)
        if _SHARED.search(str(each.get("provisioner", "")))
    ]
    listed = (f"{name} (default)" if name in default else name for name in names)
    detail = ", ".join(listed) or "none"
    detail += f"; for several nodes (ReadWriteMany): {', '.join(shared) or 'none known by name'}"
    makes = _value(chart, "weights", "from") == "claim" and not _value(
        chart, "weights", "claim", "name"
    )
    if not makes or chart is None or _is_bound(kubectl, f"{chart.name}-releases"):
        return Finding("storage classes", "ok" if names else "missing", detail)
    return _for_claim(chart, detail, names, default, shared)


def _for_claim(
    chart: Chart, detail: str, names: Sequence[str], default: Sequence[str], shared: Sequence[str]
) -> Finding:
    """Whether the claim for releases, which the chart makes, gets a volume of these classes."""
    asked = _value(chart, "weights", "claim", "storageClass") or ""
    why = "pods wait until the claim of weights.claim has a volume"
    if asked and asked not in names:
        remedy = "change `weights.claim.storageClass` in your file of values"
        detail = f"{detail}; the chart asks for {asked}"
        return Finding("storage classes", "missing", detail, remedy, required=True, why=why)
    if not asked and not default:
        remedy = "name one in `weights.claim.storageClass`, or a claim in `weights.claim.name`"
        detail = f"{detail}; there is no default, and the chart names none"
        return Finding("storage classes", "missing", detail, remedy, required=True, why=why)
    many = _value(chart, "weights", "claim", "accessMode") == "ReadWriteMany"
    if many and (asked or default[0]) not in shared:
        remedy = "take one of several nodes, or `weights.claim.accessMode: ReadWriteOnce`"
        detail = f"{detail}; whether {asked or default[0]} gives ReadWriteMany is not known"
        return Finding("storage classes", "warning", detail, remedy, required=True, why=why)
    return Finding("storage classes", "ok", detail, required=True, why=why)


def _is_default(storage: Object) -> bool:
    return (storage["metadata"].get("annotations") or {}).get(_DEFAULT_CLASS) == "true"


def _is_bound(kubectl: Kubectl, name: str) -> bool:
    try:
        claim = kubectl.find("persistentvolumeclaim", name)
    except ClusterError as error:
        if error.reason is Reason.FORBIDDEN:
            return False
        raise
    return claim is not None and (claim.get("status") or {}).get("phase") == "Bound"


def _groups(kubectl: Kubectl, chart: Chart | None) -> Iterator[Finding]:
    """One line for each part that clusters may have; missing is a failure where it is asked for."""
    groups: Sequence[str] = kubectl.run("api-versions").split()
    asked = _NEEDS.get(str(_value(chart, "scaling", "by")))
    for group, name, use in _OPTIONAL:
        versions = [each.partition("/")[2] for each in groups if each.partition("/")[0] == group]
        if versions:
            yield Finding(name, "ok", f"{group} {', '.join(versions)}")
        else:
            required = group == asked
            remedy = "install it, or set `scaling.by: none` in your file of values"
            detail = f"not there; for {use}"
            yield Finding(name, "missing", detail, remedy if required else "", required=required)
