# SPDX-License-Identifier: Apache-2.0
"""`tritonctl rollback`: the running server serves an older release, without a build."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options

if TYPE_CHECKING:
    from tritonctl.server.release_switch import Switched


@options.expand_options
def command(
    *,
    release: Annotated[
        str | None,
        typer.Argument(help="its number, or NUMBER-HASH", show_default="the one served before"),
    ] = None,
    ask: Annotated[
        bool,
        typer.Option("--smoke/--no-smoke", help="send it a request before it serves"),
    ] = True,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Serve an older release again, or any other that is kept; no request is lost."""
    from tritonctl.rollout.standing import refuse_another_stable
    from tritonctl.server.release_switch import rollback

    console, loaded = voice.console(), project.load()
    refuse_another_stable(loaded, release)
    done = rollback(loaded, release, console, ask=ask)
    if done.abandoned:
        console.warning(f"{done.abandoned} streams of the old release did not end in time")
    if done.held:
        console.warning(
            f"Triton keeps {', '.join(done.held)} in memory until it ends: cancelled requests hold "
            "them; `tritonctl down` and `tritonctl up` free it"
        )
    console.result(asdict(done), summary(done))


def summary(done: Switched) -> str:
    """What is served now, and what that took."""
    how = f"started again: {done.restarted}" if done.restarted else f"{done.gap_seconds:.2f} s gap"
    return f"serves release {done.release} instead of {done.previous} ({done.seconds:.1f} s, {how})"
