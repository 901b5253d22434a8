# SPDX-License-Identifier: Apache-2.0
"""`tritonctl up`: render, then start Triton and wait until every model is ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tritonctl.cli import options
from tritonctl.errors import UsageError

if TYPE_CHECKING:
    from tritonctl.cli.console.voice import Console
    from tritonctl.project.schema import Project
    from tritonctl.server.state import Server


@options.expand_options
def command(
    *,
    on: Annotated[
        Literal["embedded", "docker"] | None,
        typer.Option(help="in this environment, or in containers", show_default="server.mode"),
    ] = None,
    models: options.ModelsOption = None,
    release: Annotated[
        str | None,
        typer.Option(
            help="a release instead of what is rendered now: its number, or `latest`",
            show_default=False,
        ),
    ] = None,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Start Triton on the project's models; returns when every model is ready."""
    from tritonctl.server.groups import gateway
    from tritonctl.server.lifecycle import api
    from tritonctl.server.state import ContainerServer

    console = voice.console()
    loaded = project.load([f"server.mode={on}"] if on else ())
    if release is None:
        state, started = _rendered(options.chosen(loaded, models), console)
    elif models is None:
        state, started = _released(loaded, release, console)
    else:
        raise UsageError(
            "--release serves all models of a release, --models a few of what is rendered now",
            remedy="leave one of them away",
        )
    found = api(loaded, state)
    frontend = found.url if found else None
    process = gateway(loaded)
    before = process.url if process else None
    record = {
        "started": started,
        "pid": state.pid,
        "container": state.deployment.container if isinstance(state, ContainerServer) else None,
        "grpc": state.grpc_url,
        "http": state.http_url,
        "metrics": state.metrics_url,
        "frontend": frontend,
        "gateway": before,
        "models": state.models,
        "release": state.release or None,
    }
    serves = f"with release {state.release} " if state.release else ""
    word = "ready" if started else "already running"
    console.result(
        record,
        f"Triton {serves}is {word}: gRPC {state.grpc_url}, HTTP {state.http_url}, "
        f"metrics {state.metrics_url}"
        + (f", OpenAI {frontend}" if frontend else "")
        + (f", gateway {before}" if before else ""),
    )


def _rendered(project: Project, console: Console) -> tuple[Server, bool]:
    from tritonctl.repository.publish import render
    from tritonctl.server.lifecycle import require_machine, start

    require_machine(project)
    return start(project, render(project, console), console)


def _released(project: Project, release: str, console: Console) -> tuple[Server, bool]:
    from tritonctl.cli.rollback import summary
    from tritonctl.rollout.standing import refuse_another_stable
    from tritonctl.server.release_switch import serve_release

    refuse_another_stable(project, release)
    state, started, switched = serve_release(project, release, console)
    if switched:
        console.note(summary(switched))
    return state, started
