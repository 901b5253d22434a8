# SPDX-License-Identifier: Apache-2.0
"""Releases, GPUs, precisions, config.pbtxt fields: `builders/compatibility.toml`, read and typed.

What goes together with what is decided in `rules.py` beside this file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeVar

from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict, Field

from tritonctl.errors import ConfigurationError, choices
from tritonctl.host import bundled
from tritonctl.project.expected import reason

World = Literal["engine", "pytorch"]
_T = TypeVar("_T")


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Release(_Record):
    """What a release's TensorRT-LLM image holds; None where it has none, or it is unknown.

    server_cuda: major version of CUDA in the plain server image.
    """

    name: str
    triton: str | None = None
    tensorrt_llm: str | None = None
    tensorrt: str | None = None
    cuda: str | None = None
    driver: str | None = None
    python: str | None = None
    worlds: list[World] = []
    image: str | None = None
    server_cuda: str | None = None


class Architecture(_Record):
    """A compute capability: its generation, its first CUDA, and who supports it.

    trtllm: TensorRT-LLM; tensorrt: TensorRT itself, which reaches further back.
    """

    compute_capability: str
    name: str
    cuda: str
    trtllm: bool
    tensorrt: bool = True


class Gpu(_Record):
    """A GPU model; memory in GiB from its data sheet."""

    name: str
    compute_capability: str
    memory_gib: int
    data_center: bool


class Format(_Record):
    """A number format and the compute capabilities that run it (see the file's comment)."""

    quant_algo: str
    worlds: list[World]
    world_reason: str = ""
    listed: list[str]
    unlisted: list[str] = []
    not_compiled: list[str] = []
    reason: str
    nearest: list[str] = []
    cuda: dict[str, str] = {}

    def runs_on(self, compute_capability: str, world: World) -> bool:
        """Whether this format runs on a GPU in a world."""
        compiled = world != "engine" or compute_capability not in self.not_compiled
        return compiled and compute_capability in (*self.listed, *self.unlisted)


class Precision(Format):
    """A precision of weights and activations."""

    weight_bits: int


class KnownHole(_Record):
    """Vulnerabilities that one release fixed; every earlier release has them.

    bulletin: NVIDIA's number of it; score: the highest CVSS 3.1 base score among the CVEs.
    """

    fixed: str
    bulletin: str
    score: float
    cves: list[str]
    summary: str


class Compatibility(_Record):
    """The whole table."""

    schema_: Literal["tritonctl.compatibility/1"] = Field(alias="schema")
    default_release: str
    trtllm_image: str
    tensorrt_image: str
    server_image: str
    releases: list[Release]
    tensorrt_packages: dict[str, list[str]] = {}
    architectures: list[Architecture]
    gpus: list[Gpu]
    precisions: dict[str, Precision]
    kv_cache_dtypes: dict[str, Format]
    config_fields: dict[str, str]
    known_holes: list[KnownHole] = []


class Target(_Record):
    """Where an engine will run, the `target` of a build request: a release and a GPU."""

    release: str
    triton: str | None = None
    tensorrt_llm: str | None = None
    tensorrt: str | None = None
    cuda: str | None = None
    world: World
    image: str | None = None
    gpu: str | None = None
    compute_capability: str | None = None


def table(project_root: Path | None = None) -> Compatibility:
    """The table: the project's own if it carries one. Raises ConfigurationError."""
    return _read(bundled.find("builders/compatibility.toml", project_root))


@lru_cache(maxsize=8)
def _read(file: Path) -> Compatibility:
    try:
        return Compatibility.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except ValueError as error:  # not UTF-8, not TOML, or not this schema
        raise ConfigurationError(
            f"{file} is malformed: {reason(error)}",
            remedy="compare it with the one tritonctl ships",
        ) from error


def release_named(name: str, compatibility: Compatibility) -> Release:
    """The release of that name. Raises ConfigurationError naming the nearest."""
    known = {release.name: release for release in compatibility.releases}
    return _entry(name, known, f"release `{name}`", "engine.target.release")


def gpu_named(name: str, compatibility: Compatibility) -> Gpu:
    """The GPU of that name, case and spaces aside. Raises ConfigurationError."""
    known = {_plain(gpu.name): gpu for gpu in compatibility.gpus}
    if _plain(name) not in known:
        names = [gpu.name for gpu in compatibility.gpus]
        remedy = choices(name, names, "engine.target.gpu is one of")
        raise ConfigurationError(
            f"unknown GPU `{name}`",
            remedy=f"{remedy}; for another one set engine.target.compute_capability instead",
        )
    return known[_plain(name)]


def architecture_of(compute_capability: str, compatibility: Compatibility) -> Architecture:
    """The GPU generation of a compute capability such as "9.0". Raises ConfigurationError."""
    known = {entry.compute_capability: entry for entry in compatibility.architectures}
    what = f"compute capability `{compute_capability}`"
    return _entry(compute_capability, known, what, "engine.target.compute_capability")


def precision_named(name: str, compatibility: Compatibility) -> Precision:
    """The precision of that name. Raises ConfigurationError naming the nearest."""
    what = f"precision `{name}` for TensorRT-LLM"
    return _entry(name, compatibility.precisions, what, "engine.precision")


def kv_cache_dtype_named(name: str, compatibility: Compatibility) -> Format:
    """The KV cache type of that name. Raises ConfigurationError naming the nearest."""
    what = f"kv_cache_dtype `{name}` for TensorRT-LLM"
    return _entry(name, compatibility.kv_cache_dtypes, what, "engine.kv_cache_dtype")


def _entry(name: str, known: Mapping[str, _T], what: str, field: str) -> _T:
    if name not in known:
        raise ConfigurationError(
            f"unknown {what}", remedy=choices(name, known, f"{field} is one of")
        )
    return known[name]


def image_of(release: Release, compatibility: Compatibility) -> str:
    """The container image that holds a release's TensorRT-LLM."""
    return release.image or compatibility.trtllm_image.format(name=release.name)


def reaches(version: str | None, least: str) -> bool:
    """Whether a version is known and at least another."""
    try:
        return version is not None and Version(version) >= Version(least)
    except InvalidVersion:
        return False


def _plain(name: str) -> str:
    return name.lower().replace(" ", "").replace("-", "")
