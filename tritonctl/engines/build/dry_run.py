# SPDX-License-Identifier: Apache-2.0
"""What a build would run, without running it: the exact commands, stage by stage."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tritonctl.engines.build.preflight import ask_program
from tritonctl.engines.build.runners import builder_recipe, container_command, container_image
from tritonctl.engines.build.stages import StageBuild
from tritonctl.host import containers
from tritonctl.host.environments import environment_python, folder_of


@dataclass(frozen=True)
class PlannedRun:
    """A stage, whether it is needed, and the argument lists of its program and what that starts."""

    build: StageBuild
    needed: bool
    commands: tuple[tuple[str, ...], ...]


def planned_runs(stages: list[StageBuild], *, force: bool = False) -> list[PlannedRun]:
    """The runs of a model's stages. Nothing is installed, pulled or written.

    Raises BuildFailedError when a stage's program refuses the request.
    """
    done = stages[-1].published and not force
    return [
        PlannedRun(build, not done and (force or not build.published), tuple(_commands(build)))
        for build in stages
    ]


def _commands(build: StageBuild) -> Iterator[tuple[str, ...]]:
    staging = build.state / "staging" / f"{build.name}-{build.folder.name}"
    script = str(build.builder.program(build.stage))
    files = ("--request", str(staging / "request.json"), "--result", str(staging / "result.json"))
    yield (*_prefix(build, staging), script, *files)
    if build.stage.prints_commands:
        # The program is asked what it would start itself.
        lines = ask_program(build.name, Path(script), build.request, "--print-commands")
        yield from (tuple(shlex.split(line)) for line in lines.splitlines() if line.strip())


def _prefix(build: StageBuild, staging: Path) -> list[str]:
    if build.runner == "container":
        program = containers.installed()
        name = f"tritonctl-build-{build.fingerprint.digest[:16]}"
        image = container_image(build)
        return [*container_command(program, build, staging, name), image, "python3"]
    if build.runner == "venv":
        recipe = builder_recipe(build.builder, build.stage, build.request.target)
        return [str(environment_python(folder_of(recipe)))]
    return [sys.executable]
