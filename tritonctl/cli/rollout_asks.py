# SPDX-License-Identifier: Apache-2.0
"""`tritonctl rollout pause|resume|promote|abort`: what people ask of a rollout under way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options

if TYPE_CHECKING:
    from tritonctl.rollout.asks import Ask


@options.expand_options
def pause(*, project: options.ProjectOptions, voice: options.OutputOptions) -> None:
    """Take no further step; the candidate keeps its users, and is still judged."""
    from tritonctl.rollout.asks import Ask

    _steer(Ask.PAUSE, project, voice)


@options.expand_options
def resume(*, project: options.ProjectOptions, voice: options.OutputOptions) -> None:
    """Go on after a pause, or after the controller has died."""
    from tritonctl.rollout.asks import Ask

    _steer(Ask.RESUME, project, voice)


@options.expand_options
def promote(*, project: options.ProjectOptions, voice: options.OutputOptions) -> None:
    """Give the candidate all users now, whatever the steps say; the old version stays warm."""
    from tritonctl.rollout.asks import Ask

    _steer(Ask.PROMOTE, project, voice)


@options.expand_options
def abort(
    *,
    at_once: Annotated[
        bool,
        typer.Option("--at-once", help="cut the candidate's open streams, to go on at stable"),
    ] = False,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Take all users back, with or without a controller; also from a promotion still warm."""
    from tritonctl.rollout.asks import Ask

    _steer(Ask.ABORT_AT_ONCE if at_once else Ask.ABORT, project, voice)


def _steer(ask: Ask, project: options.ProjectOptions, voice: options.OutputOptions) -> None:
    from tritonctl.cli.console.rollout_view import plain
    from tritonctl.rollout.places import place_of
    from tritonctl.rollout.steering import Source, steer

    console, loaded = voice.console(), project.load()
    source = Source(project.path, project.profile, project.overrides or ())
    with console.step(f"Asking the controller to {ask.value.replace('-', ' ')}"):
        found = steer(
            loaded, source, ask, lambda last: place_of(loaded, last.state.about).take_back()
        )
    console.result(found.record(), plain(found).rstrip("\n"))
