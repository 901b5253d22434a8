# SPDX-License-Identifier: Apache-2.0
"""`engine.options.compile.extra`, read as trtllm-build's argparse reads it. Standard library only.

Known options, their abbreviations and other names among these words become options like those with
a name of their own, so that every rule sees them; the words that no known option takes are left.
"""

import argparse
from collections.abc import Container
from typing import Any, NoReturn

from arguments import Option, build_options, exists
from buildlib.problems import BuildError

_WHERE = "engine.options.compile.extra"


def read_extra(
    raw: Any, values: Container[str], version: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the options among the words, and the words that are left for the tool to judge.

    Raises:
        BuildError: argparse would refuse them, or they set what is set elsewhere.
    """
    if not isinstance(raw, list) or not all(isinstance(item, str) for item in raw):
        raise BuildError(
            f'{_WHERE} is {raw!r}, expected a list of text such as ["--flag", "value"]',
            remedy=f"Correct {_WHERE}, or leave it out.",
        )
    parsed, rest = _parser(version).parse_known_args(raw)
    given = vars(parsed)
    for name in given:
        _check(name, values)
    for word in rest:
        _check_version(word, version)
    return given, tuple(rest)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BuildError(
            f"{_WHERE}: trtllm-build would refuse it: {message}", remedy=f"Correct {_WHERE}."
        )


def _parser(version: str) -> argparse.ArgumentParser:
    """Return a parser with the tool's options of this version, and its abbreviations."""
    # What the words do not set stays out of the answer.
    parser = _Parser(
        prog="trtllm-build", add_help=False, argument_default=argparse.SUPPRESS, usage=""
    )
    for option in build_options().values():
        if exists(option, version):
            _add(parser, option)
    return parser


def _add(parser: argparse.ArgumentParser, option: Option) -> None:
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


def _check(name: str, values: Container[str]) -> None:
    # argparse silently lets the last one win.
    if name in values:
        raise BuildError(
            f"{_WHERE} repeats {name}, which engine.options.compile sets already",
            remedy=f"Remove one of the two {name}.",
        )
    remedy = build_options()[name].elsewhere
    if remedy:
        raise BuildError(f"{_WHERE} sets --{name}, which cannot be set", remedy=remedy)


def _check_version(word: str, version: str) -> None:
    option = build_options().get(word.partition("=")[0].removeprefix("--"))
    if word.startswith("--") and option is not None:
        raise BuildError(
            f"{_WHERE} sets --{option.name}, which trtllm-build of TensorRT-LLM {version} does not "
            "have",
            remedy=option.elsewhere or f"Remove it from {_WHERE}.",
        )
