# SPDX-License-Identifier: Apache-2.0
"""`tritonctl up`: render, then start Triton and wait until every model is ready."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from tritonctl.cli import options


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
    from tritonctl.server.lifecycle import api, require_machine, start
    from tritonctl.server.state import ContainerServer

    console = voice.console()
    loaded = options.chosen(project.load([f"server.mode={on}"] if on else ()), models)
    require_machine(loaded)
    state, started = start(loaded, render(loaded, console), console)
    found = api(loaded, state)
    frontend = found.url if found else None
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
