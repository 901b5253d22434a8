# SPDX-License-Identifier: Apache-2.0
"""Read a model repository from disk, without running or importing any of its code.

Circular links, unreadable files and huge files become values that rules can report. Reading never
fails.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tritonctl.checks.config.backends import DEFAULT_FILES, infer_backend
from tritonctl.checks.config.lexer import TextprotoError
from tritonctl.checks.config.message import HARMLESS, ConfigMessage, read
from tritonctl.checks.config.schema import model_config_schema
from tritonctl.checks.config.textproto import parse
from tritonctl.checks.model_py.source import PythonSource, read_python
from tritonctl.checks.small_file import UnreadableError, is_file, is_folder, read_small
from tritonctl.checks.source_span import SourceText, Span
from tritonctl.errors import UsageError
from tritonctl.formats.graph_file import ModelGraph, UndecidedFileError
from tritonctl.formats.onnx_graph import read_onnx
from tritonctl.formats.openvino_ir import read_ir

CONFIG = "config.pbtxt"
VARIANTS = "configs"
# Far above any real file; for larger ones protobuf would need minutes and gigabytes.
MAX_CONFIG_BYTES = 4 << 20
MAX_CODE_BYTES = 2 << 20
MAX_VERSION = 2**63 - 1
_VERSION = re.compile("0|[1-9][0-9]{0,18}")
# Suffix and reader of model files by backend, for backends whose graphs we can read.
_GRAPH_READERS = {
    "onnxruntime": (".onnx", read_onnx),
    "openvino": (".xml", read_ir),
}


@dataclass(frozen=True)
class OpenAi:
    """The OpenAI frontend in front of the repository: `frontend:` of a project."""

    models: Sequence[str] = ()  # public names of the models that generate text
    aliases: Mapping[str, str] = field(default_factory=dict)  # further names
    # Files of the tenants' keys, absolute or below the repository.
    keys: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckTarget:
    """The server that will serve the repository. Rules about unknown (None) values stay silent."""

    version: str | None = None  # of Triton
    cores: int | None = None  # shared by all instances
    shared_memory_bytes: int | None = None  # size of /dev/shm
    gpus: tuple[int, ...] | None = None  # memory of each GPU in bytes; () without GPUs
    # Maximum latency of a response, or of the first part of a stream, by model.
    slo_ms: Mapping[str, float] = field(default_factory=dict)
    named_by_user: bool = False  # the user chose the version explicitly
    memory_bytes: int | None = None  # of the machine or container, without GPU memory
    # Triton completes configurations, unless started with --disable-auto-complete-config.
    completes: bool = True
    openai: OpenAi | None = None  # the frontend, if there is one
    backends: frozenset[str] | None = None  # of the server, besides ensembles

    @classmethod
    def from_name(cls, name: str | None) -> CheckTarget:
        """Return the target of a version, "2.51.0", or a release, "24.10". Raises UsageError."""
        if name is None:
            return cls()
        from tritonctl.project.compatibility.table import table  # slow to import: pydantic

        versions_by_release = {
            release.name: release.triton for release in table(None).releases if release.triton
        }
        version = versions_by_release.get(name, name)
        if not re.fullmatch(r"2\.\d+(\.\d+)?", version):
            first, last = min(versions_by_release), max(versions_by_release)
            raise UsageError(
                f"unknown version of Triton: {name}",
                remedy=f"write one such as 2.51.0, or a release, {first} to {last}",
            )
        return cls(version, named_by_user=True)


@dataclass(frozen=True)
class ConfigFile:
    """A config.pbtxt. Without `config`, one of the errors is set."""

    path: Path
    source: SourceText
    config: ConfigMessage | None = None
    parse_error: TextprotoError | None = None  # the text is invalid
    read_error: str | None = None  # the file cannot be read


@dataclass(frozen=True)
class Model:
    """A folder of the repository."""

    name: str
    path: Path
    display_path: str

    @cached_property
    def entries(self) -> dict[str, os.stat_result | None]:
        """The entries of the folder with their statuses, links followed; None: a broken link."""
        return dict(folder_entries(self.path))

    @cached_property
    def folders(self) -> list[str]:
        """The names of the subfolders."""
        statuses = self.entries.items()
        return [name for name, status in statuses if status and stat.S_ISDIR(status.st_mode)]

    @cached_property
    def versions(self) -> list[int]:
        """The version folders that Triton sees: whole numbers, written without a leading zero."""
        numbers = (int(name) for name in self.folders if _VERSION.fullmatch(name))
        return sorted(version for version in numbers if version <= MAX_VERSION)

    @cached_property
    def file(self) -> ConfigFile | None:
        """The config.pbtxt; None if it is missing."""
        if CONFIG not in self.entries:
            return None
        return read_config(self.path / CONFIG, f"{self.display_path}/{CONFIG}")

    @cached_property
    def variants(self) -> dict[str, ConfigFile]:
        """The files of configs/ by name: the choices of --model-config-name."""
        folder = self.path / VARIANTS
        return {
            name.removesuffix(".pbtxt"): read_config(
                folder / name, f"{self.display_path}/{VARIANTS}/{name}"
            )
            for name, _ in (folder_entries(folder) if VARIANTS in self.entries else ())
            if name.endswith(".pbtxt")
        }

    @cached_property
    def config(self) -> ConfigMessage:
        """The content of config.pbtxt; empty if it is missing or invalid."""
        read = self.file.config if self.file else None
        return read or ConfigMessage(model_config_schema().ModelConfig(), {(): Span(0, 0)})

    @property
    def has_config(self) -> bool:
        """Whether the model has a config.pbtxt with valid syntax."""
        return self.file is not None and self.file.config is not None

    @cached_property
    def config_is_valid(self) -> bool:
        """Whether Triton can read every value of config.pbtxt."""
        return self.config.problem_counts.keys() <= HARMLESS

    @property
    def is_readable(self) -> bool:
        """Whether Triton can read the configuration; otherwise rules cannot rely on it."""
        return self.has_config and self.config_is_valid

    @cached_property
    def backend(self) -> str | None:
        """The backend, "ensemble" for an ensemble; None if unknown from names and files."""
        if self.file is not None and not self.has_config:
            return None
        message = self.config.message
        if message.platform == "ensemble" or message.HasField("ensemble_scheduling"):
            return "ensemble"
        return str(message.backend) or infer_backend(message, self.list_first_folder)

    @property
    def file_names(self) -> tuple[str, ...]:
        """The file names that the backend looks for in a version folder; one suffices."""
        configured_name = self.config.message.default_model_filename
        return (
            (str(configured_name),)
            if configured_name
            else DEFAULT_FILES.get(self.backend or "", ())
        )

    def list_first_folder(self) -> Iterable[str]:
        """List the first folder by name, where Triton looks for a file that tells the backend."""
        return [
            name for folder in self.folders[:1] for name, _ in folder_entries(self.path / folder)
        ]

    @cached_property
    def served_versions(self) -> list[int]:
        """The existing versions that Triton loads."""
        return self.select_served(self.versions)

    def select_served(self, versions: list[int]) -> list[int]:
        """Return the versions that the version policy selects from an ascending list."""
        if not self.config.message.HasField("version_policy"):
            return versions[-1:]
        policy = self.config.message.version_policy
        if policy.HasField("specific"):
            return [version for version in versions if version in policy.specific.versions]
        if policy.HasField("latest"):
            count = policy.latest.num_versions
            return versions[-count:] if count else []
        return versions  # also for an empty policy

    @cached_property
    def served_version(self) -> int | None:
        """The latest served version, whose files the rules read; None if Triton serves none."""
        return max(self.served_versions, default=None)

    def version_files(self, version: int) -> dict[str, os.stat_result | None]:
        """Return the entries of a version folder with their statuses."""
        if version not in self._files:
            self._files[version] = dict(folder_entries(self.path / str(version)))
        return self._files[version]

    @cached_property
    def _files(self) -> dict[int, dict[str, os.stat_result | None]]:
        return {}

    @cached_property
    def graph(self) -> ModelGraph | None:
        """The graph that the backend loads; None if no file is readable."""
        return self._graph_reading[0]

    @property
    def graph_problem(self) -> str | None:
        """The reason why the file of the graph could not be read; None if it was, or is absent."""
        return self._graph_reading[1]

    @cached_property
    def _graph_reading(self) -> tuple[ModelGraph | None, str | None]:
        version = self.served_version
        if version is None or self.backend not in _GRAPH_READERS:
            return None, None
        suffix, reader = _GRAPH_READERS[self.backend]
        [name] = self.file_names
        if name not in self.version_files(version) or not name.endswith(suffix):
            return None, None
        path = self.path / str(version) / name
        try:
            # A graph with external weights may be in a folder of that name.
            path = path / name if is_folder(path) else path
            return (reader(path), None) if is_file(path) else (None, None)
        except OSError as error:
            return None, error.strerror or str(error)
        except UndecidedFileError as error:
            return None, str(error)

    @cached_property
    def code(self) -> PythonSource | None:
        """The model.py of the served version of a Python model; None if it is missing."""
        version = self.served_version
        if self.backend != "python" or version is None:
            return None
        [name] = self.file_names
        if name not in self.version_files(version):
            return None
        return read_python(
            self.path / str(version) / name, f"{self.display_path}/{version}/{name}", MAX_CODE_BYTES
        )


@dataclass(frozen=True)
class Repository:
    """A folder of models."""

    path: Path
    target: CheckTarget
    models: dict[str, Model] = field(default_factory=dict)
    display_path: str = "."

    @classmethod
    def read(cls, path: Path, display_path: str, target: CheckTarget) -> Repository:
        """Read a folder. Raises OSError when the folder itself cannot be read."""
        list(path.iterdir())
        names = [name for name in Model("", path, display_path).folders if not name.startswith(".")]
        models = {
            n: Model(n, path / n, f"{display_path}/{n}" if display_path != "." else n)
            for n in names
        }
        return cls(path, target, models, display_path)

    def folder(self, name: str = "") -> Model:
        """Return a folder that is not a model, or the repository itself, to report a hit on it."""
        return Model(
            "", self.path / name, f"{self.display_path}/{name}".removeprefix("./").rstrip("/")
        )


def folder_entries(folder: Path) -> Iterator[tuple[str, os.stat_result | None]]:
    """Yield the entries of a folder with their statuses, links followed; None: a broken link."""
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return
    for path in paths:
        try:
            yield path.name, path.stat()
        except OSError:  # a broken or circular link
            yield path.name, None


def read_config(path: Path, display_path: str) -> ConfigFile:
    """Read a config.pbtxt; an error is part of the result."""
    empty = SourceText(display_path, "")
    try:
        content = read_small(path, MAX_CONFIG_BYTES)
    except UnreadableError as error:
        return ConfigFile(path, empty, read_error=str(error))
    # Strings must be UTF-8, comments need not. Other bytes become errors only in strings.
    source = SourceText(display_path, content.decode("utf-8", "surrogateescape"))
    try:
        config = read(parse(source.text), model_config_schema().ModelConfig())
    except TextprotoError as error:
        return ConfigFile(path, source, parse_error=error)
    return ConfigFile(path, source, config)
