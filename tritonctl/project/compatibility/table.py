# SPDX-License-Identifier: Apache-2.0
"""Reads `builders/compatibility.toml`: releases, GPUs, precisions, config.pbtxt fields.

The compatibility rules are in `rules.py`.
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


class TritonRelease(_Record):
    """Versions in a release's TensorRT-LLM image; None: missing or unknown."""

    name: str
    triton: str | None = None
    tensorrt_llm: str | None = None
    tensorrt: str | None = None
    cuda: str | None = None
    driver: str | None = None
    python: str | None = None
    worlds: list[World] = []
    image: str | None = None
    server_cuda: str | None = None  # major version of CUDA in the plain server image


class GpuArchitecture(_Record):
    """A GPU generation."""

    compute_capability: str
    name: str
    cuda: str  # first CUDA version with support
    trtllm: bool  # supported by TensorRT-LLM
    tensorrt: bool = True  # supported by TensorRT


class GpuModel(_Record):
    """A GPU model."""

    name: str
    compute_capability: str
    memory_gib: int  # from the data sheet
    data_center: bool


class NumberFormat(_Record):
    """A number format and the compute capabilities that support it (see the file's comment)."""

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
        """Whether a GPU supports the format in a world."""
        compiled = world != "engine" or compute_capability not in self.not_compiled
        return compiled and compute_capability in (*self.listed, *self.unlisted)


class WeightPrecision(NumberFormat):
    """A precision of weights and activations."""

    weight_bits: int


class KnownHole(_Record):
    """Vulnerabilities that a release fixed; all earlier releases have them."""

    fixed: str  # release
    bulletin: str  # NVIDIA's number
    score: float  # highest CVSS 3.1 base score of the CVEs
    cves: list[str]
    summary: str


class Compatibility(_Record):
    """The table `compatibility.toml`."""

    schema_: Literal["tritonctl.compatibility/1"] = Field(alias="schema")
    default_release: str
    trtllm_image: str
    tensorrt_image: str
    server_image: str
    releases: list[TritonRelease]
    tensorrt_packages: dict[str, list[str]] = {}
    architectures: list[GpuArchitecture]
    gpus: list[GpuModel]
    precisions: dict[str, WeightPrecision]
    kv_cache_dtypes: dict[str, NumberFormat]
    config_fields: dict[str, str]
    known_holes: list[KnownHole] = []


class BuildTarget(_Record):
    """The `target` of a build request: the release and GPU that the engine is built for."""

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
    """Read the table, preferably the project's. Raises ConfigurationError."""
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


def release_named(name: str, compatibility: Compatibility) -> TritonRelease:
    """Return the release of that name. Raises ConfigurationError naming the nearest."""
    releases = {release.name: release for release in compatibility.releases}
    return _entry(name, releases, f"release `{name}`", "engine.target.release")


def gpu_named(name: str, compatibility: Compatibility) -> GpuModel:
    """Return the GPU of that name, ignoring case, spaces and dashes. Raises ConfigurationError."""
    gpus = {_plain(gpu.name): gpu for gpu in compatibility.gpus}
    if _plain(name) not in gpus:
        names = [gpu.name for gpu in compatibility.gpus]
        remedy = choices(name, names, "engine.target.gpu is one of")
        raise ConfigurationError(
            f"unknown GPU `{name}`",
            remedy=f"{remedy}; for other GPUs set engine.target.compute_capability instead",
        )
    return gpus[_plain(name)]


def architecture_of(compute_capability: str, compatibility: Compatibility) -> GpuArchitecture:
    """Return the generation of a compute capability such as "9.0". Raises ConfigurationError."""
    architectures = {entry.compute_capability: entry for entry in compatibility.architectures}
    subject = f"compute capability `{compute_capability}`"
    return _entry(compute_capability, architectures, subject, "engine.target.compute_capability")


def precision_named(name: str, compatibility: Compatibility) -> WeightPrecision:
    """Return the precision of that name. Raises ConfigurationError naming the nearest."""
    subject = f"precision `{name}` for TensorRT-LLM"
    return _entry(name, compatibility.precisions, subject, "engine.precision")


def kv_cache_dtype_named(name: str, compatibility: Compatibility) -> NumberFormat:
    """Return the KV cache type of that name. Raises ConfigurationError naming the nearest."""
    subject = f"kv_cache_dtype `{name}` for TensorRT-LLM"
    return _entry(name, compatibility.kv_cache_dtypes, subject, "engine.kv_cache_dtype")


def _entry(name: str, entries: Mapping[str, _T], subject: str, field: str) -> _T:
    if name not in entries:
        raise ConfigurationError(
            f"unknown {subject}", remedy=choices(name, entries, f"{field} is one of")
        )
    return entries[name]


def image_of(release: TritonRelease, compatibility: Compatibility) -> str:
    """Return the container image with a release's TensorRT-LLM."""
    return release.image or compatibility.trtllm_image.format(name=release.name)


def is_at_least(version: str | None, minimum: str) -> bool:
    """Whether a version is known and at least the minimum."""
    try:
        return version is not None and Version(version) >= Version(minimum)
    except InvalidVersion:
        return False


def _plain(name: str) -> str:
    return name.lower().replace(" ", "").replace("-", "")
