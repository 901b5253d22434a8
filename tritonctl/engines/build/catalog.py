# SPDX-License-Identifier: Apache-2.0
"""The available builders: each is a folder with a `builder.toml`; nothing else is registered."""

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
from tritonctl.project.tasks import asked_task

RunnerName = Literal["current", "venv", "container"]


class BuilderEnvironment(BaseModel):
    """How to make the builder's Python environment.

    `task_install`: arguments of a `pip install` of what a task needs besides, where an image that
    the builder runs in fails `task_probe`: packages of this machine, for the image's Python.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    requires_python: str
    install: list[list[str]]
    probe: list[str] = []
    task_install: list[str] = []
    task_probe: list[str] = []


class Stage(BaseModel):
    """One program of a builder; the artefact of each is the source of the next.

    `of`: another builder, beside this one, whose program and environment it has. `when`: only for
    targets of that world. `tasks`: only for these, where there are any. `precision`: of what is
    made, where the next stage makes the engine's of it. `ignores`: dotted fields of the request
    that do not shape this stage's artefact: changing them does not rebuild it.
    `writes`: options that name a folder which outlives the build; a container may write there.
    `reads`: dotted options that name files or folders (one, or a list) whose content shapes the
    artefact.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    summary: str = ""
    script: str = "build.py"
    of: str | None = None
    runners: list[RunnerName] = Field(min_length=1)
    environment: BuilderEnvironment | None = None
    when: dict[Literal["world"], str] = {}
    tasks: list[str] = []
    precision: str | None = None
    ignores: list[str] = []
    writes: list[str] = []
    reads: list[str] = []
    needs_gpu: bool = False
    prints_commands: bool = False  # its program has --print-commands
    checks_requests: bool = False  # its program has --check, for any Python


class Builder(BaseModel):
    """A `builder.toml`: what it makes, from what, with which Triton backend serving it."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    schema_: Literal["tritonctl.builder/1"] = Field(alias="schema")
    name: str
    summary: str
    tasks: list[str]
    precisions: list[str]
    kv_cache_dtypes: list[str] = []
    architectures: list[str]
    refused: dict[str, str] = {}  # others, and why the program refuses them
    python_backend: str
    # Where they are others for tasks than for text generation and graphs of their own tensors.
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
    stages: list[Stage] = []
    options_by_stage: bool = True  # else every stage gets all of `engine.options`
    folder: Path = Path()

    @model_validator(mode="after")
    def _runs_somewhere(self) -> Self:
        if not self.runners and not self.stages:
            raise ValueError("neither `runners` nor `stages` say how the builder runs")
        return self

    @property
    def folders(self) -> list[Path]:
        """All of the builder's sources: its own folder, and what it uses of those beside it."""
        beside = self.folder.parent
        return [
            self.folder,
            *(beside / "shared" / name for name in self.shares),
            *(beside.parent / "python_backends" / name for name in self.proof_libraries),
        ]

    @property
    def tables(self) -> list[Path]:
        """Data that the program reads and that does not shape engines: it only refuses."""
        table = self.folder.parent / "compatibility.toml"
        return [table] if self.targets and table.is_file() else []

    def owner(self, stage: Stage) -> Builder:
        """The builder whose program a stage runs: this one, or the one beside it that it names."""
        return _read(self.folder.parent / stage.of / "builder.toml") if stage.of else self

    def program(self, stage: Stage) -> Path:
        """The file that a stage runs."""
        return self.owner(stage).folder / stage.script

    def exports(self, task: str) -> list[str]:
        """The architectures of checkpoints that it takes for a task."""
        stages = [stage for stage in self.stages if stage.of and task in stage.tasks]
        beside = [name for stage in stages for name in self.owner(stage).architectures]
        return beside or self.architectures

    def served_by(self, task: str | None) -> str:
        """The backend of what is made for a task; None as for `stages_for`."""
        return (self.task_backend if task else None) or self.python_backend

    def precisions_of(self, task: str | None) -> list[str]:
        """The precisions of a task; None as for `stages_for`."""
        return (self.task_precisions if task else []) or self.precisions

    def stages_for(self, world: str | None, task: str | None = None) -> list[Stage]:
        """The stages in their order; one called `build` where builder.toml names none for it.

        task: None for a graph of its own tensors and for text generation.
        """
        named = [
            stage
            for stage in self.stages
            if stage.when.get("world", world) == world and (not stage.tasks or task in stage.tasks)
        ]
        return named or [
            Stage(
                name="build",
                runners=self.runners,
                environment=self.environment,
                needs_gpu=self.needs_gpu,
                checks_requests=self.checks_requests,
            )
        ]

    def accept(self, engine: Engine, task: str, task_file: Path | None = None) -> None:
        """Refuse what this builder cannot make, before anything runs.

        task: whose engine is wanted. task_file: the project's own file of it, if it has one.
        Raises ConfigurationError naming the field and the values that would do.
        """
        self._one_of("precision", engine.precision, self.precisions_of(asked_task(task)))
        if task_file and task not in self.tasks:
            raise ConfigurationError(
                f"{task_file}: builder {self.name} makes no engine for a task `{task}`",
                remedy="say whose engine the graph takes: "
                + " or ".join(f"`engine_task: {known}`" for known in self.tasks),
            )
        self._one_of("task", task, self.tasks)
        if engine.kv_cache_dtype is not None:
            self._one_of("kv_cache_dtype", engine.kv_cache_dtype, self.kv_cache_dtypes)
        if engine.runner is not None:
            offered = [*self.runners, *(name for s in self.stages for name in s.runners)]
            self._one_of("runner", engine.runner, list(dict.fromkeys(offered)))

    def _one_of(self, field: str, value: str, allowed: list[str]) -> None:
        if value not in allowed:
            meant = "" if value in _elsewhere(field) else value  # bf16 is no misspelt fp16
            raise ConfigurationError(
                f"builder {self.name} has no {field} `{value}`",
                remedy=choices(meant, allowed, "expected one of"),
            )


@cache
def _elsewhere(field: str) -> frozenset[str]:
    """What shipped builders know by the name of a field, such as `precision`."""
    known = (builder_named(name) for name in bundled.names("builders", "/builder.toml"))
    return frozenset(value for one in known for value in getattr(one, f"{field}s"))


def builder_named(name: str, project_root: Path | None = None) -> Builder:
    """The builder of that name. Raises ConfigurationError for an unknown one."""
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
    except FileNotFoundError as error:  # of a builder beside one of the project's own
        raise ConfigurationError(
            f"{file} does not exist, and a builder beside it has a stage of it",
            remedy=f"copy tritonctl's builders/{file.parent.name} there",
        ) from error
    except ValueError as error:  # not UTF-8, not TOML, or not this schema
        raise ConfigurationError(
            f"{file} is malformed: {reason(error)}", remedy="compare it with builders/README.md"
        ) from error
