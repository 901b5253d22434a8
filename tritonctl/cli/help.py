# SPDX-License-Identifier: Apache-2.0
"""Verbs for Typer: the format of `--help`, and the name of the documents that they print."""

from __future__ import annotations

from copy import copy
from typing import Any

from typer.core import TyperCommand, TyperGroup

from tritonctl.cli.console.document_name import naming_documents

_KIND, _RANGE = "display_type_rich", "_get_number_range_help_str"
# The metavars of types, for options without a noun of their own (`tritonctl.cli.vocabulary`).
_METAVARS = {
    "<bool>": "",
    "<str>": "TEXT",
    "<int>": "N",
    "<int range>": "N",
    "<float>": "NUMBER",
    "<float range>": "NUMBER",
    "<path>": "PATH",
    "<Path>": "PATH",
    "<list[str]>": "TEXT",
    "<list[int]>": "N",
    "<list[Path]>": "PATH",
}


def displayed(parameter: Any, ctx: Any) -> Any:
    """Return a copy of a command's parameter that shows what `--help` should say of it."""
    if not (hasattr(parameter, _KIND) and hasattr(parameter, _RANGE)):
        return parameter  # another Typer version without these methods
    parameter = copy(parameter)
    kind = parameter.display_type_rich(ctx)
    metavar = _METAVARS.get(kind, kind)
    if "|" in metavar:  # a wide column of kinds would truncate long options
        choices = metavar.strip("<>").replace("|", ", ")
        parameter.help, metavar = f"{parameter.help} ({choices})", "CHOICE"
    if parameter._get_number_range_help_str():
        if parameter.max is not None:  # a minimum of 0 or 1 goes without saying
            parameter.help = f"{parameter.help} ({parameter.min or 0:g} to {parameter.max:g})"
        parameter._get_number_range_help_str = lambda: None
    if parameter.param_type_name == "argument":  # its own name says what it is
        metavar = ""
    else:
        _join_names(parameter)
    parameter.display_type_rich = lambda ctx: metavar  # noqa: ARG005 - Typer passes it
    return parameter


def _join_names(option: Any) -> None:
    """Show all names of an option in one column, which leaves more columns for its help."""
    if "--help" in option.opts:
        option.help = "show this help"
    if option.secondary_opts and option.default is True:  # the one that changes something
        option.opts, option.secondary_opts = option.secondary_opts, []
        option.help, option.show_default = f"do not {option.help}", False
    names = "/".join([", ".join(sorted(option.opts, key=len)), *option.secondary_opts])
    option.opts, option.secondary_opts = [names], []


def _displayed(command: Any, ctx: Any) -> Any:
    """Return a copy of a command with the parameters that its help shows."""
    parameters = [displayed(parameter, ctx) for parameter in command.get_params(ctx)]
    displayed_command = copy(command)
    paragraphs = (command.help or "").split("\n\n")
    displayed_command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    displayed_command.get_params = lambda ctx: parameters  # noqa: ARG005 - Typer passes it
    return displayed_command


class VerbCommand(TyperCommand):
    """A verb with our help format and named documents."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        super(VerbCommand, _displayed(self, ctx)).format_help(ctx, formatter)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; the JSON documents that it prints have its name."""
        with naming_documents(verb_of(ctx)):
            return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002 - Typer passes it
        """Return the words of the usage line: `[OPTIONS] MODEL [FILE]`."""
        arguments = [each for each in self.params if each.param_type_name == "argument"]
        return ["[OPTIONS]", *(_usage(argument) for argument in arguments)]


def verb_of(ctx: Any) -> str:
    """Return the words of the running verb, such as `loadtest run`."""
    words: list[str] = []
    while ctx.parent is not None:
        words.insert(0, ctx.info_name)
        ctx = ctx.parent
    return " ".join(words)


def _usage(argument: Any) -> str:
    text = argument.metavar if argument.required else f"[{argument.metavar}]"
    return f"{text}..." if argument.nargs != 1 else text


class CommandGroup(TyperGroup):
    """A verb with subcommands."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        super(CommandGroup, _displayed(self, ctx)).format_help(ctx, formatter)
