# SPDX-License-Identifier: Apache-2.0
"""`tritonctl reload`: load a model's new version without losing requests."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options

if TYPE_CHECKING:
    from tritonctl.runtimes.reload import ReloadResult


@options.expand_options
def command(
    *,
    model: Annotated[str, typer.Argument(help="a rebuilt or hand-written model")],
    ask: Annotated[
        bool,
        typer.Option("--smoke/--no-smoke", help="smoke-test the new version before it serves"),
    ] = True,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Serve the latest build; the old version keeps serving if the new one fails."""
    from tritonctl.runtimes.reload import reload

    console = output_options.console()
    done = reload(project.load(), model, console, smoke_test=ask)
    if done.abandoned:
        console.warning(f"{done.abandoned} streams of the old version did not end in time")
    if done.retained_models:
        console.warning(
            f"cancelled requests keep {', '.join(done.retained_models)} in Triton's memory until "
            "it stops: "
            "`tritonctl down` and `tritonctl up` free it"
        )
    console.result(asdict(done), _summary(done))


def _summary(done: ReloadResult) -> str:
    smoke_text = f"; answer to {done.smoke.request!r}: {done.smoke.answer!r}" if done.smoke else ""
    outcome = f"now serves {done.fingerprint[:16]}" if done.fingerprint else "is reloaded"
    times = f"{done.duration_seconds:.1f} s, {done.gap_seconds:.2f} s without it"
    return f"{done.model} {outcome} ({times}){smoke_text}"
