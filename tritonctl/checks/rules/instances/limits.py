# SPDX-License-Identifier: Apache-2.0
"""TC64x: whether the rate limiter can give what instances ask for.

All of it matters only to servers started with `--rate-limit=execution_count`. Sources:
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/rate_limiter.md and
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md#rate-limiter-configuration
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tritonctl.checks.analysis.bls import CallGraph
from tritonctl.checks.analysis.placement import Group, groups
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.places import Span
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import advice, warning


@dataclass(frozen=True)
class _Need:
    """A resource that the instances of a group need. `everywhere`: one pool for all devices."""

    model: Model
    group: Group
    name: str
    count: int
    everywhere: bool
    span: Span

    @property
    def devices(self) -> tuple[int, ...] | None:
        """Where it is needed; what is not on a GPU is on device 0."""
        return self.group.gpus if self.group.kind == "KIND_GPU" else (0,)


def _needs(repository: Repository) -> list[_Need]:
    return [
        need
        for _, model in sorted(repository.models.items())
        for group in groups(model, repository.target)
        for need in _of_group(model, group)
    ]


def _of_group(model: Model, group: Group) -> Iterator[_Need]:
    if group.index is None:
        return
    path = (*group.path, "rate_limiter", "resources")
    written = model.config.message.instance_group[group.index].rate_limiter.resources
    # Of two with one name the last counts.
    for index, one in {one.name: (index, one) for index, one in enumerate(written)}.values():
        span = model.config.span(*path, index)
        yield _Need(model, group, one.name, one.count, getattr(one, "global"), span)


@warning(
    "TC640 global-and-not",
    summary="a resource of the rate limiter that is global in one place and not in another",
    why="With --rate-limit=execution_count Triton refuses whichever of the two models is "
    "loaded second.",
)
def global_and_not(repository: Repository) -> Iterator[Hit]:
    first: dict[str, _Need] = {}
    for need in _needs(repository):
        other = first.setdefault(need.name, need)
        if other.everywhere != need.everywhere:
            here, elsewhere = ("global", "not") if need.everywhere else ("not global", "is")
            yield Hit(
                f"{need.name} is {here} here, and {elsewhere} in {other.model.name}",
                "write `global: true` in both places or in none",
                need.span,
                model=need.model,
            )
            return


@warning(
    "TC641 waits-for-itself",
    summary="a model that holds a resource while it waits for one that needs it",
    why="With --rate-limit=execution_count an instance keeps its resources until it answers. "
    "There are as many as the hungriest instance needs: the called model never runs, and both "
    "hang.",
    answers=("server#8358", "python_backend#325", "server#6236", "server#6274"),
)
def waits_for_itself(repository: Repository) -> Iterator[Hit]:
    needs = _needs(repository)
    if not needs:
        return
    graph = CallGraph(repository)
    # How much there is of each by default: what the hungriest instance needs.
    most: Counter[str] = Counter()
    for need in needs:
        most[need.name] = max(most[need.name], need.count)
    callers = [need for need in needs if graph.calls[need.model.name]]
    for need, other in itertools.product(callers, needs):
        if not _too_much(need, other, most):
            continue
        if way := graph.way(need.model.name, other.model.name):
            yield Hit(
                f"it holds {need.count} {need.name} while it waits for {' → '.join(way[1:])}, "
                f"which needs {other.count}: there are {most[need.name]}",
                f"give {need.model.name} no {need.name}, or start the server with "
                f"--rate-limit-resource={need.name}:{need.count + other.count} or more",
                need.span,
                model=need.model,
            )
            return


def _too_much(need: _Need, other: _Need, most: Counter[str]) -> bool:
    """Whether the second can never run while the first does."""
    if need.model is other.model or need.name != other.name:
        return False  # another rule reports circles
    if need.count + other.count <= most[need.name]:
        return False
    same_device = need.devices is not None and len(need.devices) == 1
    return need.everywhere or (same_device and need.devices == other.devices)


@warning(
    "TC642 limits-nothing",
    summary="a resource of the rate limiter that limits nothing",
    why="Instances wait for a resource only when another holds it: most likely its name is "
    "spelt differently elsewhere.",
)
def limits_nothing(repository: Repository) -> Iterator[Hit]:
    needs = _needs(repository)
    users: Counter[str] = Counter()
    for need in needs:
        # Instances of an unknown number may be several.
        users[need.name] += 2 if need.group.total is None else need.group.total
    for need in needs:
        if not need.count or users[need.name] == 1:
            reason = "no other instance needs it" if need.count else "0 of it are needed"
            yield Hit(
                f"the resource {need.name} limits nothing: {reason}",
                "write the name that other instances have, or remove it",
                need.span,
                model=need.model,
            )


@warning(
    "TC643 resource-again",
    summary="a resource of the rate limiter that a group lists twice",
    why="Triton does not add the counts up: it silently takes the last one.",
)
def resource_again(config: ConfigMessage) -> Iterator[Hit]:
    written = config.message.instance_group
    for index, group in enumerate(written):
        seen: set[tuple[str, bool]] = set()
        for position, one in enumerate(group.rate_limiter.resources):
            key = (one.name, getattr(one, "global"))
            if key in seen:
                yield Hit(
                    f"the resource {one.name} is listed again: the last one counts",
                    "list it once, with the intended count",
                    config.span("instance_group", index, "rate_limiter", "resources", position),
                )
            seen.add(key)


@advice(
    "TC644 priority-alone",
    summary="a priority of the rate limiter where no model needs a resource",
    why="Priorities decide who goes first when instances wait for the same resource. Without "
    "--rate-limit=execution_count Triton ignores both.",
)
def priority_alone(repository: Repository) -> Iterator[Hit]:
    if _needs(repository):
        return
    for model in repository.models.values():
        made = groups(model, repository.target)
        if len(made) == 1 and made[0].index is not None:
            path = (*made[0].path, "rate_limiter", "priority")
            if path in model.config.values:
                yield Hit(
                    "the priority has no effect: no model of the repository needs a resource",
                    "give the models that compete a common resource, or remove it",
                    model.config.span(*path),
                    model=model,
                )
