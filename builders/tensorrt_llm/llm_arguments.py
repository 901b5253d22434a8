# SPDX-License-Identifier: Apache-2.0
"""Arguments of `tensorrt_llm.LLM(...)`, by its own names, read and typed. Standard library only.

They decide how an engine or a checkpoint is served. What there is, and since when, is in
arguments.toml.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from arguments import Argument, exists, llm_arguments, reaches
from buildlib.builder_toml import read_description
from buildlib.problems import BuildError, nearest

ENGINE, PYTORCH = "engine", "pytorch"
DEFAULT_MAX_NUM_TOKENS: int = read_description(Path(__file__).parent)["max_num_tokens"]
_RUNTIME = {ENGINE: "tensorrt_llm._tensorrt_engine.LLM", PYTORCH: "tensorrt_llm.LLM"}

Check = Callable[[Any], bool]


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_positive(value: Any) -> bool:
    return _is_whole(value) and value > 0


def _is_fraction(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_positive, value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


# A type of the table: the check, and what it expects in words.
_TYPES: dict[str, tuple[Check, str]] = {
    "switch": (lambda value: isinstance(value, bool), "true or false"),
    "whole": (_is_whole, "a whole number"),
    "positive": (_is_positive, "a whole number of at least 1"),
    "fraction": (_is_fraction, "a fraction from 0 to 1"),
    "number": (_is_number, "a number of at least 0"),
    "text": (lambda value: isinstance(value, str) and bool(value), "text"),
    "texts": (_is_texts, "a list of text"),
    "sizes": (_is_sizes, "a list of whole numbers of at least 1"),
    "object": (lambda value: isinstance(value, dict), "an object"),
}


def arguments_of(world: str) -> dict[str, Argument]:
    """Return the arguments that the options of a world's stage may set, of all versions."""
    return {name: one for name, one in llm_arguments().items() if world in one.option}


def read_arguments(raw: Mapping[str, Any], world: str, version: str, where: str) -> dict[str, Any]:
    """Return what the project file has at `where`, checked; `version`: of TensorRT-LLM.

    Raises:
        BuildError: a name is unknown, or a value is not what this version's runtime takes.
    """
    _check_object(raw, arguments_of(world), world, version, where)
    return dict(raw)


def ignored(given: Mapping[str, Any], world: str, version: str) -> Iterator[tuple[str, Argument]]:
    """Yield what is given although the runtime of this version does not look at it."""
    for name, value in given.items():
        fields = llm_arguments()[name].fields if name in llm_arguments() else {}
        for key in value if fields and isinstance(value, dict) else ():
            since = fields[key].ignored.get(world) if value[key] is not None else None
            if since and reaches(version, since):
                yield f"{name}.{key}", fields[key]


def _check_object(
    values: Mapping[str, Any],
    known: Mapping[str, Argument],
    world: str,
    version: str,
    where: str,
) -> None:
    for name, value in values.items():
        if name not in known:
            raise _unknown(f"{where}.{name}", name, list(known), world)
        argument = known[name]
        if not exists(argument, version):
            raise _of_another_version(f"{where}.{name}", argument, version)
        _check(f"{where}.{name}", value, argument, world, version)


def _check(where: str, value: Any, argument: Argument, world: str, version: str) -> None:
    if value is None and argument.null:
        return
    if argument.fields:
        if not isinstance(value, dict):
            keys = ", ".join(name for name, one in argument.fields.items() if exists(one, version))
            raise _wrong(where, value, f"an object with the keys {keys}", argument)
        _check_object(value, argument.fields, world, version, where)
        return
    check, expected = _expectation(argument, version)
    if not check(value):
        raise _wrong(where, value, expected, argument)


def _expectation(argument: Argument, version: str) -> tuple[Check, str]:
    if not argument.choices:
        return _TYPES[argument.type or "object"]
    added = [
        word for since, words in argument.more.items() if reaches(version, since) for word in words
    ]
    choices = (*argument.choices, *added)
    return (lambda value: value in choices, f"one of {', '.join(choices)}")


def _wrong(where: str, value: Any, expected: str, argument: Argument) -> BuildError:
    given = "null" if value is None else repr(value)
    return BuildError(
        f"{where} is {given}, expected {expected}{' or null' if argument.null else ''}",
        remedy=f"Correct {where}, or leave it out.",
    )


def _of_another_version(where: str, argument: Argument, version: str) -> BuildError:
    if argument.gone and reaches(version, argument.gone):
        bounds = f"it ended before {argument.gone}"
    else:
        bounds = f"it is there from {argument.since} on"
    return BuildError(
        f"{where} is not an argument of TensorRT-LLM {version}: {bounds}",
        remedy=f"Remove {where}, or set engine.target.release to a release that has it.",
    )


def _unknown(where: str, name: str, known: list[str], world: str) -> BuildError:
    return BuildError(
        f"{where} is not an argument of {_RUNTIME[world]}{nearest(name, known)}",
        remedy=f"Use one of: {', '.join(known)}.",
    )
