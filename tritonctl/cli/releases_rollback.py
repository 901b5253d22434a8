# SPDX-License-Identifier: Apache-2.0
"""`tritonctl releases rollback`: switch the running server to an older release without a build."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options

if TYPE_CHECKING:
    from tritonctl.runtimes.release_switch import ReleaseSwitch


@options.expand_options
def command(
    *,
    release: Annotated[
        str | None,
        typer.Argument(help="a number or NUMBER-HASH", show_default="the previous one"),
    ] = None,
    ask: Annotated[
        bool,
        typer.Option("--smoke/--no-smoke", help="smoke-test the new version before it serves"),
    ] = True,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Serve an older release, or any other stored one, without losing requests."""
    from tritonctl.rollout.status import refuse_stable_change
    from tritonctl.runtimes.measurement_locks import refuse_during_tuning
    from tritonctl.runtimes.release_switch import rollback

    console, loaded = output_options.console(), project.load()
    refuse_during_tuning(loaded)
    refuse_stable_change(loaded, release)
    done = rollback(loaded, release, console, smoke_test=ask)
    if done.abandoned:
        console.warning(f"{done.abandoned} streams of the old release did not end in time")
    if done.retained_models:
        console.warning(
            f"cancelled requests keep {', '.join(done.retained_models)} in Triton's memory until "
            "it stops: "
            "`tritonctl down` and `tritonctl up` free it"
        )
    console.result(asdict(done), summary(done))


def summary(done: ReleaseSwitch) -> str:
    """Return the live release and the cost of the switch as text."""
    gap_text = f"restarted: {done.restarted}" if done.restarted else f"{done.gap_seconds:.2f} s gap"
    times = f"{done.duration_seconds:.1f} s, {gap_text}"
    return f"serves release {done.release} instead of {done.previous} ({times})"
