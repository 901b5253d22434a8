# SPDX-License-Identifier: Apache-2.0
"""The GPU of this machine, as nvidia-smi reports it. Standard library only."""

import shutil
import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """The first GPU; None without one."""

    name: str | None
    compute_capability: str | None


def this_gpu() -> Gpu:
    """Return the GPU that TensorRT builds on: the first that CUDA sees."""
    if shutil.which("nvidia-smi") is None:
        return Gpu(None, None)
    query = ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, encoding="utf-8", check=False)
    return read_gpu(done.stdout if done.returncode == 0 else "")


def read_gpu(listing: str) -> Gpu:
    """Return the first GPU of `nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader`."""
    for line in listing.splitlines():
        name, _, compute_capability = line.rpartition(",")
        if name:
            return Gpu(name.strip(), compute_capability.strip())
    return Gpu(None, None)
