# SPDX-License-Identifier: Apache-2.0
"""Builds an engine, stage by stage: lock → stage → builder process → verify → publish."""

from __future__ import annotations

import json
import os
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
from tritonctl.engines.builds import runners
from tritonctl.engines.builds.contract import (
    BuildRefusal,
    BuildResult,
    EvaluationResult,
    read_result,
)
from tritonctl.engines.builds.plan import BuildPlan, plan_builds
from tritonctl.engines.builds.revision import revision_of
from tritonctl.engines.builds.runners import Workplace
from tritonctl.engines.builds.shared_store import (
    copy_shared,
    hold_shared_lock,
    is_shared,
    share_artefact,
)
from tritonctl.engines.builds.stages import StageBuild, expected_seconds, plan_stages
from tritonctl.errors import BuildFailedError, CommandFailedError, RepositoryError
from tritonctl.host.files import as_host_error, exclusive, write_atomically
from tritonctl.host.process import run
from tritonctl.host.progress import Board, Progress, SharedProgressBoard
from tritonctl.host.version import __version__
from tritonctl.project.schema import Project
from tritonctl.store.folders import publish_folder, staging_folder

_LAST_LINES = 20
_SIGKILL = 9


@dataclass(frozen=True)
class Artefact:
    """A published engine."""

    folder: Path
    manifest: Manifest
    is_new: bool  # this call built it


def evaluation_of(artefact: Artefact) -> EvaluationResult | None:
    """Return the evaluation of an engine's last stage, or of the nearest evaluated stage."""
    manifest = artefact.manifest
    while manifest.result.evaluation is None and manifest.source:
        previous_stages = list(artefact.folder.parent.glob(f"*-{manifest.source[:16]}"))
        if not previous_stages:  # pruned
            return None
        manifest = read_manifest(previous_stages[0])
    return manifest.result.evaluation


def build_engine(
    project: Project,
    name: str,
    progress: Progress,
    *,
    force: bool = False,
    until: str | None = None,
) -> Artefact:
    """Plan and build the engine of a project's model unless an equal one exists.

    `until` names the stage to stop after; its artefact is returned. Raises as `plan_builds` and
    `run_plan` do.
    """
    plan = plan_builds(project, [name], progress, until=until)[name]
    board = SharedProgressBoard(progress)
    announce(plan.requested, board, force=force)
    return run_plan(plan, progress, force=force, board=board)


def run_plan(plan: BuildPlan, progress: Progress, *, board: Board, force: bool = False) -> Artefact:
    """Build what a plan requests unless an equal artefact exists; return the target's artefact.

    An interrupted build resumes after its last finished stage. Raises HostError or
    BuildFailedError. A failed build leaves only its log, in `.tritonctl/failed-builds/`.
    """
    name, stages, engine = plan.name, plan.requested, plan.target
    if not force and engine.is_published:
        return Artefact(engine.folder, read_manifest(engine.folder), is_new=False)
    for warning in (*stages[0].warnings, *_runner_warnings(stages)):
        progress.note(f"{name}: {warning}")
    lock = engine.state / "locks" / f"build-{name}.lock"
    with exclusive(lock, progress, f"build {name}"):
        # Check again: the lock's previous holder may just have built it.
        missing = [build for build in stages if force or not build.is_published]
        offers_engine = is_shared(engine)  # unless it can be taken
        if not force and engine in missing and _lock_and_copy_shared(engine, progress):
            # The evaluation may be in the manifest of an earlier stage.
            missing = [
                build for build in missing[:-1] if not _lock_and_copy_shared(build, progress)
            ]
        is_new = engine in missing
        runners.require_images(missing if is_new else ())
        for build in missing if is_new else ():
            with board.stage(name, build.stage.name) as steps, hold_shared_lock(build, steps):
                # Another project may just have built it.
                if (
                    force
                    or (offers_engine and build is engine)
                    or not _copy_if_shared(build, steps)
                ):
                    _build_and_publish(build, steps)
    return Artefact(engine.folder, read_manifest(engine.folder), is_new=is_new)


def _runner_warnings(stages: list[StageBuild]) -> Iterator[str]:
    for build in stages:
        requested_runner = build.model.engine.runner
        if requested_runner not in (None, build.runner):
            subject = f"the stage {build.stage.name}" if build.is_declared else build.builder.name
            yield f"{subject} does not support --runner {requested_runner} and uses {build.runner}"


def announce(stages: list[StageBuild], board: Board, *, force: bool = False) -> None:
    """Announce the stages to the board with the duration of their previous run."""
    all_done = stages[-1].is_published and not force
    for build in stages:
        is_done = all_done or (build.is_published and not force)
        expected = expected_seconds(build)
        board.planned(build.name, build.stage.name, done=is_done, expected=expected)


def built_engine(project: Project, name: str) -> Artefact:
    """Return the engine that matches the current project and checkpoint.

    Raises RepositoryError when it has not been built.
    """
    engine = plan_stages(project, name)[-1]
    if not engine.is_published:
        raise RepositoryError(
            f"model {name} has no engine for its current settings and checkpoint",
            remedy=f"run `tritonctl build {name}`",
        )
    return Artefact(engine.folder, read_manifest(engine.folder), is_new=False)


def built_engines(project: Project) -> dict[str, Artefact]:
    """Return the engine of every model, by name. Raises RepositoryError for an unbuilt one."""
    return {name: built_engine(project, name) for name in sorted(project.models)}


def _build_and_publish(build: StageBuild, progress: Progress) -> None:
    with _staging(build) as staging:
        workplace = runners.RUNNERS[build.runner](build, staging, progress)
        result = _run_builder(build, workplace, staging, progress)
        result = result.model_copy(update={"versions": {**result.versions, **workplace.versions}})
        with progress.step(f"Publishing {build.name}"), as_host_error(build.folder):
            verify_files(staging, result, build.builder.name)
            write_manifest(staging, _manifest(build, result))
            publish_folder(staging, build.folder)
            share_artefact(build, progress)


def _lock_and_copy_shared(build: StageBuild, progress: Progress) -> bool:
    if not is_shared(build):
        return False
    with hold_shared_lock(build, progress):
        return _copy_if_shared(build, progress)


def _copy_if_shared(build: StageBuild, progress: Progress) -> bool:
    if not is_shared(build):
        return False
    with _staging(build) as staging:
        if not copy_shared(build, staging, progress):
            return False
        with as_host_error(build.folder):
            publish_folder(staging, build.folder)
    progress.note(f"{build.location}: taken from {build.shared}, verified")
    return True


def _manifest(build: StageBuild, result: BuildResult) -> Manifest:
    return Manifest(
        tritonctl=__version__,
        fingerprint=build.fingerprint.digest,
        builder=build.builder.name,
        task=build.model.task,
        python_backend=build.builder.backend_for(build.request.task),
        stage=build.stage.name if build.is_declared else None,
        source=build.fingerprint.inputs.get("source"),
        revision=revision_of(Path(build.request.checkpoint)),
        inputs=build.fingerprint.inputs,
        request=build.request,
        result=result,
    )


@contextmanager
def _staging(build: StageBuild) -> Iterator[Path]:
    """Yield a folder for the builder, and remove it afterwards. A failed build's log is saved."""
    folder = build.state / "staging" / f"{build.name}-{build.folder.name}"
    with staging_folder(folder) as staging:
        try:
            yield staging
        except BaseException:
            # On a full disk this fails too; report the build's own failure.
            with suppress(OSError):
                build.failed_log.parent.mkdir(parents=True, exist_ok=True)
                os.replace(staging / "build.log", build.failed_log)
            raise


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
            workplace.clean_up()
            raise
        # Inside the step: a refused build must not be marked as done.
        return _check_outcome(build, result, failure)


def _check_outcome(
    build: StageBuild, result: Path, failure: CommandFailedError | None
) -> BuildResult:
    """Check that exit status and result file agree. Raises BuildFailedError."""
    name = build.builder.name
    if failure is not None and not result.exists():
        raise _death_error(build, failure)
    outcome = _read_result(build, result)
    if isinstance(outcome, BuildRefusal):
        raise BuildFailedError(
            f"{build.location}: {outcome.problem}",
            remedy=f"{outcome.remedy} (log: {build.failed_log})",
        )
    if failure is not None:
        raise BuildFailedError(
            f"{build.location}: builder {name} reported success but exited with status "
            f"{failure.returncode}",
            remedy=f"read {build.failed_log}; this is a defect of builders/{name}",
            details=failure.details,
        )
    return outcome


def _read_result(build: StageBuild, result: Path) -> BuildResult | BuildRefusal:
    """Read the program's result. Raises BuildFailedError with the log's last lines."""
    try:
        return read_result(result, build.builder.name)
    except BuildFailedError as error:
        with (result.parent / "build.log").open(encoding="utf-8", errors="replace") as log:
            last_lines = deque(log, _LAST_LINES)
        raise BuildFailedError(
            f"{build.location}: {error.problem}",
            remedy=f"{error.remedy} (log: {build.failed_log})",
            details="".join(last_lines),
        ) from error


def _death_error(build: StageBuild, failure: CommandFailedError) -> BuildFailedError:
    """Describe a program that exited without a result. The OOM killer sends SIGKILL (-9 or 137)."""
    status, remedy = str(failure.returncode), f"read {build.failed_log}"
    if failure.returncode in (-_SIGKILL, 128 + _SIGKILL):
        status = "killed"
        remedy = f"most likely out of memory (see `dmesg | tail`): free some, or {remedy}"
    return BuildFailedError(
        f"builder {build.builder.name} died while building {build.location} (status {status})",
        remedy=remedy,
        details=failure.details,
    )
