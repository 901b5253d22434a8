# SPDX-License-Identifier: Apache-2.0
"""The number of instances that a server creates for a model, and their devices, where known.

Source: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md#instance-groups
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tritonctl.checks.repository import CheckTarget, Model
from tritonctl.checks.source_span import Span

Kind = Literal["KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"]
# Indexed by their numbers in Triton's schema.
_KINDS: tuple[Kind, ...] = ("KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL")
# Without `count`, Triton creates two CPU instances for these backends and one for all others.
_TWO_ON_CPU = ("onnxruntime", "tensorflow")


@dataclass(frozen=True, slots=True)
class ServerInstanceGroup:
    """A group of instances as the server creates it. None means unknown, except for `index`."""

    index: int | None  # in `instance_group`; None if Triton adds the group
    kind: Kind  # KIND_AUTO only while the target's GPUs are unknown
    count: int | None  # per device
    gpus: tuple[int, ...] | None  # GPU numbers; () on the CPU
    passive: bool = False

    @property
    def total(self) -> int | None:
        """The number of instances on all devices; None if unknown."""
        if self.count is None or self.gpus is None or self.kind == "KIND_AUTO":
            return None
        return self.count * (len(self.gpus) if self.kind == "KIND_GPU" else 1)

    @property
    def path(self) -> tuple[str | int, ...]:
        """The path of the group in the configuration."""
        return () if self.index is None else ("instance_group", self.index)


def configured_kind(group: Any) -> Kind | None:
    """Return the kind of an `instance_group` as written; None for an unknown number."""
    return _KINDS[group.kind] if 0 <= group.kind < len(_KINDS) else None


def configured_groups(model: Model) -> Iterator[tuple[int, Any]]:
    """Yield the index and message of each group as written; none for an ensemble."""
    if model.backend != "ensemble":
        yield from enumerate(model.config.message.instance_group)


def groups(model: Model, target: CheckTarget) -> tuple[ServerInstanceGroup, ...]:
    """Return the groups a server creates; () for an ensemble or an unreadable configuration."""
    if not model.has_config or model.backend == "ensemble":
        return ()
    written = model.config.message.instance_group
    if not written:
        kind = _resolve_kind("KIND_AUTO", (), target)
        return (
            ServerInstanceGroup(
                None, kind, _default_count(model, kind), _gpu_numbers(kind, (), target)
            ),
        )
    return tuple(_server_groups(model, target, written))


def _server_groups(
    model: Model, target: CheckTarget, written: Any
) -> Iterator[ServerInstanceGroup]:
    for index, config_group in enumerate(written):
        listed_gpus = tuple(config_group.gpus)
        kind = _resolve_kind(configured_kind(config_group) or "KIND_AUTO", listed_gpus, target)
        count = config_group.count if config_group.count > 0 else _default_count(model, kind)
        yield ServerInstanceGroup(
            index, kind, count, _gpu_numbers(kind, listed_gpus, target), config_group.passive
        )


def _resolve_kind(kind: Kind, listed_gpus: tuple[int, ...], target: CheckTarget) -> Kind:
    """Resolve KIND_AUTO: to GPUs if the target has all that are listed, else to the CPU."""
    if kind != "KIND_AUTO" or target.gpus is None:
        return kind
    numbers = range(len(target.gpus))
    return "KIND_GPU" if target.gpus and all(gpu in numbers for gpu in listed_gpus) else "KIND_CPU"


def _default_count(model: Model, kind: Kind) -> int | None:
    doubled = model.backend is None or model.backend in _TWO_ON_CPU
    if not doubled or kind in ("KIND_GPU", "KIND_MODEL"):
        return 1
    return 2 if kind == "KIND_CPU" and model.backend else None


def _gpu_numbers(
    kind: Kind, listed_gpus: tuple[int, ...], target: CheckTarget
) -> tuple[int, ...] | None:
    if kind in ("KIND_CPU", "KIND_MODEL"):
        return ()
    if listed_gpus:
        return listed_gpus
    return None if target.gpus is None else tuple(range(len(target.gpus)))


def instance_count(model: Model, target: CheckTarget) -> int | None:
    """Return the number of instances a server creates for a model; None if unknown."""
    totals = [group.total for group in groups(model, target)]
    known_totals = [total for total in totals if total is not None]
    return sum(known_totals) if totals and len(known_totals) == len(totals) else None


def count_span(model: Model, target: CheckTarget) -> Span | None:
    """Return the span of a model's instance count, or of the nearest enclosing value."""
    server_groups = groups(model, target)
    if not server_groups:
        return None
    path = max(server_groups, key=lambda group: group.total or 0).path
    if (*path, "count") in model.config.value_spans:
        return model.config.span(*path, "count")
    backend_field = "backend" if model.config.message.backend else "platform"
    return model.config.span(*(path or (backend_field,)))


def join_some(items: Iterable[str], max_items: int = 6) -> str:
    """Join items for a message, shortened to `max_items` and a count of the others."""
    listed = list(items)
    more = f" and {len(listed) - max_items} more" if len(listed) > max_items else ""
    return ", ".join(listed[:max_items]) + more
