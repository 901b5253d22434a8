# SPDX-License-Identifier: Apache-2.0
"""The builders that exist: one folder with a `builder.toml` each, nothing else to register."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tritonctl import bundled
from tritonctl.errors import ConfigurationError
from tritonctl.project import Engine

RunnerName = Literal["current", "venv", "container"]


class BuilderEnvironment(BaseModel):
    """How to make the builder's Python environment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    requires_python: str
    install: list[list[str]]
    probe: list[str] = []


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
    python_backend: str
    runners: list[RunnerName]
    shares: list[str] = []
    environment: BuilderEnvironment
    folder: Path = Path()

    @property
    def folders(self) -> list[Path]:
        """All of the builder's sources: its own folder and those of `builders/shared/` it uses."""
        return [self.folder, *(self.folder.parent / "shared" / name for name in self.shares)]

    def accept(self, engine: Engine, task: str) -> None:
        """Refuse what this builder cannot make, before anything runs.

        Raises ConfigurationError naming the field and the values that would do.
        """
        self._one_of("precision", engine.precision, self.precisions)
        self._one_of("task", task, self.tasks)
        if engine.kv_cache_dtype is not None:
            self._one_of("kv_cache_dtype", engine.kv_cache_dtype, self.kv_cache_dtypes)
        if engine.runner is not None:
            self._one_of("runner", engine.runner, list(self.runners))

    def _one_of(self, field: str, value: str, allowed: list[str]) -> None:
        if value not in allowed:
            raise ConfigurationError(
                f"builder {self.name} has no {field} `{value}`",
                remedy=_nearest(value, allowed, f"its {field} values"),
            )


def builder_named(name: str, project_root: Path | None = None) -> Builder:
    """The builder of that name. Raises ConfigurationError when there is none."""
    available = bundled.names("builders", "/builder.toml", project_root)
    if name not in available:
        raise ConfigurationError(
            f"there is no builder `{name}`", remedy=_nearest(name, available, "builders")
        )
    file = bundled.find(f"builders/{name}/builder.toml", project_root)
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
        return Builder.model_validate({**data, "folder": file.parent})
    except ValueError as error:  # not UTF-8, not TOML, or not this schema
        raise ConfigurationError(
            f"{file} is malformed: {error}", remedy="compare it with builders/README.md"
        ) from error


def _nearest(value: str, allowed: list[str], label: str) -> str:
    close = difflib.get_close_matches(value, allowed, n=1)
    listing = f"{label}: {', '.join(allowed) or 'none'}"
    return f"did you mean `{close[0]}`? {listing}" if close else listing
