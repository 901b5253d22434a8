# SPDX-License-Identifier: Apache-2.0
"""What a plan says."""

from __future__ import annotations

from dataclasses import dataclass, field

from tritonctl.errors import TritonctlError

# The device that is no GPU.
HOST = "host"


@dataclass(frozen=True)
class Device:
    """Where an engine is to run: a name, and the bytes of memory it has (of one, if several)."""

    name: str
    memory: int


@dataclass(frozen=True)
class Fit:
    """A model on a device; bytes per device. `batch` x `length` is what the project asks for.

    `refused` says why it cannot run there, however much memory there is. `length` and `longest` are
    None where the model takes tensors of fixed sizes only.
    """

    device: Device
    refused: str | None
    count: int
    needed: int
    usable: int
    fits: bool
    batch: int
    length: int | None
    largest_batch: int
    longest: int | None


@dataclass(frozen=True)
class ModelPlan:
    """What is known of a model's engine before it is built. Bytes; seconds; None: unknown.

    `parameters` is None where a quantised checkpoint does not show them. `files` is the engine's
    size on the disk, `disk` the most its build takes there, `build_memory` the host memory it takes
    meanwhile, `built` the real size of the engine if it is there already. `notes` are sentences
    about what the figures rest on.
    """

    model: str
    builder: str
    precision: str
    parameters: int | None
    weights: int
    files: int
    kv_bytes_per_token: float
    activations: int
    disk: int
    build_memory: int | None
    build_seconds: float | None
    build_seconds_from: str
    built: int | None
    fits: list[Fit] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ProjectPlan:
    """Plans of models. refused: what `build` would refuse, which may have figures all the same.

    unknown: what can be built and has no figures, and why.
    """

    models: list[ModelPlan] = field(default_factory=list)
    refused: dict[str, TritonctlError] = field(default_factory=dict)
    unknown: dict[str, TritonctlError] = field(default_factory=dict)

    @property
    def failure(self) -> TritonctlError | None:
        """All refusals as one error, of the kind of the first."""
        if len(self.refused) < 2:  # noqa: PLR2004 - one speaks for itself
            return next(iter(self.refused.values()), None)
        errors = list(self.refused.values())
        return type(errors[0])(
            f"{len(errors)} models cannot be built: {', '.join(self.refused)}",
            remedy=errors[0].remedy,
            details="\n".join(f"{error.problem}\n  try: {error.remedy}" for error in errors),
        )
