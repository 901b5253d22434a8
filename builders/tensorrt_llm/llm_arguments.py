# SPDX-License-Identifier: Apache-2.0
"""Reads and types arguments of `tensorrt_llm.LLM(...)` by its names. Standard library only.

They decide how an engine or a checkpoint is served. arguments.toml lists them by version.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from arguments import LlmArgument, is_available, is_version_or_later, llm_arguments
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
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _is_size_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_positive, value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _is_text_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


# By type of the table: the check, and the expected value in words.
_TYPES: dict[str, tuple[ValueCheck, str]] = {
    "switch": (lambda value: isinstance(value, bool), "true or false"),
    "whole": (_is_whole, "a whole number"),
    "positive": (_is_positive, "a whole number of at least 1"),
    "fraction": (_is_fraction, "a fraction from 0 to 1"),
    "number": (_is_number, "a number of at least 0"),
    "text": (lambda value: isinstance(value, str) and bool(value), "text"),
    "texts": (_is_text_list, "a list of text"),
    "sizes": (_is_size_list, "a list of whole numbers of at least 1"),
    "object": (lambda value: isinstance(value, dict), "an object"),
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
    _check_object(raw, settable_arguments(world), world, version, location)
    return dict(raw)


def ignored_arguments(
    values: Mapping[str, Any], world: str, version: str
) -> Iterator[tuple[str, LlmArgument]]:
    """Yield the set fields that this version's runtime ignores."""
    for name, value in values.items():
        fields = llm_arguments()[name].fields if name in llm_arguments() else {}
        for key in value if fields and isinstance(value, dict) else ():
            since = fields[key].ignored.get(world) if value[key] is not None else None
            if since and is_version_or_later(version, since):
                yield f"{name}.{key}", fields[key]


def _check_object(
    values: Mapping[str, Any],
    allowed: Mapping[str, LlmArgument],
    world: str,
    version: str,
    location: str,
) -> None:
    for name, value in values.items():
        if name not in allowed:
            raise _unknown_argument(f"{location}.{name}", name, list(allowed), world)
        argument = allowed[name]
        if not is_available(argument, version):
            raise _of_another_version(f"{location}.{name}", argument, version)
        _check_value(f"{location}.{name}", value, argument, world, version)


def _check_value(
    location: str, value: Any, argument: LlmArgument, world: str, version: str
) -> None:
    if value is None and argument.null:
        return
    if argument.fields:
        if not isinstance(value, dict):
            keys = ", ".join(
                name for name, field in argument.fields.items() if is_available(field, version)
            )
            raise _invalid_value(location, value, f"an object with the keys {keys}", argument)
        _check_object(value, argument.fields, world, version, location)
        return
    check, expected = _expectation(argument, version)
    if not check(value):
        raise _invalid_value(location, value, expected, argument)


def _expectation(argument: LlmArgument, version: str) -> tuple[ValueCheck, str]:
    if not argument.choices:
        return _TYPES[argument.type or "object"]
    added = [
        word
        for since, words in argument.more.items()
        if is_version_or_later(version, since)
        for word in words
    ]
    choices = (*argument.choices, *added)
    return (lambda value: value in choices, f"one of {', '.join(choices)}")


def _invalid_value(location: str, value: Any, expected: str, argument: LlmArgument) -> BuildError:
    value_text = "null" if value is None else repr(value)
    return BuildError(
        f"{location} is {value_text}, expected {expected}{' or null' if argument.null else ''}",
        remedy=f"Correct {location}, or leave it out.",
    )


def _of_another_version(location: str, argument: LlmArgument, version: str) -> BuildError:
    if argument.removed_in and is_version_or_later(version, argument.removed_in):
        bounds = f"it was removed in {argument.removed_in}"
    else:
        bounds = f"it exists from {argument.since} on"
    return BuildError(
        f"{location} is not an argument of TensorRT-LLM {version}: {bounds}",
        remedy=f"Remove {location}, or set engine.target.release to a release that has it.",
    )


def _unknown_argument(location: str, name: str, allowed: list[str], world: str) -> BuildError:
    return BuildError(
        f"{location} is not an argument of {_RUNTIME[world]}{did_you_mean(name, allowed)}",
        remedy=f"Use one of: {', '.join(allowed)}.",
    )
