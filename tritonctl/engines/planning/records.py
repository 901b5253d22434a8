# SPDX-License-Identifier: Apache-2.0
"""The records of a plan."""

from __future__ import annotations

from dataclasses import dataclass, field

from tritonctl.errors import TritonctlError

# Name of the device that is not a GPU.
HOST = "host"


@dataclass(frozen=True)
class PlannedDevice:
    """A device that an engine may run on."""

    name: str
    memory: int  # bytes of one device


@dataclass(frozen=True)
class Fit:
    """How a model fits a device. Bytes are per device."""

    device: PlannedDevice
    refused: str | None  # reason other than memory why the model cannot run there
    count: int  # devices
    needed: int  # bytes
    usable: int  # bytes
    fits: bool
    batch: int  # requested
    length: int | None  # requested tokens; None: tensors of fixed sizes
    largest_batch: int  # that fits with `length`
    longest: int | None  # length that fits with `batch`; None: tensors of fixed sizes


@dataclass(frozen=True)
class ModelPlan:
    """Estimates of a model's engine before it is built. Bytes, seconds; None: unknown."""

    model: str
    builder: str
    precision: str
    parameters: int | None  # None: a quantised checkpoint does not show them
    weights: int
    files: int  # size of the engine on disk
    kv_bytes_per_token: float
    activations: int
    disk: int  # peak disk use of the build
    build_memory: int | None  # host memory of the build
    build_seconds: float | None
    build_seconds_from: str  # the earlier build that the estimate is based on
    built: int | None  # real size of the engine, if it exists
    fits: list[Fit] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # sentences about the basis of the estimates


@dataclass(frozen=True)
class ProjectPlan:
    """Plans of several models."""

    models: list[ModelPlan] = field(default_factory=list)
    # Models that `build` refuses; they may have a plan nevertheless.
    refused: dict[str, TritonctlError] = field(default_factory=dict)
    # Models that can be built but not planned.
    without_figures: dict[str, TritonctlError] = field(default_factory=dict)

    @property
    def failure(self) -> TritonctlError | None:
        """All refusals as one error of the first one's class; None without any."""
        if len(self.refused) < 2:  # noqa: PLR2004 - a single one is returned as it is
            return next(iter(self.refused.values()), None)
        errors = list(self.refused.values())
        return type(errors[0])(
            f"{len(errors)} models cannot be built: {', '.join(self.refused)}",
            remedy=errors[0].remedy,
            details="\n".join(f"{error.problem}\n  try: {error.remedy}" for error in errors),
        )
