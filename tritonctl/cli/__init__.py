# SPDX-License-Identifier: Apache-2.0
"""The command line: one module per verb, each of them parse → call the library → print.

Imports stay light on purpose, `tritonctl --help` answers in under 0.3 s: a verb imports what it
needs inside its function.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tritonctl import __version__
from tritonctl.cli import (
    artefacts,
    build,
    chat,
    doctor,
    down,
    generate,
    init,
    logs,
    plan,
    quickstart,
    render,
    schema,
    status,
    up,
)
from tritonctl.cli.boundary import ErrorBoundary

app = typer.Typer(
    name="tritonctl",
    cls=ErrorBoundary,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tritonctl {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="show it")
    ] = False,
) -> None:
    """From a model checkpoint to a fast, correct, operable NVIDIA Triton service."""


for _verb in (
    quickstart,
    init,
    plan,
    build,
    render,
    up,
    status,
    logs,
    generate,
    chat,
    down,
    schema,
    doctor,
):
    app.command(_verb.__name__.rsplit(".", 1)[1])(_verb.command)
app.add_typer(artefacts.app, name="artefacts")
