# SPDX-License-Identifier: Apache-2.0
"""What of this machine this process may use, on systems other than Linux too."""

from __future__ import annotations

import os
from pathlib import Path

# Where Triton's Python backend puts its regions.
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
_CGROUP = Path("/sys/fs/cgroup")
_MEMORY_LIMIT = _CGROUP / "memory.max"
_MEMORY_USED = _CGROUP / "memory.current"
_MEMORY_KINDS = _CGROUP / "memory.stat"
_MEMORY = Path("/proc/meminfo")
_CPUS = Path("/proc/cpuinfo")


def usable_cores() -> int:
    """Processor cores that this process may run on; all of them where the system does not say."""
    if hasattr(os, "sched_getaffinity"):  # Linux alone
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_flags() -> frozenset[str]:
    """What an x86 processor can, in Linux' words, as "avx512_bf16"; none where it does not say."""
    try:
        lines = _CPUS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())


def host_memory() -> int | None:
    """Bytes of memory that this process may use: the machine's, or less in a container.

    None where the system does not say (Windows).
    """
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):
        return None
    try:
        limit = _MEMORY_LIMIT.read_text(encoding="ascii").strip()
    except OSError:  # not in a cgroup of version 2
        return total
    return min(total, int(limit)) if limit.isdecimal() else total


def available_memory() -> int | None:
    """Bytes that a new process may take before the system must end another one.

    Of the machine, or less in a container; files that are only cached count as free. None where
    the system does not say.
    """
    try:
        free = _figures(_MEMORY)["MemAvailable:"] << 10
    except (OSError, KeyError):
        return None
    try:
        limit = int(_MEMORY_LIMIT.read_text(encoding="ascii"))
        used = int(_MEMORY_USED.read_text(encoding="ascii"))
        kinds = _figures(_MEMORY_KINDS)
    except (OSError, ValueError):  # "max", or not in a cgroup of version 2
        return free
    cached = kinds.get("inactive_file", 0) + kinds.get("active_file", 0)
    return min(free, max(0, limit - used + cached))


def _figures(file: Path) -> dict[str, int]:
    """Name and number of each line."""
    lines = [line.split() for line in file.read_text(encoding="ascii").splitlines()]
    return {fields[0]: int(fields[1]) for fields in lines if len(fields) > 1}


def shared_memory() -> int | None:
    """Bytes of /dev/shm; None without it."""
    try:
        status = os.statvfs(SHARED_MEMORY)
    except (AttributeError, OSError):
        return None
    return status.f_frsize * status.f_blocks
