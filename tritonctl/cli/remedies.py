# SPDX-License-Identifier: Apache-2.0
"""Remedies repeat the options of the command that failed: their commands work as they stand."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import typer

from tritonctl.cli import application

_COMMAND = re.compile(r"`tritonctl ([^`]*)`")


def repeated(
    remedy: str, path: Path | None, profile: str | None, overrides: list[str] | None
) -> str:
    """The remedy whose commands have --project, --env and --set, where they take them."""
    given = [("--project", str(path))] if path else []
    given += [("--env", profile)] if profile else []
    given += [("--set", override) for override in overrides or ()]
    return _COMMAND.sub(partial(_completed, given), remedy) if given else remedy


def _completed(given: list[tuple[str, str]], match: re.Match[str]) -> str:
    words = match[1].split(" ")
    command, verbs = _command(words)
    taken = {option for parameter in command.params for option in parameter.opts}
    added = [
        f"{option} {shlex.quote(value)}"
        for option, value in given
        if option in taken and not _says(words, option, value)
    ]
    return f"`{' '.join(['tritonctl', *words[:verbs], *added, *words[verbs:]])}`"


def _command(words: list[str]) -> tuple[Any, int]:
    """The command that the words name, and how many of them are its verbs."""
    command: Any = typer.main.get_command(application(words))
    for count, word in enumerate(words):
        if word not in getattr(command, "commands", {}):
            return command, count
        command = command.commands[word]
    return command, len(words)


def _says(words: list[str], option: str, value: str) -> bool:
    """Whether the remedy's own command has that option; of --set, for that field."""
    pairs: Iterator[tuple[str, str]] = zip(words, [*words[1:], ""], strict=True)
    field = value.partition("=")[0]
    return any(
        word == option and (option != "--set" or other.partition("=")[0] == field)
        for word, other in pairs
    )
