# SPDX-License-Identifier: Apache-2.0
"""`tritonctl rollout status|watch`: show the state of a rollout."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options
from tritonctl.errors import RolledBackError, ServerError

if TYPE_CHECKING:
    from tritonctl.rollout.status import RolloutStatus

NumberOption = Annotated[
    int | None,
    typer.Option("--number", min=1, help="number of the rollout", show_default="latest"),
]
_POLL_SECONDS = 0.5


@options.expand_options
def status(
    *,
    number: NumberOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="the report, one HTML file",
            show_default=False,
        ),
    ] = None,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Show the state of a rollout and its reason; contacts no server."""
    from tritonctl.cli.console.rollout_view import plain_text
    from tritonctl.host.files import write_atomically
    from tritonctl.rollout.page import rollout_page
    from tritonctl.rollout.status import rollout_status

    console = output_options.console()
    current = rollout_status(project.load(), number)
    if output is not None:
        write_atomically(output, rollout_page(current))
    record = {**current.record(), "report": str(output) if output is not None else None}
    console.result(record, plain_text(current).rstrip("\n"))
    if output is not None:
        console.note(f"→ {output}")


@options.expand_options
def watch(
    *,
    number: NumberOption = None,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Watch a rollout until it ends; Ctrl-C leaves it running.

    Exit code 8 when it was rolled back.
    """
    from tritonctl.rollout.status import rollout_status

    console, loaded = output_options.console(), project.load()
    try:
        with console.watch_rollout() as show:
            while not _show_and_check_end(current := rollout_status(loaded, number), show):
                time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        console.note("the rollout continues: `tritonctl rollout watch` shows it again")
        raise typer.Exit from None
    _conclude(current)


def _show_and_check_end(current: RolloutStatus, show: object) -> bool:
    """Show the rollout; return whether it has ended or lost its controller."""
    assert callable(show)  # noqa: S101 - for the type checker
    show(current)
    return current.needs_controller or (current.state.is_over and current.state.moved)


def _conclude(current: RolloutStatus) -> None:
    from tritonctl.rollout.journal import RolloutPhase

    state = current.state
    if current.needs_controller and not state.is_over:
        raise ServerError(
            f"the controller of rollout {current.number} is gone",
            remedy="continue: tritonctl rollout resume; or roll back: tritonctl rollout abort",
        )
    if state.phase is RolloutPhase.ROLLED_BACK:
        raise RolledBackError(
            f"release {state.details.get('release')} was rolled back: {state.reason}",
            remedy="see the evidence: tritonctl rollout status -o rollout.html",
        )
