# SPDX-License-Identifier: Apache-2.0
"""`tritonctl rollout pause|resume|promote|abort`: control a running rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options

if TYPE_CHECKING:
    from tritonctl.rollout.operator_commands import OperatorCommand


@options.expand_options
def pause(*, project: options.ProjectOptions, output_options: options.OutputOptions) -> None:
    """Pause the steps; the candidate keeps its traffic and is still evaluated."""
    from tritonctl.rollout.operator_commands import OperatorCommand

    _steer(OperatorCommand.PAUSE, project, output_options)


@options.expand_options
def resume(*, project: options.ProjectOptions, output_options: options.OutputOptions) -> None:
    """Continue after a pause, or after the controller has died."""
    from tritonctl.rollout.operator_commands import OperatorCommand

    _steer(OperatorCommand.RESUME, project, output_options)


@options.expand_options
def promote(*, project: options.ProjectOptions, output_options: options.OutputOptions) -> None:
    """Move all traffic to the candidate now; the old version stays warm."""
    from tritonctl.rollout.operator_commands import OperatorCommand

    _steer(OperatorCommand.PROMOTE, project, output_options)


@options.expand_options
def abort(
    *,
    at_once: Annotated[
        bool,
        typer.Option("--at-once", help="cut the candidate's open streams; stable continues them"),
    ] = False,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Move all traffic back to stable, also after a promotion while stable is warm."""
    from tritonctl.rollout.operator_commands import OperatorCommand

    _steer(
        OperatorCommand.ABORT_AT_ONCE if at_once else OperatorCommand.ABORT, project, output_options
    )


def _steer(
    operator_command: OperatorCommand,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    from tritonctl.cli.console.rollout_view import plain_text
    from tritonctl.rollout.platforms import platform_of
    from tritonctl.rollout.steering import ProjectSource, send_command

    console, loaded = output_options.console(), project.load()
    source = ProjectSource(project.path, project.profile, project.overrides or ())
    with console.step(f"Asking the controller to {operator_command.value.replace('-', ' ')}"):
        result = send_command(
            loaded,
            source,
            operator_command,
            lambda last: platform_of(loaded, last.state.details).take_back(),
        )
    console.result(result.record(), plain_text(result).rstrip("\n"))
