# SPDX-License-Identifier: Apache-2.0
"""Where a builder runs: in this interpreter's environment or in a cached one of its own."""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from packaging.specifiers import SpecifierSet

from tritonctl.engines.catalog import Builder
from tritonctl.environments import Recipe, ensure, environment_python
from tritonctl.errors import HostError
from tritonctl.host import write_atomically
from tritonctl.progress import Progress

Runner = Callable[[Builder, Progress], Path]


def current_python(builder: Builder, progress: Progress) -> Path:  # noqa: ARG001 - Runner
    """This interpreter: for places that have what the builder needs, such as an NGC image."""
    return Path(sys.executable)


def venv_python(builder: Builder, progress: Progress) -> Path:
    """The interpreter of the builder's own environment, made on first use."""
    _require_python(builder)
    return environment_python(ensure(builder_recipe(builder), progress))


def _require_python(builder: Builder) -> None:
    wanted = builder.environment.requires_python
    version = platform.python_version()
    if not SpecifierSet(wanted).contains(version):
        raise HostError(
            f"builder {builder.name} needs Python {wanted}, this is {version}",
            remedy=f"install tritonctl under a Python {wanted}",
        )


def builder_recipe(builder: Builder) -> Recipe:
    """The environment that a builder's `builder.toml` asks for."""
    return Recipe(
        name=f"builder-{builder.name}",
        installs=tuple(tuple(arguments) for arguments in builder.environment.install),
        folder=builder.folder,
        probe="\n".join(builder.environment.probe) or "pass",
    )


RUNNERS: dict[str, Runner] = {"current": current_python, "venv": venv_python}


def runner_named(name: str) -> Runner:
    """The runner of that name. Raises HostError for one that this version does not have."""
    if name not in RUNNERS:
        raise HostError(
            f"runner `{name}` is not available", remedy=f"choose one of {', '.join(RUNNERS)}"
        )
    return RUNNERS[name]


def command(python: Path, builder: Builder, request: Path, result: Path) -> list[str]:
    """The command line of a build."""
    script = builder.folder / "build.py"
    return [str(python), str(script), "--request", str(request), "--result", str(result)]


def write_reproduce_script(folder: Path, python: Path, builder: Builder) -> None:
    """Leave `reproduce.sh` beside the artefact: the same build, by hand, in an empty folder."""
    script = shlex.join([str(python), str(builder.folder / "build.py")])
    text = (
        "#!/bin/sh\n# The command that made this engine; run it in an empty folder.\n"
        'here=$(cd "$(dirname "$0")" && pwd)\n'
        "export HF_HUB_OFFLINE=1 PYTHONUTF8=1\n"
        f'exec {script} --request "$here/request.json" --result "$PWD/result.json"\n'
    )
    write_atomically(folder / "reproduce.sh", text)
    (folder / "reproduce.sh").chmod(0o755)
