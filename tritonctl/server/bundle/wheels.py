# SPDX-License-Identifier: Apache-2.0
"""Wheels of tritonctl and of environments, for machines like this one."""

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
from tritonctl.host.environments import Recipe, environment_python
from tritonctl.host.interpreters import Interpreter, running
from tritonctl.host.process import run
from tritonctl.host.progress import Progress

_REMEDY = (
    "check network and disk, then run the command again (pip's settings, such as PIP_INDEX_URL and "
    "proxies, apply)"
)


def tritonctl_source(given: Path | None) -> Path:
    """What tritonctl's own wheel is made from: the given wheel, the clone, or what pip installed.

    Raises HostError when none is there.
    """
    if given is not None:
        if not given.exists():
            raise HostError(f"{given} does not exist", remedy="build the wheel with `make dist`")
        return given
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
        "the wheel that tritonctl was installed from is no longer here",
        remedy="name it: --tritonctl tritonctl-X.Y.Z-py3-none-any.whl (`make dist` in a clone)",
    )


def collect_wheels(
    source: Path, recipes: Iterable[Recipe], folder: Path, progress: Progress
) -> None:
    """Wheels of tritonctl, of its dependencies and of every recipe, in the new `folder`.

    Raises HostError when pip cannot get them.
    """
    own = Recipe("tritonctl", ((str(source.resolve()),),), python=running())
    folder.mkdir(parents=True)
    wheels = folder.resolve()  # pip runs in the recipe's folder
    with tempfile.TemporaryDirectory(prefix="tritonctl-bundle-") as scratch:
        pips: dict[Interpreter, Path] = {}
        for recipe in (own, *recipes):
            with progress.step(f"Collecting wheels of {recipe.name}") as step:
                if recipe.python not in pips:
                    place = Path(scratch) / str(len(pips))
                    pips[recipe.python] = _with_pip(recipe.python, place, step.update)
                pip = (pips[recipe.python], "-m", "pip", "--disable-pip-version-check")
                for install in recipe.installs:
                    # `wheel`, not `download`: what has no wheel is built here, with its tools.
                    command: list[str | Path] = [*pip, "wheel", "--wheel-dir", wheels, *install]
                    _run(command, recipe.folder, step.update)


def _with_pip(python: Interpreter, scratch: Path, on_line: Callable[[str], object]) -> Path:
    """An interpreter of that version with pip: ours if it has it, else a new environment's."""
    if python == running() and importlib.util.find_spec("pip"):
        return python.path
    _run([python.path, "-m", "venv", scratch], None, on_line)
    return environment_python(scratch)


def _run(command: Sequence[str | Path], cwd: Path | None, on_line: Callable[[str], object]) -> None:
    try:
        run(command, cwd=cwd, on_line=on_line, remedy=_REMEDY)
    except CommandFailedError as error:
        raise HostError(
            f"wheels could not be collected: {error.problem}",
            remedy=_REMEDY,
            details=error.details,
        ) from error
