# SPDX-License-Identifier: Apache-2.0
"""Compute a Triton container's limits from its repository: memory, shared memory, open files.

A limit that is too low kills the server under load; a limit that is too high does not protect the
host. compose.yaml repeats the reason of every figure as a comment. Sources: measurements
(benchmarks/results/docker.md), the Python backend's `shm-default-byte-size` and
`shm-growth-byte-size` (1 MiB each), and NVIDIA's advice for its images, `--ulimit memlock=-1
--ulimit stack=67108864`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonctl.checks.analysis.stub_memory import MIB, REGION_BYTES, region_bytes, tensor_bytes
from tritonctl.checks.repository import Model
from tritonctl.engines.planning.plans import models_without_figures, plan_model
from tritonctl.errors import RepositoryError, TritonctlError
from tritonctl.host.units import human_bytes, parse_bytes
from tritonctl.project.schema import Project
from tritonctl.protocol.model_config import instances_of
from tritonctl.repository.contents import CONFIG, HandwrittenModel, read_config
from tritonctl.repository.plan import RepositoryPlan
from tritonctl.repository.steps import step_models

# Resident memory, measured with number-speller: tritonserver after 20,000 streams, and a stub with
# a tokenizer; both include idle memory.
SERVER_BYTES = 128 * MIB
STUB_BYTES = 96 * MIB
# A stub with an engine also holds the runtime's libraries: estimates.toml has 200 MB for OpenVINO,
# the largest.
ENGINE_STUB_BYTES = 300 * MIB
# Weights of an engine without figures in estimates.toml: the file and a packed copy.
HOST_COPIES = 2.2
MARGIN = 1.25
DOCKER_DEFAULT_SHM = 64 * MIB
TMP_BYTES = 64 * MIB
# Client connections, each an open file; docs/explanation/failure-behaviour.md covers 10,000 idle
# connections.
CONNECTIONS = 10_240
FILES_PER_MODEL = 64
BASE_FILES = 1024
_DEFAULT_LENGTH = 1024


@dataclass(frozen=True)
class ContainerLimits:
    """Limits of one container, in bytes and counts."""

    memory: int
    shm: int
    tmp: int
    nofile: int
    reasons: Mapping[str, str]  # limit to a line with its source


def container_limits(project: Project, plan: RepositoryPlan) -> ContainerLimits:
    """Return the limits for a rendered repository; `docker:` of the project overrides them.

    Raises RepositoryError if it has not been rendered.
    """
    configs = repository_configs(project.repository, plan.model_names)
    python = [config for config in configs if config.get("backend") == "python"]
    stubs = sum(instances_of(config) or 1 for config in python)
    shm, shm_reason = _shm(project, python)
    memory, memory_reason = _memory(project, plan, stubs, shm)
    files = BASE_FILES + CONNECTIONS + FILES_PER_MODEL * (len(configs) + stubs)
    nofile = 1 << (files - 1).bit_length()  # the next power of two
    return ContainerLimits(
        memory,
        shm,
        TMP_BYTES,
        nofile,
        {
            "memory": memory_reason,
            "shm": shm_reason,
            "tmp": "the only writable folder; counts as memory",
            "nofile": f"{CONNECTIONS} connections, {FILES_PER_MODEL} files of each of "
            f"{len(configs)} models and {stubs} stubs, {BASE_FILES} others",
        },
    )


def repository_configs(repository: Path, models: Collection[str]) -> list[dict[str, Any]]:
    """Read the config.pbtxt of these models. Raises RepositoryError if none has one."""
    files = [file for name in models if (file := repository / name / CONFIG).is_file()]
    if not files:
        raise RepositoryError(f"{repository} has no models", remedy="render it: `tritonctl render`")
    return [read_config(file) for file in files]


def _memory(project: Project, plan: RepositoryPlan, stubs: int, shm: int) -> tuple[int, str]:
    if project.docker.memory:
        return parse_bytes(project.docker.memory), "docker.memory of tritonctl.yaml"
    engines = sum(_engine_bytes(project, name) for name in project.models)
    handwritten_bytes = sum(_handwritten_bytes(model) for model in plan.handwritten)
    names = (*project.public, *(model.name for model in plan.handwritten))
    reload_bytes = max((model_bytes(project, plan, name) for name in names), default=0)
    fixed = SERVER_BYTES + stubs * STUB_BYTES
    cache = project.server.cache_bytes if plan.needs_cache else 0
    total = (fixed + engines + handwritten_bytes + reload_bytes) * MARGIN + cache + shm + TMP_BYTES
    handwritten_reason = (
        f"handwritten models {human_bytes(handwritten_bytes)}, " if plan.handwritten else ""
    )
    cache_reason = f"the response cache {human_bytes(cache)}, " if cache else ""
    reason = (
        f"server {human_bytes(SERVER_BYTES)}, {stubs} stubs {human_bytes(stubs * STUB_BYTES)}, "
        f"engines {human_bytes(engines)}, {handwritten_reason}the largest model a second time "
        f"while it is reloaded {human_bytes(reload_bytes)}, a quarter more, {cache_reason}"
        "and /dev/shm and /tmp"
    )
    return _round_up(total, 64 * MIB), reason


def model_bytes(project: Project, plan: RepositoryPlan, name: str) -> int:
    """Return the bytes of a second copy of a model: engine or handwritten files, plus stubs."""
    handwritten = {model.name: model for model in plan.handwritten}
    if model := handwritten.get(name):
        return _handwritten_bytes(model) + _instances(model) * STUB_BYTES
    engine = _engine_bytes(project, name) if name in project.models else 0
    return engine + len(step_models(project, name)) * STUB_BYTES


def _handwritten_bytes(model: HandwrittenModel) -> int:
    """Return the bytes of all instances without stubs: served versions and packages.

    The size of packages is unknown: they count as an engine's runtime.
    """
    read = Model(model.name, model.folder, model.name)
    unserved = {str(version) for version in {*read.versions} - {*read.served_versions}}
    files = [
        file
        for entry in model.folder.iterdir()
        if entry.name not in unserved
        for file in (entry, *entry.rglob("*"))
    ]
    packages = ENGINE_STUB_BYTES - STUB_BYTES if model.requirements else 0
    return _instances(model) * (math.ceil(HOST_COPIES * _file_bytes(files)) + packages)


def _instances(model: HandwrittenModel) -> int:
    return instances_of(model.config) or 1


def _engine_bytes(project: Project, name: str) -> int:
    """Return the host memory of a model's engine: planned on a CPU, the loaded files on a GPU."""
    libraries = ENGINE_STUB_BYTES - STUB_BYTES
    folders = (project.repository / name, project.repository / f"{name}_engine")
    on_disk = _file_bytes(file for folder in folders for file in folder.rglob("*"))
    if name not in models_without_figures(project):
        try:
            [fit, *_] = plan_model(project, name).fits
        except TritonctlError:  # the checkpoint is missing or cannot be planned
            fit = None
        if fit is not None and fit.device.name == "host":
            return fit.needed + libraries
    return math.ceil(HOST_COPIES * on_disk) + libraries


def _file_bytes(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())


def _shm(project: Project, python: Sequence[Mapping[str, Any]]) -> tuple[int, str]:
    if project.docker.shm_size:
        return parse_bytes(project.docker.shm_size), "docker.shm_size of tritonctl.yaml"
    engines = (model.engine for model in project.models.values())
    max_length = max(
        (engine.max_seq_len or _DEFAULT_LENGTH for engine in engines), default=_DEFAULT_LENGTH
    )
    required = sum(_stub_shm(config, max_length) * (instances_of(config) or 1) for config in python)
    reason = (
        f"{len(python)} Python models: a region of {human_bytes(REGION_BYTES)} each, growing with "
        f"the tensors of a batch up to {max_length} elements long, doubled; at least Docker's own"
    )
    return max(DOCKER_DEFAULT_SHM, _round_up(2 * required, 16 * MIB)), reason


def _stub_shm(config: Mapping[str, Any], max_length: int) -> int:
    tensors = [*config.get("input", []), *config.get("output", [])]
    batch_size = max(int(config.get("max_batch_size", 0)), 1)
    sizes = [
        tensor_bytes(str(tensor["data_type"]), map(int, tensor.get("dims", [])), max_length)
        for tensor in tensors
    ]
    return region_bytes(sizes, batch_size)


def _round_up(size: float, step: int) -> int:
    return math.ceil(size / step) * step
