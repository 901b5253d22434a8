# SPDX-License-Identifier: Apache-2.0
"""Dry run: the exact commands of a build, stage by stage."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tritonctl.engines.builds.preflight import query_program
from tritonctl.engines.builds.runners import builder_recipe, container_command, container_image
from tritonctl.engines.builds.stages import StageBuild
from tritonctl.host import containers
from tritonctl.host.environments import environment_folder, environment_python


@dataclass(frozen=True)
class PlannedRun:
    """The commands of one stage."""

    build: StageBuild
    is_needed: bool  # False: the artefact is up to date
    commands: tuple[tuple[str, ...], ...]  # argument lists of the program and its subprocesses


def plan_runs(stages: list[StageBuild], *, force: bool = False) -> list[PlannedRun]:
    """Plan the runs of a model's stages without installing, pulling or writing anything.

    Raises BuildFailedError when a stage's program refuses the request.
    """
    all_done = stages[-1].is_published and not force
    return [
        PlannedRun(
            build, not all_done and (force or not build.is_published), tuple(_commands(build))
        )
        for build in stages
    ]


def _commands(build: StageBuild) -> Iterator[tuple[str, ...]]:
    staging = build.state / "staging" / f"{build.name}-{build.folder.name}"
    script = str(build.builder.program(build.stage))
    files = ("--request", str(staging / "request.json"), "--result", str(staging / "result.json"))
    yield (*_prefix(build, staging), script, *files)
    if build.stage.prints_commands:
        # The program prints the commands of its subprocesses.
        lines = query_program(build.name, Path(script), build.request, "--print-commands")
        yield from (tuple(shlex.split(line)) for line in lines.splitlines() if line.strip())


def _prefix(build: StageBuild, staging: Path) -> list[str]:
    if build.runner == "container":
        program = containers.engine_program()
        name = f"tritonctl-build-{build.fingerprint.digest[:16]}"
        image = container_image(build)
        return [*container_command(program, build, staging, name), image, "python3"]
    if build.runner == "venv":
        recipe = builder_recipe(build.builder, build.stage, build.request.target)
        return [str(environment_python(environment_folder(recipe)))]
    return [sys.executable]
