# SPDX-License-Identifier: Apache-2.0
"""The part of `facts.json` about the project's own server: engine, CPU, GPUs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tritonctl.engines.builds.engine import built_engine
from tritonctl.errors import TritonctlError
from tritonctl.host.gpus import installed_gpus
from tritonctl.project.schema import Project

_CPUS = Path("/proc/cpuinfo")


def engine_facts(project: Project, model: str) -> dict[str, Any]:
    """Return `engine` (None without one for the current settings), `cpu` and `gpus`."""
    gpus, _ = installed_gpus()
    return {
        "engine": _engine_record(project, model),
        "cpu": _cpu_name(),
        "gpus": [asdict(gpu) for gpu in gpus],
    }


def _engine_record(project: Project, model: str) -> dict[str, Any] | None:
    if model not in project.models:
        return None
    with suppress(TritonctlError):  # a load test needs a server, not an engine
        manifest = built_engine(project, model).manifest
        facts = manifest.result.model
        return {
            "builder": manifest.builder,
            "precision": manifest.request.precision,
            "checkpoint": "/".join(Path(str(project.models[model].checkpoint)).parts[-2:]),
            "architecture": facts.architecture if facts else None,
            "limits": manifest.result.limits.model_dump(mode="json"),
            "versions": manifest.result.versions,
            "fingerprint": manifest.fingerprint,
        }
    return None


def _cpu_name() -> str | None:
    """Return the CPU's model name from Linux on x86; None elsewhere."""
    with suppress(OSError):
        for line in _CPUS.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return None
