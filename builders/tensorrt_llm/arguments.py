# SPDX-License-Identifier: Apache-2.0
"""Reads arguments.toml: the arguments of trtllm-build and tensorrt_llm.LLM by version.

Standard library only.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from buildlib.problems import BuildError
from buildlib.request_types import BuilderRequest

_FILE = Path(__file__).with_name("arguments.toml")
# The last version that compiles engines. Stands for an unknown version.
LAST_WITH_ENGINES = "1.2.1"
_FINAL = 10_000


@dataclass(frozen=True)
class BuildOption:
    """An argument of trtllm-build."""

    name: str
    kind: str
    default: str | int | bool | None = None  # None: the tool decides
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    short: str | None = None
    elsewhere: str | None = None  # remedy for an argument that cannot be set here
    since: str | None = None
    removed_in: str | None = None


@dataclass(frozen=True)
class LlmArgument:
    """An argument of tensorrt_llm.LLM, or a field of one of its configuration classes."""

    name: str
    type: str | None  # None: the value is not checked
    choices: tuple[str, ...]
    more: Mapping[
        str, tuple[str, ...]
    ]  # later choices, or words besides the type, by first version
    dropped: Mapping[str, tuple[str, ...]]  # choices by the version that refuses them
    maximum: int | None
    fields: Mapping[str, "LlmArgument"]  # of its class
    null: bool  # whether null is allowed
    worlds: tuple[str, ...]
    option: tuple[str, ...]  # worlds in which engine.options may set it
    ignored: Mapping[str, str]  # by world, the version from which the runtime ignores it
    elsewhere: str | None  # remedy for an argument that cannot be set here
    since: str | None
    removed_in: str | None
    replacement: str | None  # the field that replaced a removed one
    unread: tuple[str, ...]  # releases that may or may not have it
    class_name: str | None


@dataclass(frozen=True)
class ReadRelease:
    """A release whose arguments of tensorrt_llm.LLM were read, and from what."""

    version: str
    source: str
    partly: tuple[str, ...] = ()  # classes and kinds of which fields may be missing in the table


@dataclass(frozen=True)
class SpeculationKind:
    """A kind of speculative decoding in one range of versions. arguments.toml has the flags."""

    name: str
    fields: tuple[str, ...]
    fields_since: Mapping[str, tuple[str, ...]]
    needs: tuple[str, ...]
    runtime: str
    code: bool
    collects: bool
    now: str | None
    since: str | None
    removed_in: str | None


def version_order(version: str) -> tuple[int, ...]:
    """Return a sort key of a version. A release candidate comes before its release."""
    numbers = [int(number) for number in re.findall(r"\d+", version.split("rc", maxsplit=1)[0])]
    candidate = re.search(r"rc(\d+)", version)
    return (*numbers[:3], int(candidate[1]) if candidate else _FINAL)


def is_version_or_later(version: str, minimum: str) -> bool:
    """Whether `version` is `minimum` or later."""
    return version_order(version) >= version_order(minimum)


def target_version(request: BuilderRequest) -> str:
    """Return the TensorRT-LLM version of a request's target."""
    target = request.target
    return (target.tensorrt_llm if target else None) or LAST_WITH_ENGINES


def is_available(entry: BuildOption | LlmArgument | SpeculationKind, version: str) -> bool:
    """Whether a version has the entry, or may have it because that was not read."""
    if isinstance(entry, LlmArgument) and version in entry.unread:
        return True
    if entry.since and not is_version_or_later(version, entry.since):
        return False
    return not (entry.removed_in and is_version_or_later(version, entry.removed_in))


@cache
def read_table() -> dict[str, Any]:
    """Return the content of arguments.toml. Raises BuildError."""
    try:
        return tomllib.loads(_FILE.read_text(encoding="utf-8"))
    except OSError as error:
        raise BuildError(
            f"{_FILE}: cannot be read: {error.strerror}",
            remedy="Install tritonctl again, or copy the file from its builders/tensorrt_llm/.",
        ) from error


@cache
def build_options() -> dict[str, BuildOption]:
    """Return the arguments of trtllm-build of all versions by name."""
    entries = {**read_table()["build"], **read_table()["plugins"]}
    return {name: _option(name, entry) for name, entry in entries.items()}


def _option(name: str, entry: Mapping[str, Any]) -> BuildOption:
    words = entry.get("choices") or read_table()["words"].get(entry.get("choices_of"), ())
    fields = {key: value for key, value in entry.items() if key not in ("choices", "choices_of")}
    aliases, removed_in = tuple(fields.pop("aliases", ())), fields.pop("gone", None)
    return BuildOption(name, choices=tuple(words), aliases=aliases, removed_in=removed_in, **fields)


def settable_options(kinds: tuple[str, ...]) -> dict[str, BuildOption]:
    """Return the arguments of these kinds that engine.options.compile may set."""
    return {
        name: option
        for name, option in build_options().items()
        if option.kind in kinds and option.elsewhere is None
    }


@cache
def read_releases() -> dict[str, ReadRelease]:
    """Return the releases whose arguments of tensorrt_llm.LLM were read, by version."""
    return {
        entry["version"]: ReadRelease(
            entry["version"], entry["source"], tuple(entry.get("partly", ()))
        )
        for entry in read_table()["releases"]
    }


def is_read(version: str) -> bool:
    """Whether this release's arguments of tensorrt_llm.LLM were read."""
    return version in read_releases()


def may_have_other_fields(name: str | None, version: str) -> bool:
    """Whether a class or kind may have fields in this release that the table lacks."""
    release = read_releases().get(version)
    return release is None or name in release.partly


@cache
def llm_arguments() -> dict[str, LlmArgument]:
    """Return the arguments of tensorrt_llm.LLM of all versions and both worlds by name."""
    return {name: _argument(name, entry) for name, entry in read_table()["llm"].items()}


@cache
def class_fields(name: str) -> dict[str, LlmArgument]:
    """Return the fields of a configuration class."""
    return {key: _argument(key, entry) for key, entry in read_table()["classes"][name].items()}


def _argument(name: str, entry: Mapping[str, Any]) -> LlmArgument:
    return LlmArgument(
        name=name,
        type=entry.get("type"),
        choices=tuple(entry.get("choices", ())),
        more=_by_version(entry.get("more", {})),
        dropped=_by_version(entry.get("dropped", {})),
        maximum=entry.get("most"),
        fields=class_fields(entry["class"]) if "class" in entry else {},
        null=entry.get("null", False),
        worlds=tuple(entry.get("worlds", ("engine", "pytorch"))),
        option=tuple(entry.get("option", ())),
        ignored=entry.get("ignored", {}),
        elsewhere=entry.get("elsewhere"),
        since=entry.get("since"),
        removed_in=entry.get("gone"),
        replacement=entry.get("now"),
        unread=tuple(entry.get("unread", ())),
        class_name=entry.get("class"),
    )


@cache
def speculation_kinds() -> tuple[SpeculationKind, ...]:
    """Return the kinds of speculative decoding, with one entry per change."""
    return tuple(
        SpeculationKind(
            name=entry["name"],
            fields=tuple(entry.get("fields", ())),
            fields_since=_by_version(entry.get("fields_since", {})),
            needs=tuple(entry.get("needs", ())),
            runtime=entry.get("runtime", "pytorch"),
            code=entry.get("code", False),
            collects=entry.get("collects", False),
            now=entry.get("now"),
            since=entry.get("since"),
            removed_in=entry.get("gone"),
        )
        for entry in read_table()["speculation"]["kinds"]
    )


def speculation_fields(kind: SpeculationKind) -> dict[str, LlmArgument]:
    """Return the fields of a kind's speculative_config in all versions, without decoding_type."""
    section = read_table()["speculation"]
    first_versions = {name: since for since, names in kind.fields_since.items() for name in names}
    fields = {name: _argument(name, entry) for name, entry in section["common"].items()}
    for name in (*kind.fields, *first_versions):
        entry = section["fields"][name]
        since = first_versions.get(name)
        fields[name] = _argument(name, {**entry, "since": since} if since else entry)
    return fields


def _by_version(entry: Mapping[str, list[str]]) -> dict[str, tuple[str, ...]]:
    return {since: tuple(names) for since, names in entry.items()}


def supported_models(feature: str) -> tuple[str, ...]:
    """Return the architectures of an option of trtllm-build or of a draft mode."""
    return tuple(read_table()["models"][feature])
