# SPDX-License-Identifier: Apache-2.0
"""Models that run TensorRT-LLM, of all kinds, and their engines.

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
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.source_span import Span
from tritonctl.formats.graph_file import whole_number
from tritonctl.formats.trtllm_engine import CompiledEngine, read_engine

if TYPE_CHECKING:
    from tritonctl.checks.config.yaml_file import YamlFile

# cpp: NVIDIA's backend `tensorrtllm`. python: the same template with `backend: "python"`.
# llmapi: NVIDIA's model.py over the LLM API, with a model.yaml. own: tritonctl's trtllm_engine.
Kind = Literal["cpp", "python", "llmapi", "own"]
BACKEND = "tensorrtllm"
ARGUMENTS = "model.yaml"
MAX_YAML_BYTES = 1 << 20
_TRITONCTL_PARAMETERS = ("world", "tensorrt_llm", "max_num_seqs")


@dataclass(frozen=True)
class TrtllmDeployment:
    """A model that runs TensorRT-LLM, with its configuration."""

    model: Model
    config: ConfigMessage
    kind: Kind
    repository: Repository

    def text(self, key: str) -> str | None:
        """Return a parameter's string; None if missing, empty or an unfilled placeholder."""
        return filled_parameter(self.config, key)

    def has_parameter(self, key: str) -> bool:
        """Whether the configuration has the parameter."""
        return key in self.config.message.parameters

    def has_placeholder(self, key: str) -> bool:
        """Whether the value contains a template's placeholder; TC109 reports it."""
        return self.has_parameter(key) and "${" in self.config.message.parameters[key].string_value

    def span(self, key: str) -> Span:
        """Return the span of a parameter's value."""
        return self.config.span("parameters", key, "string_value")

    def flag(self, key: str) -> bool | None:
        """Return a parameter as the C++ backend reads booleans; None for anything else."""
        return {"true": True, "1": True, "false": False, "0": False}.get(
            (self.text(key) or "").lower()
        )

    def number(self, key: str) -> int | None:
        """Return a parameter as a whole number; None for anything else."""
        return whole_number(self.text(key) or "")

    def settings(self, key: str) -> dict[str, Any]:
        """Return a parameter as a JSON object; {} for anything else."""
        try:
            record = json.loads(self.text(key) or "{}")
        except (ValueError, RecursionError):
            return {}
        return record if isinstance(record, dict) else {}

    @property
    def instances(self) -> int:
        """The number of configured instances; 1 without an instance group."""
        groups = self.config.message.instance_group
        return sum(max(group.count, 1) for group in groups) or 1

    @cached_property
    def engine(self) -> CompiledEngine | None:
        """The compiled engine; None if it is not readable on this machine."""
        if self.kind == "own":
            engines = (read_engine(folder) for folder in self.served_files("engine"))
            return next(engines, None) if self.text("world") == "engine" else None
        path = self.text("gpt_model_path") if self.kind in ("cpp", "python") else None
        return self.engine_in(path) if path else None

    def engine_in(self, path: str) -> CompiledEngine | None:
        """Return the engine at a server path; None if it is not readable on this machine."""
        for folder in self.local_paths(path):
            if engine := read_engine(folder):
                return engine
        return None

    def local_paths(self, path: str) -> Iterator[Path]:
        """Yield the local paths that a server path may stand for.

        A server in a container may mount the repository elsewhere. Therefore the part of the path
        after a model's name is also looked up below that model here.
        """
        yield Path(path)
        parts = PurePosixPath(path).parts
        for index, part in enumerate(parts) if ".." not in parts else ():
            if part in self.repository.models:
                yield self.repository.path.joinpath(*parts[index:])

    @property
    def engine_span(self) -> Span:
        """The span of the parameter that names the engine."""
        return self.span("world" if self.kind == "own" else "gpt_model_path")

    @cached_property
    def arguments(self) -> YamlFile | None:
        """The model.yaml of the served version of an llmapi model."""
        from tritonctl.checks.config.yaml_file import (
            read_yaml_file,  # PyYAML takes a while to import
        )

        for file in self.served_files(ARGUMENTS) if self.kind == "llmapi" else ():
            display_path = f"{self.model.display_path}/{self.model.served_version}/{ARGUMENTS}"
            return read_yaml_file(file, display_path, MAX_YAML_BYTES)
        return None

    def served_files(self, name: str) -> Iterator[Path]:
        """Yield the path of that name in the served version, if it exists."""
        version = self.model.served_version
        if version is not None and name in self.model.version_files(version):
            yield self.model.path / str(version) / name


def filled_parameter(config: ConfigMessage, key: str) -> str | None:
    """Return a parameter's string; None if missing, empty or an unfilled placeholder."""
    parameters = config.message.parameters
    if key not in parameters:
        return None
    text = str(parameters[key].string_value)
    return text if text and "${" not in text else None


def deployment_of(model: Model, repository: Repository) -> TrtllmDeployment | None:
    """Return the model as a TensorRT-LLM deployment; None for others and unreadable ones."""
    return memoized(model, "trtllm", lambda: _deployment(model, repository))


def _deployment(model: Model, repository: Repository) -> TrtllmDeployment | None:
    kind = _deployment_kind(model)
    return TrtllmDeployment(model, model.config, kind, repository) if kind else None


def _deployment_kind(model: Model) -> Kind | None:
    if model.backend == BACKEND:
        return "cpp"
    if model.backend != "python":
        return None
    parameters = model.config.message.parameters
    if "gpt_model_type" in parameters and "gpt_model_path" in parameters:
        return "python"
    if all(key in parameters for key in _TRITONCTL_PARAMETERS):
        return "own"
    return "llmapi" if _is_llmapi(model) else None


def _is_llmapi(model: Model) -> bool:
    version = model.served_version
    if version is None or ARGUMENTS not in model.version_files(version):
        return False
    return model.code is not None and "tensorrt_llm" in model.code.source.text


def template_of(model: Model, repository: Repository) -> TrtllmDeployment | None:
    """Return the model as a deployment of NVIDIA's template; None for others."""
    deployment = deployment_of(model, repository)
    return deployment if deployment and deployment.kind in ("cpp", "python") else None


def engine_of(model: Model, repository: Repository) -> CompiledEngine | None:
    """Return the model's engine; None if it is not readable on this machine."""
    deployment = deployment_of(model, repository)
    engine = deployment.engine if deployment else None
    return None if engine is None or engine.read_error else engine


def arguments_of(model: Model, repository: Repository) -> YamlFile | None:
    """Return the model.yaml of an llmapi model; None if it cannot be read."""
    deployment = deployment_of(model, repository)
    arguments = deployment.arguments if deployment and deployment.kind == "llmapi" else None
    return arguments if arguments and arguments.root else None
