# SPDX-License-Identifier: Apache-2.0
"""Reads and types arguments of `tensorrt_llm.LLM(...)` by its names. Standard library only.

They decide how an engine or a checkpoint is served. arguments.toml lists them by version. Of a
release that it does not list, only the types of values are checked.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from arguments import (
    LlmArgument,
    is_available,
    is_read,
    is_version_or_later,
    llm_arguments,
    may_have_other_fields,
)
from buildlib.builder_toml import read_description
from buildlib.problems import BuildError, did_you_mean

ENGINE, PYTORCH = "engine", "pytorch"
DEFAULT_MAX_NUM_TOKENS: int = read_description(Path(__file__).parent)["max_num_tokens"]
_RUNTIME = {ENGINE: "tensorrt_llm._tensorrt_engine.LLM", PYTORCH: "tensorrt_llm.LLM"}

ValueCheck = Callable[[Any], bool]


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_positive(value: Any) -> bool:
    return _is_whole(value) and value > 0


def _is_fraction(value: Any) -> bool:
    return _is_number(value) and value <= 1


def _is_share(value: Any) -> bool:
    return _is_fraction(value) and value > 0


def _is_size_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_positive, value))


def _is_share_list(value: Any) -> bool:
    # The runtime's own tolerance (llm_args.py: validate_pool_ratio).
    shares = isinstance(value, list) and bool(value) and all(map(_is_share, value))
    return shares and math.isclose(sum(value), 1, rel_tol=0, abs_tol=1e-6)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _is_text_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_name_table(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _is_schedule(value: Any) -> bool:
    if not isinstance(value, dict) or not value:
        return False
    return all(key.isdecimal() and int(key) > 0 and _is_whole(value[key]) for key in value)


# By type of the table: the check, and the expected value in words.
_TYPES: dict[str, tuple[ValueCheck, str]] = {
    "switch": (lambda value: isinstance(value, bool), "true or false"),
    "whole": (_is_whole, "a whole number"),
    "positive": (_is_positive, "a whole number of at least 1"),
    "fraction": (_is_fraction, "a fraction from 0 to 1"),
    "share": (_is_share, "a number above 0, up to 1"),
    "number": (_is_number, "a number of at least 0"),
    "text": (lambda value: isinstance(value, str) and bool(value), "text"),
    "texts": (_is_text_list, "a list of text"),
    "sizes": (_is_size_list, "a list of whole numbers of at least 1"),
    "shares": (_is_share_list, "a list of numbers above 0 whose sum is 1"),
    "object": (lambda value: isinstance(value, dict), "an object"),
    "schedule": (_is_schedule, "an object from batch sizes to draft lengths"),
    "names": (_is_name_table, "an object with text as values"),
}


def settable_arguments(world: str) -> dict[str, LlmArgument]:
    """Return the arguments of all versions that the options of a world's stage may set."""
    return {
        name: argument for name, argument in llm_arguments().items() if world in argument.option
    }


def read_arguments(
    raw: Mapping[str, Any], world: str, version: str, location: str
) -> dict[str, Any]:
    """Check the arguments that the project has at `location`. `version`: of TensorRT-LLM.

    Raises:
        BuildError: a name is unknown, or this version's runtime does not take a value.
    """
    allowed = settable_arguments(world)
    for name in raw:
        if name not in allowed:
            raise _unknown_argument(f"{location}.{name}", name, list(allowed), _RUNTIME[world])
    check_fields(raw, allowed, version, location, of=_RUNTIME[world])
    return dict(raw)


def ignored_arguments(
    values: Mapping[str, Any], world: str, version: str
) -> Iterator[tuple[str, LlmArgument]]:
    """Yield the set fields that this version's runtime ignores."""
    for name, value in values.items():
        fields = llm_arguments()[name].fields if name in llm_arguments() else {}
        for key in value if fields and isinstance(value, dict) else ():
            ignored = fields[key].ignored if key in fields else {}
            since = ignored.get(world) if value[key] is not None else None
            if since and is_version_or_later(version, since):
                yield f"{name}.{key}", fields[key]


def check_fields(
    values: Mapping[str, Any],
    allowed: Mapping[str, LlmArgument],
    version: str,
    location: str,
    *,
    of: str,
) -> None:
    """Check fields of a class or of the arguments. `of` is its name in the table.

    Fields that the table lacks pass where it may lack some of this version. Raises BuildError.
    """
    for name, value in values.items():
        argument = allowed.get(name)
        if argument is None and may_have_other_fields(of, version):
            continue
        if argument is None:
            raise _unknown_argument(f"{location}.{name}", name, list(allowed), of)
        if is_read(version) and not is_available(argument, version):
            available = [key for key, field in allowed.items() if is_available(field, version)]
            raise _of_another_version(f"{location}.{name}", argument, version, available)
        _check_value(f"{location}.{name}", value, argument, version)


def _check_value(location: str, value: Any, argument: LlmArgument, version: str) -> None:
    if value is None and argument.null:
        return
    if argument.fields:
        if not isinstance(value, dict):
            keys = ", ".join(
                name for name, field in argument.fields.items() if is_available(field, version)
            )
            raise _invalid_value(location, value, f"an object with the keys {keys}", argument)
        check_fields(value, argument.fields, version, location, of=argument.class_name or "")
        return
    for refusing, words in argument.dropped.items():
        if is_read(version) and is_version_or_later(version, refusing) and value in words:
            raise BuildError(
                f"{location} is {value!r}, which TensorRT-LLM {version} no longer takes",
                remedy=f"Remove {location}, or set it to one of: "
                f"{', '.join(_choices(argument, version))}.",
            )
    check, expected = _expectation(argument, version)
    if not check(value):
        raise _invalid_value(location, value, expected, argument)


def _choices(argument: LlmArgument, version: str) -> tuple[str, ...]:
    """Return the choices of a read release, or those of all releases for another one."""
    reads = is_read(version)
    later = [
        word
        for since, words in argument.more.items()
        if not reads or is_version_or_later(version, since)
        for word in words
    ]
    dropped = {
        word
        for refusing, words in argument.dropped.items()
        if reads and is_version_or_later(version, refusing)
        for word in words
    }
    return tuple(word for word in (*argument.choices, *later) if word not in dropped)


def _expectation(argument: LlmArgument, version: str) -> tuple[ValueCheck, str]:
    choices, maximum = _choices(argument, version), argument.maximum
    if argument.choices:
        if not is_read(version):
            return (lambda value: isinstance(value, str), "text")
        return (lambda value: value in choices, f"one of {', '.join(choices)}")
    if argument.type is None:
        return (lambda _: True, "a value")
    check, expected = _TYPES[argument.type]
    words = f" or {' or '.join(choices)}" if choices else ""
    if maximum is not None:
        expected += f" of at most {maximum}"
    return (
        lambda value: (
            (isinstance(value, str) and value in choices)
            or (check(value) and (maximum is None or value <= maximum))
        ),
        f"{expected}{words}",
    )


def _invalid_value(location: str, value: Any, expected: str, argument: LlmArgument) -> BuildError:
    value_text = "null" if value is None else repr(value)
    return BuildError(
        f"{location} is {value_text}, expected {expected}{' or null' if argument.null else ''}",
        remedy=f"Correct {location}, or leave it out.",
    )


def _of_another_version(
    location: str, argument: LlmArgument, version: str, available: list[str]
) -> BuildError:
    parent, _, name = location.rpartition(".")
    remedy = f"Remove {location}, or set engine.target.release to a release that has it."
    if argument.removed_in and is_version_or_later(version, argument.removed_in):
        bounds = f"{argument.removed_in} does not have it any more"
        if argument.replacement:
            remedy = f"Set {parent}.{argument.replacement} instead."
    else:
        bounds = f"it was first seen in {argument.since}{did_you_mean(name, available)}"
    return BuildError(
        f"{location} is not an argument of TensorRT-LLM {version}: {bounds}", remedy=remedy
    )


def _unknown_argument(location: str, name: str, allowed: list[str], of: str) -> BuildError:
    return BuildError(
        f"{location} is not an argument of {of}{did_you_mean(name, allowed)}",
        remedy=f"Use one of: {', '.join(allowed)}.",
    )
