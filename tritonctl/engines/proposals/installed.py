# SPDX-License-Identifier: Apache-2.0
"""Which GPU of the compatibility table this machine has, by what nvidia-smi says of it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tritonctl.host.gpus import InstalledGpu, installed_gpus
from tritonctl.project.compatibility.table import Gpu, table

# ECC, the driver and rounding keep some of the data sheet's memory.
_MEMORY_SHARE = 0.85


def gpu_here() -> Gpu | None:
    """The first that is installed and that the table has; None without one."""
    named = (named_in_table(gpu, table().gpus) for gpu in installed_gpus()[0])
    return next((gpu for gpu in named if gpu is not None), None)


def named_in_table(installed: InstalledGpu, known: Sequence[Gpu]) -> Gpu | None:
    """The entry whose model is in the name (`NVIDIA A100-SXM4-80GB`) and whose memory is nearest.

    The table's names end in their memory or form where there are several: A100-40, H100-NVL.
    """
    words = set(re.findall(r"[a-z0-9]+", installed.name.lower()))
    gib = installed.memory_mib / 1024
    fitting = [
        gpu
        for gpu in known
        if gpu.compute_capability == installed.compute_capability
        and set(gpu.name.partition("-")[0].lower().split()) <= words
        and gpu.memory_gib * _MEMORY_SHARE <= gib <= gpu.memory_gib
    ]
    return min(fitting, key=lambda gpu: gpu.memory_gib - gib, default=None)
