# SPDX-License-Identifier: Apache-2.0
"""Add the failed command's options to the commands in remedies, so that they can be pasted."""

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


def with_project_options(
    remedy: str, path: Path | None, profile: str | None, overrides: list[str] | None
) -> str:
    """Return the remedy with --project, --env and --set added to commands that support them."""
    options = [("--project", str(path))] if path else []
    options += [("--env", profile)] if profile else []
    options += [("--set", override) for override in overrides or ()]
    return _COMMAND.sub(partial(_complete_command, options), remedy) if options else remedy


def _complete_command(options: list[tuple[str, str]], match: re.Match[str]) -> str:
    words = match[1].split(" ")
    command, verbs = _find_command(words)
    supported = {option for parameter in command.params for option in parameter.opts}
    added = [
        f"{option} {shlex.quote(value)}"
        for option, value in options
        if option in supported and not _has_option(words, option, value)
    ]
    return f"`{' '.join(['tritonctl', *words[:verbs], *added, *words[verbs:]])}`"


def _find_command(words: list[str]) -> tuple[Any, int]:
    """Return the command that the words name, and the number of its verbs."""
    command: Any = typer.main.get_command(application(words))
    for count, word in enumerate(words):
        if word not in getattr(command, "commands", {}):
            return command, count
        command = command.commands[word]
    return command, len(words)


def _has_option(words: list[str], option: str, value: str) -> bool:
    """Whether the remedy's command already has the option, for --set with the same field."""
    pairs: Iterator[tuple[str, str]] = zip(words, [*words[1:], ""], strict=True)
    field = value.partition("=")[0]
    return any(
        word == option and (option != "--set" or next_word.partition("=")[0] == field)
        for word, next_word in pairs
    )
