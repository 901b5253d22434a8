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
    instances = sum(int(group["count"]) for group in config["instance_group"])
    cores = len(os.sched_getaffinity(0))
    return max(1, min(most, cores // max(1, instances)))


def physical_cores(folder: Path = _CORES) -> int:
    """Cores that this process may use; two logical ones of one core share what computes."""
    return len({_siblings(folder, logical) for logical in os.sched_getaffinity(0)})


def _siblings(folder: Path, logical: int) -> str:
    try:
        return (folder / f"cpu{logical}/topology/thread_siblings_list").read_text(encoding="utf-8")
    except OSError:  # a sandbox without /sys
        return str(logical)
