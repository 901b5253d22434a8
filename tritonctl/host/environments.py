# SPDX-License-Identifier: Apache-2.0
"""Cached virtual environments for builders and the server, separate from the CLI's.

Each recipe has one environment in the user's cache. Its marker file is written last; an environment
without a marker is removed and created again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from tritonctl.errors import CommandFailedError, HostError
from tritonctl.host.files import as_host_error, cache_folder, exclusive, write_atomically
from tritonctl.host.hash_mismatch import hash_mismatch
from tritonctl.host.installer import Installer, installer
from tritonctl.host.interpreters import Interpreter, current_interpreter
from tritonctl.host.process import run
from tritonctl.host.progress import Progress, ProgressStep
from tritonctl.host.requirements import (
    LOCK_SUFFIX,
    VERIFY,
    refuse_outdated_lock,
    requirement_lines,
    requirements_text,
    verified_locks,
    without_options,
)
from tritonctl.host.torch_index import (
    cpu_index,
    is_reachable,
    torch_requirements,
    without_credentials,
)

_MARKER = "tritonctl-environment.json"
_LOG = "tritonctl-install.log"
# Options of pip without a value; any other option is followed by its value.
_FLAGS = frozenset({"--no-deps", "--no-index", "--pre", VERIFY})


@dataclass(frozen=True)
class EnvironmentRecipe:
    """The recipe of an environment, identified by a fingerprint over all fields."""

    name: str
    installs: tuple[tuple[str, ...], ...]  # arguments of each `pip install`, in order
    folder: Path | None = None  # base of `-r FILE` arguments
    probe: str = "pass"  # Python statements that fail if the environment is unusable
    python: Interpreter = field(default_factory=current_interpreter)
    gpu: bool = False  # PyTorch must support CUDA
    # Minor version ("3.12") of a Python in a container that imports the packages. They are
    # installed in a separate folder and do not run on this machine.
    reader: str = ""

    def fingerprint(self) -> str:
        """Return a hex digest over Python version, probe and the content of each `pip install`.

        Requirements count as a sorted set, wherever they are written: recipes with the same
        packages share an environment. The order of commands and of options counts. Of a lock, the
        versions count and not the hashes.
        """
        requests = [_parse_install(install, self.folder or Path()) for install in self.installs]
        on_gpus = ["gpu"] if self.gpu and torch_requirements(self.installs) else []
        reader = [f"for Python {self.reader}"] if self.reader else []
        record = json.dumps([self.python.version, self.probe, requests, *on_gpus, *reader])
        return hashlib.sha256(record.encode()).hexdigest()


def _parse_install(install: Sequence[str], folder: Path) -> tuple[list[str], list[str]]:
    """Parse the arguments of a `pip install`: options in order, requirements sorted."""
    options: list[str] = []
    requirements: set[str] = set()
    arguments = iter(install)
    for argument in arguments:
        if argument in {"-r", "--requirement"}:
            more, required = _read_requirements(folder / next(arguments))
            options += more
            requirements |= required
        elif argument in _FLAGS:
            options.append(argument)
        elif argument.startswith("-"):
            # The value follows, unless "=" joins it.
            options += [argument, *([] if "=" in argument else [next(arguments, "")])]
        else:
            requirements.add(_fingerprint_requirement(argument, folder))
    return options, sorted(requirements)


def _read_requirements(file: Path) -> tuple[list[str], set[str]]:
    """Return options and requirements of a requirements file and its includes."""
    options: list[str] = []
    requirements: set[str] = set()
    for place, line in requirement_lines(file):
        if place.suffix == LOCK_SUFFIX:
            # Hashes do not count: a version's new file for another system changes nothing here.
            requirements.add(_fingerprint_requirement(without_options(line), place.parent))
        elif constrained := re.fullmatch(r"(?:-c|--constraint)[\s=]*(\S+)", line):
            options.append(f"-c {requirements_text(place.parent / constrained[1])}")
        elif line.startswith("-"):
            options.append(line)
        else:
            requirements.add(_fingerprint_requirement(line, place.parent))
    return options, requirements


def _fingerprint_requirement(requirement: str, folder: Path) -> str:
    """Return a requirement's normalised text, or the hash of a file such as a wheel."""
    if names_file(folder, requirement):
        return hashlib.sha256((folder / requirement).read_bytes()).hexdigest()
    try:
        parsed = Requirement(requirement)
    except InvalidRequirement:  # a URL, a folder, a requirement with hashes: unchanged
        return requirement
    parsed.name = canonicalize_name(parsed.name)
    return str(parsed)


def names_file(folder: Path, requirement: str) -> bool:
    """Whether a line of a requirements file in `folder` is the path of a file."""
    try:
        return (folder / requirement).is_file()
    except OSError:  # too long for a path, as with several hashes
        return False


def environment_python(environment: Path) -> Path:
    """Return the interpreter of an environment."""
    if os.name == "nt":
        return environment / "Scripts" / "python.exe"
    return environment / "bin" / "python"


def site_packages(environment: Path) -> Path:
    """Return the packages folder of an environment."""
    if os.name == "nt":
        return environment / "Lib" / "site-packages"
    made = sorted((environment / "lib").glob("python3.*"))  # one, of the environment's Python
    version = made[0].name if made else f"python{current_interpreter().minor}"
    return environment / "lib" / version / "site-packages"


def packages_folder(environment: Path) -> Path:
    """Return the folder of the packages for a Python in a container."""
    return environment / "packages"


def environment_folder(recipe: EnvironmentRecipe) -> Path:
    """Return the environment's current or future folder; equal recipes share one."""
    short = recipe.fingerprint()[:16]
    own_folder = cache_folder() / "environments" / f"{recipe.name}-{short}"
    if _is_finished(own_folder):
        return own_folder
    equivalents = (cache_folder() / "environments").glob(f"*-{short}")
    return next(filter(_is_finished, sorted(equivalents)), own_folder)


def ensure_environment(recipe: EnvironmentRecipe, progress: Progress) -> Path:
    """Return the folder of the environment, creating it if necessary.

    Raises HostError when pip or the probe fails, or a package does not have a hash of its lock; the
    error contains the log's path. Raises ConfigurationError for an outdated lock.
    """
    folder = environment_folder(recipe)
    if _is_finished(folder):
        return folder
    for lock in _locks(recipe):
        refuse_outdated_lock(lock)
    mutex = folder.with_name(f"{recipe.fingerprint()[:16]}.lock")
    with exclusive(mutex, progress, f"install {recipe.name}"):
        # Check again: the lock's previous holder may have created it, under another name.
        folder = environment_folder(recipe)
        if not _is_finished(folder):
            with progress.step(f"Installing the {recipe.name} environment (once)") as step:
                _make(recipe, folder, step, progress.note)
    return folder


def _locks(recipe: EnvironmentRecipe) -> list[Path]:
    """Return the locks of requirements that the recipe installs."""
    folder = recipe.folder or Path()
    return [lock for install in recipe.installs for lock in verified_locks(install, folder)]


def is_installed(recipe: EnvironmentRecipe) -> bool:
    """Whether the environment exists."""
    return _is_finished(environment_folder(recipe))


def _is_finished(folder: Path) -> bool:
    return (folder / _MARKER).is_file()


def _make(
    recipe: EnvironmentRecipe, folder: Path, step: ProgressStep, note: Callable[[str], None]
) -> None:
    with as_host_error(folder):
        _remove(folder)
        folder.mkdir(parents=True)
    try:
        _install(recipe, folder, step, note)
    except BaseException:
        # Save the log; a broken environment must not look usable.
        log = folder / _LOG
        saved_log = _saved_log(folder)
        if log.exists():
            os.replace(log, saved_log)
        _remove(folder)
        raise
    write_atomically(folder / _MARKER, json.dumps({"name": recipe.name}))


def _remove(folder: Path) -> None:
    """Rename a folder, then delete it: a pip whose parent was killed may still write into it."""
    aside = folder.with_name(f"{folder.name}.removed-{os.getpid()}")
    with suppress(FileNotFoundError):
        os.replace(folder, aside)
    shutil.rmtree(aside, ignore_errors=True)


def _saved_log(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.log")


def _install(
    recipe: EnvironmentRecipe, folder: Path, step: ProgressStep, note: Callable[[str], None]
) -> None:
    tool = installer(recipe.python.path)
    installation = _Installation(recipe, folder, tool, step)
    torch = None if tool.no_index else installation.torch_index(note)
    installation.run(tool.make(recipe.python.path, folder))
    if torch:
        installation.install_cpu_torch(torch, note)
    reader_options = ["--only-binary", ":all:", "--python-version", recipe.reader]
    reader_options += ["--target", str(packages_folder(folder))]
    for install in recipe.installs:
        arguments = [*reader_options, *install] if recipe.reader else install
        installation.run(tool.install(installation.python, arguments), verified=VERIFY in install)
    installation.run([installation.python, "-c", recipe.probe])


@dataclass(frozen=True)
class _Installation:
    """An environment that is being created."""

    recipe: EnvironmentRecipe
    folder: Path
    tool: Installer
    step: ProgressStep

    @property
    def python(self) -> Path:
        return environment_python(self.folder)

    def torch_index(self, note: Callable[[str], None]) -> str | None:
        """Return PyTorch's index of CPU wheels, if the recipe needs it and it responds."""
        needs_cpu_torch = torch_requirements(self.recipe.installs) and not self.recipe.gpu
        index = cpu_index() if needs_cpu_torch else None
        if index and not is_reachable(index):
            note(
                f"{without_credentials(index)} does not answer: PyTorch comes from the "
                "configured index"
            )
            return None
        return index

    def install_cpu_torch(self, index: str, note: Callable[[str], None]) -> None:
        """Install PyTorch from that index before the other packages."""
        wanted = torch_requirements(self.recipe.installs)
        command = self.tool.install(self.python, ["--no-deps", *wanted])
        try:
            self.run(command, index)
        except HostError:
            note(
                f"{without_credentials(index)} lacks {', '.join(wanted)}: it comes from the "
                "configured index"
            )
        else:
            note(f"PyTorch for CPUs came from {without_credentials(index)}")

    def run(
        self, command: Sequence[str | Path], index: str | None = None, *, verified: bool = False
    ) -> None:
        """Run a command of the installation; `index` is then the only index."""
        log = self.folder / _LOG
        remedy = (
            f"see {_saved_log(self.folder)}; check network and disk, then run the command again "
            f"(pip's settings, such as PIP_INDEX_URL, apply)"
        )
        try:
            run(
                command,
                cwd=self.recipe.folder,
                environment=self.tool.environment(index, verified=verified),
                log=log,
                on_line=self.step.update,
                remedy=remedy,
            )
        except CommandFailedError as error:
            problem = f"cannot create the {self.recipe.name} environment"
            output = log.read_text(encoding="utf-8", errors="replace")
            if verified and (mismatch := hash_mismatch(output, self.tool.sources())):
                raise HostError(
                    f"{problem}: {mismatch.problem(_locks(self.recipe))}",
                    remedy=f"{mismatch.remedy} (log: {_saved_log(self.folder)})",
                ) from error
            raise HostError(
                f"{problem}: {error.problem}", remedy=remedy, details=error.details
            ) from error
