# SPDX-License-Identifier: Apache-2.0
"""What a build would run, without running it: the exact commands, stage by stage."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tritonctl.engines.build.runners import builder_recipe, container_command, container_image
from tritonctl.engines.build.stages import StageBuild
from tritonctl.errors import BuildFailedError
from tritonctl.host import containers
from tritonctl.host.environments import environment_python, folder_of

_SECONDS = 120


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
    script = str(build.builder.folder / build.stage.script)
    files = ("--request", str(staging / "request.json"), "--result", str(staging / "result.json"))
    yield (*_prefix(build, staging), script, *files)
    if build.stage.prints_commands:
        yield from _inner_commands(build, script)


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


def _inner_commands(build: StageBuild, script: str) -> Iterator[tuple[str, ...]]:
    """What the program itself would start: it is asked, with `--print-commands`."""
    with tempfile.TemporaryDirectory() as folder:
        request = Path(folder, "request.json")
        record = build.request.model_dump(by_alias=True, mode="json")
        request.write_text(json.dumps(record, ensure_ascii=False), encoding="utf-8")
        asked = [sys.executable, script, "--request", str(request), "--print-commands"]
        done = subprocess.run(
            asked, cwd=folder, capture_output=True, text=True, check=False, timeout=_SECONDS
        )
    if done.returncode:
        raise BuildFailedError(
            f"{build.name}: {done.stderr.strip().splitlines()[0] if done.stderr else 'refused'}",
            remedy="\n".join(done.stderr.strip().splitlines()[1:]) or "see builders/README.md",
        )
    for line in done.stdout.splitlines():
        if line.strip():
            yield tuple(shlex.split(line))
