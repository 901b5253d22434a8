# SPDX-License-Identifier: Apache-2.0
"""Where a repository will be served: here, on a machine that is described, in a container."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tritonctl.checks.repository import Target
from tritonctl.errors import UsageError
from tritonctl.host.resources import host_memory, shared_memory, usable_cores
from tritonctl.host.units import parse_bytes

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_NO_GPUS = "none"


def this_host(target: Target) -> Target:
    """The target as this machine: its cores and memory. Its GPUs stay unknown."""
    return replace(
        target,
        cores=_cores(),
        shared_memory_bytes=shared_memory(),
        memory_bytes=host_memory(),
    )


def _cores() -> int:
    """Those that this process may use, or what a container's quota comes to."""
    cores = usable_cores()
    try:
        quota, period = _QUOTA.read_text(encoding="ascii").split()
        return min(cores, max(int(quota) // int(period), 1))
    except (OSError, ValueError):  # no cgroup of version 2, or "max": no quota
        return cores


def described(
    target: Target, cores: int | None, memory: str | None, shm_size: str | None, gpus: str | None
) -> Target:
    """The target as options describe it: "64m" of shared memory, GPUs of "24G,24G" or "none".

    Raises UsageError.
    """
    if cores is not None:
        target = replace(target, cores=cores)
    if memory is not None:
        target = replace(target, memory_bytes=parse_bytes(memory))
    if shm_size is not None:
        target = replace(target, shared_memory_bytes=parse_bytes(shm_size))
    return target if gpus is None else replace(target, gpus=tuple(_gpus(gpus)))


def _gpus(text: str) -> Iterator[int]:
    for size in () if text.strip().lower() == _NO_GPUS else text.split(","):
        if not size.strip():
            raise UsageError(
                f"`{text}` is not a list of GPUs",
                remedy="write what memory each has, --gpus 24G,24G, or --gpus none",
            )
        yield parse_bytes(size)
