# SPDX-License-Identifier: Apache-2.0
"""The environment that the embedded server shares with the stubs of its Python models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tritonctl.host import bundled
from tritonctl.host.environments import Recipe
from tritonctl.host.interpreters import Interpreter, need
from tritonctl.repository.contents import HandwrittenModel

SERVER_VERSION = "2.51.0"
# The stub needs numpy < 2, which has no wheel for 3.13.
PYTHONS = ">=3.11,<3.13"
# The wheel's own requirements serve PyTriton's API, which is not used: hence --no-deps.
_WHEEL = ("--no-deps", "nvidia-pytriton==0.7.0")


class Program(Protocol):
    """What runs in a stub: a Python backend, or a hand-written model."""

    @property
    def requirements(self) -> tuple[Path, ...]:
        """Files of what it imports."""


def requirement_files(programs: Sequence[Program]) -> list[Path]:
    """The files of what these programs and their stubs import."""
    files = [file for program in programs for file in program.requirements]
    if programs and all(isinstance(program, HandwrittenModel) for program in programs):
        # Our backends pin what a stub imports; hand-written models alone need not name it.
        files.append(bundled.find("python_backends/requirements.txt"))
    return files


def server_recipe(programs: Sequence[Program]) -> Recipe:
    """The environment that server and stubs share: stubs find packages through its python3."""
    requirements = [part for file in requirement_files(programs) for part in ("-r", str(file))]
    return Recipe("server", (_WHEEL, tuple(requirements)), python=server_python())


def server_python() -> Interpreter:
    """The Python that Triton's stubs embed. Raises HostError where none is installed."""
    return need(PYTHONS, "the embedded server", shared=True)
