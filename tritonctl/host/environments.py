# SPDX-License-Identifier: Apache-2.0
"""Cached virtual environments for builders and the server, apart from the CLI's own.

Each recipe has one environment, in the user's cache. It is finished once its marker file exists,
which is written last; an unfinished one is removed and made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from tritonctl.errors import CommandFailedError, ConfigurationError, HostError
from tritonctl.host.download_size import download_size
from tritonctl.host.files import cache_folder, exclusive, explained, write_atomically
from tritonctl.host.installer import VARIABLE, Installer, Sources, installer, sources
from tritonctl.host.interpreters import Interpreter, running
from tritonctl.host.process import run
from tritonctl.host.progress import Progress, Step
from tritonctl.host.torch_index import answers, cpu_index, of_torch, shown
from tritonctl.host.units import human_bytes

_MARKER = "tritonctl-environment.json"
_LOG = "tritonctl-install.log"
# Options of pip that take no value; after any other one its value is expected.
_FLAGS = frozenset({"--no-deps", "--no-index", "--pre", "--require-hashes"})


@dataclass(frozen=True)
class Recipe:
    """What makes an environment: its fingerprint is the hash of everything here."""

    name: str
    installs: tuple[tuple[str, ...], ...]  # arguments of one `pip install` each, in order
    folder: Path | None = None  # where `-r FILE` arguments are looked up
    probe: str = "pass"  # Python statements that fail when the environment is unusable
    python: Interpreter = field(default_factory=running)
    gpu: bool = False  # whether PyTorch has to be built for CUDA
    # Minor version ("3.12") of another Python, in a container, that is to import the packages:
    # they lie in a folder of their own (`packages_of`), and nothing here runs them.
    reader: str = ""

    def fingerprint(self) -> str:
        """Hex digest over Python version, probe, and what each `pip install` asks for.

        Requirements count as a sorted set, wherever they are written: two recipes that ask for the
        same packages share an environment. The order of commands and of options counts.
        """
        asked = [_asked(install, self.folder or Path()) for install in self.installs]
        on_gpus = ["gpu"] if self.gpu and of_torch(self.installs) else []
        reader = [f"for Python {self.reader}"] if self.reader else []
        record = json.dumps([self.python.version, self.probe, asked, *on_gpus, *reader])
        return hashlib.sha256(record.encode()).hexdigest()


def _asked(install: Sequence[str], folder: Path) -> tuple[list[str], list[str]]:
    """What one `pip install` asks for: options in their order, requirements sorted."""
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
            # Its value comes next, unless it is joined by "=".
            options += [argument, *([] if "=" in argument else [next(arguments, "")])]
        else:
            requirements.add(_normal(argument, folder))
    return options, sorted(requirements)


def requirement_lines(file: Path, within: tuple[Path, ...] = ()) -> Iterator[tuple[Path, str]]:
    """Each line of a requirements file and of those that it includes, with the file it stands in.

    Raises ConfigurationError for a file that includes itself, HostError for an unreadable one.
    """
    if not file.is_file():
        yield file, f"-r {file}"  # pip says so
        return
    if file.resolve() in within:
        raise ConfigurationError(
            f"{file} includes itself", remedy="remove that `-r` line from the requirements"
        )
    for raw in _text(file).replace("\\\n", " ").splitlines():
        line = re.sub(r"(^|\s)#.*", "", raw).strip()
        if included := re.fullmatch(r"(?:-r|--requirement)[\s=]*(\S+)", line):
            yield from requirement_lines(file.parent / included[1], (*within, file.resolve()))
        elif line:
            yield file, line


def _read_requirements(file: Path) -> tuple[list[str], set[str]]:
    """Options and requirements of a requirements file and of those that it includes."""
    options: list[str] = []
    requirements: set[str] = set()
    for place, line in requirement_lines(file):
        if constrained := re.fullmatch(r"(?:-c|--constraint)[\s=]*(\S+)", line):
            options.append(f"-c {_text(place.parent / constrained[1])}")
        elif line.startswith("-"):
            options.append(line)
        else:
            requirements.add(_normal(line, place.parent))
    return options, requirements


def _text(file: Path) -> str:
    if not file.is_file():
        return ""
    with explained(file):
        return file.read_text(encoding="utf-8", errors="surrogateescape")


def _normal(requirement: str, folder: Path) -> str:
    """One spelling for each requirement; a file, such as a wheel, counts by its content."""
    if names_file(folder, requirement):
        return hashlib.sha256((folder / requirement).read_bytes()).hexdigest()
    try:
        parsed = Requirement(requirement)
    except InvalidRequirement:  # a URL, a folder, a requirement with hashes: as it is written
        return requirement
    parsed.name = canonicalize_name(parsed.name)
    return str(parsed)


def names_file(folder: Path, requirement: str) -> bool:
    """Whether a line of a requirements file in that folder is the path of a file."""
    try:
        return (folder / requirement).is_file()
    except OSError:  # too long for a path, as with several hashes
        return False


def environment_python(environment: Path) -> Path:
    """The interpreter of an environment."""
    if os.name == "nt":
        return environment / "Scripts" / "python.exe"
    return environment / "bin" / "python"


def site_packages(environment: Path) -> Path:
    """Where an environment keeps its packages."""
    if os.name == "nt":
        return environment / "Lib" / "site-packages"
    made = sorted((environment / "lib").glob("python3.*"))  # one, of the version it was made with
    version = made[0].name if made else f"python{running().minor}"
    return environment / "lib" / version / "site-packages"


def packages_of(environment: Path) -> Path:
    """Where the packages for a Python in a container are."""
    return environment / "packages"


def folder_of(recipe: Recipe) -> Path:
    """Where the environment is, or will be: one for all that ask for the same."""
    short = recipe.fingerprint()[:16]
    own = cache_folder() / "environments" / f"{recipe.name}-{short}"
    if _finished(own):
        return own
    others = (cache_folder() / "environments").glob(f"*-{short}")
    return next(filter(_finished, sorted(others)), own)


def ensure(recipe: Recipe, progress: Progress) -> Path:
    """The folder of the environment, which is made now if it does not exist.

    Raises HostError when pip or the probe fails; the log's path is in the error.
    """
    folder = folder_of(recipe)
    if _finished(folder):
        return folder
    lock = folder.with_name(f"{recipe.fingerprint()[:16]}.lock")
    with exclusive(lock, progress, f"install {recipe.name}"):
        # Check again: the process that held the lock may have made it, under another name.
        folder = folder_of(recipe)
        if not _finished(folder):
            with progress.step(f"Installing the {recipe.name} environment (once)") as step:
                _make(recipe, folder, step, progress.note)
    return folder


def is_made(recipe: Recipe) -> bool:
    """Whether `ensure` would find the environment."""
    return _finished(folder_of(recipe))


def _finished(folder: Path) -> bool:
    return (folder / _MARKER).is_file()


def _make(recipe: Recipe, folder: Path, step: Step, note: Callable[[str], None]) -> None:
    with explained(folder):
        _remove(folder)
        folder.mkdir(parents=True)
    try:
        _install(recipe, folder, step, note)
    except BaseException:
        # Keep the log as evidence; a broken environment must not look usable.
        log = folder / _LOG
        kept = _kept_log(folder)
        if log.exists():
            os.replace(log, kept)
        _remove(folder)
        raise
    write_atomically(folder / _MARKER, json.dumps({"name": recipe.name}))


def _remove(folder: Path) -> None:
    """Free the name at once: a pip whose command was killed may still write into the folder."""
    aside = folder.with_name(f"{folder.name}.removed-{os.getpid()}")
    with suppress(FileNotFoundError):
        os.replace(folder, aside)
    shutil.rmtree(aside, ignore_errors=True)


def _kept_log(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.log")


def _install(recipe: Recipe, folder: Path, step: Step, note: Callable[[str], None]) -> None:
    tool = installer(recipe.python.path)
    place = _Place(recipe, folder, tool, step)
    step.update("asking for the size of the download")
    torch = place.torch_index(note)
    origin = sources(recipe.python.path, tool)
    if not origin.no_index:
        note(_download(recipe, origin, torch))
    place.run(tool.make(recipe.python.path, folder))
    if torch:
        place.torch_for_cpus(torch, note)
    foreign = ["--only-binary", ":all:", "--python-version", recipe.reader]
    foreign += ["--target", str(packages_of(folder))]
    for install in recipe.installs:
        arguments = [*foreign, *install] if recipe.reader else install
        place.run(tool.install(place.python, arguments))
    place.run([place.python, "-c", recipe.probe])


def _download(recipe: Recipe, origin: Sources, torch: str | None) -> str:
    """What the installation is going to download, in a line."""
    asked = [_asked(install, recipe.folder or Path()) for install in recipe.installs]
    size = download_size(
        [("--no-deps" not in options, requirements) for options, requirements in asked],
        recipe.python,
        origin,
        torch=(of_torch(recipe.installs), torch) if torch else None,
    )
    if size is None:
        return f"{recipe.name}: the index does not tell the size of the download"
    others = f", and {size.untold} whose size the index does not tell" if size.untold else ""
    least, further = ("at least ", " and what they need") if size.least else ("", "")
    count = f"{size.packages} packages{further}{others}"
    return f"{recipe.name}: {least}{human_bytes(size.known)} to download ({count})"


@dataclass(frozen=True)
class _Place:
    """Where an environment is being made."""

    recipe: Recipe
    folder: Path
    tool: Installer
    step: Step

    @property
    def python(self) -> Path:
        return environment_python(self.folder)

    def torch_index(self, note: Callable[[str], None]) -> str | None:
        """PyTorch's own index of CPU wheels, where they are wanted and it answers."""
        wanted = of_torch(self.recipe.installs) and not self.recipe.gpu
        index = cpu_index() if wanted else None
        if index and not answers(index):
            note(f"{shown(index)} does not answer: PyTorch comes from the configured index")
            return None
        return index

    def torch_for_cpus(self, index: str, note: Callable[[str], None]) -> None:
        """PyTorch of that index; the other installs then find it there."""
        wanted = of_torch(self.recipe.installs)
        command = self.tool.install(self.python, ["--no-deps", *wanted])
        try:
            self.run(command, index)
        except HostError:
            note(f"{shown(index)} lacks {', '.join(wanted)}: it comes from the configured index")
        else:
            note(f"PyTorch for CPUs came from {shown(index)}")

    def run(self, command: Sequence[str | Path], index: str | None = None) -> None:
        """Run a command of the installation; `index`: the only one that it asks."""
        other = f"; `{VARIABLE}=pip` takes pip instead of uv" if self.tool.uv else ""
        remedy = (
            f"read {_kept_log(self.folder)}; check network and disk, then run the command again "
            f"(pip's settings, such as PIP_INDEX_URL, apply{other})"
        )
        try:
            run(
                command,
                cwd=self.recipe.folder,
                environment=self.tool.environment(index),
                log=self.folder / _LOG,
                on_line=self.step.update,
                remedy=remedy,
            )
        except CommandFailedError as error:
            raise HostError(
                f"the {self.recipe.name} environment could not be made: {error.problem}",
                remedy=remedy,
                details=error.details,
            ) from error
