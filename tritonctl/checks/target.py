# SPDX-License-Identifier: Apache-2.0
"""Build the target of a check from this machine or from options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tritonctl.checks.repository import CheckTarget
from tritonctl.errors import UsageError
from tritonctl.host.resources import host_memory, shared_memory, usable_cores
from tritonctl.host.units import parse_bytes

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_NO_GPUS = "none"


def target_from_host(target: CheckTarget) -> CheckTarget:
    """Return the target with this machine's cores and memory. Its GPUs stay unknown."""
    return replace(
        target,
        cores=_available_cores(),
        shared_memory_bytes=shared_memory(),
        memory_bytes=host_memory(),
    )


def _available_cores() -> int:
    """Return the number of cores of this process, or of the container's quota if lower."""
    cores = usable_cores()
    try:
        quota, period = _QUOTA.read_text(encoding="ascii").split()
        return min(cores, max(int(quota) // int(period), 1))
    except (OSError, ValueError):  # no cgroup of version 2, or "max": no quota
        return cores


def target_from_options(
    target: CheckTarget,
    cores: int | None,
    memory: str | None,
    shm_size: str | None,
    gpus: str | None,
) -> CheckTarget:
    """Return the target with the values of options.

    Examples: `shm_size` "64m"; `gpus` "24G,24G" or "none". Raises UsageError.
    """
    if cores is not None:
        target = replace(target, cores=cores)
    if memory is not None:
        target = replace(target, memory_bytes=parse_bytes(memory))
    if shm_size is not None:
        target = replace(target, shared_memory_bytes=parse_bytes(shm_size))
    return target if gpus is None else replace(target, gpus=tuple(_parse_gpus(gpus)))


def _parse_gpus(text: str) -> Iterator[int]:
    for size in () if text.strip().lower() == _NO_GPUS else text.split(","):
        if not size.strip():
            raise UsageError(
                f"`{text}` is not a list of GPUs",
                remedy="write what memory each has, --gpu-memory 24G,24G, or --gpu-memory none",
            )
        yield parse_bytes(size)
