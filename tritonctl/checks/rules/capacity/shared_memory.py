# SPDX-License-Identifier: Apache-2.0
"""TC80x: whether /dev/shm holds what Python models exchange with the server.

Source: https://github.com/triton-inference-server/python_backend#managing-shared-memory
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tritonctl.checks.analysis.declared import Tensor, inputs, outputs
from tritonctl.checks.analysis.placement import count_span, instances, some
from tritonctl.checks.analysis.stub_memory import (
    MIB,
    REGION_BYTES,
    least_region_bytes,
    tensor_bytes,
)
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository, Target
from tritonctl.checks.rule import error, warning
from tritonctl.host.units import human_bytes

# Settings of the whole backend, on the server's command line.
_SETTINGS = (
    "shm-default-byte-size",
    "shm-growth-byte-size",
    "shm-region-prefix-name",
    "stub-timeout-seconds",
)


class _Share(NamedTuple):
    """Of a model: so many stubs, with a region each."""

    model: Model
    stubs: int
    region: int

    @property
    def total(self) -> int:
        return self.stubs * self.region

    def __str__(self) -> str:
        return f"{self.model.name} {self.stubs} × {human_bytes(self.region)}"


@error(
    "TC802 no-room-for-stubs",
    summary="more instances of Python models than /dev/shm has room for",
    why="Each takes a region of 1 MiB when it is loaded, unless --backend-config=python,"
    "shm-default-byte-size says otherwise: tritonserver 2.51 does not load the model, "
    "and may never say so.",
    shows="elsewhere",
    answers=("server#4869", "server#5869"),
)
def no_room(repository: Repository) -> Iterator[Hit]:
    available = repository.target.shared_memory_bytes
    shares = _shares(repository)
    stubs = sum(share.stubs for share in shares)
    if available is None or stubs * REGION_BYTES <= available:
        return
    most = max(shares, key=lambda share: share.stubs)
    listed = some(f"{one.model.name} {one.stubs}" for one in sorted(shares, key=lambda s: -s.stubs))
    yield Hit(
        f"{stubs} instances of Python models take {human_bytes(REGION_BYTES)} of shared memory "
        f"each, /dev/shm has {human_bytes(available)}: {listed}",
        f"start the container with --shm-size={_rounded(stubs * REGION_BYTES)} or more, or "
        "make fewer instances",
        count_span(most.model, repository.target),
        model=most.model,
    )


@warning(
    "TC800 shared-memory-too-small",
    summary="less shared memory than Python models need",
    why="Regions grow as they are used: the models load, and large batches are answered with "
    "`Failed to increase the shared memory pool size`; older releases are killed by SIGBUS. "
    "Docker gives 64 MB by default.",
    answers=("server#5681", "server#6195", "server#4869", "server#6156", "server#4675"),
)
def too_little(repository: Repository) -> Iterator[Hit]:
    available = repository.target.shared_memory_bytes
    shares = _shares(repository)
    needed = sum(share.total for share in shares)
    if available is None or needed <= available or any(no_room(repository)):
        return
    largest = max(shares, key=lambda share: share.total)
    listed = some(str(share) for share in sorted(shares, key=lambda one: -one.total))
    yield Hit(
        f"the stubs of Python models need {human_bytes(needed)} of shared memory with full "
        f"batches, /dev/shm has {human_bytes(available)}: {listed}",
        f"start the container with --shm-size={_rounded(needed)} or more, or lower "
        "max_batch_size or the number of instances",
        count_span(largest.model, repository.target),
        model=largest.model,
    )


def _shares(repository: Repository) -> list[_Share]:
    if repository.target.shared_memory_bytes is None:
        return []
    shares = (_share(model, repository.target) for model in repository.models.values())
    return [share for share in shares if share]


def _rounded(size: int) -> str:
    """Twice as much, so that other things fit, too, as docker takes it."""
    return f"{-(-2 * size // (64 * MIB)) * 64}m"


def _share(model: Model, target: Target) -> _Share | None:
    """The least that a model's stubs take when busy: dimensions that vary count as 1."""
    if model.backend != "python":
        return None
    stubs = instances(model, target)
    if stubs is None:
        stubs = max(len(model.config.message.instance_group), 1)
    tensors = [_bytes(tensor) for tensor in (*inputs(model), *outputs(model))]
    places = max(model.config.message.max_batch_size, 1)
    return _Share(model, stubs, least_region_bytes(tensors, places))


def _bytes(tensor: Tensor) -> int:
    return tensor_bytes(tensor.dtype, tensor.dims or (), longest=1, string_bytes=1)


@warning(
    "TC801 backend-setting-ignored",
    summary="a setting of the Python backend among a model's parameters",
    why="It belongs on the server's command line; here Triton takes it for a parameter of the "
    "model.",
    answers=("server#6156",),
)
def setting_ignored(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for key in _SETTINGS if model.backend == "python" else ():
        if key in config.message.parameters:
            value = config.message.parameters[key].string_value or "VALUE"
            yield Hit(
                f"{key} is not a parameter of a model: it is ignored here",
                f"give it to the server, for all Python models: "
                f"--backend-config=python,{key}={value}",
                config.name_span("parameters", key),
            )
