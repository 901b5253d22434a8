# SPDX-License-Identifier: Apache-2.0
"""The stages that make a model's engine, each with its request, fingerprint and place on disk.

Pure but for the hashes it remembers: it builds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tritonctl.engines.artefacts.manifest import MANIFEST, read_manifest
from tritonctl.engines.build.catalog import Builder, Stage, builder_named
from tritonctl.engines.build.contract import BuildRequest
from tritonctl.engines.build.fingerprint import Fingerprint, build_fingerprint
from tritonctl.engines.build.requests import build_request, model_named, with_target
from tritonctl.errors import (
    ConfigurationError,
    RepositoryError,
    TritonctlError,
    UsageError,
    choices,
)
from tritonctl.project.schema import Model, Project
from tritonctl.project.tasks import engine_task, own_file


@dataclass(frozen=True)
class StageBuild:
    """One planned run of a builder's program."""

    name: str
    model: Model
    builder: Builder
    stage: Stage
    request: BuildRequest
    fingerprint: Fingerprint
    folder: Path
    state: Path
    source: Path | None
    shared: Path | None = None  # the folder of artefacts that other projects use, too
    warnings: tuple[str, ...] = ()

    @property
    def runner(self) -> str:
        """Where it runs: as the project says, if this stage can run there."""
        wanted = self.model.engine.runner
        return wanted if wanted in self.stage.runners else self.stage.runners[0]

    @property
    def named(self) -> bool:
        """Whether builder.toml names the stage; else it is the whole build."""
        return self.stage in self.builder.stages

    @property
    def place(self) -> str:
        """Where something went wrong, for people: `speller` or `speller (quantise)`."""
        return f"{self.name} ({self.stage.name})" if self.named else self.name

    @property
    def label(self) -> str:
        """What is made, for people: `openvino, int8` or `tensorrt_llm quantise, fp8`."""
        stage = f" {self.stage.name}" if self.named else ""
        return f"{self.builder.name}{stage}, {self.request.precision}"

    @property
    def published(self) -> bool:
        """Whether its artefact is there, whole."""
        return (self.folder / MANIFEST).is_file()

    @property
    def failed_log(self) -> Path:
        """Where the log of a failed run is kept."""
        stage = f".{self.stage.name}" if self.named else ""
        return self.state / "failed-builds" / f"{self.name}{stage}.log"


@dataclass(frozen=True)
class Asked:
    """What a project asks of a model's builder: its stages, and the request that they share."""

    builder: Builder
    stages: list[Stage]
    request: BuildRequest
    warnings: tuple[str, ...]


def asked_of_builder(project: Project, name: str) -> Asked:
    """Nothing is hashed yet. Raises ConfigurationError for what the builder cannot make.

    UsageError where an option asks for it: --runner, or --set of the builder or its precision.
    """
    model = model_named(project, name)
    with _placed(name, UsageError if _is_typed(project, name) else ConfigurationError):
        builder = builder_named(model.engine.builder, project.root)
        task = engine_task(model.task, project.root)
        builder.accept(model.engine, task, own_file(task, project.root))
    with _placed(name, ConfigurationError):
        request = build_request(project, name)
    warnings: tuple[str, ...] = ()
    if builder.targets:
        request, warnings = with_target(request, model.engine, builder.targets, project.root)
    stages = builder.stages_for(request.target.world if request.target else None, request.task)
    _refuse_unknown_options(name, model, builder)
    return Asked(builder, stages, request, warnings)


@contextmanager
def _placed(name: str, kind: type[TritonctlError]) -> Iterator[None]:
    try:
        yield
    except ConfigurationError as error:
        problem = f"models.{name}: {error.problem.removeprefix(f'models.{name}: ')}"
        raise kind(problem, remedy=error.remedy, details=error.details) from error


def _is_typed(project: Project, name: str) -> bool:
    """Whether the command line sets something of what a builder takes or not."""
    engine = ("builder", "precision", "kv_cache_dtype", "runner")
    places = [("task",), *(("engine", field) for field in engine)]
    return any(project.typed("models", name, *place) for place in places)


def plan_stages(project: Project, name: str) -> list[StageBuild]:
    """The stages of a model's engine in their order; the last one's artefact is the engine.

    Raises ConfigurationError for what the builder cannot make, HostError when a file of the
    checkpoint cannot be read.
    """
    asked = asked_of_builder(project, name)
    planned: list[StageBuild] = []
    for stage in asked.stages:
        planned.append(_planned(project, name, asked, stage, planned))
    planned[0] = replace(planned[0], warnings=asked.warnings)
    return planned


def stages_until(stages: list[StageBuild], until: str | None) -> list[StageBuild]:
    """The stages up to the one named `until`, all for None. Raises UsageError for none of them."""
    names = [build.stage.name for build in stages]
    if until is None:
        return stages
    if until not in names:
        raise UsageError(
            f"model {stages[0].name} has no stage `{until}`",
            remedy=choices(until, names, "its stages:"),
        )
    return stages[: names.index(until) + 1]


def _planned(
    project: Project, name: str, asked: Asked, stage: Stage, before: list[StageBuild]
) -> StageBuild:
    source = before[-1] if before else None
    request = request_of(asked, stage, source.folder if source else None)
    memory = project.state / "hashes.json"
    previous = source.fingerprint.digest if source else None
    fingerprint = build_fingerprint(request, asked.builder, stage, memory, previous)
    short = fingerprint.digest[:16]
    folder = f"{stage.name}-{short}" if stage in asked.builder.stages else short
    return StageBuild(
        name=name,
        model=project.models[name],
        builder=asked.builder,
        stage=stage,
        request=request,
        fingerprint=fingerprint,
        folder=project.state / "engines" / name / folder,
        state=project.state,
        source=source.folder if source else None,
        shared=project.path(project.engines) if project.engines else None,
    )


def request_of(asked: Asked, stage: Stage, source: Path | None) -> BuildRequest:
    """The request of one stage; `source` is the artefact of the stage before."""
    if stage not in asked.builder.stages:
        return asked.request
    changes: dict[str, Any] = {"stage": stage.name, "source": str(source) if source else None}
    if asked.builder.options_by_stage:
        changes["options"] = asked.request.options.get(stage.name) or {}
    if stage.precision:
        changes["precision"] = stage.precision
    return asked.request.model_copy(update=changes)


def _refuse_unknown_options(name: str, model: Model, builder: Builder) -> None:
    """Options of a staged builder lie under their stage's name."""
    stages = {stage.name for stage in builder.stages if builder.options_by_stage}
    for key, value in model.engine.options.items() if stages else ():
        if key not in stages or not isinstance(value, dict):
            raise ConfigurationError(
                f"models.{name}.engine.options.{key}: builder {builder.name} takes options by "
                "stage, and has no stage of this name",
                remedy=f"move options under one of: {', '.join(sorted(stages))}",
            )


def expected_seconds(build: StageBuild) -> float | None:
    """How long the newest earlier run of the same stage took; None without one."""
    prefix = f"{build.stage.name}-" if build.named else ""
    earlier = [file for file in build.folder.parent.glob(f"{prefix}*/{MANIFEST}") if file.is_file()]
    for file in sorted(earlier, key=lambda file: file.stat().st_mtime, reverse=True):
        with suppress(RepositoryError):
            return sum(read_manifest(file.parent).result.durations_seconds.values())
    return None
