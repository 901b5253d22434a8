# SPDX-License-Identifier: Apache-2.0
"""What a plan says."""

from __future__ import annotations

from dataclasses import dataclass, field

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
