# SPDX-License-Identifier: Apache-2.0
"""A model repository as it lies on disk, read without running or importing anything of it.

Whatever lies there - links in a circle, files nobody may read, gigabytes - becomes a value that
rules can report; reading never fails.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tritonctl.checks.config.backends import DEFAULT_FILES, backend_of_files
from tritonctl.checks.config.lexer import TextprotoError
from tritonctl.checks.config.message import HARMLESS, ConfigMessage, read
from tritonctl.checks.config.schema import model_config_schema
from tritonctl.checks.config.textproto import parse
from tritonctl.checks.model_py.source import PythonSource, read_python
from tritonctl.checks.places import Source, Span
from tritonctl.checks.small_file import UnreadableError, read_small
from tritonctl.errors import UsageError
from tritonctl.formats.graph_file import Graph, UnjudgedError
from tritonctl.formats.onnx_graph import read_onnx
from tritonctl.formats.openvino_ir import read_ir

CONFIG = "config.pbtxt"
VARIANTS = "configs"
# Far above any real one; protobuf itself would take minutes and gigabytes.
LARGEST_CONFIG = 4 << 20
LARGEST_CODE = 2 << 20
LARGEST_VERSION = 2**63 - 1
_VERSION = re.compile("0|[1-9][0-9]{0,18}")
# Of backends whose file is a graph that we can read: its usual name, its ending, its reader.
_GRAPHS = {
    "onnxruntime": (".onnx", read_onnx),
    "openvino": (".xml", read_ir),
}


@dataclass(frozen=True)
class OpenAi:
    """What the frontend before the repository offers: `frontend:` of a project.

    models: those that generate text, by public name. aliases: further names. keys: files of
    tenants' keys, absolute or below the repository.
    """

    models: Sequence[str] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """Where the repository will be served. What is None is unknown: rules about it stay silent.

    version: of Triton. cores: that all instances share. shared_memory_bytes: of /dev/shm.
    gpus: the memory of each, in bytes; () is a machine without. slo_ms: the longest that an answer
    (or the first part of a streamed one) may take, by model. memory_bytes: of the machine or the
    container, without the GPUs'. named_by_user: whether somebody means
    this very version, rather than the one that happens to be here. completes: whether Triton
    completes configurations, as it does unless it is started with --disable-auto-complete-config.
    openai: of the frontend before it, where there is one.
    """

    version: str | None = None
    cores: int | None = None
    shared_memory_bytes: int | None = None
    gpus: tuple[int, ...] | None = None
    slo_ms: Mapping[str, float] = field(default_factory=dict)
    named_by_user: bool = False
    memory_bytes: int | None = None
    completes: bool = True
    openai: OpenAi | None = None

    @classmethod
    def named(cls, name: str | None) -> Target:
        """A server by version, "2.51.0", or release, "24.10". Raises UsageError."""
        if name is None:
            return cls()
        from tritonctl.project.compatibility.table import table  # slow to import: pydantic

        known = {release.name: release.triton for release in table(None).releases if release.triton}
        version = known.get(name, name)
        if not re.fullmatch(r"2\.\d+(\.\d+)?", version):
            raise UsageError(
                f"unknown version of Triton: {name}",
                remedy=f"write one such as 2.51.0, or a release, {min(known)} to {max(known)}",
            )
        return cls(version, named_by_user=True)


@dataclass(frozen=True)
class ConfigFile:
    """A config.pbtxt. Without `config`, `broken` says why it could not be read."""

    path: Path
    source: Source
    config: ConfigMessage | None = None
    broken: TextprotoError | None = None
    unreadable: str | None = None


@dataclass(frozen=True)
class Model:
    """A folder of the repository."""

    name: str
    path: Path
    shown: str

    @cached_property
    def entries(self) -> dict[str, os.stat_result | None]:
        """What lies in the folder, links followed; None for broken links."""
        return dict(entries_of(self.path))

    @cached_property
    def folders(self) -> list[str]:
        """The names of the folders in it."""
        statuses = self.entries.items()
        return [name for name, status in statuses if status and stat.S_ISDIR(status.st_mode)]

    @cached_property
    def versions(self) -> list[int]:
        """The version folders that Triton sees: whole numbers, written without a leading zero."""
        numbers = (int(name) for name in self.folders if _VERSION.fullmatch(name))
        return sorted(version for version in numbers if version <= LARGEST_VERSION)

    @cached_property
    def file(self) -> ConfigFile | None:
        """config.pbtxt; None where the file is missing."""
        if CONFIG not in self.entries:
            return None
        return read_config(self.path / CONFIG, f"{self.shown}/{CONFIG}")

    @cached_property
    def variants(self) -> dict[str, ConfigFile]:
        """What --model-config-name chooses from, by name: the files of configs/."""
        folder = self.path / VARIANTS
        return {
            name.removesuffix(".pbtxt"): read_config(
                folder / name, f"{self.shown}/{VARIANTS}/{name}"
            )
            for name, _ in (entries_of(folder) if VARIANTS in self.entries else ())
            if name.endswith(".pbtxt")
        }

    @cached_property
    def config(self) -> ConfigMessage:
        """What config.pbtxt says; empty where it is absent or broken."""
        read = self.file.config if self.file else None
        return read or ConfigMessage(model_config_schema().ModelConfig(), {(): Span(0, 0)})

    @property
    def has_config(self) -> bool:
        """Whether there is a config.pbtxt whose text could be parsed."""
        return self.file is not None and self.file.config is not None

    @cached_property
    def config_is_valid(self) -> bool:
        """Whether no value of config.pbtxt is one that Triton cannot read."""
        return all(problem.mistake in HARMLESS for problem in self.config.problems)

    @property
    def is_readable(self) -> bool:
        """Whether Triton can read the configuration; if not, rules cannot rely on it."""
        return self.has_config and self.config_is_valid

    @cached_property
    def backend(self) -> str | None:
        """What serves it, "ensemble" for an ensemble; None where neither name nor file tells."""
        if self.file is not None and not self.has_config:
            return None
        message = self.config.message
        if message.platform == "ensemble" or message.HasField("ensemble_scheduling"):
            return "ensemble"
        return str(message.backend) or backend_of_files(message, self.first_folder)

    @property
    def file_names(self) -> tuple[str, ...]:
        """What the backend loads of a version's folder, any one of these."""
        named = self.config.message.default_model_filename
        return (str(named),) if named else DEFAULT_FILES.get(self.backend or "", ())

    def first_folder(self) -> Iterable[str]:
        """What lies in the first folder by name, in which Triton looks for a file that it knows."""
        return [name for one in self.folders[:1] for name, _ in entries_of(self.path / one)]

    @cached_property
    def served_versions(self) -> list[int]:
        """The existing versions that Triton loads."""
        return self.served_of(self.versions)

    def served_of(self, versions: list[int]) -> list[int]:
        """Those of these, in ascending order, that the version policy chooses."""
        if not self.config.message.HasField("version_policy"):
            return versions[-1:]
        policy = self.config.message.version_policy
        if policy.HasField("specific"):
            return [version for version in versions if version in policy.specific.versions]
        if policy.HasField("latest"):
            count = policy.latest.num_versions
            return versions[-count:] if count else []
        return versions  # of an empty policy, too

    @cached_property
    def served_version(self) -> int | None:
        """The version whose files say what the model does: the latest of those that are served."""
        return max(self.served_versions, default=None)

    def files_of(self, version: int) -> dict[str, os.stat_result | None]:
        """What lies in a version folder."""
        if version not in self._files:
            self._files[version] = dict(entries_of(self.path / str(version)))
        return self._files[version]

    @cached_property
    def _files(self) -> dict[int, dict[str, os.stat_result | None]]:
        return {}

    @cached_property
    def graph(self) -> Graph | None:
        """The graph that the backend loads; None where no file can be judged."""
        version = self.served_version
        if version is None or self.backend not in _GRAPHS:
            return None
        ending, reader = _GRAPHS[self.backend]
        [name] = self.file_names
        if name not in self.files_of(version) or not name.endswith(ending):
            return None
        path = self.path / str(version) / name
        try:
            # With its weights next to it, a graph may be a folder of that name.
            path = path / name if path.is_dir() else path
            return reader(path) if path.is_file() else None
        except (OSError, UnjudgedError):
            return None

    @cached_property
    def code(self) -> PythonSource | None:
        """The Python backend's model.py of the served version; None where it is missing."""
        version = self.served_version
        if self.backend != "python" or version is None:
            return None
        [name] = self.file_names
        if name not in self.files_of(version):
            return None
        return read_python(
            self.path / str(version) / name, f"{self.shown}/{version}/{name}", LARGEST_CODE
        )


@dataclass(frozen=True)
class Repository:
    """All models of a folder, by name."""

    path: Path
    target: Target
    models: dict[str, Model] = field(default_factory=dict)
    shown: str = "."

    @classmethod
    def at(cls, path: Path, shown: str, target: Target) -> Repository:
        """Read a folder. Raises OSError when the folder itself cannot be read."""
        list(path.iterdir())
        names = [name for name in Model("", path, shown).folders if not name.startswith(".")]
        models = {n: Model(n, path / n, f"{shown}/{n}" if shown != "." else n) for n in names}
        return cls(path, target, models, shown)

    def folder(self, name: str = "") -> Model:
        """A folder that is not a model, or the repository itself, for a finding about it."""
        return Model("", self.path / name, f"{self.shown}/{name}".removeprefix("./").rstrip("/"))


def entries_of(folder: Path) -> Iterator[tuple[str, os.stat_result | None]]:
    """What lies in a folder, by name, links followed; None for broken links."""
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return
    for path in paths:
        try:
            yield path.name, path.stat()
        except OSError:  # a link to nowhere, or to itself
            yield path.name, None


def read_config(path: Path, shown: str) -> ConfigFile:
    """Read a config.pbtxt; what stops it is in the result."""
    empty = Source(shown, "")
    try:
        content = read_small(path, LARGEST_CONFIG)
    except UnreadableError as error:
        return ConfigFile(path, empty, unreadable=str(error))
    # Strings must be UTF-8, comments need not: what is not becomes an error where it matters.
    source = Source(shown, content.decode("utf-8", "surrogateescape"))
    try:
        config = read(parse(source.text), model_config_schema().ModelConfig())
    except TextprotoError as error:
        return ConfigFile(path, source, broken=error)
    return ConfigFile(path, source, config)
