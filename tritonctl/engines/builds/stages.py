# SPDX-License-Identifier: Apache-2.0
"""Plans the stages of a model's engine, each with its request, fingerprint and folder.

It builds nothing; its only side effect is the cache of file hashes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tritonctl.engines.artefacts.manifest import MANIFEST, read_manifest
from tritonctl.engines.builds.catalog import Builder, BuilderStage, builder_named
from tritonctl.engines.builds.contract import BuildRequest
from tritonctl.engines.builds.fingerprint import FileHashes, Fingerprint, build_fingerprint
from tritonctl.engines.builds.requests import build_request, model_named, with_target
from tritonctl.errors import (
    ConfigurationError,
    RepositoryError,
    TritonctlError,
    UsageError,
    choices,
)
from tritonctl.project.schema import Model, Project
from tritonctl.project.tasks import custom_task_file, engine_task


@dataclass(frozen=True)
class StageBuild:
    """One planned run of a builder's program."""

    name: str
    model: Model
    builder: Builder
    stage: BuilderStage
    request: BuildRequest
    fingerprint: Fingerprint
    folder: Path
    state: Path
    source: Path | None
    shared: Path | None = None  # folder of artefacts shared with other projects
    warnings: tuple[str, ...] = ()

    @property
    def runner(self) -> str:
        """The project's runner if the stage supports it, else the stage's first runner."""
        requested_runner = self.model.engine.runner
        return requested_runner if requested_runner in self.stage.runners else self.stage.runners[0]

    @property
    def is_declared(self) -> bool:
        """Whether builder.toml declares the stage; else the stage is the whole build."""
        return self.stage in self.builder.stages

    @property
    def location(self) -> str:
        """Model and stage for error messages: `speller` or `speller (quantise)`."""
        return f"{self.name} ({self.stage.name})" if self.is_declared else self.name

    @property
    def label(self) -> str:
        """Builder, stage and precision for messages: `tensorrt_llm quantise, fp8`."""
        stage = f" {self.stage.name}" if self.is_declared else ""
        return f"{self.builder.name}{stage}, {self.request.precision}"

    @property
    def is_published(self) -> bool:
        """Whether the stage's complete artefact exists."""
        return (self.folder / MANIFEST).is_file()

    @property
    def failed_log(self) -> Path:
        """Path of the log of a failed run."""
        stage = f".{self.stage.name}" if self.is_declared else ""
        return self.state / "failed-builds" / f"{self.name}{stage}.log"


@dataclass(frozen=True)
class ResolvedBuild:
    """The builder of a model, its stages and the request that they share."""

    builder: Builder
    stages: list[BuilderStage]
    request: BuildRequest
    warnings: tuple[str, ...]


def resolve_build(project: Project, name: str) -> ResolvedBuild:
    """Resolve a model's builder, stages and request without hashing any file.

    Raises ConfigurationError if the builder does not support the model's settings, UsageError if a
    command-line option (--runner, --set) sets one of them.
    """
    model = model_named(project, name)
    with _with_model_name(
        name, UsageError if _is_set_on_command_line(project, name) else ConfigurationError
    ):
        builder = builder_named(model.engine.builder, project.root)
        task = engine_task(model.task, project.root)
        builder.check_engine(model.engine, task, custom_task_file(task, project.root))
    with _with_model_name(name, ConfigurationError):
        request = build_request(project, name)
    warnings: tuple[str, ...] = ()
    if builder.targets:
        request, warnings = with_target(request, model.engine, builder.targets, project.root)
    stages = builder.stages_for(request.target.world if request.target else None, request.task)
    _refuse_unknown_options(name, model, builder)
    return ResolvedBuild(builder, stages, request, warnings)


@contextmanager
def _with_model_name(name: str, error_type: type[TritonctlError]) -> Iterator[None]:
    try:
        yield
    except ConfigurationError as error:
        problem = f"models.{name}: {error.problem.removeprefix(f'models.{name}: ')}"
        raise error_type(problem, remedy=error.remedy, details=error.details) from error


def _is_set_on_command_line(project: Project, name: str) -> bool:
    """Whether the command line sets a field that `Builder.accept` checks."""
    engine_fields = ("builder", "precision", "kv_cache_dtype", "runner")
    field_paths = [("task",), *(("engine", field) for field in engine_fields)]
    return any(project.is_typed("models", name, *place) for place in field_paths)


def plan_stages(project: Project, name: str) -> list[StageBuild]:
    """Plan the stages of a model's engine without asking its builder's program.

    Raises ConfigurationError for unsupported settings, HostError when a file of the checkpoint
    cannot be read.
    """
    return hash_stages(project, name, resolve_build(project, name), FileHashes.of_project(project))


def hash_stages(
    project: Project, name: str, resolved: ResolvedBuild, hashes: FileHashes
) -> list[StageBuild]:
    """Return the stages of a resolved build in order; the last artefact is the engine.

    Raises HostError when a file of the checkpoint cannot be read.
    """
    planned: list[StageBuild] = []
    for stage in resolved.stages:
        planned.append(_plan_stage(project, name, resolved, stage, planned, hashes))
    planned[0] = replace(planned[0], warnings=resolved.warnings)
    hashes.save()
    return planned


def stages_until(stages: list[StageBuild], until: str | None) -> list[StageBuild]:
    """Return the stages up to `until` (None: all). Raises UsageError for an unknown stage."""
    names = [build.stage.name for build in stages]
    if until is None:
        return stages
    if until not in names:
        raise UsageError(
            f"model {stages[0].name} has no stage `{until}`",
            remedy=choices(until, names, "its stages:"),
        )
    return stages[: names.index(until) + 1]


def _plan_stage(
    project: Project,
    name: str,
    resolved: ResolvedBuild,
    stage: BuilderStage,
    earlier_stages: list[StageBuild],
    hashes: FileHashes,
) -> StageBuild:
    previous = earlier_stages[-1] if earlier_stages else None
    request = stage_request(resolved, stage, previous.folder if previous else None)
    source_fingerprint = previous.fingerprint.digest if previous else None
    fingerprint = build_fingerprint(request, resolved.builder, stage, hashes, source_fingerprint)
    short = fingerprint.digest[:16]
    folder = f"{stage.name}-{short}" if stage in resolved.builder.stages else short
    return StageBuild(
        name=name,
        model=project.models[name],
        builder=resolved.builder,
        stage=stage,
        request=request,
        fingerprint=fingerprint,
        folder=project.state / "engines" / name / folder,
        state=project.state,
        source=previous.folder if previous else None,
        shared=project.path(project.engines) if project.engines else None,
    )


def stage_request(
    resolved: ResolvedBuild, stage: BuilderStage, source: Path | None
) -> BuildRequest:
    """Return the request of one stage; `source` is the previous stage's artefact."""
    if stage not in resolved.builder.stages:
        return resolved.request
    changes: dict[str, Any] = {"stage": stage.name, "source": str(source) if source else None}
    if resolved.builder.options_by_stage:
        changes["options"] = resolved.request.options.get(stage.name) or {}
    if stage.precision:
        changes["precision"] = stage.precision
    return resolved.request.model_copy(update=changes)


def _refuse_unknown_options(name: str, model: Model, builder: Builder) -> None:
    """Raise ConfigurationError for options outside a stage's name; staged builders need one."""
    stages = {stage.name for stage in builder.stages if builder.options_by_stage}
    for key, value in model.engine.options.items() if stages else ():
        if key not in stages or not isinstance(value, dict):
            raise ConfigurationError(
                f"models.{name}.engine.options.{key}: builder {builder.name} takes options by "
                "stage and has no such stage",
                remedy=f"move options under one of: {', '.join(sorted(stages))}",
            )


def expected_seconds(build: StageBuild) -> float | None:
    """Return the duration of the stage's newest earlier run; None without one."""
    prefix = f"{build.stage.name}-" if build.is_declared else ""
    earlier = [file for file in build.folder.parent.glob(f"{prefix}*/{MANIFEST}") if file.is_file()]
    for file in sorted(earlier, key=lambda file: file.stat().st_mtime, reverse=True):
        with suppress(RepositoryError):
            return sum(read_manifest(file.parent).result.durations_seconds.values())
    return None
