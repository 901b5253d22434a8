# SPDX-License-Identifier: Apache-2.0
"""What of this machine this process may use, on systems other than Linux too."""

from __future__ import annotations

import os
from pathlib import Path

# Where Triton's Python backend puts its regions.
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")


def usable_cores() -> int:
    """Processor cores that this process may run on; all of them where the system does not say."""
    if hasattr(os, "sched_getaffinity"):  # Linux alone
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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


def shared_memory() -> int | None:
    """Bytes of /dev/shm; None without it."""
    try:
        status = os.statvfs(SHARED_MEMORY)
    except (AttributeError, OSError):
        return None
    return status.f_frsize * status.f_blocks
