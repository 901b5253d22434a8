# SPDX-License-Identifier: Apache-2.0
"""TC64x: resources of the rate limiter that instances can never get.

The rules matter only for servers started with `--rate-limit=execution_count`. Sources:
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/rate_limiter.md and
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md#rate-limiter-configuration
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tritonctl.checks.analysis.bls import CallGraph
from tritonctl.checks.analysis.placement import ServerInstanceGroup, groups
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import advice, warning
from tritonctl.checks.source_span import Span


@dataclass(frozen=True)
class _ResourceNeed:
    """A resource that the instances of a group need."""

    model: Model
    group: ServerInstanceGroup
    name: str
    count: int
    is_global: bool
    span: Span

    @property
    def devices(self) -> tuple[int, ...] | None:
        """The devices of the instances: GPU numbers, or device 0 for others; None if unknown."""
        return self.group.gpus if self.group.kind == "KIND_GPU" else (0,)


def _resource_needs(repository: Repository) -> list[_ResourceNeed]:
    return [
        need
        for _, model in sorted(repository.models.items())
        for group in groups(model, repository.target)
        for need in _group_needs(model, group)
    ]


def _group_needs(model: Model, group: ServerInstanceGroup) -> Iterator[_ResourceNeed]:
    if group.index is None:
        return
    path = (*group.path, "rate_limiter", "resources")
    resources = model.config.message.instance_group[group.index].rate_limiter.resources
    # Of two resources with the same name the last counts.
    for index, resource in {
        resource.name: (index, resource) for index, resource in enumerate(resources)
    }.values():
        span = model.config.span(*path, index)
        yield _ResourceNeed(
            model, group, resource.name, resource.count, getattr(resource, "global"), span
        )


@warning(
    "TC640 global-and-not",
    summary="a resource of the rate limiter that is global in one place and not in another",
    reason="With --rate-limit=execution_count Triton refuses the model that is loaded second.",
)
def global_and_not(repository: Repository) -> Iterator[Hit]:
    first: dict[str, _ResourceNeed] = {}
    for need in _resource_needs(repository):
        first_need = first.setdefault(need.name, need)
        if first_need.is_global != need.is_global:
            local_text, other_text = ("global", "not") if need.is_global else ("not global", "is")
            yield Hit(
                f"{need.name} is {local_text} here, and {other_text} in {first_need.model.name}",
                "write `global: true` in both places or in none",
                need.span,
                model=need.model,
            )
            return


@warning(
    "TC641 waits-for-itself",
    summary="a model that holds a resource while it waits for one that needs it",
    reason="With --rate-limit=execution_count an instance keeps its resources until it responds. "
    "By "
    "default there are as many as the largest need of an instance: the called model never runs, "
    "and both hang.",
    answers=("server#8358", "python_backend#325", "server#6236", "server#6274"),
)
def waits_for_itself(repository: Repository) -> Iterator[Hit]:
    needs = _resource_needs(repository)
    if not needs:
        return
    graph = CallGraph(repository)
    # The default amount of each resource: the largest need of an instance.
    max_counts: Counter[str] = Counter()
    for need in needs:
        max_counts[need.name] = max(max_counts[need.name], need.count)
    callers = [need for need in needs if graph.calls[need.model.name]]
    for need, called_need in itertools.product(callers, needs):
        if not _is_resource_deadlock(need, called_need, max_counts):
            continue
        if wait_path := graph.wait_path(need.model.name, called_need.model.name):
            yield Hit(
                f"it holds {need.count} {need.name} while it waits for "
                f"{' → '.join(wait_path[1:])}, "
                f"which needs {called_need.count}: there are {max_counts[need.name]}",
                f"give {need.model.name} no {need.name}, or start the server with "
                f"--rate-limit-resource={need.name}:{need.count + called_need.count} or more",
                need.span,
                model=need.model,
            )
            return


def _is_resource_deadlock(
    caller: _ResourceNeed, callee: _ResourceNeed, limits: Counter[str]
) -> bool:
    """Whether the callee's instance can never run while the caller's instance runs."""
    if caller.model is callee.model or caller.name != callee.name:
        return False  # TC650 and TC651 report cycles
    if caller.count + callee.count <= limits[caller.name]:
        return False
    same_device = caller.devices is not None and len(caller.devices) == 1
    return caller.is_global or (same_device and caller.devices == callee.devices)


@warning(
    "TC642 limits-nothing",
    summary="a resource of the rate limiter that limits nothing",
    reason="Instances wait for a resource only while another holds it. Most likely its name is "
    "spelt differently elsewhere.",
)
def limits_nothing(repository: Repository) -> Iterator[Hit]:
    needs = _resource_needs(repository)
    users: Counter[str] = Counter()
    for need in needs:
        # Instances of an unknown number may be several.
        users[need.name] += 2 if need.group.total is None else need.group.total
    for need in needs:
        if not need.count or users[need.name] == 1:
            reason = "no other instance needs it" if need.count else "its count is 0"
            yield Hit(
                f"the resource {need.name} limits nothing: {reason}",
                "write the name that other instances use, or remove it",
                need.span,
                model=need.model,
            )


@warning(
    "TC643 resource-again",
    summary="a resource of the rate limiter that a group lists twice",
    reason="Triton does not add the counts up: it silently takes the last one.",
)
def resource_again(config: ConfigMessage) -> Iterator[Hit]:
    config_groups = config.message.instance_group
    for index, group in enumerate(config_groups):
        seen: set[tuple[str, bool]] = set()
        for position, resource in enumerate(group.rate_limiter.resources):
            key = (resource.name, getattr(resource, "global"))
            if key in seen:
                yield Hit(
                    f"the resource {resource.name} is listed again: the last one counts",
                    "list it once, with the intended count",
                    config.span("instance_group", index, "rate_limiter", "resources", position),
                )
            seen.add(key)


@advice(
    "TC644 priority-alone",
    summary="a priority of the rate limiter in a repository without resources",
    reason="Priorities decide which instance runs first when several wait for the same resource. "
    "Without --rate-limit=execution_count Triton ignores both.",
)
def priority_alone(repository: Repository) -> Iterator[Hit]:
    if _resource_needs(repository):
        return
    for model in repository.models.values():
        model_groups = groups(model, repository.target)
        if len(model_groups) == 1 and model_groups[0].index is not None:
            path = (*model_groups[0].path, "rate_limiter", "priority")
            if path in model.config.value_spans:
                yield Hit(
                    "the priority has no effect: no model of the repository needs a resource",
                    "give the competing models a common resource, or remove the priority",
                    model.config.span(*path),
                    model=model,
                )
