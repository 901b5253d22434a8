# SPDX-License-Identifier: Apache-2.0
"""How many runs of a graph an instance has under way at a time. Without Triton."""

import os
from collections.abc import Mapping
from typing import Any


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
