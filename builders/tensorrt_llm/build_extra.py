# SPDX-License-Identifier: Apache-2.0
"""Reads `engine.options.compile.extra` like trtllm-build's argparse. Standard library only.

Known options, also by abbreviation or alias, become regular options, so that every rule checks
them. Other words go to the tool unchanged.
"""

import argparse
from collections.abc import Container
from typing import Any, NoReturn

from arguments import BuildOption, build_options, is_available
from buildlib.problems import BuildError

_KEY = "engine.options.compile.extra"


def read_extra(
    raw: Any, values: Container[str], version: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the options among the words, and the words that only the tool knows.

    Raises:
        BuildError: argparse would refuse the words, or they repeat another option.
    """
    if not isinstance(raw, list) or not all(isinstance(item, str) for item in raw):
        raise BuildError(
            f'{_KEY} is {raw!r}, expected a list of text such as ["--flag", "value"]',
            remedy=f"Correct {_KEY}, or leave it out.",
        )
    parsed, unparsed = _parser(version).parse_known_args(raw)
    parsed_options = vars(parsed)
    for name in parsed_options:
        _check_name(name, values)
    for word in unparsed:
        _check_unparsed(word, version)
    return parsed_options, tuple(unparsed)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BuildError(
            f"{_KEY}: trtllm-build would refuse it: {message}", remedy=f"Correct {_KEY}."
        )


def _parser(version: str) -> argparse.ArgumentParser:
    """Return a parser with this version's options and abbreviations."""
    # SUPPRESS omits options that the words do not set.
    parser = _Parser(
        prog="trtllm-build", add_help=False, argument_default=argparse.SUPPRESS, usage=""
    )
    for option in build_options().values():
        if is_available(option, version):
            _add_option(parser, option)
    return parser


def _add_option(parser: argparse.ArgumentParser, option: BuildOption) -> None:
    names = [f"--{name}" for name in (option.name, *option.aliases)]
    names += [f"-{option.short}"] if option.short else []
    if option.kind == "flag":
        parser.add_argument(*names, dest=option.name, action="store_true")
        return
    choices = ["enable", "disable"] if option.kind == "switch" else list(option.choices)
    parser.add_argument(
        *names,
        dest=option.name,
        type=int if option.kind == "number" else str,
        nargs="+" if option.kind == "list" else None,
        choices=choices or None,
    )


def _check_name(name: str, values: Container[str]) -> None:
    # argparse silently uses the last one.
    if name in values:
        raise BuildError(
            f"{_KEY} repeats {name}, which engine.options.compile sets already",
            remedy=f"Remove one of the two {name}.",
        )
    remedy = build_options()[name].elsewhere
    if remedy:
        raise BuildError(f"{_KEY} sets --{name}, which cannot be set", remedy=remedy)


def _check_unparsed(word: str, version: str) -> None:
    option = build_options().get(word.partition("=")[0].removeprefix("--"))
    if word.startswith("--") and option is not None:
        raise BuildError(
            f"{_KEY} sets --{option.name}, which trtllm-build of TensorRT-LLM {version} does not "
            "have",
            remedy=option.elsewhere or f"Remove it from {_KEY}.",
        )
