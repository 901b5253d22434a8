# SPDX-License-Identifier: Apache-2.0
"""Cores and memory that this process may use, also on systems other than Linux."""

from __future__ import annotations

import os
from pathlib import Path

# The folder of the shared-memory regions of Triton's Python backend.
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
_CGROUP = Path("/sys/fs/cgroup")
_MEMORY_LIMIT = _CGROUP / "memory.max"
_MEMORY_USED = _CGROUP / "memory.current"
_MEMORY_KINDS = _CGROUP / "memory.stat"
_MEMORY = Path("/proc/meminfo")
_CPUS = Path("/proc/cpuinfo")


def usable_cores() -> int:
    """Return the number of cores that this process may run on; all cores if unknown."""
    if hasattr(os, "sched_getaffinity"):  # Linux only
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_flags() -> frozenset[str]:
    """Return the CPU flags of /proc/cpuinfo, such as "avx512_bf16"; empty if unknown."""
    try:
        lines = _CPUS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())


def host_memory() -> int | None:
    """Return the bytes of memory that this process may use: the machine's or the container's.

    None if unknown (Windows).
    """
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):
        return None
    try:
        limit = _MEMORY_LIMIT.read_text(encoding="ascii").strip()
    except OSError:  # not in a cgroup v2
        return total
    return min(total, int(limit)) if limit.isdecimal() else total


def available_memory() -> int | None:
    """Return the bytes that a new process may use before the OOM killer acts.

    In the machine or the container; cached files count as free. None if unknown.
    """
    try:
        free = _figures(_MEMORY)["MemAvailable:"] << 10
    except (OSError, KeyError):
        return None
    try:
        limit = int(_MEMORY_LIMIT.read_text(encoding="ascii"))
        used = int(_MEMORY_USED.read_text(encoding="ascii"))
        kinds = _figures(_MEMORY_KINDS)
    except (OSError, ValueError):  # "max", or not in a cgroup v2
        return free
    cached = kinds.get("inactive_file", 0) + kinds.get("active_file", 0)
    return min(free, max(0, limit - used + cached))


def _figures(file: Path) -> dict[str, int]:
    """Parse lines of a name and a number."""
    lines = [line.split() for line in file.read_text(encoding="ascii").splitlines()]
    return {fields[0]: int(fields[1]) for fields in lines if len(fields) > 1}


def shared_memory() -> int | None:
    """Return the size of /dev/shm in bytes; None without it."""
    try:
        status = os.statvfs(SHARED_MEMORY)
    except (AttributeError, OSError):
        return None
    return status.f_frsize * status.f_blocks
