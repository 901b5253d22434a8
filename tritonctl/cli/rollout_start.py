# SPDX-License-Identifier: Apache-2.0
"""`tritonctl rollout start`: a release to all users, step by step."""

from __future__ import annotations

from typing import Annotated

import typer

from tritonctl.cli import options


@options.expand_options
def command(
    *,
    release: Annotated[
        str, typer.Argument(help="a number, NUMBER-HASH, or `latest`", show_default=False)
    ],
    breaking: Annotated[
        bool,
        typer.Option("--breaking", help="also if clients may fail with its other tensors"),
    ] = False,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Load a release beside the one that serves, and move users to it as `rollout:` says.

    A controller in the background judges it every second, and takes all users back when it is
    worse. This command returns once that has begun.
    """
    from tritonctl.cli.console.rollout_view import plain
    from tritonctl.rollout.starting import start
    from tritonctl.rollout.steering import Source

    console = voice.console()
    source = Source(project.path, project.profile, project.overrides or ())
    found = start(project.load(), source, release, console, breaking=breaking)
    console.result(found.record(), plain(found).rstrip("\n"))
    console.note("watch it: tritonctl rollout watch; take its users back: tritonctl rollout abort")
