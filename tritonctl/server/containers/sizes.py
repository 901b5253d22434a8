# SPDX-License-Identifier: Apache-2.0
"""Limits of a Triton container: memory, shared memory, open files, from the repository.

A limit that is too low kills the server under load; one that is too high does not protect the
host. Every figure has its reason, which compose.yaml repeats as a comment. Sources: measured here
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
from tritonctl.engines.planning.plans import plan_model, without_figures
from tritonctl.errors import RepositoryError, TritonctlError
from tritonctl.host.units import human_bytes, parse_bytes
from tritonctl.project.schema import Project
from tritonctl.protocol.model_config import instances_of
from tritonctl.repository.contents import CONFIG, HandwrittenModel, read_config
from tritonctl.repository.plan import Plan
from tritonctl.repository.steps import step_models

# Resident memory, measured with number-speller: tritonserver after 20,000 streams, and a stub that
# holds a tokenizer; both include what an idle one takes.
SERVER_BYTES = 128 * MIB
STUB_BYTES = 96 * MIB
# One that runs an engine also holds the runtime's libraries: estimates.toml has 200 MB
# for OpenVINO, which is the largest.
ENGINE_STUB_BYTES = 300 * MIB
# Weights of an engine that estimates.toml knows nothing of: the file and a packed copy.
HOST_COPIES = 2.2
MARGIN = 1.25
DOCKER_DEFAULT_SHM = 64 * MIB
TMP_BYTES = 64 * MIB
# Connections that clients hold open, each a file; 10,000 idle ones are a case of
# docs/explanation/failure-behaviour.md.
CONNECTIONS = 10_240
FILES_PER_MODEL = 64
BASE_FILES = 1024
_DEFAULT_LENGTH = 1024


@dataclass(frozen=True)
class Sizes:
    """Bytes and counts of one container; `reasons` says in a line where each comes from."""

    memory: int
    shm: int
    tmp: int
    nofile: int
    reasons: Mapping[str, str]


def container_sizes(project: Project, plan: Plan) -> Sizes:
    """The sizes for the rendered repository of a project; `docker:` of the project goes first.

    Raises RepositoryError when it has not been rendered.
    """
    configs = repository_configs(project.repository, plan.served)
    python = [config for config in configs if config.get("backend") == "python"]
    stubs = sum(instances_of(config) or 1 for config in python)
    shm, shm_reason = _shm(project, python)
    memory, memory_reason = _memory(project, plan, stubs, shm)
    files = BASE_FILES + CONNECTIONS + FILES_PER_MODEL * (len(configs) + stubs)
    nofile = 1 << (files - 1).bit_length()  # the next power of two
    return Sizes(
        memory,
        shm,
        TMP_BYTES,
        nofile,
        {
            "memory": memory_reason,
            "shm": shm_reason,
            "tmp": "the only place that can be written to; counts as memory",
            "nofile": f"{CONNECTIONS} connections, {FILES_PER_MODEL} files of each of "
            f"{len(configs)} models and {stubs} stubs, {BASE_FILES} others",
        },
    )


def repository_configs(repository: Path, served: Collection[str]) -> list[dict[str, Any]]:
    """The config.pbtxt of every model that is served. Raises RepositoryError without any."""
    files = [file for name in served if (file := repository / name / CONFIG).is_file()]
    if not files:
        raise RepositoryError(f"{repository} has no models", remedy="render it: `tritonctl render`")
    return [read_config(file) for file in files]


def _memory(project: Project, plan: Plan, stubs: int, shm: int) -> tuple[int, str]:
    if project.docker.memory:
        return parse_bytes(project.docker.memory), "docker.memory of tritonctl.yaml"
    engines = sum(_engine_bytes(project, name) for name in project.models)
    by_hand = sum(_handwritten_bytes(model) for model in plan.handwritten)
    names = (*project.public, *(model.name for model in plan.handwritten))
    again = max((model_bytes(project, plan, name) for name in names), default=0)
    fixed = SERVER_BYTES + stubs * STUB_BYTES
    cache = project.server.cache_bytes if plan.caches else 0
    total = (fixed + engines + by_hand + again) * MARGIN + cache + shm + TMP_BYTES
    written = f"models by hand {human_bytes(by_hand)}, " if plan.handwritten else ""
    cached = f"the response cache {human_bytes(cache)}, " if cache else ""
    reason = (
        f"server {human_bytes(SERVER_BYTES)}, {stubs} stubs {human_bytes(stubs * STUB_BYTES)}, "
        f"engines {human_bytes(engines)}, {written}the largest model a second time while it is "
        f"reloaded {human_bytes(again)}, a quarter more, {cached}and /dev/shm and /tmp"
    )
    return _round_up(total, 64 * MIB), reason


def model_bytes(project: Project, plan: Plan, name: str) -> int:
    """What a second copy of a model takes: its engine, or a hand-written one's files; its stubs."""
    by_hand = {model.name: model for model in plan.handwritten}
    if model := by_hand.get(name):
        return _handwritten_bytes(model) + _instances(model) * STUB_BYTES
    engine = _engine_bytes(project, name) if name in project.models else 0
    return engine + len(step_models(project, name)) * STUB_BYTES


def _handwritten_bytes(model: HandwrittenModel) -> int:
    """What each instance loads, apart from the stub: the versions that are served, and packages.

    Of its packages nothing is known: they are taken for an engine's runtime.
    """
    read = Model(model.name, model.folder, model.name)
    left_out = {str(version) for version in {*read.versions} - {*read.served_versions}}
    files = [
        file
        for entry in model.folder.iterdir()
        if entry.name not in left_out
        for file in (entry, *entry.rglob("*"))
    ]
    packages = ENGINE_STUB_BYTES - STUB_BYTES if model.requirements else 0
    return _instances(model) * (math.ceil(HOST_COPIES * _file_bytes(files)) + packages)


def _instances(model: HandwrittenModel) -> int:
    return instances_of(model.config) or 1


def _engine_bytes(project: Project, name: str) -> int:
    """Host memory of a model's engine: its plan's on a CPU; on a GPU what loading reads."""
    libraries = ENGINE_STUB_BYTES - STUB_BYTES
    folders = (project.repository / name, project.repository / f"{name}_engine")
    on_disk = _file_bytes(file for folder in folders for file in folder.rglob("*"))
    if name not in without_figures(project):
        try:
            [fit, *_] = plan_model(project, name).fits
        except TritonctlError:  # the checkpoint is gone, or is one that no plan can be made of
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
    longest = max(
        (engine.max_seq_len or _DEFAULT_LENGTH for engine in engines), default=_DEFAULT_LENGTH
    )
    needed = sum(_stub_shm(config, longest) * (instances_of(config) or 1) for config in python)
    reason = (
        f"{len(python)} Python models: a region of {human_bytes(REGION_BYTES)} each, growing with "
        f"the tensors of a batch up to {longest} elements long, doubled; never below Docker's own"
    )
    return max(DOCKER_DEFAULT_SHM, _round_up(2 * needed, 16 * MIB)), reason


def _stub_shm(config: Mapping[str, Any], longest: int) -> int:
    tensors = [*config.get("input", []), *config.get("output", [])]
    places = max(int(config.get("max_batch_size", 0)), 1)
    sizes = [
        tensor_bytes(str(tensor["data_type"]), map(int, tensor.get("dims", [])), longest)
        for tensor in tensors
    ]
    return region_bytes(sizes, places)


def _round_up(size: float, step: int) -> int:
    return math.ceil(size / step) * step
