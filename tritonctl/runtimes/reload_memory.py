# SPDX-License-Identifier: Apache-2.0
"""Check whether a model's second version fits into memory beside the one that serves.

A reload holds both. Triton also keeps versions that a cancelled request holds (decision 14), so
memory may be short although it sufficed for the reload before.
"""

from __future__ import annotations

from collections.abc import Callable

from tritonctl.engines.planning.plans import runs_on_host
from tritonctl.errors import ServerError
from tritonctl.host.resources import available_memory
from tritonctl.host.units import human_bytes
from tritonctl.project.schema import Project
from tritonctl.protocol.metrics import Metrics
from tritonctl.repository.plan import RepositoryPlan
from tritonctl.runtimes.docker.container_limits import model_bytes

_REMEDY = (
    "free memory; or run `tritonctl down`, then `tritonctl up`, which frees what cancelled "
    "requests keep loaded"
)


def refuse_low_host_memory(project: Project, plan: RepositoryPlan, name: str) -> None:
    """Raise ServerError if this machine's free memory is too small for a second version."""
    free = available_memory()
    required = model_bytes(project, plan, name)
    if free is not None and required > free:
        raise ServerError(
            f"a second version of {name} needs about {human_bytes(required)} of memory beside the "
            f"one that serves, but {human_bytes(free)} are free",
            remedy=_REMEDY,
        )


def refuse_low_gpu_memory(
    project: Project, plan: RepositoryPlan, name: str, read_metrics: Callable[[], Metrics]
) -> None:
    """Raise ServerError if no GPU has room for a second copy of an engine's files.

    read_metrics: of Triton. The files are the least that an engine needs: a KV cache comes on top.
    """
    artefact = plan.artefacts.get(name)
    model = project.models.get(name)
    if artefact is None or model is None or runs_on_host(project, model):
        return
    metrics = read_metrics()
    used = {
        sample.labels["gpu_uuid"]: sample.value
        for sample in metrics.samples("nv_gpu_memory_used_bytes")
    }
    free = [
        sample.value - used[sample.labels["gpu_uuid"]]
        for sample in metrics.samples("nv_gpu_memory_total_bytes")
        if sample.labels["gpu_uuid"] in used
    ]
    limits = artefact.manifest.result.limits
    devices = (limits.tp_size * limits.pp_size) if limits else 1
    required = sum(file.size for file in artefact.manifest.result.files) / devices
    if free and required > max(free):
        raise ServerError(
            f"a second version of {name} needs at least {human_bytes(required)} of a GPU's memory "
            f"beside the one that serves, but {human_bytes(max(free))} are free",
            remedy=_REMEDY,
        )
