# SPDX-License-Identifier: Apache-2.0
"""Runs trtllm-build, reports progress from its log and explains failures.

Standard library only.
"""

import os
import re
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from buildlib.problems import BuildError
from buildlib.program import print_line

_TAIL_LINES = 20

# Log lines of the tool, and the percentage of a rank's engine that is then done.
_PHASES: tuple[tuple[re.Pattern[str], int, str], ...] = (
    (re.compile(r"Total time of constructing network"), 10, "network constructed"),
    (re.compile(r"Total time to initialize the weights"), 15, "weights loaded"),
    (re.compile(r"Build TensorRT engine"), 15, "TensorRT chooses kernels"),
    (re.compile(r"Engine generation completed"), 80, "kernels chosen"),
    (re.compile(r"Total time of building (?!all)"), 90, "engine built"),
    (re.compile(r"Engine serialized"), 100, "engine written"),
)
# Messages of a failing tool, and their remedies.
_CAUSES: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"CUDA out of memory|OutOfMemory|out of memory|cudaErrorMemoryAllocation"),
        (
            "The GPU's memory ran out: lower engine.max_num_tokens or "
            "engine.max_batch_size, or raise engine.tp_size."
        ),
    ),
    (
        re.compile(r"No space left on device"),
        "Free space where the project's .tritonctl folder lies, and build again.",
    ),
    (
        re.compile(r"unrecognized arguments|invalid choice"),
        (
            "This release's trtllm-build does not know an option: remove it from "
            "engine.options.compile, or set engine.target.release to 26.07."
        ),
    ),
    (
        re.compile(r"Unsupported model architecture"),
        (
            "trtllm-build does not know this architecture: serve it with the PyTorch runtime "
            "(engine.target.world: pytorch)."
        ),
    ),
    (
        re.compile(r"[Dd]river version is insufficient|CUDA driver|no CUDA-capable device"),
        (
            "The driver is too old for this release, or no GPU is visible: compare nvidia-smi with "
            "the driver of engine.target.release (`tritonctl doctor`)."
        ),
    ),
)


class ToolProgress:
    """Derives the progress of all ranks from the log."""

    def __init__(self, world_size: int, on_line: Callable[[str], None] = print_line) -> None:
        self._world_size = world_size
        self._on_line = on_line
        self._written = 0

    def read(self, line: str) -> None:
        """Report progress if the log line starts a phase."""
        for pattern, percent, phase in _PHASES:
            if pattern.search(line):
                done = (100 * self._written + percent) // self._world_size
                rank = f"rank {min(self._written + 1, self._world_size)} of {self._world_size}"
                self._on_line(f"@progress {min(done, 100)} {rank}: {phase}")
                self._written += percent == 100  # noqa: PLR2004 - percent
                return


def find_tool(name: str, image: str | None) -> str:
    """Return the tool's path.

    Raises:
        BuildError: the tool is not installed.
    """
    path = shutil.which(name)
    if path is None:
        image_name = f"the image {image}" if image else "an image of TensorRT-LLM up to 1.2.1"
        raise BuildError(
            f"{name} is not installed here",
            remedy=f"Set engine.runner to container: it is in {image_name}.",
        )
    return path


def run_tool(
    argv: Sequence[str], environment: Mapping[str, str], progress: ToolProgress
) -> deque[str]:
    """Run the tool, pass on its log and return its last lines.

    Raises:
        BuildError: the tool was killed or ended with a status other than 0.
    """
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    try:
        process = subprocess.Popen(
            argv,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise BuildError(
            f"{argv[0]} cannot be started: {error.strerror}",
            remedy="Check that it is executable and made for this machine.",
        ) from error
    with process:
        for text in process.stdout or ():
            line = text.rstrip()
            print_line(line)
            tail.append(line)
            progress.read(line)
    if process.returncode != 0:
        raise _tool_error(os.path.basename(argv[0]), process.returncode, tail)  # noqa: PTH119 - a name
    return tail


def _tool_error(tool: str, status: int, tail: deque[str]) -> BuildError:
    if status == -signal.SIGKILL:
        return BuildError(
            f"{tool} was killed (SIGKILL){last_lines(tail)}",
            remedy="Most often the machine's memory ran out (see dmesg): compiling needs twice the "
            "weights. Use a larger machine, or raise engine.tp_size.",
        )
    if status < 0:
        return BuildError(
            f"{tool} was ended by {signal.Signals(-status).name}{last_lines(tail)}",
            remedy="Build again; if it happens twice, its last lines say where.",
        )
    text = "\n".join(tail)
    remedies = [remedy for pattern, remedy in _CAUSES if pattern.search(text)]
    return BuildError(
        f"{tool} ended with status {status}{last_lines(tail)}",
        remedy=remedies[0]
        if remedies
        else "Its last lines say why; the whole log is in build.log.",
    )


def last_lines(tail: deque[str]) -> str:
    """Return the last lines of a log as the end of a problem."""
    return "; its last lines:\n" + "\n".join(tail) if tail else ", without any output"
