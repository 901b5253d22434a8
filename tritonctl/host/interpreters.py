# SPDX-License-Identifier: Apache-2.0
"""Finds a Python that an environment needs: this one, or another that is installed here."""

from __future__ import annotations

import ctypes.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.specifiers import SpecifierSet

from tritonctl.errors import HostError
from tritonctl.host import python_facts

_SECONDS = 30.0
_MINORS = range(9, 20)


@dataclass(frozen=True)
class Interpreter:
    """A Python that can make environments, and the folder of its shared library if it has one."""

    path: Path
    version: tuple[int, int, int]
    libraries: tuple[Path, ...] = ()

    @property
    def minor(self) -> str:
        """As in `python3.12`."""
        return f"{self.version[0]}.{self.version[1]}"

    def __str__(self) -> str:
        """Version and place, as a message shows it."""
        return f"{'.'.join(map(str, self.version))} ({self.path})"


def running() -> Interpreter:
    """The one that runs tritonctl."""
    libraries = tuple(map(Path, python_facts.facts()[2]))
    # Wherever the loader finds it, it needs no folder.
    if not libraries and ctypes.util.find_library(f"python3.{sys.version_info.minor}"):
        libraries = (Path("/"),)
    return Interpreter(Path(sys.executable), sys.version_info[:3], libraries)


def find(wanted: str, *, shared: bool = False) -> Interpreter | None:
    """This interpreter if its version is wanted (">=3.11,<3.13"), else the first other, or None.

    shared: one with a shared libpython, which programs that embed Python link to; this one without
    it is better than none, as its own error says what is missing.
    """
    mine = _matches(running(), wanted)
    if mine and (running().libraries or not shared):
        return running()
    others = (found for path in _candidates(wanted) if (found := _asked(path)))
    fitting = (each for each in others if _matches(each, wanted) and (each.libraries or not shared))
    return next(fitting, running() if mine else None)


def need(wanted: str, who: str, *, shared: bool = False) -> Interpreter:
    """As `find`. Raises HostError, which says how to get one, instead of returning None."""
    if found := find(wanted, shared=shared):
        return found
    raise HostError(
        f"{who} needs Python {wanted}; this is {running()}, and no other was found on PATH, by "
        "pyenv, conda or uv",
        remedy=how_to_get(wanted),
    )


def how_to_get(wanted: str) -> str:
    """The command that installs the newest Python that is wanted."""
    newest = max((minor for minor in _MINORS if _minor_matches(minor, wanted)), default=12)
    return (
        f"install one beside this: `uv python install 3.{newest}`, `pyenv install 3.{newest}` or "
        f"`conda create -n py3{newest} python=3.{newest}`"
    )


def _matches(interpreter: Interpreter, wanted: str) -> bool:
    return SpecifierSet(wanted).contains(".".join(map(str, interpreter.version)))


def _minor_matches(minor: int, wanted: str) -> bool:
    # A high patch release: ">=3.11.4" does not rule out 3.11.
    return SpecifierSet(wanted).contains(f"3.{minor}.99")


def _candidates(wanted: str) -> Iterator[Path]:
    """Where interpreters of these versions are, newest first, on PATH before anywhere else."""
    minors = [minor for minor in reversed(_MINORS) if _minor_matches(minor, wanted)]
    for minor in minors:
        for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
            if on_path := shutil.which(f"python3.{minor}", path=folder or os.curdir):
                yield Path(on_path)
    for minor in minors:
        for root in _version_folders():
            yield from sorted(root.glob(f"*3.{minor}[.-]*/bin/python3.{minor}"), reverse=True)
        for environment in _conda_environments():
            yield environment / "bin" / f"python3.{minor}"


def _version_folders() -> Iterator[Path]:
    """Folders of pyenv and uv with an interpreter in each of their folders."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - never raises
    yield Path(os.environ.get("PYENV_ROOT") or home / ".pyenv") / "versions"
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    yield Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python")


def _conda_environments() -> Iterator[Path]:
    """Those that conda keeps a list of."""
    listed = Path(os.path.expanduser("~")) / ".conda" / "environments.txt"  # noqa: PTH111
    try:
        lines = listed.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    yield from (Path(line) for line in lines if line.strip())


@cache
def _asked(path: Path) -> Interpreter | None:
    """What an interpreter says about itself; None for one that cannot make environments.

    A shim of pyenv without such a version ends in an error.
    """
    try:
        done = subprocess.run(
            [path, "-I", python_facts.__file__],
            capture_output=True,
            encoding="utf-8",
            timeout=_SECONDS,
            check=True,
        )
        place, version, libraries = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Interpreter(Path(place or path), tuple(version), tuple(map(Path, libraries)))
