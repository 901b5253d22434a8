# SPDX-License-Identifier: Apache-2.0
"""The resource requests of the chart's pods by its values, and Kubernetes quantities."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tritonctl.errors import ConfigurationError
from tritonctl.runtimes.kubernetes.kubectl import Object

CPU, MEMORY = "cpu", "memory"
Amounts = dict[str, float]  # resource to cores, bytes or pieces
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?(?:[eE][+-]?[0-9]{1,2})?)([a-zA-Z]{0,2})")
_SUFFIXES = {
    "": 1.0,
    "m": 1e-3,
    "k": 1e3,
    **{letter: 10.0 ** (6 + 3 * place) for place, letter in enumerate("MGTPE")},
    **{f"{letter}i": 1024.0 ** (1 + place) for place, letter in enumerate("KMGTPE")},
}
_GIB = 1 << 30


@dataclass(frozen=True)
class PodRequests:
    """Identical pods: their number, the requests of each, and where they may run."""

    part: str
    count: int
    requests: Amounts
    selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()


def quantity(text: object) -> float:
    """Parse a quantity such as `500m`, `2Gi` or `1e3`. Raises ValueError."""
    match = _QUANTITY.fullmatch(str(text).strip())
    if match is None or match[2] not in _SUFFIXES:
        raise ValueError(f"{str(text)[:40]!r} is not a quantity")
    return float(match[1]) * _SUFFIXES[match[2]]


def amount_text(resource: str, amount: float) -> str:
    """Format an amount: `0.5 CPU`, `2.5 GiB`, `1 nvidia.com/gpu`."""
    if resource.endswith(CPU):
        return f"{amount:.3g} CPU"
    if resource.endswith((MEMORY, "storage")):
        return f"{amount / _GIB:.3g} GiB"
    return f"{amount:g} {resource}"


def merge_values(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Merge values as Helm does: mappings recursively, everything else replaced."""
    result = dict(base)
    for key, value in overrides.items():
        old = result.get(key)
        are_mappings = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merge_values(old, value) if are_mappings else value  # type: ignore[arg-type]
    return result


def requested_pods(values: Mapping[str, Any]) -> list[PodRequests]:
    """Return the pods of a chart with these values, the largest requests first.

    Raises ConfigurationError for values of another chart.
    """
    try:
        triton, scaled = values["triton"], values["scaling"]["by"] != "none"
        count = _min_servers(values["scaling"]) if scaled else int(triton["replicas"])
        servers = _component_requests(triton)
        if gpus := int(triton["gpu"]["count"]):
            servers[str(triton["gpu"]["resource"])] = float(gpus)
        selector = {str(k): str(v) for k, v in (triton.get("nodeSelector") or {}).items()}
        tolerations = tuple(triton.get("tolerations") or ())
        pods = [PodRequests("triton", count, servers, selector, tolerations)]
        components = ["gateway", *(["frontend"] if values["images"].get("frontend") else [])]
        pods += [
            PodRequests(n, int(values[n]["replicas"]), _component_requests(values[n]))
            for n in components
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(
            f"the chart's values do not have tritonctl's format: {error}",
            remedy="compare values.yaml with that of `tritonctl deploy kubernetes --output OTHER`",
        ) from error
    return pods


def total_requests(pods: Iterable[PodRequests]) -> Amounts:
    """Return the sum of all requests."""
    sums: Amounts = {}
    for each in pods:
        _add_amounts(
            sums, {resource: each.count * amount for resource, amount in each.requests.items()}
        )
    return sums


def requests_of(pod: Object) -> Amounts:
    """Return a pod's requests: the sum of its containers, at least each init container's."""
    spec, combined = pod.get("spec") or {}, Amounts()
    for container in spec.get("containers") or []:
        _add_amounts(combined, _container_requests(container))
    for container in spec.get("initContainers") or []:
        for resource, amount in _container_requests(container).items():
            combined[resource] = max(combined.get(resource, 0.0), amount)
    return combined


def is_finished(pod: Object) -> bool:
    """Whether a pod has finished and no longer holds its requests."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _min_servers(scaling: Mapping[str, Any]) -> int:
    """Return the minimum number of servers of a scaled chart, at least one."""
    return max(1, int(scaling["minReplicas"]), int(scaling.get("spare") or 0))


def _component_requests(values: Mapping[str, Any]) -> Amounts:
    return {CPU: quantity(values["cpu"]), MEMORY: quantity(values["memory"])}


def _container_requests(container: Mapping[str, Any]) -> Amounts:
    requests = (container.get("resources") or {}).get("requests") or {}
    return {str(resource): quantity(amount) for resource, amount in requests.items()}


def _add_amounts(sums: Amounts, amounts: Mapping[str, float]) -> None:
    for resource, amount in amounts.items():
        sums[resource] = sums.get(resource, 0.0) + amount
