# SPDX-License-Identifier: Apache-2.0
"""The NVIDIA GPUs of this machine, from nvidia-smi."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

_QUERY = "name,compute_cap,driver_version,memory.total"
_ANSWER_SECONDS = 30
# Desktop GPUs; the image's CUDA compatibility package only works with other ones.
_DESKTOP = ("GeForce", "RTX", "GTX", "TITAN", "Quadro")


@dataclass(frozen=True)
class InstalledGpu:
    """An installed GPU."""

    name: str
    compute_capability: str
    driver: str
    memory_mib: int

    @property
    def data_center(self) -> bool:
        """Whether the GPU is a data-centre model."""
        return not any(word in self.name for word in _DESKTOP)


def installed_gpus() -> tuple[list[InstalledGpu], str]:
    """Return the GPUs, and the reason for an empty list."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return [], "nvidia-smi is not installed"
    argv = [program, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            argv, capture_output=True, encoding="utf-8", timeout=_ANSWER_SECONDS, check=False
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        return [], f"nvidia-smi does not answer: {error}"
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        return [], f"nvidia-smi: {lines[-1] if lines else f'status {done.returncode}'}"
    gpus = [gpu for line in done.stdout.splitlines() if (gpu := _gpu(line))]
    return gpus, "" if gpus else "nvidia-smi lists no GPU"


def _gpu(line: str) -> InstalledGpu | None:
    try:
        name, capability, driver, memory = (part.strip() for part in line.split(","))
        return InstalledGpu(name, capability, driver, int(float(memory)))
    except ValueError:
        return None
