# SPDX-License-Identifier: Apache-2.0
"""`tritonctl reload`: the running server takes a model's new version without losing requests."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options

if TYPE_CHECKING:
    from tritonctl.server.reload import Reloaded


@options.expand_options
def command(
    *,
    model: Annotated[str, typer.Argument(help="a model that was built again, or written by hand")],
    ask: Annotated[
        bool,
        typer.Option("--smoke/--no-smoke", help="send the new version a request before it serves"),
    ] = True,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Serve what was built last; if it does not load or answer, the old version keeps serving."""
    from tritonctl.server.reload import reload

    console = voice.console()
    done = reload(project.load(), model, console, ask=ask)
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
    what = f"now serves {done.fingerprint[:16]}" if done.fingerprint else "is loaded again"
    return f"{done.model} {what} ({done.seconds:.1f} s, {done.gap_seconds:.2f} s without it){asked}"
