# SPDX-License-Identifier: Apache-2.0
"""Finds the GPU of this machine with nvidia-smi. Standard library only."""

import shutil
import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class LocalGpu:
    """The first GPU. Without a GPU the fields are None."""

    name: str | None
    compute_capability: str | None


def find_gpu() -> LocalGpu:
    """Return the GPU that TensorRT builds on, the first that CUDA sees."""
    if shutil.which("nvidia-smi") is None:
        return LocalGpu(None, None)
    query = ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, encoding="utf-8", check=False)
    return parse_gpu(done.stdout if done.returncode == 0 else "")


def parse_gpu(listing: str) -> LocalGpu:
    """Return the first GPU of `nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader`."""
    for line in listing.splitlines():
        name, _, compute_capability = line.rpartition(",")
        if name:
            return LocalGpu(name.strip(), compute_capability.strip())
    return LocalGpu(None, None)
