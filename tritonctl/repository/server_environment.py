# SPDX-License-Identifier: Apache-2.0
"""The environment that the embedded server shares with the stubs of its Python models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tritonctl.host import bundled
from tritonctl.host.environments import EnvironmentRecipe
from tritonctl.host.interpreters import Interpreter, require_interpreter
from tritonctl.host.requirements import locks_of, unlocked_requirements, verified_install_arguments
from tritonctl.repository.contents import HandwrittenModel

SERVER_VERSION = "2.51.0"
# The stub needs numpy < 2, which has no wheel for 3.13.
PYTHONS = ">=3.11,<3.13"


class StubProgram(Protocol):
    """A program that a stub runs: a Python backend or a hand-written model."""

    @property
    def requirements(self) -> tuple[Path, ...]:
        """Its requirements files."""


def requirement_files(programs: Sequence[StubProgram]) -> list[Path]:
    """Return the requirements files of these programs and their stubs."""
    files = [file for program in programs for file in program.requirements]
    if programs and all(isinstance(program, HandwrittenModel) for program in programs):
        # Our backends pin the stub's own imports; hand-written models need not list them.
        files.append(bundled.find("python_backends/requirements.txt"))
    return files


def server_recipe(programs: Sequence[StubProgram]) -> EnvironmentRecipe:
    """Return the environment that server and stubs share; stubs use its python3.

    Locked packages come first and are verified. Requirements without a lock, of the user's own
    models and steps, come second with all others, so that the versions fit together.
    """
    files = requirement_files(programs)
    locks = [bundled.find("docker/tritonserver_requirements.lock"), *locks_of(files)]
    installs = [verified_install_arguments(*locks)]
    if unlocked_requirements(files):
        installs.append(tuple(part for file in files for part in ("-r", str(file))))
    return EnvironmentRecipe("server", tuple(installs), python=server_python())


def server_python() -> Interpreter:
    """Return the Python that Triton's stubs embed. Raises HostError if none is installed."""
    return require_interpreter(PYTHONS, "the embedded server", shared=True)
