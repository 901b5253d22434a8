# SPDX-License-Identifier: Apache-2.0
"""What models read outside the model repository: mounted into containers under the same path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from tritonctl.errors import ConfigurationError
from tritonctl.project.schema import Project
from tritonctl.repository.contents import handwritten
from tritonctl.repository.tensorrtllm import BACKEND

# Parameters of NVIDIA's C++ backend, under serving.runtime.
_RUNTIME = (
    "gpt_model_path",
    "encoder_model_path",
    "lora_prefetch_dir",
    "xgrammar_tokenizer_info_path",
)
# Arguments of the PyTorch runtime, under engine.options.package.
_PACKAGE = {
    "speculative_config": ("speculative_model", "speculative_model_dir"),
}
_REPOSITORY = PurePosixPath("/models")
# Of the container itself: what is mounted over them hides what the server needs.
_SYSTEM = (
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
    """Files and folders that the models name by their place on this host, sorted.

    Raises ConfigurationError for a path that the container itself uses.
    """
    fields = {path: field for path, field in _named(project) if path.is_absolute()}
    for path, field in fields.items():
        if taken := _taken(path):
            raise ConfigurationError(
                f"{field} is {path}, but the container uses {taken}",
                remedy="move it to another folder of this host: it is mounted under the same path",
            )
    return sorted({*fields, *_named_by_hand(project)})


def _named_by_hand(project: Project) -> Iterator[Path]:
    """What parameters of hand-written models name, where it is here and not in the container."""
    for model in handwritten(project, project.public):
        for parameter in model.config.get("parameters", {}).values():
            path = Path(parameter.get("string_value", ""))
            if path.is_absolute() and path.exists() and not _taken(path):
                yield path


def _named(project: Project) -> Iterator[tuple[Path, str]]:
    for name, model in sorted(project.models.items()):
        if model.serving.backend == BACKEND:
            where, runtime = f"models.{name}.serving.runtime", model.serving.runtime
            # The configuration names the engine by its place, too, not by the one in the container.
            if "gpt_model_path" not in runtime:
                yield project.repository, "model_repository"
            yield from _texts(runtime, _RUNTIME, where)
        package = model.engine.options.get("package")
        if not isinstance(package, Mapping):
            continue
        for section, keys in _PACKAGE.items():
            where = f"models.{name}.engine.options.package.{section}"
            yield from _texts(package.get(section), keys, where)


def _texts(values: Any, keys: tuple[str, ...], where: str) -> Iterator[tuple[Path, str]]:
    for key in keys if isinstance(values, Mapping) else ():
        value = values.get(key)
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, str) and item:
                yield Path(item), f"{where}.{key}"


def _taken(path: Path) -> object:
    """What of the container's own is there or below; None otherwise."""
    place = PurePosixPath(path)
    hidden = [system for system in _SYSTEM if PurePosixPath(system).is_relative_to(place)]
    if hidden or place.is_relative_to(_REPOSITORY):
        return hidden[0] if hidden else _REPOSITORY
    return None
