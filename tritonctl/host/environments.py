# SPDX-License-Identifier: Apache-2.0
"""Cached virtual environments for builders and the server, apart from the CLI's own.

Each recipe has one environment, in the user's cache. It is finished once its marker file exists,
which is written last; an unfinished one is removed and made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tritonctl.errors import CommandFailedError, HostError
from tritonctl.host.files import cache_folder, exclusive, explained, write_atomically
from tritonctl.host.process import run
from tritonctl.host.progress import Progress

_MARKER = "tritonctl-environment.json"
_LOG = "tritonctl-install.log"


@dataclass(frozen=True)
class Recipe:
    """What makes an environment: its fingerprint is the hash of everything here."""

    name: str
    installs: tuple[tuple[str, ...], ...]  # arguments of one `pip install` each, in order
    folder: Path | None = None  # where `-r FILE` arguments are looked up
    probe: str = "pass"  # Python statements that fail when the environment is unusable

    def fingerprint(self) -> str:
        """Hex digest over Python version, commands and the requirement files they name."""
        digest = hashlib.sha256(f"{sys.version_info[:3]}{self.probe}".encode())
        for install in self.installs:
            for argument in install:
                # Contents, not paths: a wheel's and a checkout's recipe are the same.
                file = self.folder / argument if self.folder else Path(argument)
                digest.update(file.read_bytes() if file.is_file() else argument.encode() + b"\0")
            digest.update(b"\n")
        return digest.hexdigest()


def environment_python(environment: Path) -> Path:
    """The interpreter of an environment."""
    return environment / "bin" / "python"


def site_packages(environment: Path) -> Path:
    """Where an environment of this interpreter's version keeps its packages."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return environment / "lib" / version / "site-packages"


def folder_of(recipe: Recipe) -> Path:
    """Where the environment is, or will be."""
    return cache_folder() / "environments" / f"{recipe.name}-{recipe.fingerprint()[:16]}"


def ensure(recipe: Recipe, progress: Progress) -> Path:
    """The folder of the environment, which is made now if it does not exist.

    Raises HostError when pip or the probe fails; the log's path is in the error.
    """
    folder = folder_of(recipe)
    if _finished(folder):
        return folder
    lock = folder.with_name(f"{folder.name}.lock")
    with exclusive(lock, progress, f"install {recipe.name}"):
        # Checked again: whoever held the lock may just have made it.
        if not _finished(folder):
            with progress.step(f"Installing the {recipe.name} environment (once)") as step:
                _make(recipe, folder, step.update)
    return folder


def _finished(folder: Path) -> bool:
    return (folder / _MARKER).is_file()


def _make(recipe: Recipe, folder: Path, on_line: Callable[[str], None]) -> None:
    with explained(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    try:
        _install(recipe, folder, on_line)
    except BaseException:
        # The log is evidence; the environment is not usable and must not look as if it were.
        log = folder / _LOG
        kept = _kept_log(folder)
        if log.exists():
            os.replace(log, kept)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    write_atomically(folder / _MARKER, json.dumps({"name": recipe.name}))


def _kept_log(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.log")


def _install(recipe: Recipe, folder: Path, on_line: Callable[[str], None]) -> None:
    log = folder / _LOG
    python = environment_python(folder)
    remedy = (
        f"read {_kept_log(folder)}; check network and disk, then run the command again "
        "(pip's settings, such as PIP_INDEX_URL, apply)"
    )
    commands: list[Sequence[str | Path]] = [[sys.executable, "-m", "venv", folder]]
    pip = (python, "-m", "pip", "--disable-pip-version-check", "--no-input", "install")
    commands += [[*pip, *install] for install in recipe.installs]
    commands.append([python, "-c", recipe.probe])
    for command in commands:
        try:
            run(command, cwd=recipe.folder, log=log, on_line=on_line, remedy=remedy)
        except CommandFailedError as error:
            raise HostError(
                f"the {recipe.name} environment could not be made: {error.problem}",
                remedy=remedy,
                details=error.details,
            ) from error
