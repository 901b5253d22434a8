# SPDX-License-Identifier: Apache-2.0
"""How `--help` names the kinds of values: `N`, `TEXT`, `PATH`, and nothing for a switch."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

from tritonctl.cli.spellings import respelled

_KIND, _RANGE = "display_type_rich", "_get_number_range_help_str"
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
        if not (hasattr(parameter, _KIND) and hasattr(parameter, _RANGE)):
            return  # a later Typer without these: its own words
        shown = parameter.display_type_rich(ctx)
        word = _WORDS.get(shown, shown)
        if "|" in word:  # a wide column of kinds would cut long options
            among = word.strip("<>").replace("|", ", ")
            parameter.help, word = f"{parameter.help} ({among})", "WORD"
        if parameter._get_number_range_help_str():
            parameter.help = f"{parameter.help} ({_range(parameter.min, parameter.max)})"
            parameter._get_number_range_help_str = lambda: None
        parameter.display_type_rich = lambda ctx, word=word: word  # noqa: ARG005 - Typer passes it


def _range(least: float | None, most: float | None) -> str:
    if most is None:
        return f"at least {least:g}"
    return f"at most {most:g}" if least is None else f"{least:g} to {most:g}"


class Verb(TyperCommand):
    """A verb."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take earlier spellings of options as today's."""
        return super().parse_args(ctx, respelled(self, args))

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
