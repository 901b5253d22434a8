# SPDX-License-Identifier: Apache-2.0
"""`tritonctl reload`: the running server takes a model's new version, no request is lost."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options

if TYPE_CHECKING:
    from tritonctl.server.reload import Reloaded


def command(
    model: Annotated[str, typer.Argument(help="a model of the project, built anew")],
    ask: Annotated[
        bool, typer.Option("--smoke/--no-smoke", help="ask the new version once before it serves")
    ] = True,
    project: options.ProjectOption = None,
    profile: options.ProfileOption = None,
    overrides: options.SetOption = None,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Serve what was built last; when it does not load or answer, the old version goes on."""
    from tritonctl.server.reload import reload

    console = options.console(as_json, quiet)
    done = reload(options.open_project(project, profile, overrides), model, console, ask=ask)
    if done.abandoned:
        console.warning(f"{done.abandoned} streams of the old version did not end in time")
    if done.held:
        console.warning(
            f"Triton keeps {', '.join(done.held)} in memory until it ends: cancelled requests hold "
            "them; `tritonctl down` and `tritonctl up` free it"
        )
    console.result(asdict(done), _summary(done))


def _summary(done: Reloaded) -> str:
    asked = f"; asked {done.smoke.asked!r}: {done.smoke.answered!r}" if done.smoke else ""
    return (
        f"{done.model} now serves {done.fingerprint[:16]} ({done.seconds:.1f} s, "
        f"{done.gap_seconds:.2f} s without it){asked}"
    )
