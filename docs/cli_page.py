# SPDX-License-Identifier: Apache-2.0
"""A hook of MkDocs: reference/cli.md of the site, made of the application, so it is never stale."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from mkdocs.structure.files import File, Files
from typer.main import get_command

from tritonctl.cli import application


def on_files(files: Files, *, config: Any, **_: Any) -> Files:
    """The files of the site, and this page."""
    files.append(File.generated(config, "reference/cli.md", content=page()))
    return files


def page() -> str:
    """Every command with its arguments and options."""
    parts = ["# Command line\n", "`tritonctl COMMAND --help` says the same, and has examples.\n"]
    return "\n".join([*parts, *_sections("tritonctl", get_command(application()))])


def _sections(path: str, command: Any) -> Iterator[str]:
    """One for each command, those of groups included."""
    if commands := getattr(command, "commands", None):
        for name, one in commands.items():
            yield from _sections(f"{path} {name}", one)
        return
    yield f"## `{path}`\n\n{_prose(command.help)}\n"
    rows = [_row(one) for one in command.params if not getattr(one, "hidden", False)]
    if rows:
        yield "\n".join(["| option | is | default |", "|---|---|---|", *rows, ""])


def _row(parameter: Any) -> str:
    is_option = parameter.param_type_name == "option"
    names = (
        parameter.opts + parameter.secondary_opts
        if is_option
        else [(parameter.metavar or parameter.name or "").upper()]
    )
    plain = isinstance(parameter.default, str | int | float) and not isinstance(
        parameter.default, bool
    )
    default = f"`{parameter.default}`" if plain and parameter.default != "" else ""
    shown = ", ".join(f"`{name}`" for name in names)
    return f"| {shown} | {_prose(getattr(parameter, 'help', ''))} | {default} |"


def _prose(text: str | None) -> str:
    """Help as Markdown: nothing in it is a tag, a link or a cell's end."""
    plain = " ".join(inspect.cleandoc(text or "").split())
    for sign in "\\<[|*_":
        plain = plain.replace(sign, f"\\{sign}")
    return plain
