# SPDX-License-Identifier: Apache-2.0
"""How many instances of a model a server makes, and on which devices, as far as that is known.

Source: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md#instance-groups
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tritonctl.checks.places import Span
from tritonctl.checks.repository import Model, Target

Kind = Literal["KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"]
# By their numbers in Triton's schema.
_KINDS: tuple[Kind, ...] = ("KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL")
# Of these Triton makes two instances on the CPU where `count` is absent, of all others one.
_TWO_ON_CPU = ("onnxruntime", "tensorflow")


@dataclass(frozen=True, slots=True)
class Group:
    """Some instances of a model. `index`: in `instance_group`, None where Triton adds the group.

    kind: what the server makes of it; KIND_AUTO only while the target's GPUs are unknown.
    count: on each device; gpus: their numbers, () without. None where it is unknown.
    """

    index: int | None
    kind: Kind
    count: int | None
    gpus: tuple[int, ...] | None
    passive: bool = False

    @property
    def total(self) -> int | None:
        """How many instances that is; None where it is unknown."""
        if self.count is None or self.gpus is None or self.kind == "KIND_AUTO":
            return None
        return self.count * (len(self.gpus) if self.kind == "KIND_GPU" else 1)

    @property
    def path(self) -> tuple[str | int, ...]:
        """Where it stands in the configuration."""
        return () if self.index is None else ("instance_group", self.index)


def written_kind(group: Any) -> Kind | None:
    """The kind of an `instance_group` as written; None for a number that has no name."""
    return _KINDS[group.kind] if 0 <= group.kind < len(_KINDS) else None


def written_groups(model: Model) -> Iterator[tuple[int, Any]]:
    """The groups as written, of models that may have any."""
    if model.backend != "ensemble":
        yield from enumerate(model.config.message.instance_group)


def groups(model: Model, target: Target) -> tuple[Group, ...]:
    """The groups that a server makes of a model: none of an ensemble, or while it is unreadable."""
    if not model.has_config or model.backend == "ensemble":
        return ()
    written = model.config.message.instance_group
    if not written:
        kind = _resolved("KIND_AUTO", (), target)
        return (Group(None, kind, _default_count(model, kind), _gpus(kind, (), target)),)
    return tuple(_groups(model, target, written))


def _groups(model: Model, target: Target, written: Any) -> Iterator[Group]:
    for index, one in enumerate(written):
        listed = tuple(one.gpus)
        kind = _resolved(written_kind(one) or "KIND_AUTO", listed, target)
        count = one.count if one.count > 0 else _default_count(model, kind)
        yield Group(index, kind, count, _gpus(kind, listed, target), one.passive)


def _resolved(kind: Kind, listed: tuple[int, ...], target: Target) -> Kind:
    """KIND_AUTO: the GPUs if the target has all that are listed, else the CPU."""
    if kind != "KIND_AUTO" or target.gpus is None:
        return kind
    numbers = range(len(target.gpus))
    return "KIND_GPU" if target.gpus and all(gpu in numbers for gpu in listed) else "KIND_CPU"


def _default_count(model: Model, kind: Kind) -> int | None:
    doubled = model.backend is None or model.backend in _TWO_ON_CPU
    if not doubled or kind in ("KIND_GPU", "KIND_MODEL"):
        return 1
    return 2 if kind == "KIND_CPU" and model.backend else None


def _gpus(kind: Kind, listed: tuple[int, ...], target: Target) -> tuple[int, ...] | None:
    if kind in ("KIND_CPU", "KIND_MODEL"):
        return ()
    if listed:
        return listed
    return None if target.gpus is None else tuple(range(len(target.gpus)))


def instances(model: Model, target: Target) -> int | None:
    """How many instances a server makes of a model; None where it is unknown."""
    totals = [group.total for group in groups(model, target)]
    known = [total for total in totals if total is not None]
    return sum(known) if totals and len(known) == len(totals) else None


def count_span(model: Model, target: Target) -> Span | None:
    """Where the number of a model's instances stands, or the nearest thing to it."""
    made = groups(model, target)
    if not made:
        return None
    path = max(made, key=lambda group: group.total or 0).path
    if (*path, "count") in model.config.values:
        return model.config.span(*path, "count")
    named = "backend" if model.config.message.backend else "platform"
    return model.config.span(*(path or (named,)))


def some(shares: Iterable[str], most: int = 6) -> str:
    """A list for a message, cut where it gets too long."""
    listed = list(shares)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
