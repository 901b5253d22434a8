# SPDX-License-Identifier: Apache-2.0
"""The GPUs of this machine, as nvidia-smi reports them. Standard library only."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from buildlib.problems import BuildError

_QUERY = "index,name,compute_cap,driver_version,memory.total"
_PATIENCE_SECONDS = 60
_WITH_GPU = (
    "Build on a machine with an NVIDIA GPU; in a container, give it the GPUs (docker: --gpus all)."
)


@dataclass(frozen=True)
class Gpu:
    """A GPU; memory in MiB."""

    index: int
    name: str
    compute_capability: str
    driver: str
    memory: int


def find_gpus() -> list[Gpu]:
    """Return the machine's GPUs.

    Raises:
        BuildError: it has none, or nvidia-smi fails.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        raise BuildError("this machine has no nvidia-smi, so no NVIDIA GPU", remedy=_WITH_GPU)
    argv = [program, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(
            f"nvidia-smi did not answer in {_PATIENCE_SECONDS} seconds",
            remedy="Type nvidia-smi: a GPU that hangs needs a reset or a reboot.",
        ) from error
    if done.returncode != 0:
        output = (done.stdout + done.stderr).strip().splitlines()
        raise BuildError(
            f"nvidia-smi found no GPU: {output[-1] if output else f'status {done.returncode}'}",
            remedy=_WITH_GPU,
        )
    gpus = [_gpu(line) for line in done.stdout.splitlines() if line.strip()]
    if not gpus:
        raise BuildError("nvidia-smi lists no GPU", remedy=_WITH_GPU)
    return gpus


def _gpu(line: str) -> Gpu:
    parts = [part.strip() for part in line.split(",")]
    try:
        index, name, capability, driver, memory = parts
        return Gpu(int(index), name, capability, driver, int(float(memory)))
    except ValueError as error:
        raise BuildError(
            f"nvidia-smi answered {line!r}, which is not {_QUERY}",
            remedy="Update the driver: compute_cap is known to nvidia-smi since driver 510.",
        ) from error


def fitting_gpus(gpus: Sequence[Gpu], compute_capability: str | None) -> list[Gpu]:
    """Return the GPUs of that compute capability; absent: those that are as the first.

    Raises:
        BuildError: none fits: engines run on the kind of GPU they were compiled on.
    """
    wanted = compute_capability or gpus[0].compute_capability
    fitting = [gpu for gpu in gpus if gpu.compute_capability == wanted]
    if not fitting:
        present = ", ".join(f"{gpu.name} ({gpu.compute_capability})" for gpu in gpus)
        raise BuildError(
            f"the engine is for compute capability {wanted}, and this machine has {present}: "
            "an engine is compiled on the kind of GPU that runs it",
            remedy=f"Build on such a GPU, or set engine.target.compute_capability to "
            f"{gpus[0].compute_capability}.",
        )
    return fitting
