# SPDX-License-Identifier: Apache-2.0
"""`tritonctl up`: render, then start Triton and wait until every model is ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tritonctl.cli import options

if TYPE_CHECKING:
    from tritonctl.server.state import Server


@options.expand_options
def command(
    *,
    on: Annotated[
        Literal["embedded", "docker"] | None,
        typer.Option(help="in this environment, or in containers", show_default="server.mode"),
    ] = None,
    models: options.ModelsOption = None,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Start Triton on the project's models; returns when every model is ready."""
    from tritonctl.repository.publish import render
    from tritonctl.server.lifecycle import require_machine, start
    from tritonctl.server.state import ContainerServer

    console = voice.console()
    loaded = options.chosen(project.load([f"server.mode={on}"] if on else ()), models)
    require_machine(loaded)
    state, started = start(loaded, render(loaded, console), console)
    frontend = _frontend(state)
    record = {
        "started": started,
        "pid": state.pid,
        "container": state.deployment.container if isinstance(state, ContainerServer) else None,
        "grpc": state.grpc_url,
        "http": state.http_url,
        "metrics": state.metrics_url,
        "frontend": frontend,
        "models": state.models,
    }
    word = "ready" if started else "already running"
    console.result(
        record,
        f"Triton is {word}: gRPC {state.grpc_url}, HTTP {state.http_url}, "
        f"metrics {state.metrics_url}" + (f", OpenAI {frontend}" if frontend else ""),
    )


def _frontend(state: Server) -> str | None:
    from tritonctl.server.state import EmbeddedServer

    process = state.frontend if isinstance(state, EmbeddedServer) else None
    return process.api_url if process else None
