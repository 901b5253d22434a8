# SPDX-License-Identifier: Apache-2.0
"""Finds the GPUs of this machine with nvidia-smi. Standard library only."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from buildlib.problems import BuildError

_QUERY = "index,name,compute_cap,driver_version,memory.total"
_TIMEOUT_SECONDS = 60
_WITH_GPU = (
    "Build on a machine with an NVIDIA GPU; in a container, give it the GPUs (docker: --gpus all)."
)


@dataclass(frozen=True)
class NvidiaGpu:
    """A GPU of this machine."""

    index: int
    name: str
    compute_capability: str
    driver: str
    memory: int  # MiB


def find_gpus() -> list[NvidiaGpu]:
    """Return the machine's GPUs.

    Raises:
        BuildError: there is no GPU, or nvidia-smi fails.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        raise BuildError("this machine has no nvidia-smi, so no NVIDIA GPU", remedy=_WITH_GPU)
    argv = [program, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(
            f"nvidia-smi did not answer in {_TIMEOUT_SECONDS} seconds",
            remedy="Type nvidia-smi: a GPU that hangs needs a reset or a reboot.",
        ) from error
    if done.returncode != 0:
        output = (done.stdout + done.stderr).strip().splitlines()
        raise BuildError(
            f"nvidia-smi found no GPU: {output[-1] if output else f'status {done.returncode}'}",
            remedy=_WITH_GPU,
        )
    gpus = [_parse_gpu(line) for line in done.stdout.splitlines() if line.strip()]
    if not gpus:
        raise BuildError("nvidia-smi lists no GPU", remedy=_WITH_GPU)
    return gpus


def _parse_gpu(line: str) -> NvidiaGpu:
    parts = [part.strip() for part in line.split(",")]
    try:
        index, name, capability, driver, memory = parts
        return NvidiaGpu(int(index), name, capability, driver, int(float(memory)))
    except ValueError as error:
        raise BuildError(
            f"nvidia-smi answered {line!r}, which is not {_QUERY}",
            remedy="Update the driver: compute_cap is known to nvidia-smi since driver 510.",
        ) from error


def matching_gpus(gpus: Sequence[NvidiaGpu], compute_capability: str | None) -> list[NvidiaGpu]:
    """Return the GPUs of that compute capability, without one those like the first.

    Raises:
        BuildError: no GPU matches. Engines run on the kind of GPU that compiled them.
    """
    required_capability = compute_capability or gpus[0].compute_capability
    matching = [gpu for gpu in gpus if gpu.compute_capability == required_capability]
    if not matching:
        available = ", ".join(f"{gpu.name} ({gpu.compute_capability})" for gpu in gpus)
        raise BuildError(
            f"the engine is for compute capability {required_capability}, and this machine has "
            f"{available}: an engine is compiled on the kind of GPU that runs it",
            remedy=f"Build on such a GPU, or set engine.target.compute_capability to "
            f"{gpus[0].compute_capability}.",
        )
    return matching
