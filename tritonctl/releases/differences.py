# SPDX-License-Identifier: Apache-2.0
"""The differences of two releases: for clients, then settings, engines, configurations, files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from tritonctl.protocol.model_config import Config, all_steps, is_decoupled
from tritonctl.releases.manifest import REPOSITORY
from tritonctl.releases.store import StoredRelease
from tritonctl.repository.contents import CONFIG, read_config
from tritonctl.store.differences import Change, FieldDifference, compare_fields, compare_files
from tritonctl.store.files import StoredFile

Section = Literal["clients", "project", "engine", "version", "lock", "config", "file"]
_SIDES = ("input", "output")


@dataclass(frozen=True, kw_only=True)
class ReleaseDifference(FieldDifference):
    """One field with its value in each release; None: absent."""

    section: Section
    breaking: bool = False  # a client of the old release may fail with the new one

    @property
    def label(self) -> str:
        """The section and the field."""
        return f"{self.section} {self.field}"

    @property
    def remark(self) -> str:
        """The last column of a table."""
        return "BREAKS CLIENTS" if self.breaking else super().remark


_client_difference = partial(ReleaseDifference, section="clients")


def compare_releases(first: StoredRelease, second: StoredRelease) -> list[ReleaseDifference]:
    """Return the differences in the order of sections, breaking ones first.

    Raises RepositoryError, ConfigurationError.
    """
    releases = (first, second)
    configs = [_configs(stored) for stored in releases]
    records = [stored.manifest().model_dump(mode="json") for stored in releases]
    files = [_files(stored) for stored in releases]
    changes: list[tuple[Section, Iterator[Change]]] = [
        ("project", compare_fields("", *(record["project"] for record in records))),
        ("engine", compare_fields("", *(record["engines"] for record in records))),
        ("version", compare_fields("", *(record["versions"] for record in records))),
        ("lock", compare_fields("", *(record["lock"] for record in records))),
        ("config", compare_fields("", *configs)),
        ("file", compare_files(*files)),
    ]
    differences = [
        *_client_differences(*configs),
        *(ReleaseDifference(*change, section=name) for name, each in changes for change in each),
    ]
    return sorted(differences, key=lambda difference: not difference.breaking)


def _configs(stored: StoredRelease) -> dict[str, Config]:
    """Read the configuration of every model, without paths into the release's folder."""
    configs = {}
    for model in stored.manifest().models:
        place = f"{stored.repository / model.name}/{model.version}/"
        config = read_config(stored.repository / model.name / CONFIG)
        configs[model.name] = _without_text(config, place)
    return configs


def _without_text(value: Any, text: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_text(inner, text) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_text(inner, text) for inner in value]
    return value.replace(text, "") if isinstance(value, str) else value


def _public_models(configs: Mapping[str, Config]) -> set[str]:
    """The models that are not a step of an ensemble."""
    steps = {step for name in configs for step in all_steps(name, configs)}
    return {*configs} - steps


def _client_differences(
    old_configs: Mapping[str, Config],
    new_configs: Mapping[str, Config],
) -> Iterator[ReleaseDifference]:
    """Compare the public models and their tensors."""
    old_public, new_public = _public_models(old_configs), _public_models(new_configs)
    for name in sorted(old_public | new_public):
        if name not in new_configs:
            yield _client_difference(name, "served", None, breaking=name in old_public)
        elif name not in old_configs:
            yield _client_difference(name, None, "served")
        elif name in old_public:
            yield from _tensor_differences(name, old_configs, new_configs)


def _tensor_differences(
    name: str, old_configs: Mapping[str, Config], new_configs: Mapping[str, Config]
) -> Iterator[ReleaseDifference]:
    for side in _SIDES:
        old_tensors, new_tensors = (
            {t["name"]: t for t in each[name].get(side, ())} for each in (old_configs, new_configs)
        )
        for tensor_name in dict.fromkeys([*old_tensors, *new_tensors]):
            old_tensor, new_tensor = old_tensors.get(tensor_name), new_tensors.get(tensor_name)
            if _tensor_type(old_tensor) != _tensor_type(new_tensor):
                field = f"{name}.{side}.{tensor_name}"
                breaks = _is_breaking(side, old_tensor, new_tensor)
                yield _client_difference(
                    field, _tensor_type(old_tensor), _tensor_type(new_tensor), breaking=breaks
                )
    sizes = [int(each[name].get("max_batch_size", 0)) for each in (old_configs, new_configs)]
    if sizes[0] != sizes[1]:  # 0 means no batch dimension
        breaks = sizes[1] < sizes[0] or sizes[0] == 0
        field = f"{name}.max_batch_size"
        yield _client_difference(field, sizes[0], sizes[1], breaking=breaks)
    streams = [
        any(is_decoupled(each[part]) for part in (name, *all_steps(name, each)) if part in each)
        for each in (old_configs, new_configs)
    ]
    if streams[0] != streams[1]:
        yield _client_difference(f"{name}.streams", *streams, breaking=True)


def _tensor_type(tensor: Mapping[str, Any] | None) -> str | None:
    """Such as `TYPE_INT32 [-1] optional`."""
    if tensor is None:
        return None
    optional = " optional" if tensor.get("optional") else ""
    return f"{tensor.get('data_type')} {[int(dim) for dim in tensor.get('dims', ())]}{optional}"


def _is_breaking(
    side: str, old_tensor: Mapping[str, Any] | None, new_tensor: Mapping[str, Any] | None
) -> bool:
    """Whether a client that was written for the old tensor may fail with the new one."""
    if new_tensor is None:
        return True
    if old_tensor is None:
        return side == "input" and not new_tensor.get("optional")
    if old_tensor.get("data_type") != new_tensor.get("data_type"):
        return True
    if side == "input" and old_tensor.get("optional") and not new_tensor.get("optional"):
        return True
    dims = [[int(dim) for dim in each.get("dims", ())] for each in (old_tensor, new_tensor)]
    if side == "output" or len(dims[0]) != len(dims[1]):
        return dims[0] != dims[1]
    return any(new not in (-1, old) for old, new in zip(*dims, strict=True))


def _files(stored: StoredRelease) -> dict[str, StoredFile]:
    """Return the files by path, without version folders and configurations."""
    versions = {model.name: model.version for model in stored.manifest().models}
    files: dict[str, StoredFile] = {}
    for file in stored.files:
        part, name, *inner = file.path.split("/")
        if part != REPOSITORY:
            files[file.path] = file
        elif inner[-1] != CONFIG:
            inner = inner[1:] if inner[0] == versions.get(name) else inner
            files["/".join((name, *inner))] = file
    return files
