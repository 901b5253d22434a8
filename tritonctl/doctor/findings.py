# SPDX-License-Identifier: Apache-2.0
"""Findings about the machine, each with a verdict, a reason and a remedy."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tritonctl.host.gpus import InstalledGpu
from tritonctl.project.compatibility.table import World

# What engines on GPUs need of the machine that serves them, by the findings' names.
GPU, CONTAINERS, COMPOSE, TOOLKIT = (
    "NVIDIA GPU",
    "container engine",
    "Compose",
    "NVIDIA container toolkit",
)
FOR_GPU = (GPU, CONTAINERS, COMPOSE, TOOLKIT)
Status = Literal["ok", "warning", "missing"]


@dataclass(frozen=True)
class Finding:
    """One thing that was examined. `required`: without it nothing can be served from here.

    `why` it matters; `remedy` begins with the command that helps, where one does.
    """

    name: str
    status: Status
    detail: str
    remedy: str = ""
    required: bool = False
    why: str = ""


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
    def missing(self) -> list[Finding]:
        """What is required and missing."""
        return [f for f in self.findings if f.required and f.status == "missing"]

    @property
    def healthy(self) -> bool:
        """Whether nothing that is required is missing."""
        return not self.missing

    @property
    def summary(self) -> str:
        """What this machine is ready for, and what to do first for GPUs, in one line."""
        if not self.healthy:
            return f"Not ready: {', '.join(finding.name for finding in self.missing)}"
        lacking = {f.name: f for f in self.findings if f.status == "missing" and f.name in FOR_GPU}
        if not lacking:
            return "Ready for CPU and GPU."
        if GPU in lacking:
            return "Ready for CPU. For GPU: take a machine with an NVIDIA GPU and its driver."
        first = next(iter(lacking.values()))
        return f"Ready for CPU. For GPU: {first.name} first: {first.remedy or first.detail}"

    def as_record(self) -> dict[str, Any]:
        """The report as plain data."""
        return {"healthy": self.healthy, "summary": self.summary, **asdict(self)}
