# SPDX-License-Identifier: Apache-2.0
"""`tritonctl rollout status|watch`: where a rollout stands."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options
from tritonctl.errors import RolledBackError, ServerError

if TYPE_CHECKING:
    from tritonctl.rollout.standing import Rollout

NumberOption = Annotated[
    int | None,
    typer.Option("--number", "-n", min=1, help="which rollout", show_default="the last one"),
]
_LOOK_SECONDS = 0.5


@options.expand_options
def status(
    *,
    number: NumberOption = None,
    page: Annotated[
        Path | None,
        typer.Option(help="every decision with its figures, one HTML file", show_default=False),
    ] = None,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Show where a rollout stands, and why. Asks no server."""
    from tritonctl.cli.console.rollout_view import plain
    from tritonctl.host.files import write_atomically
    from tritonctl.rollout.page import rollout_page
    from tritonctl.rollout.standing import rollout

    console = voice.console()
    found = rollout(project.load(), number)
    if page is not None:
        write_atomically(page, rollout_page(found))
    record = {**found.record(), "page": str(page) if page is not None else None}
    console.result(record, plain(found).rstrip("\n"))
    if page is not None:
        console.note(f"→ {page}")


@options.expand_options
def watch(
    *,
    number: NumberOption = None,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Watch a rollout until it ends; Ctrl-C leaves it running.

    Exit code 8 when it was rolled back.
    """
    from tritonctl.rollout.standing import rollout

    console, loaded = voice.console(), project.load()
    try:
        with console.watch_rollout() as show:
            while not _shown(found := rollout(loaded, number), show):
                time.sleep(_LOOK_SECONDS)
    except KeyboardInterrupt:
        console.note("the rollout goes on: `tritonctl rollout watch` shows it again")
        raise typer.Exit from None
    _conclude(found)


def _shown(found: Rollout, show: object) -> bool:
    """Whether there is nothing more to see."""
    assert callable(show)  # noqa: S101 - for the type checker
    show(found)
    return found.left_alone or (found.state.ended and found.state.moved)


def _conclude(found: Rollout) -> None:
    from tritonctl.rollout.journal import Phase

    state = found.state
    if found.left_alone and not state.ended:
        raise ServerError(
            f"nobody controls rollout {found.number}: its controller is gone",
            remedy="go on with it: tritonctl rollout resume; or take users back: tritonctl "
            "rollout abort",
        )
    if state.phase is Phase.ROLLED_BACK:
        raise RolledBackError(
            f"release {state.about.get('release')} was rolled back: {state.reason}",
            remedy="see what it rests on: tritonctl rollout status --page rollout.html",
        )
