# SPDX-License-Identifier: Apache-2.0
"""The available builders: every folder with a `builder.toml` is one."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tritonctl.errors import ConfigurationError, choices
from tritonctl.host import bundled
from tritonctl.project.engine import Engine
from tritonctl.project.expected import reason
from tritonctl.project.tasks import task_for_builder

RunnerName = Literal["current", "venv", "container"]


class BuilderEnvironment(BaseModel):
    """The builder's Python environment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    requires_python: str
    install: list[list[str]]  # arguments of each `pip install`
    probe: list[str] = []  # statements that must succeed
    # `pip install` arguments for tasks, used when an image fails `task_probe`. The packages are
    # installed on this machine for the image's Python.
    task_install: list[str] = []
    task_probe: list[str] = []


class BuilderStage(BaseModel):
    """One program of a builder; the artefact of each stage is the source of the next."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    summary: str = ""
    script: str = "build.py"
    of: str | None = None  # a sibling builder that provides program and environment
    runners: list[RunnerName] = Field(min_length=1)
    environment: BuilderEnvironment | None = None
    when: dict[Literal["world"], str] = {}  # restricts the stage to targets of that world
    tasks: list[str] = []  # restricts the stage to these tasks; empty: all
    precision: str | None = None  # of the stage's artefact, if it differs from the engine's
    ignores: list[str] = []  # dotted request fields that do not affect the artefact
    writes: list[str] = []  # options naming folders that outlive the build; containers write there
    reads: list[str] = []  # dotted options naming files or folders whose content is hashed
    needs_gpu: bool = False
    prints_commands: bool = False  # the program has --print-commands
    checks_requests: bool = False  # the program has --check and runs in any Python


class Builder(BaseModel):
    """A `builder.toml`: supported checkpoints, tasks and precisions, stages, Triton backend."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    schema_: Literal["tritonctl.builder/1"] = Field(alias="schema")
    name: str
    summary: str
    tasks: list[str]
    precisions: list[str]
    calibrated: list[str] = []  # precisions that measure activation ranges on data
    kv_cache_dtypes: list[str] = []
    architectures: list[str]
    refused: dict[str, str] = {}  # unsupported architectures with the reason
    # By architecture and key of config.json that is unsupported when true, with the reason.
    refused_settings: dict[str, dict[str, str]] = {}
    python_backend: str
    # Overrides for tasks other than text generation and `tensors`.
    task_precisions: list[str] = []
    task_backend: str | None = None
    max_num_tokens: int = 1  # where the project leaves it open
    single: dict[str, str] = {}  # limits that can only be 1, and why; its program refuses others
    targets: Literal["tensorrt_llm", "tensorrt"] | None = None
    runners: list[RunnerName] = []
    shares: list[str] = []
    proof_libraries: list[str] = []  # of python_backends/: serving's code, which the proof runs
    environment: BuilderEnvironment | None = None
    needs_gpu: bool = False
    checks_requests: bool = False
    stages: list[BuilderStage] = []
    options_by_stage: bool = True  # False: every stage gets all of `engine.options`
    folder: Path = Path()

    @model_validator(mode="after")
    def _runs_somewhere(self) -> Self:
        if not self.runners and not self.stages:
            raise ValueError("the builder declares neither `runners` nor `stages`")
        return self

    @property
    def folders(self) -> list[Path]:
        """The builder's sources: its folder and the shared folders that it uses."""
        builders_folder = self.folder.parent
        return [
            self.folder,
            *(builders_folder / "shared" / name for name in self.shares),
            *(builders_folder.parent / "python_backends" / name for name in self.proof_libraries),
        ]

    @property
    def tables(self) -> list[Path]:
        """Data files that only validate requests and do not affect engines."""
        table = self.folder.parent / "compatibility.toml"
        return [table] if self.targets and table.is_file() else []

    def owner(self, stage: BuilderStage) -> Builder:
        """Return the builder whose program a stage runs: this one or the sibling in `of`."""
        return _read(self.folder.parent / stage.of / "builder.toml") if stage.of else self

    def program(self, stage: BuilderStage) -> Path:
        """Return the script that a stage runs."""
        return self.owner(stage).folder / stage.script

    def exportable_architectures(self, task: str) -> list[str]:
        """Return the checkpoint architectures that the builder supports for a task."""
        stages = [stage for stage in self.stages if stage.of and task in stage.tasks]
        exported = [name for stage in stages for name in self.owner(stage).architectures]
        return exported or self.architectures

    def backend_for(self, task: str | None) -> str:
        """Return the Triton backend of a task's engine; `task` as in `stages_for`."""
        return (self.task_backend if task else None) or self.python_backend

    def precisions_for(self, task: str | None) -> list[str]:
        """Return the precisions of a task; `task` as in `stages_for`."""
        return (self.task_precisions if task else []) or self.precisions

    def stages_for(self, world: str | None, task: str | None = None) -> list[BuilderStage]:
        """Return the stages in order; a single `build` stage if builder.toml declares none.

        `task` is None for text generation and for the task `tensors`.
        """
        declared_stages = [
            stage
            for stage in self.stages
            if stage.when.get("world", world) == world and (not stage.tasks or task in stage.tasks)
        ]
        return declared_stages or [
            BuilderStage(
                name="build",
                runners=self.runners,
                environment=self.environment,
                needs_gpu=self.needs_gpu,
                checks_requests=self.checks_requests,
            )
        ]

    def check_engine(self, engine: Engine, task: str, task_file: Path | None = None) -> None:
        """Check engine settings against the builder's capabilities before anything runs.

        `task` names the requested engine, `task_file` the project's file of a custom task. Raises
        ConfigurationError naming the field and the supported values.
        """
        self._require_one_of(
            "precision", engine.precision, self.precisions_for(task_for_builder(task))
        )
        if task_file and task not in self.tasks:
            raise ConfigurationError(
                f"{task_file}: builder {self.name} makes no engine for a task `{task}`",
                remedy="name the task whose engine the graph uses: "
                + " or ".join(f"`engine_task: {supported_task}`" for supported_task in self.tasks),
            )
        self._require_one_of("task", task, self.tasks)
        if engine.kv_cache_dtype is not None:
            self._require_one_of("kv_cache_dtype", engine.kv_cache_dtype, self.kv_cache_dtypes)
        if engine.runner is not None:
            runners = [*self.runners, *(name for s in self.stages for name in s.runners)]
            self._require_one_of("runner", engine.runner, list(dict.fromkeys(runners)))

    def _require_one_of(self, field: str, value: str, allowed: list[str]) -> None:
        if value not in allowed:
            attempt = (
                "" if value in _values_of_shipped_builders(field) else value
            )  # bf16 is no misspelt fp16
            raise ConfigurationError(
                f"builder {self.name} has no {field} `{value}`",
                remedy=choices(attempt, allowed, "expected one of"),
            )


@cache
def _values_of_shipped_builders(field: str) -> frozenset[str]:
    """Return all values of a field, such as `precision`, of the shipped builders."""
    builders = (builder_named(name) for name in bundled.names("builders", "/builder.toml"))
    return frozenset(value for builder in builders for value in getattr(builder, f"{field}s"))


def builder_named(name: str, project_root: Path | None = None) -> Builder:
    """Return the builder of that name. Raises ConfigurationError for an unknown one."""
    available = bundled.names("builders", "/builder.toml", project_root)
    if name not in available:
        raise ConfigurationError(
            f"unknown builder `{name}`", remedy=choices(name, available, "expected one of")
        )
    return _read(bundled.find(f"builders/{name}/builder.toml", project_root))


def _read(file: Path) -> Builder:
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
        return Builder.model_validate({**data, "folder": file.parent})
    except FileNotFoundError as error:  # a project's builder refers to a missing sibling
        raise ConfigurationError(
            f"{file} does not exist, and a sibling builder uses it for a stage",
            remedy=f"copy tritonctl's builders/{file.parent.name} there",
        ) from error
    except ValueError as error:  # not UTF-8, not TOML, or not this schema
        raise ConfigurationError(
            f"{file} is malformed: {reason(error)}", remedy="compare it with builders/README.md"
        ) from error
