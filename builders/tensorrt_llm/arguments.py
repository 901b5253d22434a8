# SPDX-License-Identifier: Apache-2.0
"""What trtllm-build and tensorrt_llm.LLM take, by version: arguments.toml, read and typed.

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
from buildlib.request import Request

_FILE = Path(__file__).with_name("arguments.toml")
# Of a version that is not known: the last one that compiles engines.
LAST_WITH_ENGINES = "1.2.1"
_FINAL = 10_000


@dataclass(frozen=True)
class Option:
    """An argument of trtllm-build. `default`: None where the tool decides by itself.

    `elsewhere`: it is no option of ours, and what to do instead.
    """

    name: str
    kind: str
    default: str | int | bool | None = None
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    short: str | None = None
    elsewhere: str | None = None
    since: str | None = None
    gone: str | None = None


@dataclass(frozen=True)
class Argument:
    """An argument of tensorrt_llm.LLM, or a field of one of its configuration classes.

    `type`: None where its value is not looked at; `fields`: those of its class. `option`: the
    worlds in which engine.options may set it. `ignored`: by world, since when the runtime does not
    look at it.
    """

    name: str
    type: str | None
    choices: tuple[str, ...]
    more: Mapping[str, tuple[str, ...]]
    fields: Mapping[str, "Argument"]
    null: bool
    worlds: tuple[str, ...]
    option: tuple[str, ...]
    ignored: Mapping[str, str]
    elsewhere: str | None
    since: str | None
    gone: str | None


@dataclass(frozen=True)
class Kind:
    """A kind of speculative decoding, as one range of versions takes it. Flags: see the table."""

    name: str
    fields: tuple[str, ...]
    fields_since: Mapping[str, tuple[str, ...]]
    needs: tuple[str, ...]
    runtime: str
    code: bool
    collects: bool
    now: str | None
    since: str | None
    gone: str | None


def order(version: str) -> tuple[int, ...]:
    """Return a version's place among the others: a candidate comes before its release."""
    numbers = [int(number) for number in re.findall(r"\d+", version.split("rc", maxsplit=1)[0])]
    candidate = re.search(r"rc(\d+)", version)
    return (*numbers[:3], int(candidate[1]) if candidate else _FINAL)


def reaches(version: str, since: str) -> bool:
    """Return whether `version` is that one or a later one."""
    return order(version) >= order(since)


def version_of(request: Request) -> str:
    """Return the version of TensorRT-LLM that a request is for."""
    target = request.target
    return (target.tensorrt_llm if target else None) or LAST_WITH_ENGINES


def exists(fact: Option | Argument | Kind, version: str) -> bool:
    """Return whether a version has it."""
    if fact.since and not reaches(version, fact.since):
        return False
    return not (fact.gone and reaches(version, fact.gone))


@cache
def table() -> dict[str, Any]:
    """Return the table as it is. Raises BuildError."""
    try:
        return tomllib.loads(_FILE.read_text(encoding="utf-8"))
    except OSError as error:
        raise BuildError(
            f"{_FILE}: cannot be read: {error.strerror}",
            remedy="Install tritonctl again, or copy the file from its builders/tensorrt_llm/.",
        ) from error


@cache
def build_options() -> dict[str, Option]:
    """Return the arguments of trtllm-build by name, of all versions."""
    entries = {**table()["build"], **table()["plugins"]}
    return {name: _option(name, entry) for name, entry in entries.items()}


def _option(name: str, entry: Mapping[str, Any]) -> Option:
    words = entry.get("choices") or table()["words"].get(entry.get("choices_of"), ())
    rest = {key: value for key, value in entry.items() if key not in ("choices", "choices_of")}
    aliases = tuple(rest.pop("aliases", ()))
    return Option(name, choices=tuple(words), aliases=aliases, **rest)


def settable(kinds: tuple[str, ...]) -> dict[str, Option]:
    """Return the arguments of trtllm-build that engine.options.compile may set, of these kinds."""
    return {
        name: option
        for name, option in build_options().items()
        if option.kind in kinds and option.elsewhere is None
    }


@cache
def llm_arguments() -> dict[str, Argument]:
    """Return the arguments of tensorrt_llm.LLM by name, of all versions and both worlds."""
    return {name: _argument(name, entry) for name, entry in table()["llm"].items()}


@cache
def fields_of(name: str) -> dict[str, Argument]:
    """Return the fields of a configuration class."""
    return {key: _argument(key, entry) for key, entry in table()["classes"][name].items()}


def _argument(name: str, entry: Mapping[str, Any]) -> Argument:
    return Argument(
        name=name,
        type=entry.get("type"),
        choices=tuple(entry.get("choices", ())),
        more={since: tuple(words) for since, words in entry.get("more", {}).items()},
        fields=fields_of(entry["class"]) if "class" in entry else {},
        null=entry.get("null", False),
        worlds=tuple(entry.get("worlds", ("engine", "pytorch"))),
        option=tuple(entry.get("option", ())),
        ignored=entry.get("ignored", {}),
        elsewhere=entry.get("elsewhere"),
        since=entry.get("since"),
        gone=entry.get("gone"),
    )


@cache
def speculation_kinds() -> tuple[Kind, ...]:
    """Return the kinds of speculative decoding, each as often as it changed."""
    return tuple(
        Kind(
            name=entry["name"],
            fields=tuple(entry.get("fields", ())),
            fields_since=_by_version(entry.get("fields_since", {})),
            needs=tuple(entry.get("needs", ())),
            runtime=entry.get("runtime", "pytorch"),
            code=entry.get("code", False),
            collects=entry.get("collects", False),
            now=entry.get("now"),
            since=entry.get("since"),
            gone=entry.get("gone"),
        )
        for entry in table()["speculation"]["kinds"]
    )


def speculation_fields(kind: Kind, version: str) -> tuple[str, ...]:
    """Return the fields of a speculative_config of this kind, decoding_type aside."""
    shared = table()["speculation"]
    later = {**_by_version(shared["common_since"])}
    added = [*later.items(), *kind.fields_since.items()]
    more = [name for since, names in added if reaches(version, since) for name in names]
    return (*shared["common"], *kind.fields, *more)


def _by_version(entry: Mapping[str, list[str]]) -> dict[str, tuple[str, ...]]:
    return {since: tuple(names) for since, names in entry.items()}


def models(feature: str) -> tuple[str, ...]:
    """Return the architectures that an option of trtllm-build, or a mode of drafts, is for."""
    return tuple(table()["models"][feature])
