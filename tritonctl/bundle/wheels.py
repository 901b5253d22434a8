# SPDX-License-Identifier: Apache-2.0
"""Collect wheels of tritonctl and of environments, for machines like this one."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tritonctl.errors import CommandFailedError, HostError
from tritonctl.host import bundled
from tritonctl.host.environments import EnvironmentRecipe, environment_python
from tritonctl.host.hash_mismatch import hash_mismatch
from tritonctl.host.interpreters import Interpreter, current_interpreter
from tritonctl.host.process import run
from tritonctl.host.progress import Progress
from tritonctl.host.requirements import LOCK_SUFFIX

_REMEDY = (
    "check network and disk, then run the command again (pip's settings, such as PIP_INDEX_URL and "
    "proxies, apply)"
)


def tritonctl_source(wheel: Path | None) -> Path:
    """Return the source of tritonctl's wheel: `wheel`, the clone, or the file that pip installed.

    Raises HostError if none exists.
    """
    if wheel is not None:
        if not wheel.exists():
            raise HostError(f"{wheel} does not exist", remedy="build the wheel with `make dist`")
        return wheel
    if (clone := bundled.clone()) is not None:
        return clone
    try:
        origin = json.loads(distribution("tritonctl").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    url = urlsplit(origin.get("url", ""))
    if url.scheme == "file" and (path := Path(unquote(url.path))).exists():
        return path
    raise HostError(
        "the wheel that tritonctl was installed from no longer exists",
        remedy="name it: --tritonctl tritonctl-X.Y.Z-py3-none-any.whl (`make dist` in a clone)",
    )


def collect_wheels(
    source: Path, recipes: Iterable[EnvironmentRecipe], folder: Path, progress: Progress
) -> None:
    """Collect wheels of tritonctl, its dependencies and every recipe in the new `folder`.

    Raises HostError if pip fails.
    """
    tritonctl_recipe = EnvironmentRecipe(
        "tritonctl", ((str(source.resolve()),),), python=current_interpreter()
    )
    folder.mkdir(parents=True)
    wheels = folder.resolve()  # pip runs in the recipe's folder
    with tempfile.TemporaryDirectory(prefix="tritonctl-bundle-") as scratch:
        pips: dict[Interpreter, Path] = {}
        for recipe in (tritonctl_recipe, *recipes):
            with progress.step(f"Collecting wheels of {recipe.name}") as step:
                if recipe.python not in pips:
                    pip_folder = Path(scratch) / str(len(pips))
                    pips[recipe.python] = _pip_interpreter(recipe.python, pip_folder, step.update)
                pip = (pips[recipe.python], "-m", "pip", "--disable-pip-version-check")
                for install in recipe.installs:
                    # `wheel`, not `download`: packages without a wheel are built on this machine.
                    command: list[str | Path] = [*pip, "wheel", "--wheel-dir", wheels, *install]
                    _run(command, recipe.folder, step.update)


def _pip_interpreter(python: Interpreter, scratch: Path, on_line: Callable[[str], object]) -> Path:
    """Return an interpreter of that version with pip: this one, or a new environment's."""
    if python == current_interpreter() and importlib.util.find_spec("pip"):
        return python.path
    _run([python.path, "-m", "venv", scratch], None, on_line)
    return environment_python(scratch)


def _run(command: Sequence[str | Path], cwd: Path | None, on_line: Callable[[str], object]) -> None:
    output: list[str] = []

    def keep(line: str) -> None:
        output.append(line)
        on_line(line)

    try:
        run(command, cwd=cwd, on_line=keep, remedy=_REMEDY)
    except CommandFailedError as error:
        if mismatch := hash_mismatch("\n".join(output)):
            files = [(cwd or Path()) / word for word in command]
            locks = [file for file in files if file.suffix == LOCK_SUFFIX]
            raise HostError(
                f"wheels could not be collected: {mismatch.problem(locks)}", remedy=mismatch.remedy
            ) from error
        raise HostError(
            f"wheels could not be collected: {error.problem}",
            remedy=_REMEDY,
            details=error.details,
        ) from error
