# SPDX-License-Identifier: Apache-2.0
"""TC80x: the size of /dev/shm for the exchange between Python models and the server.

Source: https://github.com/triton-inference-server/python_backend#managing-shared-memory
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tritonctl.checks.analysis.declared import DeclaredTensor, inputs, outputs
from tritonctl.checks.analysis.placement import count_span, instance_count, join_some
from tritonctl.checks.analysis.stub_memory import (
    MIB,
    REGION_BYTES,
    min_region_bytes,
    tensor_bytes,
)
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import CheckTarget, Model, Repository
from tritonctl.checks.rule import error, warning
from tritonctl.host.units import human_bytes

# Settings of the whole backend, on the server's command line.
_SETTINGS = (
    "shm-default-byte-size",
    "shm-growth-byte-size",
    "shm-region-prefix-name",
    "stub-timeout-seconds",
)


class _StubMemory(NamedTuple):
    """The shared memory of a model's stubs."""

    model: Model
    stubs: int
    region: int  # bytes per stub

    @property
    def total(self) -> int:
        return self.stubs * self.region

    def __str__(self) -> str:
        return f"{self.model.name} {self.stubs} × {human_bytes(self.region)}"


@error(
    "TC802 no-room-for-stubs",
    summary="more instances of Python models than /dev/shm has room for",
    reason="Each instance takes a region of 1 MiB when it is loaded, unless "
    "--backend-config=python,shm-default-byte-size says otherwise. tritonserver 2.51 does not load "
    "the model and may never report it.",
    shows="elsewhere",
    answers=("server#4869", "server#5869"),
)
def no_room_for_stubs(repository: Repository) -> Iterator[Hit]:
    available = repository.target.shared_memory_bytes
    shares = _stub_memory_by_model(repository)
    stubs = sum(share.stubs for share in shares)
    if available is None or stubs * REGION_BYTES <= available:
        return
    largest = max(shares, key=lambda share: share.stubs)
    listed = join_some(
        f"{stub_share.model.name} {stub_share.stubs}"
        for stub_share in sorted(shares, key=lambda s: -s.stubs)
    )
    yield Hit(
        f"{stubs} instances of Python models take {human_bytes(REGION_BYTES)} of shared memory "
        f"each, /dev/shm has {human_bytes(available)}: {listed}",
        f"start the container with --shm-size={_docker_size(stubs * REGION_BYTES)} or more, or "
        "make fewer instances",
        count_span(largest.model, repository.target),
        model=largest.model,
    )


@warning(
    "TC800 shared-memory-too-small",
    summary="less shared memory than Python models need",
    reason="Regions grow with use. The models load, and large batches fail with `Failed to "
    "increase "
    "the shared memory pool size`; older releases die of SIGBUS. Docker's default is 64 MB.",
    answers=("server#5681", "server#6195", "server#4869", "server#6156", "server#4675"),
)
def too_little_memory(repository: Repository) -> Iterator[Hit]:
    available = repository.target.shared_memory_bytes
    shares = _stub_memory_by_model(repository)
    required_bytes = sum(share.total for share in shares)
    if available is None or required_bytes <= available or any(no_room_for_stubs(repository)):
        return
    largest = max(shares, key=lambda share: share.total)
    listed = join_some(str(share) for share in sorted(shares, key=lambda item: -item.total))
    yield Hit(
        f"the stubs of Python models need {human_bytes(required_bytes)} of shared memory with full "
        f"batches, /dev/shm has {human_bytes(available)}: {listed}",
        f"start the container with --shm-size={_docker_size(required_bytes)} or more, or lower "
        "max_batch_size or the number of instances",
        count_span(largest.model, repository.target),
        model=largest.model,
    )


def _stub_memory_by_model(repository: Repository) -> list[_StubMemory]:
    if repository.target.shared_memory_bytes is None:
        return []
    shares = (_stub_memory(model, repository.target) for model in repository.models.values())
    return [share for share in shares if share]


def _docker_size(size: int) -> str:
    """Return double the size, to leave room for other uses, in docker's notation."""
    return f"{-(-2 * size // (64 * MIB)) * 64}m"


def _stub_memory(model: Model, target: CheckTarget) -> _StubMemory | None:
    """Return the minimum memory of a model's busy stubs: variable dimensions count as 1."""
    if model.backend != "python":
        return None
    stubs = instance_count(model, target)
    if stubs is None:
        stubs = max(len(model.config.message.instance_group), 1)
    tensors = [_min_tensor_bytes(tensor) for tensor in (*inputs(model), *outputs(model))]
    batch_size = max(model.config.message.max_batch_size, 1)
    return _StubMemory(model, stubs, min_region_bytes(tensors, batch_size))


def _min_tensor_bytes(tensor: DeclaredTensor) -> int:
    return tensor_bytes(tensor.dtype, tensor.dims or (), variable_size=1, string_bytes=1)


@warning(
    "TC801 backend-setting-ignored",
    summary="a setting of the Python backend among a model's parameters",
    reason="It belongs on the server's command line. Here Triton treats it as a parameter of the "
    "model.",
    answers=("server#6156",),
)
def setting_ignored(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    for key in _SETTINGS if model.backend == "python" else ():
        if key in config.message.parameters:
            value = config.message.parameters[key].string_value or "VALUE"
            yield Hit(
                f"{key} is not a parameter of a model: it is ignored here",
                f"pass it to the server, for all Python models: "
                f"--backend-config=python,{key}={value}",
                config.name_span("parameters", key),
            )
