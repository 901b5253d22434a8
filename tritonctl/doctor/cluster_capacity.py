# SPDX-License-Identifier: Apache-2.0
"""Check a cluster's capacity for the chart's pods: nodes, free resources, quotas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tritonctl.doctor.findings import DoctorFinding
from tritonctl.runtimes.kubernetes.kubectl import Object
from tritonctl.runtimes.kubernetes.resource_requests import (
    CPU,
    MEMORY,
    Amounts,
    PodRequests,
    amount_text,
    is_finished,
    quantity,
    requests_of,
    total_requests,
)

_ROOM_REASON = "a pod that no node takes stays pending"
_QUOTA_REASON = "pods beyond it are not created"
_EPSILON = 1e-9


@dataclass(frozen=True)
class ClusterNode:
    """A schedulable node; `free`: allocatable resources minus the requests of its pods."""

    name: str
    labels: Mapping[str, str]
    taints: Sequence[Mapping[str, Any]]
    allocatable: Amounts
    free: Amounts


def schedulable_nodes(nodes: Sequence[Object], pods: Sequence[Object]) -> list[ClusterNode]:
    """Return the nodes that are ready and accept new pods, with the resources these pods leave."""
    used: dict[str, list[Amounts]] = {}
    for pod in pods:
        if not is_finished(pod):
            node_name = str((pod.get("spec") or {}).get("nodeName") or "")
            used.setdefault(node_name, []).append({**requests_of(pod), "pods": 1.0})
    schedulable = []
    for node in nodes:
        spec, status = node.get("spec") or {}, node.get("status") or {}
        conditions = status.get("conditions") or []
        ready = any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in conditions
        )
        if not ready or spec.get("unschedulable"):
            continue
        name = str(node["metadata"]["name"])
        allocatable = {str(k): quantity(v) for k, v in (status.get("allocatable") or {}).items()}
        free = dict(allocatable)
        for requests in used.get(name, ()):
            for resource, amount in requests.items():
                free[resource] = free.get(resource, 0.0) - amount
        labels, taints = node["metadata"].get("labels") or {}, spec.get("taints") or ()
        schedulable.append(ClusterNode(name, labels, tuple(taints), allocatable, free))
    return schedulable


def tolerates(pods: PodRequests, taints: Sequence[Mapping[str, Any]]) -> bool:
    """Whether pods tolerate these taints."""
    hard = [taint for taint in taints if taint.get("effect") in ("NoSchedule", "NoExecute")]
    return all(
        any(_matches(toleration, taint) for toleration in pods.tolerations) for taint in hard
    )


def _matches(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint.get("key"))
    same_value = (toleration.get("value") or "") == (taint.get("value") or "")
    return toleration.get("key") == taint.get("key") and same_value


def room_finding(requested: Sequence[PodRequests], nodes: Sequence[ClusterNode]) -> DoctorFinding:
    """Check that every pod fits, by placing each on the first suitable node."""
    free = {node.name: dict(node.free) for node in nodes}
    for each in requested:
        for placed_count in range(each.count):
            target = next((node for node in nodes if _fits(each, node, free[node.name])), None)
            if target is None:
                detail = f"{placed_count} of {each.count} {each.part} pods fit; each requests "
                detail += _amounts_text(each.requests) + "; " + _rejection_text(each, nodes, free)
                remedy = f"free or add nodes, or change `{each.part}` in your file of values"
                return DoctorFinding(
                    "room", "missing", detail, remedy, required=True, reason=_ROOM_REASON
                )
            node_free = free[target.name]
            for resource, amount in {**each.requests, "pods": 1.0}.items():
                node_free[resource] = node_free.get(resource, 0.0) - amount
    pods = ", ".join(f"{each.count} {each.part}" for each in requested)
    first = requested[0]
    if any(_fits(first, node, free[node.name]) for node in nodes):
        return DoctorFinding("room", "ok", f"for {pods}, and one {first.part} more in a rollout")
    detail = f"for {pods}, but not for one {first.part} more, which a rollout starts first"
    remedy = "set `rollout.surge: 0` in your file of values, or add a node"
    return DoctorFinding("room", "warning", detail, remedy, required=True, reason=_ROOM_REASON)


def _fits(pods: PodRequests, node: ClusterNode, free: Amounts) -> bool:
    return (
        pods.selector.items() <= node.labels.items()
        and tolerates(pods, node.taints)
        and all(free.get(k, 0.0) + _EPSILON >= v for k, v in {**pods.requests, "pods": 1.0}.items())
    )


def _rejection_text(
    pods: PodRequests, nodes: Sequence[ClusterNode], free: Mapping[str, Amounts]
) -> str:
    """Explain why no node fits; each node counts once."""
    unselected = [node for node in nodes if not pods.selector.items() <= node.labels.items()]
    tainted = [
        node for node in nodes if node not in unselected and not tolerates(pods, node.taints)
    ]
    full = [node for node in nodes if node not in unselected and node not in tainted]
    parts = []
    if unselected:
        parts.append(f"{len(unselected)} without the labels of nodeSelector")
    if tainted:
        taint = tainted[0].taints[0]
        parts.append(f"{len(tainted)} with a taint such as {taint.get('key')}")
    if full:
        emptiest = max(
            full, key=lambda node: [free[node.name].get(key, 0.0) for key in pods.requests]
        )
        node_free = {key: max(0.0, free[emptiest.name].get(key, 0.0)) for key in pods.requests}
        parts.append(f"{len(full)} too full, as {emptiest.name}: {_amounts_text(node_free)} free")
    return "nodes: " + ("; ".join(parts) or "none")


def gpu_finding(nodes: Sequence[ClusterNode], required_resource: str | None) -> DoctorFinding:
    """Check GPUs and MIG slices by resource; required_resource: of the chart's pods."""
    total, free = Amounts(), Amounts()
    for node in nodes:
        for resource, amount in node.allocatable.items():
            if "/" in resource and resource.startswith(("nvidia.com/", "amd.com/")):
                total[resource] = total.get(resource, 0.0) + amount
                free[resource] = free.get(resource, 0.0) + max(0.0, node.free[resource])
    available = {resource for resource, amount in total.items() if amount}
    detail = ", ".join(
        f"{free[name]:g} of {total[name]:g} {name} free" for name in sorted(available)
    )
    sliced = [node for node in nodes if _is_sliced(node)]
    if sliced:
        detail += f"; time-sliced on {len(sliced)} nodes: set serving.kv_cache_tokens"
    required = required_resource is not None
    if required_resource is not None and required_resource not in available:
        detail = f"{detail or 'none'}; the chart requests {required_resource}"
        remedy = "name one of these in `triton.gpu.resource`, or install NVIDIA's GPU operator"
        return DoctorFinding("GPUs", "missing", detail, remedy, required=True)
    if not available:
        return DoctorFinding(
            "GPUs", "missing", "none: only engines for CPUs run", required=required
        )
    return DoctorFinding("GPUs", "ok", detail, required=required)


def _is_sliced(node: ClusterNode) -> bool:
    replicas = str(node.labels.get("nvidia.com/gpu.replicas", "1"))
    strategy = node.labels.get("nvidia.com/gpu.sharing-strategy")
    return strategy == "time-slicing" or (replicas.isdecimal() and int(replicas) > 1)


def quota_finding(
    quotas: Sequence[Object], requested: Sequence[PodRequests], own_pods: Sequence[Object]
) -> DoctorFinding:
    """Check the namespace's quotas; own: pods of the existing installation, which do not count."""
    if not quotas:
        return DoctorFinding("quota", "ok", "none")
    requests = total_requests(requested)
    requests["pods"] = float(sum(each.count for each in requested))
    own_requests = total_requests(
        PodRequests("", 1, {**requests_of(pod), "pods": 1.0})
        for pod in own_pods
        if not is_finished(pod)
    )
    shortages = []
    for quota in quotas:
        status = quota.get("status") or {}
        for key, limit in (status.get("hard") or {}).items():
            resource = _resource(str(key))
            if resource not in requests:
                continue
            used = quantity((status.get("used") or {}).get(key, 0)) - own_requests.get(
                resource, 0.0
            )
            remaining = quantity(limit) - used
            if requests[resource] > remaining + _EPSILON:
                name = quota["metadata"]["name"]
                need, has = (
                    amount_text(resource, requests[resource]),
                    amount_text(resource, max(0.0, remaining)),
                )
                shortages.append(f"{name} leaves {has} of {key}, the chart asks {need}")
    if shortages:
        remedy = "request more, or lower cpu, memory and replicas in your file of values"
        detail = "; ".join(shortages)
        return DoctorFinding(
            "quota", "missing", detail, remedy, required=True, reason=_QUOTA_REASON
        )
    if any("limits.cpu" in ((quota.get("status") or {}).get("hard") or {}) for quota in quotas):
        detail = "it counts limits.cpu, and the chart's pods set none, as throttling delays them"
        remedy = "a LimitRange with a default for cpu, or a quota of requests.cpu instead"
        return DoctorFinding(
            "quota", "warning", detail, remedy, required=True, reason=_QUOTA_REASON
        )
    names = ", ".join(str(quota["metadata"]["name"]) for quota in quotas)
    return DoctorFinding("quota", "ok", f"{names}: room for the chart")


def _resource(key: str) -> str:
    """Return the resource that a quota key such as `requests.cpu` or `limits.memory` counts."""
    if key in ("limits.memory", MEMORY):
        return MEMORY
    return CPU if key == CPU else key.removeprefix("requests.")


def _amounts_text(amounts: Mapping[str, float]) -> str:
    return ", ".join(amount_text(resource, amount) for resource, amount in amounts.items())
