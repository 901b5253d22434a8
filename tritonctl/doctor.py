# SPDX-License-Identifier: Apache-2.0
"""What this machine has, and what of tritonctl it can therefore run."""

from __future__ import annotations

import ctypes.util
import platform
import shutil
import sys
import sysconfig
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from packaging.version import Version

from tritonctl import containers
from tritonctl.compatibility import check, refuse_driver, resolve_target
from tritonctl.compatibility_table import Compatibility, World, table
from tritonctl.errors import ConfigurationError, HostError
from tritonctl.gpus import InstalledGpu, installed_gpus
from tritonctl.host import cache_folder

Status = Literal["ok", "warning", "missing"]

_PYTHONS = ((3, 11), (3, 12))
_GLIBC = "2.35"
_GIB = 1 << 30
# An environment with torch and OpenVINO takes about 4 GiB, the server's about 1.
_LEAST_GIB, _EASY_GIB = 6, 40


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for. `required`: without it nothing can be served from here."""

    name: str
    status: Status
    detail: str
    remedy: str = ""
    required: bool = False


@dataclass(frozen=True)
class GpuReport:
    """A GPU, the releases that its driver runs, and its precisions by TensorRT-LLM's two worlds."""

    gpu: InstalledGpu
    releases: list[str]
    warnings: list[str]
    precisions: dict[World, list[str]]


@dataclass(frozen=True)
class Report:
    """Everything that `tritonctl doctor` says."""

    findings: list[Finding]
    gpus: list[GpuReport] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Whether nothing that is required is missing."""
        return not any(f.required and f.status == "missing" for f in self.findings)

    def as_record(self) -> dict[str, Any]:
        """The report as plain data."""
        return {"healthy": self.healthy, **asdict(self)}


def examine(project_root: Path | None = None) -> Report:
    """Look at this machine. Raises ConfigurationError when the project's own table is malformed."""
    compatibility = table(project_root)
    gpus, reason = installed_gpus()
    library, version = _libpython(), platform.python_version_tuple()
    findings = [
        python_finding((int(version[0]), int(version[1]))),
        glibc_finding(platform.libc_ver()),
        libpython_finding(library),
        disk_finding(cache_folder()),
        _container_finding(),
        gpu_finding(gpus, reason),
    ]
    return Report(findings, [gpu_report(gpu, compatibility) for gpu in gpus])


def python_finding(version: tuple[int, int]) -> Finding:
    """Triton's stubs and the builders' wheels exist for some versions of Python."""
    name = f"{version[0]}.{version[1]}"
    wanted = " or ".join(f"{major}.{minor}" for major, minor in _PYTHONS)
    if version in _PYTHONS:
        return Finding("Python", "ok", f"{name} ({sys.executable})", required=True)
    remedy = f"install tritonctl under Python {wanted}"
    return Finding("Python", "missing", f"{name}, needed: {wanted}", remedy, required=True)


def glibc_finding(library: tuple[str, str]) -> Finding:
    """The embedded server's binaries need a glibc of 2022 or later."""
    name, version = library
    found = f"{name} {version}".strip() or "another C library"
    if name == "glibc" and Version(version) >= Version(_GLIBC):
        return Finding("C library", "ok", found, required=True)
    return Finding(
        "C library",
        "missing",
        f"{found}, the embedded server needs glibc {_GLIBC}",
        "use Debian 12, Ubuntu 22.04, or later; or serve with `server.mode: docker`",
        required=True,
    )


def libpython_finding(library: str | None) -> Finding:
    """Triton's Python stub links to libpython."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if library:
        return Finding("shared libpython", "ok", library, required=True)
    return Finding(
        "shared libpython",
        "missing",
        f"no libpython{version}.so: Triton's Python backend cannot start",
        f"`apt install libpython{version}`; with pyenv, build with --enable-shared",
        required=True,
    )


def _libpython() -> str | None:
    folder = sysconfig.get_config_var("LIBDIR")
    name = sysconfig.get_config_var("INSTSONAME")
    if folder and name and ".so" in name and (Path(folder) / name).exists():
        return str(Path(folder) / name)
    return ctypes.util.find_library(f"python{sys.version_info.major}.{sys.version_info.minor}")


def disk_finding(folder: Path) -> Finding:
    """Environments and engines are gigabytes."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free / _GIB
    detail = f"{free:.0f} GiB free in {folder}"
    if free < _LEAST_GIB:
        remedy = f"free space there, or set TRITONCTL_CACHE_DIR; {_LEAST_GIB} GiB are needed"
        return Finding("disk", "missing", detail, remedy, required=True)
    if free < _EASY_GIB:
        remedy = "an engine of a large model, or a TensorRT-LLM image (30 GB), may not fit"
        return Finding("disk", "warning", detail, remedy, required=True)
    return Finding("disk", "ok", detail, required=True)


def _container_finding() -> Finding:
    try:
        engine = containers.engine()
    except HostError as error:
        return Finding("container engine", "missing", error.problem, error.remedy)
    return Finding("container engine", "ok", f"{engine.name} {engine.version}")


def gpu_finding(gpus: list[InstalledGpu], reason: str) -> Finding:
    """TensorRT-LLM needs one; OpenVINO, ONNX Runtime and quantising do not."""
    if gpus:
        names = ", ".join(f"{gpu.name} ({gpu.compute_capability})" for gpu in gpus)
        return Finding("NVIDIA GPU", "ok", f"{names}, driver {gpus[0].driver}")
    remedy = "builders openvino and onnxruntime, and quantising, run on this CPU"
    return Finding("NVIDIA GPU", "missing", reason, remedy)


def gpu_report(gpu: InstalledGpu, compatibility: Compatibility) -> GpuReport:
    """What a GPU can run, by the compatibility table."""
    releases, warnings = [], []
    for release in compatibility.releases:
        if not (release.triton and release.worlds):
            continue
        try:
            resolve_target(
                compatibility,
                release=release.name,
                compute_capability=gpu.compute_capability,
            )
            warning = refuse_driver(release, gpu.driver, compatibility, data_center=gpu.data_center)
        except ConfigurationError:
            continue
        releases.append(release.name)
        warnings += [warning] if warning else []
    precisions: dict[World, list[str]] = {
        "engine": _precisions(gpu, "engine", compatibility),
        "pytorch": _precisions(gpu, "pytorch", compatibility),
    }
    return GpuReport(gpu, releases, warnings[:1], precisions)


def _precisions(gpu: InstalledGpu, world: World, compatibility: Compatibility) -> list[str]:
    found = []
    for name in compatibility.precisions:
        try:
            target = resolve_target(
                compatibility, compute_capability=gpu.compute_capability, world=world
            )
            check(target, name, compatibility)
        except ConfigurationError:
            continue
        found.append(name)
    return found
