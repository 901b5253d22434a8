# SPDX-License-Identifier: Apache-2.0
"""The command line: one module per verb, which parses, calls the library and prints.

A verb imports what it needs inside its function, so that `tritonctl --help` answers in under 0.3 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

from tritonctl.cli.boundary import ErrorBoundary
from tritonctl.cli.examples import epilog
from tritonctl.cli.help import CommandGroup, VerbCommand
from tritonctl.host.version import __version__

# One module each, in the order of `tritonctl --help`: a new verb gets its panel here.
PANELS = {
    "Start": ("quickstart", "init", "new", "fetch", "doctor", "schema"),
    "Build": ("plan", "build", "render", "check", "graph", "artefacts"),
    "Serve": ("releases", "up", "reload", "status", "logs", "frontend", "down"),
    "Ask": ("generate", "chat", "embed", "classify", "rerank", "infer", "smoke"),
    "Measure": ("top", "tune", "loadtest"),
    "Operate": ("rollout", "bundle", "certs", "deploy"),
}
# Verbs with subcommands.
GROUPS = ("artefacts", "deploy", "loadtest", "new", "releases", "rollout")
_VERB_PANELS = {verb: panel for panel, verbs in PANELS.items() for verb in verbs}
VERBS = tuple(verb for verb in _VERB_PANELS if verb not in GROUPS)


def application(arguments: Sequence[str] = ()) -> typer.Typer:
    """Create the command line with only the verb that `arguments` start with.

    Otherwise, as for `--help`, create it with all verbs, which takes Typer 0.1 s longer.
    """
    app = typer.Typer(
        name="tritonctl",
        cls=ErrorBoundary,
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(root)
    first = next(iter(arguments), None)
    for name in (first,) if first in VERBS + GROUPS else VERBS + GROUPS:
        module, panel = import_module(f"tritonctl.cli.{name}"), _VERB_PANELS[name]
        if name in GROUPS:
            for verb in module.app.registered_commands:
                verb.cls = VerbCommand
                verb.epilog = epilog(f"{name} {verb.name or verb.callback.__name__}")
            app.add_typer(module.app, name=name, cls=CommandGroup, rich_help_panel=panel)
        else:
            register = app.command(
                name, cls=VerbCommand, rich_help_panel=panel, epilog=epilog(name)
            )
            register(module.command)
    return app


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"tritonctl {__version__}")
        raise typer.Exit


def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_print_version, is_eager=True, help="print the version"
        ),
    ] = False,
) -> None:
    """From a model checkpoint to a fast, correct, operable NVIDIA Triton service."""
