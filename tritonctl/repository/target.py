# SPDX-License-Identifier: Apache-2.0
"""What a project says of the server that will load its repository: promises, memory, options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tritonctl.checks.repository import Target
from tritonctl.host.units import parse_bytes
from tritonctl.project.schema import Project
from tritonctl.repository.steps import step_models


def of_project(target: Target, project: Project) -> Target:
    """The target as a project has it: what its models promise, its container's memory.

    Its server completes no configuration: `server.arguments`. Raises UsageError.
    """
    target = replace(target, slo_ms=dict(_promises(project)), completes=False)
    if project.server.mode != "docker":
        return target
    # What is not given is computed from the repository, so that it is enough.
    memory, shared = project.docker.memory, project.docker.shm_size
    return replace(
        target,
        memory_bytes=parse_bytes(memory) if memory else None,
        shared_memory_bytes=parse_bytes(shared) if shared else None,
    )


def _promises(project: Project) -> Iterator[tuple[str, float]]:
    """How long the first part of an answer may take, by model of the repository."""
    for name, model in project.models.items():
        longest = model.slo.ttft_p99_ms or model.slo.e2e_p99_ms
        if longest is not None:
            served = {name, *step_models(project, name).values()}
            yield from ((each, longest) for each in sorted(served))
