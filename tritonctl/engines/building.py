# SPDX-License-Identifier: Apache-2.0
"""Builds an engine: fingerprint → lock → stage → builder process → verify → publish."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tritonctl.engines import runners
from tritonctl.engines.catalog import Builder, builder_named
from tritonctl.engines.contract import (
    BuildRefusal,
    BuildRequest,
    BuildResult,
    EvaluationRequest,
    Limits,
    read_answer,
)
from tritonctl.engines.fingerprint import build_fingerprint
from tritonctl.engines.manifest import (
    MANIFEST,
    Manifest,
    read_manifest,
    verify_files,
    write_manifest,
)
from tritonctl.errors import (
    BuildFailedError,
    CommandFailedError,
    ConfigurationError,
    RepositoryError,
)
from tritonctl.host import exclusive, explained, write_atomically
from tritonctl.process import run
from tritonctl.progress import Progress
from tritonctl.project import Evaluation, Model, Project


@dataclass(frozen=True)
class Artefact:
    """A published engine: its folder, its manifest, and whether this call made it."""

    folder: Path
    manifest: Manifest
    fresh: bool


@dataclass(frozen=True)
class _Build:
    """One planned build."""

    name: str
    model: Model
    builder: Builder
    request: BuildRequest
    fingerprint: str
    folder: Path
    state: Path


def build_engine(
    project: Project, name: str, progress: Progress, *, force: bool = False
) -> Artefact:
    """The engine of a project's model, built now unless an equal one exists.

    Raises ConfigurationError, HostError or BuildFailedError; a failed build leaves its log in
    `.tritonctl/failed-builds/` and nothing else.
    """
    build = _plan(project, name)
    if not force and _published(build.folder):
        return Artefact(build.folder, read_manifest(build.folder), fresh=False)
    lock = build.state / "locks" / f"build-{name}.lock"
    with exclusive(lock, progress, f"build {name}"):
        # Checked again: whoever held the lock may just have built it.
        fresh = force or not _published(build.folder)
        if fresh:
            _build_and_publish(build, progress)
    return Artefact(build.folder, read_manifest(build.folder), fresh=fresh)


def built_engine(project: Project, name: str) -> Artefact:
    """The engine that matches project and checkpoint as they are now.

    Raises RepositoryError when it has not been built.
    """
    build = _plan(project, name)
    if not _published(build.folder):
        raise RepositoryError(
            f"model {name} has no engine for its present settings and checkpoint",
            remedy=f"run `tritonctl build {name}`",
        )
    return Artefact(build.folder, read_manifest(build.folder), fresh=False)


def _published(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def _plan(project: Project, name: str) -> _Build:
    model = model_named(project, name)
    builder = builder_named(model.engine.builder, project.root)
    builder.accept(model.engine, model.task)
    request = build_request(project, name)
    fingerprint = build_fingerprint(request, builder, project.state / "hashes.json")
    folder = project.state / "engines" / name / fingerprint[:16]
    return _Build(name, model, builder, request, fingerprint, folder, project.state)


def model_named(project: Project, name: str) -> Model:
    """A model of the project. Raises ConfigurationError when there is none of that name."""
    if name not in project.models:
        raise ConfigurationError(
            f"the project has no model `{name}`",
            remedy=f"its models: {', '.join(sorted(project.models))}",
        )
    return project.models[name]


def build_request(project: Project, name: str) -> BuildRequest:
    """What the builder of a model is told."""
    model = project.models[name]
    engine = model.engine
    return BuildRequest(
        schema="tritonctl.build/1",
        model=name,
        checkpoint=str(_checkpoint(project, model)),
        precision=engine.precision,
        limits=Limits(**{field: getattr(engine, field) for field in Limits.model_fields}),
        kv_cache_dtype=engine.kv_cache_dtype,
        trust_remote_code=engine.trust_remote_code,
        options=engine.options,
        evaluation=_evaluation_request(project, model.evaluation),
    )


def _checkpoint(project: Project, model: Model) -> Path:
    folder = project.path(model.checkpoint)
    if not folder.is_dir():
        raise ConfigurationError(
            f"checkpoint {folder} is not a folder",
            remedy="correct `checkpoint:` in tritonctl.yaml; a model of a hub is fetched with "
            f"`hf download {model.checkpoint} --local-dir FOLDER`",
        )
    return folder


def _evaluation_request(
    project: Project, evaluation: Evaluation | None
) -> EvaluationRequest | None:
    if evaluation is None:
        return None
    prompts = project.path(evaluation.prompts)
    if not prompts.is_file():
        raise ConfigurationError(
            f"prompts file {prompts} does not exist",
            remedy="correct `evaluation.prompts` in tritonctl.yaml, or remove `evaluation`",
        )
    return EvaluationRequest(
        prompts=str(prompts),
        max_prompts=evaluation.max_prompts,
        max_tokens=evaluation.max_tokens,
        min_exact_match=evaluation.min_exact_match,
    )


def _build_and_publish(build: _Build, progress: Progress) -> None:
    engine = build.model.engine
    runner = runners.runner_named(engine.runner or build.builder.runners[0])
    python = runner(build.builder, progress)
    with _staging(build) as staging:
        result = _run_builder(build, python, staging, progress)
        with progress.step(f"Publishing {build.name}"), explained(build.folder):
            verify_files(staging, result, build.builder.name)
            write_manifest(
                staging,
                fingerprint=build.fingerprint,
                builder=build.builder,
                task=build.model.task,
                request=build.request,
                result=result,
            )
            _publish(staging, build.folder)


def _publish(staging: Path, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    replaced = staging.with_name(f"{staging.name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    if folder.exists():
        os.rename(folder, replaced)
    os.rename(staging, folder)
    shutil.rmtree(replaced, ignore_errors=True)


@contextmanager
def _staging(build: _Build) -> Iterator[Path]:
    """A folder for the builder; whatever is left of it afterwards is removed, its log kept."""
    staging = build.state / "staging" / f"{build.name}-{build.fingerprint[:16]}"
    with explained(staging):
        shutil.rmtree(staging, ignore_errors=True)  # of a build that was killed
        staging.mkdir(parents=True)
    try:
        yield staging
    except BaseException:
        _keep_log(build, staging)
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _failed_log(build: _Build) -> Path:
    return build.state / "failed-builds" / f"{build.name}.log"


def _keep_log(build: _Build, staging: Path) -> None:
    log, kept = staging / "build.log", _failed_log(build)
    # A full disk may refuse this too; what made the build fail is the error to tell.
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        os.replace(log, kept)


def _run_builder(build: _Build, python: Path, staging: Path, progress: Progress) -> BuildResult:
    request, result = staging / "request.json", staging / "result.json"
    record = build.request.model_dump(by_alias=True, mode="json")
    write_atomically(request, json.dumps(record, indent=2, ensure_ascii=False))
    argv = runners.command(python, build.builder, request, result)
    runners.write_reproduce_script(staging, python, build.builder)
    title = f"Building {build.name} ({build.builder.name}, {build.request.precision})"
    failure: CommandFailedError | None = None
    with progress.step(title) as step:
        try:
            run(
                argv,
                cwd=staging,
                environment=_environment(python),
                log=staging / "build.log",
                on_line=lambda line: step.update(line.removeprefix("@stage ")),
                remedy="",
            )
        except CommandFailedError as error:
            failure = error
    return _judge(build, result, failure)


def _environment(python: Path) -> dict[str, str]:
    # A builder sees its own environment's packages and never the hub.
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return kept | {
        "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONUNBUFFERED": "1",
        "PYTHONUTF8": "1",
        "HF_HUB_OFFLINE": "1",
    }


def _judge(build: _Build, result: Path, failure: CommandFailedError | None) -> BuildResult:
    """Exit status and result file must agree; anything else is a broken contract."""
    name = build.builder.name
    if failure is not None and not result.exists():
        raise BuildFailedError(
            f"builder {name} died while building {build.name} (status {failure.returncode})",
            remedy=f"read {_failed_log(build)}",
            details=failure.details,
        )
    answer = read_answer(result, name)
    if isinstance(answer, BuildRefusal):
        raise BuildFailedError(
            f"{build.name}: {answer.problem}",
            remedy=f"{answer.remedy} (log: {_failed_log(build)})",
        )
    if failure is not None:
        raise BuildFailedError(
            f"builder {name} reported success but ended with status {failure.returncode}",
            remedy=f"read {_failed_log(build)}; this is a defect of builders/{name}",
        )
    return answer
