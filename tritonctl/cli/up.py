# SPDX-License-Identifier: Apache-2.0
"""`tritonctl up`: render, then start Triton and wait until every model is ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tritonctl.cli import options
from tritonctl.errors import UsageError

if TYPE_CHECKING:
    from tritonctl.cli.console.output import Console
    from tritonctl.project.schema import Project
    from tritonctl.runtimes.server_state import Server


@options.expand_options
def command(
    *,
    mode: Annotated[
        Literal["embedded", "docker"] | None,
        typer.Option(help="in this environment or in containers", show_default="server.mode"),
    ] = None,
    models: options.ModelsOption = None,
    release: Annotated[
        str | None,
        typer.Option(
            metavar="RELEASE",
            help="release to serve",
            show_default="the current project",
        ),
    ] = None,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Start Triton with the project's models; returns when every model is ready."""
    from tritonctl.runtimes.lifecycle import openai_api_of
    from tritonctl.runtimes.server_state import ContainerServer
    from tritonctl.runtimes.slot_servers import gateway_process

    console = output_options.console()
    loaded = project.load([f"server.mode={mode}"] if mode else ())
    if release is None:
        state, started = _start_rendered(options.select_models(loaded, models), console)
    elif models is None:
        state, started = _start_release(loaded, release, console)
    else:
        raise UsageError(
            "--release serves all models of a release, --models some of the current project",
            remedy="drop one of the two options",
        )
    api = openai_api_of(loaded, state)
    frontend = api.url if api else None
    process = gateway_process(loaded)
    gateway_url = process.url if process else None
    record = {
        "started": started,
        "pid": state.pid,
        "container": state.deployment.container if isinstance(state, ContainerServer) else None,
        "grpc": state.grpc_url,
        "http": state.http_url,
        "metrics": state.metrics_url,
        "frontend": frontend,
        "gateway": gateway_url,
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
        + (f", gateway {gateway_url}" if gateway_url else ""),
    )


def _start_rendered(project: Project, console: Console) -> tuple[Server, bool]:
    from tritonctl.repository.publish import render
    from tritonctl.runtimes.lifecycle import require_machine, start
    from tritonctl.runtimes.measurement_locks import refuse_during_tuning

    refuse_during_tuning(project)
    require_machine(project)
    return start(project, render(project, console), console)


def _start_release(project: Project, release: str, console: Console) -> tuple[Server, bool]:
    from tritonctl.cli.releases_rollback import summary
    from tritonctl.rollout.status import refuse_stable_change
    from tritonctl.runtimes.measurement_locks import refuse_during_tuning
    from tritonctl.runtimes.release_switch import serve_release

    refuse_during_tuning(project)
    refuse_stable_change(project, release)
    state, started, switched = serve_release(project, release, console)
    if switched:
        console.note(summary(switched))
    return state, started
