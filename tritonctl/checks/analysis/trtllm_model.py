# SPDX-License-Identifier: Apache-2.0
"""Models that run TensorRT-LLM, of whichever kind, and what is known of their engines.

NVIDIA's templates: triton_backend/all_models in https://github.com/NVIDIA/TensorRT-LLM.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.memoize import memoized
from tritonctl.checks.places import Span
from tritonctl.checks.repository import Model, Repository
from tritonctl.formats.graph_file import whole_number
from tritonctl.formats.trtllm_engine import Engine, engine_at

if TYPE_CHECKING:
    from tritonctl.checks.config.yaml_file import YamlFile

# cpp: NVIDIA's backend `tensorrtllm`. python: the same template with `backend: "python"`.
# llmapi: NVIDIA's model.py over the LLM API, with a model.yaml. own: tritonctl's trtllm_engine.
Kind = Literal["cpp", "python", "llmapi", "own"]
BACKEND = "tensorrtllm"
ARGUMENTS = "model.yaml"
LARGEST_YAML = 1 << 20
_OWN = ("world", "tensorrt_llm", "max_num_seqs")


@dataclass(frozen=True)
class Deployment:
    """A model over TensorRT-LLM, with its configuration."""

    model: Model
    config: ConfigMessage
    kind: Kind
    repository: Repository

    def text(self, key: str) -> str | None:
        """A parameter's string; None where it is absent, empty or an unfilled placeholder."""
        return filled(self.config, key)

    def given(self, key: str) -> bool:
        """Whether the parameter stands there at all."""
        return key in self.config.message.parameters

    def unfilled(self, key: str) -> bool:
        """Whether the value is a template's placeholder, which TC109 reports."""
        return self.given(key) and "${" in self.config.message.parameters[key].string_value

    def span(self, key: str) -> Span:
        """Where a parameter's value stands."""
        return self.config.span("parameters", key, "string_value")

    def flag(self, key: str) -> bool | None:
        """A parameter as the C++ backend reads truth values; None for anything else."""
        return {"true": True, "1": True, "false": False, "0": False}.get(
            (self.text(key) or "").lower()
        )

    def number(self, key: str) -> int | None:
        """A parameter that is a whole number."""
        return whole_number(self.text(key) or "")

    def settings(self, key: str) -> dict[str, Any]:
        """A parameter that is a JSON object; empty for anything else."""
        try:
            record = json.loads(self.text(key) or "{}")
        except (ValueError, RecursionError):
            return {}
        return record if isinstance(record, dict) else {}

    @property
    def instances(self) -> int:
        """How many instances the configuration asks for; no group means one."""
        groups = self.config.message.instance_group
        return sum(max(group.count, 1) for group in groups) or 1

    @cached_property
    def engine(self) -> Engine | None:
        """The compiled engine, where it can be seen from here."""
        if self.kind == "own":
            engines = (engine_at(folder) for folder in self.version_file("engine"))
            return next(engines, None) if self.text("world") == "engine" else None
        path = self.text("gpt_model_path") if self.kind in ("cpp", "python") else None
        return self.engine_in(path) if path else None

    def engine_in(self, path: str) -> Engine | None:
        """The engine at a path of the server's, where that can be seen from here."""
        for folder in self.places(path):
            if engine := engine_at(folder):
                return engine
        return None

    def places(self, path: str) -> Iterator[Path]:
        """Where a path of the server's may lie here: at that path, or in this repository.

        Servers in containers see the repository at another place: what follows a model's name is
        taken to be below that model.
        """
        yield Path(path)
        parts = PurePosixPath(path).parts
        for index, part in enumerate(parts) if ".." not in parts else ():
            if part in self.repository.models:
                yield self.repository.path.joinpath(*parts[index:])

    @property
    def engine_span(self) -> Span:
        """What in the configuration names the engine."""
        return self.span("world" if self.kind == "own" else "gpt_model_path")

    @cached_property
    def arguments(self) -> YamlFile | None:
        """The model.yaml of the served version, which llmapi models have."""
        from tritonctl.checks.config.yaml_file import (
            read_yaml_file,  # PyYAML takes a while to import
        )

        for file in self.version_file(ARGUMENTS) if self.kind == "llmapi" else ():
            shown = f"{self.model.shown}/{self.model.served_version}/{ARGUMENTS}"
            return read_yaml_file(file, shown, LARGEST_YAML)
        return None

    def version_file(self, name: str) -> Iterator[Path]:
        """What lies under that name in the served version, if it does."""
        version = self.model.served_version
        if version is not None and name in self.model.files_of(version):
            yield self.model.path / str(version) / name


def filled(config: ConfigMessage, key: str) -> str | None:
    """A parameter's string; None where it is absent, empty or an unfilled placeholder."""
    parameters = config.message.parameters
    if key not in parameters:
        return None
    text = str(parameters[key].string_value)
    return text if text and "${" not in text else None


def deployment_of(model: Model, repository: Repository) -> Deployment | None:
    """The model as one over TensorRT-LLM; None for others, and where it cannot be read."""
    return memoized(model, "trtllm", lambda: _deployment(model, repository))


def _deployment(model: Model, repository: Repository) -> Deployment | None:
    kind = _kind(model)
    return Deployment(model, model.config, kind, repository) if kind else None


def _kind(model: Model) -> Kind | None:
    if model.backend == BACKEND:
        return "cpp"
    if model.backend != "python":
        return None
    parameters = model.config.message.parameters
    if "gpt_model_type" in parameters and "gpt_model_path" in parameters:
        return "python"
    if all(key in parameters for key in _OWN):
        return "own"
    return "llmapi" if _reads_arguments(model) else None


def _reads_arguments(model: Model) -> bool:
    version = model.served_version
    if version is None or ARGUMENTS not in model.files_of(version):
        return False
    return model.code is not None and "tensorrt_llm" in model.code.source.text


def template_of(model: Model, repository: Repository) -> Deployment | None:
    """The model as one of NVIDIA's template; None for others."""
    deployment = deployment_of(model, repository)
    return deployment if deployment and deployment.kind in ("cpp", "python") else None


def engine_of(model: Model, repository: Repository) -> Engine | None:
    """The model's engine; None where none can be read from here."""
    deployment = deployment_of(model, repository)
    engine = deployment.engine if deployment else None
    return None if engine is None or engine.broken else engine


def arguments_of(model: Model, repository: Repository) -> YamlFile | None:
    """The model.yaml of an llmapi model; None where it cannot be read."""
    deployment = deployment_of(model, repository)
    arguments = deployment.arguments if deployment and deployment.kind == "llmapi" else None
    return arguments if arguments and arguments.root else None
