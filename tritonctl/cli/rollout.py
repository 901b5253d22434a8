# SPDX-License-Identifier: Apache-2.0
"""`tritonctl rollout`: a new release beside the one that serves."""

from __future__ import annotations

import typer

from tritonctl.cli import rollout_compare

app = typer.Typer(no_args_is_help=True, help="Judge a new release beside the one that serves.")
app.command(name="compare")(rollout_compare.command)


@app.callback()
def root() -> None:
    """Judge a new release beside the one that serves."""
