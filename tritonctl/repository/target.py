# SPDX-License-Identifier: Apache-2.0
"""What a project says of the server that will load its repository: promises, memory, options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tritonctl.checks.repository import OpenAi, Target
from tritonctl.host.units import parse_bytes
from tritonctl.project.schema import Project
from tritonctl.repository.steps import step_models

_TEXT = "text_generation"


def of_project(target: Target, project: Project) -> Target:
    """The target as a project has it: what its models promise, its container's memory, its clients.

    Its server completes no configuration: `server.arguments`. Raises UsageError.
    """
    target = replace(
        target, slo_ms=dict(_promises(project)), completes=False, openai=_openai(project)
    )
    if project.server.mode != "docker":
        return target
    # What is not given is computed from the repository, so that it is enough.
    memory, shared = project.docker.memory, project.docker.shm_size
    return replace(
        target,
        memory_bytes=parse_bytes(memory) if memory else None,
        shared_memory_bytes=parse_bytes(shared) if shared else None,
    )


def _openai(project: Project) -> OpenAi | None:
    """What clients of the OpenAI API are offered; None without a frontend."""
    if project.frontend is None:
        return None
    tenants = project.gateway.tenants if project.gateway else {}
    return OpenAi(
        models=[name for name, one in project.models.items() if one.task == _TEXT],
        aliases=project.frontend.aliases,
        keys={name: project.path(tenant.api_key_file) for name, tenant in tenants.items()},
    )


def _promises(project: Project) -> Iterator[tuple[str, float]]:
    """How long the first part of an answer may take, by model of the repository."""
    for name, model in project.models.items():
        longest = model.slo.ttft_p99_ms or model.slo.e2e_p99_ms
        if longest is not None:
            served = {name, *step_models(project, name).values()}
            yield from ((each, longest) for each in sorted(served))
