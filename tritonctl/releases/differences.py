# SPDX-License-Identifier: Apache-2.0
"""How two releases differ: for clients first, then in settings, engines, configurations, files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tritonctl.protocol.model_config import Config, all_steps, is_decoupled
from tritonctl.releases.manifest import REPOSITORY, REQUIREMENTS
from tritonctl.releases.store import Stored
from tritonctl.repository.contents import CONFIG, read_config

Section = Literal["clients", "project", "engine", "version", "lock", "config", "file"]
_SIDES = ("input", "output")


@dataclass(frozen=True)
class Difference:
    """One thing with its values; None: absent. `breaking`: a client of the left release may fail.

    `change` is right - left of numbers.
    """

    section: Section
    field: str
    left: Any
    right: Any
    breaking: bool = False

    @property
    def change(self) -> float | None:
        """How much more the right one has, for two numbers."""
        values = (self.left, self.right)
        if any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
            return None
        return float(self.right - self.left)


def differences(left: Stored, right: Stored) -> list[Difference]:
    """What differs, in the order of sections. Raises RepositoryError, ConfigurationError."""
    one, other = left.manifest(), right.manifest()
    first, second = _configs(left), _configs(right)
    records = [(each.model_dump(mode="json"), each) for each in (one, other)]
    found = [*_clients(_public(first), _public(second), first, second)]
    for section, key in (("project", "project"), ("version", "versions"), ("lock", "lock")):
        found += _fields(section, "", *(record[key] for record, _ in records))
    found += _fields("engine", "", *(record["engines"] for record, _ in records))
    found += _fields("config", "", *({**each} for each in (first, second)))
    found += _fields("file", "", _files(left), _files(right))
    order = ("clients", "project", "engine", "version", "lock", "config", "file")
    return sorted(found, key=lambda one: (not one.breaking, order.index(one.section)))


def _configs(stored: Stored) -> dict[str, Config]:
    """The configuration of every model, with places in the release's own folder left out."""
    configs = {}
    for model in stored.manifest().models:
        place = f"{stored.repository / model.name}/{model.version}/"
        config = read_config(stored.repository / model.name / CONFIG)
        configs[model.name] = _without(config, place)
    return configs


def _without(value: Any, place: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _without(inner, place) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without(inner, place) for inner in value]
    return value.replace(place, "") if isinstance(value, str) else value


def _public(configs: Mapping[str, Config]) -> set[str]:
    """The models that no other one asks."""
    steps = {step for name in configs for step in all_steps(name, configs)}
    return {*configs} - steps


def _clients(
    before: set[str], after: set[str], left: Mapping[str, Config], right: Mapping[str, Config]
) -> Iterator[Difference]:
    """Public models and their tensors."""
    for name in sorted(before | after):
        if name not in right:
            yield Difference("clients", name, "served", None, breaking=name in before)
        elif name not in left:
            yield Difference("clients", name, None, "served")
        elif name in before:
            yield from _contract(name, left, right)


def _contract(
    name: str, left: Mapping[str, Config], right: Mapping[str, Config]
) -> Iterator[Difference]:
    for side in _SIDES:
        one, other = ({t["name"]: t for t in each[name].get(side, ())} for each in (left, right))
        for tensor in dict.fromkeys([*one, *other]):
            before, after = one.get(tensor), other.get(tensor)
            if _type(before) != _type(after):
                field = f"{name}.{side}.{tensor}"
                breaks = _breaks(side, before, after)
                yield Difference("clients", field, _type(before), _type(after), breaks)
    sizes = [int(each[name].get("max_batch_size", 0)) for each in (left, right)]
    if sizes[0] != sizes[1]:  # from or to 0 a dimension comes or goes
        breaks = sizes[1] < sizes[0] or sizes[0] == 0
        field = f"{name}.max_batch_size"
        yield Difference("clients", field, sizes[0], sizes[1], breaks)
    streams = [
        any(is_decoupled(each[part]) for part in (name, *all_steps(name, each)) if part in each)
        for each in (left, right)
    ]
    if streams[0] != streams[1]:
        yield Difference("clients", f"{name}.streams", streams[0], streams[1], breaking=True)


def _type(tensor: Mapping[str, Any] | None) -> str | None:
    """Such as `TYPE_INT32 [-1] optional`."""
    if tensor is None:
        return None
    optional = " optional" if tensor.get("optional") else ""
    return f"{tensor.get('data_type')} {[int(dim) for dim in tensor.get('dims', ())]}{optional}"


def _breaks(side: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> bool:
    """Whether a client that was written for `before` may fail with `after`."""
    if after is None:
        return True
    if before is None:
        return side == "input" and not after.get("optional")
    if before.get("data_type") != after.get("data_type"):
        return True
    if side == "input" and before.get("optional") and not after.get("optional"):
        return True
    dims = [[int(dim) for dim in each.get("dims", ())] for each in (before, after)]
    if side == "output" or len(dims[0]) != len(dims[1]):
        return dims[0] != dims[1]
    return any(new not in (-1, old) for old, new in zip(*dims, strict=True))


def _fields(section: Any, name: str, left: Any, right: Any) -> Iterator[Difference]:
    """Values that differ, by their dotted names; what is absent and what is null are one."""
    if left == right:
        return
    if isinstance(left, Mapping) or isinstance(right, Mapping):
        one, other = (each if isinstance(each, Mapping) else {} for each in (left, right))
        for key in dict.fromkeys([*one, *other]):
            field = f"{name}.{key}" if name else str(key)
            yield from _fields(section, field, one.get(key), other.get(key))
    elif _records(left) or _records(right):
        one, other = _named(left), _named(right)
        yield from _fields(section, name, one, other)
    else:
        yield Difference(section, name, left, right)


def _records(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def _named(value: Any) -> dict[str, Any]:
    """A list of records by their names, or by their places."""
    records = value if isinstance(value, list) else []
    return {str(each.get("name", at)): each for at, each in enumerate(records)}


def _files(stored: Stored) -> dict[str, str]:
    """Digests by path, without version folders and configurations."""
    release = stored.manifest()
    digests = {}
    for file in release.files:
        path = Path(file.path)
        if path.name == CONFIG and path.parts[0] == REPOSITORY:
            continue
        digests[_unversioned(path.parts, stored)] = file.sha256[:16]
    return digests


def _unversioned(parts: tuple[str, ...], stored: Stored) -> str:
    if parts[0] == REQUIREMENTS:
        return "/".join(parts)
    versions = {model.name: model.version for model in stored.manifest().models}
    inner = parts[2:]
    if versions.get(parts[1]) == inner[0]:
        inner = inner[1:]
    return "/".join((parts[1], *inner))
