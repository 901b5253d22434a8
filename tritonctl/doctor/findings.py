# SPDX-License-Identifier: Apache-2.0
"""Findings about the machine, each with a verdict, a reason and a remedy."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tritonctl.host.gpus import InstalledGpu
from tritonctl.project.compatibility.table import World

# Names of the findings that GPU engines require.
GPU, CONTAINERS, COMPOSE, TOOLKIT = (
    "NVIDIA GPU",
    "container engine",
    "Compose",
    "NVIDIA container toolkit",
)
FOR_GPU = (GPU, CONTAINERS, COMPOSE, TOOLKIT)
FindingStatus = Literal["ok", "warning", "missing"]


@dataclass(frozen=True)
class DoctorFinding:
    """The result of one check."""

    name: str
    status: FindingStatus
    detail: str
    remedy: str = ""  # starts with a command, if one helps
    required: bool = False  # without it this machine cannot serve
    reason: str = ""  # why the check matters


@dataclass(frozen=True)
class GpuReport:
    """A GPU, the releases that its driver runs, and its precisions by TensorRT-LLM runtime."""

    gpu: InstalledGpu
    releases: list[str]
    warnings: list[str]
    precisions: dict[World, list[str]]


@dataclass(frozen=True)
class DoctorReport:
    """The report of `tritonctl doctor`."""

    findings: list[DoctorFinding]
    gpus: list[GpuReport] = field(default_factory=list)

    @property
    def missing(self) -> list[DoctorFinding]:
        """Required findings that are missing."""
        return [f for f in self.findings if f.required and f.status == "missing"]

    @property
    def healthy(self) -> bool:
        """Whether all required findings are present."""
        return not self.missing

    @property
    def summary(self) -> str:
        """One line on what this machine is ready for, with the first step towards GPUs."""
        if not self.healthy:
            return f"Not ready: {', '.join(finding.name for finding in self.missing)}"
        missing_parts = {
            f.name: f for f in self.findings if f.status == "missing" and f.name in FOR_GPU
        }
        if not missing_parts:
            return "Ready for CPU and GPU."
        if GPU in missing_parts:
            return "Ready for CPU. For GPU: use a machine with an NVIDIA GPU and its driver."
        first = next(iter(missing_parts.values()))
        return f"Ready for CPU. For GPU: {first.name} first: {first.remedy or first.detail}"

    def as_record(self) -> dict[str, Any]:
        """Convert the report to plain data."""
        return {"healthy": self.healthy, "summary": self.summary, **asdict(self)}
