# SPDX-License-Identifier: Apache-2.0
"""Builds an engine, stage by stage: lock → stage → builder process → verify → publish."""

from __future__ import annotations

import json
import os
import shutil
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tritonctl.engines.artefacts.manifest import (
    Manifest,
    read_manifest,
    verify_files,
    write_manifest,
)
from tritonctl.engines.build import runners
from tritonctl.engines.build.contract import (
    BuildRefusal,
    BuildResult,
    EvaluationResult,
    read_answer,
)
from tritonctl.engines.build.revision import revision_of
from tritonctl.engines.build.runners import Workplace
from tritonctl.engines.build.shared_store import claimed, offer, offered, take
from tritonctl.engines.build.stages import StageBuild, expected_seconds, plan_stages, stages_until
from tritonctl.errors import BuildFailedError, CommandFailedError, RepositoryError
from tritonctl.host.files import exclusive, explained, write_atomically
from tritonctl.host.process import run
from tritonctl.host.progress import Board, Progress, Unordered
from tritonctl.host.version import __version__
from tritonctl.project.schema import Project

_LAST_LINES = 20
_SIGKILL = 9


@dataclass(frozen=True)
class Artefact:
    """A published engine: its folder, its manifest, and whether this call made it."""

    folder: Path
    manifest: Manifest
    fresh: bool


def evaluation_of(artefact: Artefact) -> EvaluationResult | None:
    """How the engine answered: measured by its own stage, or by the nearest one before it."""
    manifest = artefact.manifest
    while manifest.result.evaluation is None and manifest.source:
        before = list(artefact.folder.parent.glob(f"*-{manifest.source[:16]}"))
        if not before:  # pruned
            return None
        manifest = read_manifest(before[0])
    return manifest.result.evaluation


def build_engine(
    project: Project,
    name: str,
    progress: Progress,
    *,
    force: bool = False,
    until: str | None = None,
    board: Board | None = None,
) -> Artefact:
    """The engine of a project's model, built now unless an equal one exists.

    An interrupted build resumes after its last finished stage. `until`: the stage
    to stop after; its artefact is returned. Raises UsageError for none of the stages,
    ConfigurationError, HostError or BuildFailedError; a failed build leaves its log in
    `.tritonctl/failed-builds/` and nothing else.
    """
    stages = stages_until(plan_stages(project, name), until)
    engine, board = stages[-1], board or Unordered(progress)
    announce(stages, board, force=force)
    if not force and engine.published:
        return Artefact(engine.folder, read_manifest(engine.folder), fresh=False)
    for warning in (*stages[0].warnings, *_other_runners(stages)):
        progress.note(f"{name}: {warning}")
    lock = project.state / "locks" / f"build-{name}.lock"
    with exclusive(lock, progress, f"build {name}"):
        # Checked again: whoever held the lock may just have built it.
        missing = [build for build in stages if force or not build.published]
        damaged = offered(engine)  # unless it can be taken
        if not force and engine in missing and _take_shared(engine, progress):
            # How an engine answered may be in the manifest of a stage before.
            missing = [build for build in missing[:-1] if not _take_shared(build, progress)]
        fresh = engine in missing
        runners.refuse_what_is_missing(missing if fresh else ())
        for build in missing if fresh else ():
            with board.stage(name, build.stage.name) as steps, claimed(build, steps):
                # Another project may just have built it.
                if force or (damaged and build is engine) or not _take(build, steps):
                    _build_and_publish(build, steps)
    return Artefact(engine.folder, read_manifest(engine.folder), fresh=fresh)


def _other_runners(stages: list[StageBuild]) -> Iterator[str]:
    for build in stages:
        wanted = build.model.engine.runner
        if wanted not in (None, build.runner):
            what = f"the stage {build.stage.name}" if build.named else build.builder.name
            yield f"{what} cannot run with --runner {wanted}, it runs with {build.runner}"


def announce(stages: list[StageBuild], board: Board, *, force: bool = False) -> None:
    """Show the board which stages will run, and how long they took before."""
    done = stages[-1].published and not force
    for build in stages:
        kept = done or (build.published and not force)
        expected = expected_seconds(build)
        board.planned(build.name, build.stage.name, done=kept, expected=expected)


def built_engine(project: Project, name: str) -> Artefact:
    """The engine that matches project and checkpoint as they are now.

    Raises RepositoryError when it has not been built.
    """
    engine = plan_stages(project, name)[-1]
    if not engine.published:
        raise RepositoryError(
            f"model {name} has no engine for its present settings and checkpoint",
            remedy=f"run `tritonctl build {name}`",
        )
    return Artefact(engine.folder, read_manifest(engine.folder), fresh=False)


def built_engines(project: Project) -> dict[str, Artefact]:
    """The engine of every model, by the model's name. Raises RepositoryError for one not built."""
    return {name: built_engine(project, name) for name in sorted(project.models)}


def _build_and_publish(build: StageBuild, progress: Progress) -> None:
    with _staging(build) as staging:
        workplace = runners.RUNNERS[build.runner](build, staging, progress)
        result = _run_builder(build, workplace, staging, progress)
        result = result.model_copy(update={"versions": {**result.versions, **workplace.versions}})
        with progress.step(f"Publishing {build.name}"), explained(build.folder):
            verify_files(staging, result, build.builder.name)
            write_manifest(staging, _manifest(build, result))
            _publish(staging, build.folder)
            offer(build, progress)


def _take_shared(build: StageBuild, progress: Progress) -> bool:
    if not offered(build):
        return False
    with claimed(build, progress):
        return _take(build, progress)


def _take(build: StageBuild, progress: Progress) -> bool:
    if not offered(build):
        return False
    with _staging(build) as staging:
        if not take(build, staging, progress):
            return False
        with explained(build.folder):
            _publish(staging, build.folder)
    progress.note(f"{build.place}: taken from {build.shared}, verified")
    return True


def _manifest(build: StageBuild, result: BuildResult) -> Manifest:
    return Manifest(
        tritonctl=__version__,
        fingerprint=build.fingerprint.digest,
        builder=build.builder.name,
        task=build.model.task,
        python_backend=build.builder.served_by(build.request.task),
        stage=build.stage.name if build.named else None,
        source=build.fingerprint.inputs.get("source"),
        revision=revision_of(Path(build.request.checkpoint)),
        inputs=build.fingerprint.inputs,
        request=build.request,
        result=result,
    )


def _publish(staging: Path, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    replaced = staging.with_name(f"{staging.name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    if folder.exists():
        os.rename(folder, replaced)
    os.rename(staging, folder)
    shutil.rmtree(replaced, ignore_errors=True)


@contextmanager
def _staging(build: StageBuild) -> Iterator[Path]:
    """A folder for the builder; whatever is left of it afterwards is removed, its log kept."""
    staging = build.state / "staging" / f"{build.name}-{build.folder.name}"
    with explained(staging):
        shutil.rmtree(staging, ignore_errors=True)  # of a build that was killed
        staging.mkdir(parents=True)
    try:
        yield staging
    except BaseException:
        # A full disk may refuse this too; report what made the build fail.
        with suppress(OSError):
            build.failed_log.parent.mkdir(parents=True, exist_ok=True)
            os.replace(staging / "build.log", build.failed_log)
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _run_builder(
    build: StageBuild, workplace: Workplace, staging: Path, progress: Progress
) -> BuildResult:
    request, result = staging / "request.json", staging / "result.json"
    record = build.request.model_dump(by_alias=True, mode="json")
    write_atomically(request, json.dumps(record, indent=2, ensure_ascii=False))
    runners.write_reproduce_script(staging, workplace, build)
    with progress.step(f"Building {build.name} ({build.label})") as step:
        failure: CommandFailedError | None = None
        try:
            run(
                workplace.command(build, request, result),
                cwd=staging,
                environment=workplace.environment,
                log=staging / "build.log",
                on_line=lambda line: step.update(line.removeprefix("@stage ")),
                remedy="",
            )
        except CommandFailedError as error:
            failure = error
        except BaseException:
            workplace.leave()
            raise
        # In the step: what the builder refused must not be marked as done.
        return _judge(build, result, failure)


def _judge(build: StageBuild, result: Path, failure: CommandFailedError | None) -> BuildResult:
    """Exit status and result file must agree; anything else is a broken contract."""
    name = build.builder.name
    if failure is not None and not result.exists():
        raise _death(build, failure)
    answer = _answer(build, result)
    if isinstance(answer, BuildRefusal):
        raise BuildFailedError(
            f"{build.place}: {answer.problem}",
            remedy=f"{answer.remedy} (log: {build.failed_log})",
        )
    if failure is not None:
        raise BuildFailedError(
            f"{build.place}: builder {name} reported success but ended with status "
            f"{failure.returncode}",
            remedy=f"read {build.failed_log}; this is a defect of builders/{name}",
            details=failure.details,
        )
    return answer


def _answer(build: StageBuild, result: Path) -> BuildResult | BuildRefusal:
    """The program's result; a malformed one is reported with the program's last lines."""
    try:
        return read_answer(result, build.builder.name)
    except BuildFailedError as error:
        with (result.parent / "build.log").open(encoding="utf-8", errors="replace") as log:
            last = deque(log, _LAST_LINES)
        raise BuildFailedError(
            f"{build.place}: {error.problem}",
            remedy=f"{error.remedy} (log: {build.failed_log})",
            details="".join(last),
        ) from error


def _death(build: StageBuild, failure: CommandFailedError) -> BuildFailedError:
    """A program that ended without a result; the system sends SIGKILL (137 from a container)."""
    status, remedy = str(failure.returncode), f"read {build.failed_log}"
    if failure.returncode in (-_SIGKILL, 128 + _SIGKILL):
        status = "killed"
        remedy = f"most likely out of memory (see `dmesg | tail`): free some, or {remedy}"
    return BuildFailedError(
        f"builder {build.builder.name} died while building {build.place} (status {status})",
        remedy=remedy,
        details=failure.details,
    )
