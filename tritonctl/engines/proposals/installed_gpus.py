# SPDX-License-Identifier: Apache-2.0
"""The GPU of this machine in the compatibility table, matched by nvidia-smi's output."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tritonctl.host.gpus import InstalledGpu, installed_gpus
from tritonctl.project.compatibility.table import GpuModel, table

# Usable share of the data sheet's memory: ECC, the driver and rounding reduce it.
_MEMORY_SHARE = 0.85


def first_listed_gpu() -> GpuModel | None:
    """Return the first installed GPU that the table lists; None without one."""
    entries = (match_table_entry(gpu, table().gpus) for gpu in installed_gpus()[0])
    return next((gpu for gpu in entries if gpu is not None), None)


def match_table_entry(installed: InstalledGpu, entries: Sequence[GpuModel]) -> GpuModel | None:
    """Return the entry whose model is in the name (`NVIDIA A100-SXM4-80GB`), nearest in memory.

    Table names of GPUs with several variants end in memory or form factor: A100-40, H100-NVL.
    """
    words = set(re.findall(r"[a-z0-9]+", installed.name.lower()))
    gib = installed.memory_mib / 1024
    matches = [
        gpu
        for gpu in entries
        if gpu.compute_capability == installed.compute_capability
        and set(gpu.name.partition("-")[0].lower().split()) <= words
        and gpu.memory_gib * _MEMORY_SHARE <= gib <= gpu.memory_gib
    ]
    return min(matches, key=lambda gpu: gpu.memory_gib - gib, default=None)
