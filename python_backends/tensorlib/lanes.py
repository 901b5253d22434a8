# SPDX-License-Identifier: Apache-2.0
"""How many runs of a graph an instance has under way at a time, and threads. Without Triton."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_CORES = Path("/sys/devices/system/cpu")


def parallel_runs(most: int, config: Mapping[str, Any], kind: str) -> int:
    """On a CPU one for each core that the model's instances leave to one, at most `most`.

    `config`: the model's, `kind`: of the instance, as Triton gives them. Kernels of several runs on
    a GPU wait for each other.
    """
    if kind == "GPU":
        return 1
    cores = len(os.sched_getaffinity(0))
    return max(1, min(most, cores // max(1, instances_of(config))))


def instances_of(config: Mapping[str, Any]) -> int:
    """Of a model, by its configuration."""
    return sum(int(group["count"]) for group in config["instance_group"])


def physical_cores(folder: Path = _CORES) -> tuple[tuple[int, ...], ...]:
    """The cores that this process may use, each by its logical ones, which share what computes."""
    cores: dict[str, list[int]] = {}
    for logical in sorted(os.sched_getaffinity(0)):
        cores.setdefault(_siblings(folder, logical), []).append(logical)
    return tuple(tuple(logical) for logical in cores.values())


def _siblings(folder: Path, logical: int) -> str:
    try:
        return (folder / f"cpu{logical}/topology/thread_siblings_list").read_text(encoding="utf-8")
    except OSError:  # a sandbox without /sys
        return str(logical)
