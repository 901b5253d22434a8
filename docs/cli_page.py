# SPDX-License-Identifier: Apache-2.0
"""docs/reference/cli.md, made from the application by `make reference`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from typer.main import get_command

from tritonctl.cli import application
from tritonctl.cli.help import displayed
from tritonctl.cli.vocabulary import METAVARS, PANELS

_HEAD = """\
<!-- Made by `make reference` from the commands themselves: edits are lost. -->

# Command line

`tritonctl COMMAND --help` prints the same, with examples. Exit codes:
[troubleshoot](../how-to/troubleshoot.md#exit-codes).
"""
_SHARED = """\
## Shared options

Commands that have them name them after their own.
"""


def page() -> str:
    """Values, shared options, then every command with its arguments and options, Markdown."""
    commands = dict(_commands("tritonctl", get_command(application())))
    parameters = {path: _parameters(command) for path, command in commands.items()}
    shared = _shared_options(parameters.values())
    values = [f"| {_prose(metavar)} | {meaning} |" for metavar, meaning in METAVARS.items()]
    parts = [_HEAD, "## Values\n", "| in options | is |", "|---|---|", *values, ""]
    parts += [_SHARED, *_shared_tables(shared)]
    for path, command in commands.items():
        parts.append(f"## `{path}`\n\n{_prose(command.help)}\n")
        parts += _table([each for each in parameters[path] if not _is_shared(each, shared)])
        if names := [_long_name(each) for each in parameters[path] if _is_shared(each, shared)]:
            parts.append(f"[Shared](#shared-options): {', '.join(names)}.\n")
    return "\n".join(parts)


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Every command, those of groups included, by what one types."""
    subcommands = getattr(command, "commands", None)
    if not subcommands:
        yield path, command
    for name, subcommand in (subcommands or {}).items():
        yield from _commands(f"{path} {name}", subcommand)


def _parameters(command: Any) -> list[Any]:
    context = command.make_context(command.name, [], resilient_parsing=True)
    visible = [each for each in command.params if not getattr(each, "hidden", False)]
    return [displayed(each, context) for each in visible]


def _key(parameter: Any) -> tuple[str, ...]:
    """What is the same of a shared option in all commands."""
    return (_names(parameter), str(parameter.help), _default(parameter))


def _shared_options(commands: Iterable[list[Any]]) -> dict[tuple[str, ...], Any]:
    """The options of panels that several commands list in the same way."""
    options: dict[tuple[str, ...], list[Any]] = {}
    for parameters in commands:
        for parameter in parameters:
            if getattr(parameter, "rich_help_panel", None):
                options.setdefault(_key(parameter), []).append(parameter)
    return {key: each[0] for key, each in options.items() if len(each) > 1}


def _is_shared(parameter: Any, shared: dict[tuple[str, ...], Any]) -> bool:
    return bool(getattr(parameter, "rich_help_panel", None)) and _key(parameter) in shared


def _shared_tables(shared: dict[tuple[str, ...], Any]) -> Iterator[str]:
    for panel in PANELS:
        options = [each for each in shared.values() if each.rich_help_panel == panel]
        if options:
            yield f"### {panel}\n"
            yield from _table(options)


def _table(parameters: list[Any]) -> Iterator[str]:
    if parameters:
        yield from ("| option | is | default |", "|---|---|---|", *map(_row, parameters), "")


def _row(parameter: Any) -> str:
    return f"| {_names(parameter)} | {_prose(parameter.help)} | {_default(parameter)} |"


def _names(parameter: Any) -> str:
    """The names of an option with its metavar, or an argument's metavar."""
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar}`"
    (names,) = parameter.opts
    metavar = parameter.display_type_rich(None)
    return f"`{names} {metavar}`" if metavar else f"`{names}`"


def _long_name(option: Any) -> str:
    (names,) = option.opts
    return f"`{names.rpartition(' ')[2]}`"


def _default(parameter: Any) -> str:
    if isinstance(parameter.show_default, str):
        return _prose(parameter.show_default)
    default = parameter.default
    plain = isinstance(default, str | int | float) and not isinstance(default, bool)
    return f"`{default}`" if plain and default != "" else ""


def _prose(text: str | None) -> str:
    """Help as Markdown: nothing in it is a tag, a link or a cell's end."""
    plain = " ".join(inspect.cleandoc(text or "").split())
    for sign in "\\<[|*_":
        plain = plain.replace(sign, f"\\{sign}")
    return plain


if __name__ == "__main__":
    sys.stdout.write(page())
