# SPDX-License-Identifier: Apache-2.0
"""`tritonctl rollout`: a new release beside the one that serves."""

from __future__ import annotations

import typer

from tritonctl.cli import (
    rollout_asks,
    rollout_compare,
    rollout_differences,
    rollout_start,
    rollout_status,
)

app = typer.Typer(
    no_args_is_help=True, help="Move users to a new release, judged beside the one that serves."
)
app.command(name="start")(rollout_start.command)
app.command(name="status")(rollout_status.status)
app.command(name="watch")(rollout_status.watch)
app.command(name="pause")(rollout_asks.pause)
app.command(name="resume")(rollout_asks.resume)
app.command(name="promote")(rollout_asks.promote)
app.command(name="abort")(rollout_asks.abort)
app.command(name="differences")(rollout_differences.command)
app.command(name="compare")(rollout_compare.command)


@app.callback()
def root() -> None:
    """Move users to a new release, judged beside the one that serves."""
