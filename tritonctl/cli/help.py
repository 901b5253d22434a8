# SPDX-License-Identifier: Apache-2.0
"""How `--help` names the kinds of values: `N`, `TEXT`, `PATH`, and nothing for a switch."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

_WORDS = {
    "<bool>": "",
    "<str>": "TEXT",
    "<int>": "N",
    "<int range>": "N",
    "<float>": "N",
    "<float range>": "N",
    "<path>": "PATH",
    "<Path>": "PATH",
    "<list[str]>": "TEXT",
    "<list[int]>": "N",
    "<list[Path]>": "PATH",
}


def name_values(command: Any, ctx: Any) -> None:
    """Have a command's help show our words for the kinds of its values."""
    for parameter in command.get_params(ctx):
        shown = parameter.display_type_rich(ctx)
        word = _WORDS.get(shown, shown)
        parameter.display_type_rich = lambda ctx, word=word: word  # noqa: ARG005 - Typer passes it


class Verb(TyperCommand):
    """A verb."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        name_values(self, ctx)
        super().format_help(ctx, formatter)


class Group(TyperGroup):
    """A verb that has verbs of its own."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        name_values(self, ctx)
        super().format_help(ctx, formatter)
