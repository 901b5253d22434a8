# SPDX-License-Identifier: Apache-2.0
"""Whether a cluster has room for the chart's pods: nodes, what is free on them, quotas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tritonctl.doctor.findings import Finding
from tritonctl.server.kubernetes.demand import (
    CPU,
    MEMORY,
    Amounts,
    Wanted,
    has_ended,
    quantity,
    requests_of,
    shown,
    total,
)
from tritonctl.server.kubernetes.kubectl import Object

_WHY_ROOM = "a pod that no node takes stays pending"
_WHY_QUOTA = "pods beyond it are not made at all"
_EPSILON = 1e-9


@dataclass(frozen=True)
class Node:
    """A node that takes pods; `free`: what nobody has asked for."""

    name: str
    labels: Mapping[str, str]
    taints: Sequence[Mapping[str, Any]]
    has: Amounts
    free: Amounts


def nodes_of(nodes: Sequence[Object], pods: Sequence[Object]) -> list[Node]:
    """Nodes that are ready and take new pods, with what these pods leave free."""
    used: dict[str, list[Amounts]] = {}
    for pod in pods:
        if not has_ended(pod):
            place = str((pod.get("spec") or {}).get("nodeName") or "")
            used.setdefault(place, []).append({**requests_of(pod), "pods": 1.0})
    found = []
    for node in nodes:
        spec, status = node.get("spec") or {}, node.get("status") or {}
        conditions = status.get("conditions") or []
        ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
        if not ready or spec.get("unschedulable"):
            continue
        name = str(node["metadata"]["name"])
        has = {str(k): quantity(v) for k, v in (status.get("allocatable") or {}).items()}
        free = dict(has)
        for asked in used.get(name, ()):
            for resource, amount in asked.items():
                free[resource] = free.get(resource, 0.0) - amount
        labels, taints = node["metadata"].get("labels") or {}, spec.get("taints") or ()
        found.append(Node(name, labels, tuple(taints), has, free))
    return found


def tolerates(wanted: Wanted, taints: Sequence[Mapping[str, Any]]) -> bool:
    """Whether pods may run in spite of these taints."""
    hard = [taint for taint in taints if taint.get("effect") in ("NoSchedule", "NoExecute")]
    return all(any(_matches(one, taint) for one in wanted.tolerations) for taint in hard)


def _matches(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint.get("key"))
    same_value = (toleration.get("value") or "") == (taint.get("value") or "")
    return toleration.get("key") == taint.get("key") and same_value


def room_finding(wanted: Sequence[Wanted], nodes: Sequence[Node]) -> Finding:
    """Whether every pod has a node, one after the other on the first that takes it."""
    free = {node.name: dict(node.free) for node in nodes}
    for each in wanted:
        for placed in range(each.count):
            place = next((node for node in nodes if _takes(each, node, free[node.name])), None)
            if place is None:
                detail = f"{placed} of {each.count} {each.part} pods have a node; one asks "
                detail += _listed(each.asks) + "; " + _why_not(each, nodes, free)
                remedy = f"free or add nodes, or change `{each.part}` in your file of values"
                return Finding("room", "missing", detail, remedy, required=True, why=_WHY_ROOM)
            left = free[place.name]
            for resource, amount in {**each.asks, "pods": 1.0}.items():
                left[resource] = left.get(resource, 0.0) - amount
    pods = ", ".join(f"{each.count} {each.part}" for each in wanted)
    first = wanted[0]
    if any(_takes(first, node, free[node.name]) for node in nodes):
        return Finding("room", "ok", f"for {pods}, and one {first.part} more in a rollout")
    detail = f"for {pods}, but not for one {first.part} more, which a rollout starts first"
    remedy = "set `rollout.surge: 0` in your file of values, or add a node"
    return Finding("room", "warning", detail, remedy, required=True, why=_WHY_ROOM)


def _takes(wanted: Wanted, node: Node, free: Amounts) -> bool:
    return (
        wanted.selector.items() <= node.labels.items()
        and tolerates(wanted, node.taints)
        and all(free.get(k, 0.0) + _EPSILON >= v for k, v in {**wanted.asks, "pods": 1.0}.items())
    )


def _why_not(wanted: Wanted, nodes: Sequence[Node], free: Mapping[str, Amounts]) -> str:
    """What is wrong with the nodes, each counted once."""
    unselected = [node for node in nodes if not wanted.selector.items() <= node.labels.items()]
    tainted = [
        node for node in nodes if node not in unselected and not tolerates(wanted, node.taints)
    ]
    full = [node for node in nodes if node not in unselected and node not in tainted]
    parts = []
    if unselected:
        parts.append(f"{len(unselected)} without the labels of nodeSelector")
    if tainted:
        taint = tainted[0].taints[0]
        parts.append(f"{len(tainted)} with a taint such as {taint.get('key')}")
    if full:
        most = max(full, key=lambda node: [free[node.name].get(key, 0.0) for key in wanted.asks])
        left = {key: max(0.0, free[most.name].get(key, 0.0)) for key in wanted.asks}
        parts.append(f"{len(full)} too full, as {most.name}: {_listed(left)} free")
    return "nodes: " + ("; ".join(parts) or "none")


def gpu_finding(nodes: Sequence[Node], asked: str | None) -> Finding:
    """GPUs and MIG slices by their resource, free of all; asked: what the chart's pods need."""
    has, free = Amounts(), Amounts()
    for node in nodes:
        for resource, amount in node.has.items():
            if "/" in resource and resource.startswith(("nvidia.com/", "amd.com/")):
                has[resource] = has.get(resource, 0.0) + amount
                free[resource] = free.get(resource, 0.0) + max(0.0, node.free[resource])
    real = {resource for resource, amount in has.items() if amount}
    detail = ", ".join(f"{free[one]:g} of {has[one]:g} {one} free" for one in sorted(real))
    sliced = [node for node in nodes if _is_sliced(node)]
    if sliced:
        detail += f"; time-sliced on {len(sliced)} nodes: set serving.kv_cache_tokens"
    required = asked is not None
    if asked is not None and asked not in real:
        detail = f"{detail or 'none'}; the chart asks for {asked}"
        remedy = "name one of these in `triton.gpu.resource`, or install NVIDIA's GPU operator"
        return Finding("GPUs", "missing", detail, remedy, required=True)
    if not real:
        return Finding("GPUs", "missing", "none: engines for CPUs run", required=required)
    return Finding("GPUs", "ok", detail, required=required)


def _is_sliced(node: Node) -> bool:
    replicas = str(node.labels.get("nvidia.com/gpu.replicas", "1"))
    strategy = node.labels.get("nvidia.com/gpu.sharing-strategy")
    return strategy == "time-slicing" or (replicas.isdecimal() and int(replicas) > 1)


def quota_finding(
    quotas: Sequence[Object], wanted: Sequence[Wanted], own: Sequence[Object]
) -> Finding:
    """Whether the namespace's quotas leave room; own: pods of the installation that is there."""
    if not quotas:
        return Finding("quota", "ok", "none")
    asked = total(wanted)
    asked["pods"] = float(sum(each.count for each in wanted))
    mine = total(
        Wanted("", 1, {**requests_of(pod), "pods": 1.0}) for pod in own if not has_ended(pod)
    )
    short = []
    for quota in quotas:
        status = quota.get("status") or {}
        for key, limit in (status.get("hard") or {}).items():
            resource = _resource(str(key))
            if resource not in asked:
                continue
            used = quantity((status.get("used") or {}).get(key, 0)) - mine.get(resource, 0.0)
            left = quantity(limit) - used
            if asked[resource] > left + _EPSILON:
                name = quota["metadata"]["name"]
                need, has = shown(resource, asked[resource]), shown(resource, max(0.0, left))
                short.append(f"{name} leaves {has} of {key}, the chart asks {need}")
    if short:
        remedy = "ask for more, or lower cpu, memory and replicas in your file of values"
        detail = "; ".join(short)
        return Finding("quota", "missing", detail, remedy, required=True, why=_WHY_QUOTA)
    if any("limits.cpu" in ((quota.get("status") or {}).get("hard") or {}) for quota in quotas):
        detail = "it counts limits.cpu, and the chart's pods have none: throttled they answer late"
        remedy = "a LimitRange with a default for cpu, or a quota of requests.cpu instead"
        return Finding("quota", "warning", detail, remedy, required=True, why=_WHY_QUOTA)
    names = ", ".join(str(quota["metadata"]["name"]) for quota in quotas)
    return Finding("quota", "ok", f"{names}: room for the chart")


def _resource(key: str) -> str:
    """What a quota counts: `requests.cpu` and `limits.memory` as the chart's pods ask them."""
    if key in ("limits.memory", MEMORY):
        return MEMORY
    return CPU if key == CPU else key.removeprefix("requests.")


def _listed(amounts: Mapping[str, float]) -> str:
    return ", ".join(shown(resource, amount) for resource, amount in amounts.items())
