# SPDX-License-Identifier: Apache-2.0
"""The check target of a project: latency targets, memory and API clients of its server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tritonctl.checks.repository import CheckTarget, OpenAi
from tritonctl.host.units import parse_bytes
from tritonctl.project.schema import Project
from tritonctl.repository.steps import step_models

EMBEDDED_BACKENDS = frozenset({"python"})
_TEXT = "text_generation"


def with_project_facts(target: CheckTarget, project: Project) -> CheckTarget:
    """Return the target with the project's latency targets, container memory and API clients.

    The project's server does not auto-complete configurations (`server.arguments`). Raises
    UsageError.
    """
    target = replace(
        target, slo_ms=dict(_promises(project)), completes=False, openai=_openai(project)
    )
    if project.server.mode != "docker":
        return target
    # Unset values are computed from the repository and are sufficient.
    memory, shared = project.docker.memory, project.docker.shm_size
    return replace(
        target,
        memory_bytes=parse_bytes(memory) if memory else None,
        shared_memory_bytes=parse_bytes(shared) if shared else None,
    )


def _openai(project: Project) -> OpenAi | None:
    """Return the models, aliases and keys of the OpenAI API; None without a frontend."""
    if project.frontend is None:
        return None
    tenants = project.gateway.tenants if project.gateway else {}
    return OpenAi(
        models=[name for name, model in project.models.items() if model.task == _TEXT],
        aliases=project.frontend.aliases,
        keys={name: project.path(tenant.api_key_file) for name, tenant in tenants.items()},
    )


def _promises(project: Project) -> Iterator[tuple[str, float]]:
    """Yield the latency target of the first response (ms), by model of the repository."""
    for name, model in project.models.items():
        latency_ms = model.slo.ttft_p99_ms or model.slo.e2e_p99_ms
        if latency_ms is not None:
            deployed = {name, *step_models(project, name).values()}
            yield from ((each, latency_ms) for each in sorted(deployed))
