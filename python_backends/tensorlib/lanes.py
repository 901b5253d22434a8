# SPDX-License-Identifier: Apache-2.0
"""The number of parallel runs of a graph and the cores for their threads. Without Triton."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_CORES = Path("/sys/devices/system/cpu")


def parallel_runs(max_runs: int, config: Mapping[str, Any], kind: str) -> int:
    """Return the runs of an instance: one per core of its share on a CPU, at most `max_runs`.

    config: the model's configuration, kind: of the instance, as Triton passes them. On a GPU one,
    because the kernels of several runs wait for each other.
    """
    if kind == "GPU":
        return 1
    cores = len(os.sched_getaffinity(0))
    return max(1, min(max_runs, cores // max(1, instance_count(config))))


def instance_count(config: Mapping[str, Any]) -> int:
    """Return the number of a model's instances."""
    return sum(int(group["count"]) for group in config["instance_group"])


def physical_cores(folder: Path = _CORES) -> tuple[tuple[int, ...], ...]:
    """Return the physical cores that this process may use, each as its logical cores."""
    cores: dict[str, list[int]] = {}
    for logical in sorted(os.sched_getaffinity(0)):
        cores.setdefault(_siblings(folder, logical), []).append(logical)
    return tuple(tuple(logical) for logical in cores.values())


def _siblings(folder: Path, logical: int) -> str:
    try:
        return (folder / f"cpu{logical}/topology/thread_siblings_list").read_text(encoding="utf-8")
    except OSError:  # a sandbox without /sys
        return str(logical)
