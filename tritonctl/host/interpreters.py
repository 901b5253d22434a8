# SPDX-License-Identifier: Apache-2.0
"""Finds a Python for an environment: this one, or another installed one."""

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
    """A Python that can create environments."""

    path: Path
    version: tuple[int, int, int]
    libraries: tuple[Path, ...] = ()  # folder of its shared library, if any

    @property
    def minor(self) -> str:
        """Major and minor version, as in `python3.12`."""
        return f"{self.version[0]}.{self.version[1]}"

    def __str__(self) -> str:
        """Version and path for messages."""
        return f"{'.'.join(map(str, self.version))} ({self.path})"


def current_interpreter() -> Interpreter:
    """Return the interpreter that runs tritonctl."""
    libraries = tuple(map(Path, python_facts.facts()[2]))
    # If the loader finds the library, it needs no folder.
    if not libraries and ctypes.util.find_library(f"python3.{sys.version_info.minor}"):
        libraries = (Path("/"),)
    return Interpreter(Path(sys.executable), sys.version_info[:3], libraries)


def find_interpreter(versions: str, *, shared: bool = False) -> Interpreter | None:
    """Return this interpreter if its version matches (">=3.11,<3.13"), else another, or None.

    `shared` requires a shared libpython, which programs that embed Python link to. This interpreter
    without one is better than None, because its error names the missing library.
    """
    current_matches = _matches(current_interpreter(), versions)
    if current_matches and (current_interpreter().libraries or not shared):
        return current_interpreter()
    alternatives = (interpreter for path in _candidates(versions) if (interpreter := _probe(path)))
    matches = (
        each for each in alternatives if _matches(each, versions) and (each.libraries or not shared)
    )
    return next(matches, current_interpreter() if current_matches else None)


def require_interpreter(versions: str, consumer: str, *, shared: bool = False) -> Interpreter:
    """Return a matching interpreter. Raises HostError with an install command without one."""
    if interpreter := find_interpreter(versions, shared=shared):
        return interpreter
    raise HostError(
        f"{consumer} needs Python {versions}; this is {current_interpreter()}, and PATH, pyenv, "
        "conda and uv have no "
        "other one",
        remedy=install_hint(versions),
    )


def install_hint(versions: str) -> str:
    """Return commands that install the newest matching Python."""
    newest = max((minor for minor in _MINORS if _minor_matches(minor, versions)), default=12)
    return (
        f"install one in addition: `uv python install 3.{newest}`, `pyenv install 3.{newest}` or "
        f"`conda create -n py3{newest} python=3.{newest}`"
    )


def _matches(interpreter: Interpreter, versions: str) -> bool:
    return SpecifierSet(versions).contains(".".join(map(str, interpreter.version)))


def _minor_matches(minor: int, versions: str) -> bool:
    # A high patch release: ">=3.11.4" does not rule out 3.11.
    return SpecifierSet(versions).contains(f"3.{minor}.99")


def _candidates(versions: str) -> Iterator[Path]:
    """Yield paths of interpreters of these versions, newest first, those on PATH first."""
    minors = [minor for minor in reversed(_MINORS) if _minor_matches(minor, versions)]
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
    """Yield the folders of pyenv and uv that contain one folder per interpreter."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - never raises
    yield Path(os.environ.get("PYENV_ROOT") or home / ".pyenv") / "versions"
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    yield Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python")


def _conda_environments() -> Iterator[Path]:
    """Yield the environments in conda's list."""
    listed = Path(os.path.expanduser("~")) / ".conda" / "environments.txt"  # noqa: PTH111
    try:
        lines = listed.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    yield from (Path(line) for line in lines if line.strip())


@cache
def _probe(path: Path) -> Interpreter | None:
    """Query an interpreter; None for one that cannot create environments.

    A pyenv shim without such a version fails.
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
