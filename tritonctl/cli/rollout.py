# SPDX-License-Identifier: Apache-2.0
"""`tritonctl rollout`: move traffic to a new release step by step."""

from __future__ import annotations

import typer

from tritonctl.cli import (
    rollout_commands,
    rollout_compare,
    rollout_differences,
    rollout_start,
    rollout_status,
)

app = typer.Typer(
    no_args_is_help=True, help="Move traffic to a new release and compare it with the live one."
)
app.command(name="start")(rollout_start.command)
app.command(name="status")(rollout_status.status)
app.command(name="watch")(rollout_status.watch)
app.command(name="pause")(rollout_commands.pause)
app.command(name="resume")(rollout_commands.resume)
app.command(name="promote")(rollout_commands.promote)
app.command(name="abort")(rollout_commands.abort)
app.command(name="differences")(rollout_differences.command)
app.command(name="compare")(rollout_compare.command)


@app.callback()
def root() -> None:
    """Move traffic to a new release and compare it with the live one."""
