# SPDX-License-Identifier: Apache-2.0
"""Host paths outside the model repository that models read, mounted under the same path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from tritonctl.errors import ConfigurationError
from tritonctl.project.schema import Project
from tritonctl.repository.contents import handwritten
from tritonctl.repository.tensorrtllm import BACKEND

# Parameters of NVIDIA's C++ backend, under serving.runtime.
_RUNTIME_KEYS = (
    "gpt_model_path",
    "encoder_model_path",
    "lora_prefetch_dir",
    "xgrammar_tokenizer_info_path",
)
# Arguments of the PyTorch runtime, under engine.options.package.
_PACKAGE_KEYS = {
    "speculative_config": ("speculative_model", "speculative_model_dir"),
}
_REPOSITORY = PurePosixPath("/models")
# Paths of the container: a mount over them would hide files that the server needs.
_SYSTEM_PATHS = (
    "/beside",
    "/etc",
    "/models",
    "/opt/tritonctl",
    "/opt/tritonserver",
    "/proc",
    "/run/secrets",
    "/usr",
)


def host_paths(project: Project) -> list[Path]:
    """Return the host's files and folders that the models name, sorted.

    Raises ConfigurationError for a path that the container itself uses.
    """
    fields = {path: field for path, field in _model_paths(project) if path.is_absolute()}
    for path, field in fields.items():
        if reserved := _reserved_by_container(path):
            raise ConfigurationError(
                f"{field} is {path}, but the container uses {reserved}",
                remedy="move it to another folder of this host: it is mounted under the same path",
            )
    return sorted({*fields, *_handwritten_paths(project)})


def _handwritten_paths(project: Project) -> Iterator[Path]:
    """Yield the host paths in handwritten models' parameters that exist and are not reserved."""
    for model in handwritten(project, project.public):
        for parameter in model.config.get("parameters", {}).values():
            path = Path(parameter.get("string_value", ""))
            if path.is_absolute() and path.exists() and not _reserved_by_container(path):
                yield path


def _model_paths(project: Project) -> Iterator[tuple[Path, str]]:
    for name, model in sorted(project.models.items()):
        if model.serving.backend == BACKEND:
            field_path, runtime = f"models.{name}.serving.runtime", model.serving.runtime
            # The configuration names the engine by its host path, not by its container path.
            if "gpt_model_path" not in runtime:
                yield project.repository, "model_repository"
            yield from _path_values(runtime, _RUNTIME_KEYS, field_path)
        package = model.engine.options.get("package")
        if not isinstance(package, Mapping):
            continue
        for section, keys in _PACKAGE_KEYS.items():
            field_path = f"models.{name}.engine.options.package.{section}"
            yield from _path_values(package.get(section), keys, field_path)


def _path_values(values: Any, keys: tuple[str, ...], section: str) -> Iterator[tuple[Path, str]]:
    for key in keys if isinstance(values, Mapping) else ():
        value = values.get(key)
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, str) and item:
                yield Path(item), f"{section}.{key}"


def _reserved_by_container(path: Path) -> object:
    """Return the container's path that a mount at `path` would hide; None without one."""
    container_path = PurePosixPath(path)
    hidden = [
        system for system in _SYSTEM_PATHS if PurePosixPath(system).is_relative_to(container_path)
    ]
    if hidden or container_path.is_relative_to(_REPOSITORY):
        return hidden[0] if hidden else _REPOSITORY
    return None
