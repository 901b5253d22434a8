# SPDX-License-Identifier: Apache-2.0
"""What the chart's pods ask of a cluster, by its values; quantities as Kubernetes writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tritonctl.errors import ConfigurationError
from tritonctl.server.kubernetes.kubectl import Object

CPU, MEMORY = "cpu", "memory"
Amounts = dict[str, float]  # by resource: cores, bytes, pieces
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
class Wanted:
    """Equal pods: how many, what each asks, where it may run."""

    part: str
    count: int
    asks: Amounts
    selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()


def quantity(text: object) -> float:
    """`500m`, `2Gi`, `1e3` as a number. Raises ValueError."""
    match = _QUANTITY.fullmatch(str(text).strip())
    if match is None or match[2] not in _SUFFIXES:
        raise ValueError(f"{str(text)[:40]!r} is no quantity")
    return float(match[1]) * _SUFFIXES[match[2]]


def shown(resource: str, amount: float) -> str:
    """An amount for people: `0.5 CPU`, `2.5 GiB`, `1 nvidia.com/gpu`."""
    if resource.endswith(CPU):
        return f"{amount:.3g} CPU"
    if resource.endswith((MEMORY, "storage")):
        return f"{amount / _GIB:.3g} GiB"
    return f"{amount:g} {resource}"


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Values over others, as Helm merges them: mappings in each other, all else replaced."""
    result = dict(under)
    for key, value in over.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merged(old, value) if both else value  # type: ignore[arg-type]
    return result


def wanted(values: Mapping[str, Any]) -> list[Wanted]:
    """The pods of a chart with these values, those that need most first.

    Raises ConfigurationError for what is no chart's.
    """
    try:
        triton, scaled = values["triton"], values["scaling"]["by"] != "none"
        count = _least(values["scaling"]) if scaled else int(triton["replicas"])
        servers = _asks(triton)
        if gpus := int(triton["gpu"]["count"]):
            servers[str(triton["gpu"]["resource"])] = float(gpus)
        selector = {str(k): str(v) for k, v in (triton.get("nodeSelector") or {}).items()}
        tolerations = tuple(triton.get("tolerations") or ())
        found = [Wanted("triton", count, servers, selector, tolerations)]
        others = ["gateway", *(["frontend"] if values["images"].get("frontend") else [])]
        found += [Wanted(n, int(values[n]["replicas"]), _asks(values[n])) for n in others]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(
            f"the chart's values are not as tritonctl writes them: {error}",
            remedy="compare values.yaml with that of `tritonctl deploy kubernetes --output OTHER`",
        ) from error
    return found


def total(pods: Iterable[Wanted]) -> Amounts:
    """What all of them ask together."""
    sums: Amounts = {}
    for each in pods:
        _add(sums, {resource: each.count * amount for resource, amount in each.asks.items()})
    return sums


def requests_of(pod: Object) -> Amounts:
    """What a pod in the cluster asks: its containers together, or an init container alone."""
    spec, together = pod.get("spec") or {}, Amounts()
    for container in spec.get("containers") or []:
        _add(together, _requests(container))
    for container in spec.get("initContainers") or []:
        for resource, amount in _requests(container).items():
            together[resource] = max(together.get(resource, 0.0), amount)
    return together


def has_ended(pod: Object) -> bool:
    """Whether it has ended, and asks nothing any more."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _least(scaling: Mapping[str, Any]) -> int:
    """The fewest servers that a scaled chart runs with; one, where it scales from zero."""
    return max(1, int(scaling["minReplicas"]), int(scaling.get("spare") or 0))


def _asks(values: Mapping[str, Any]) -> Amounts:
    return {CPU: quantity(values["cpu"]), MEMORY: quantity(values["memory"])}


def _requests(container: Mapping[str, Any]) -> Amounts:
    asked = (container.get("resources") or {}).get("requests") or {}
    return {str(resource): quantity(amount) for resource, amount in asked.items()}


def _add(sums: Amounts, more: Mapping[str, float]) -> None:
    for resource, amount in more.items():
        sums[resource] = sums.get(resource, 0.0) + amount
