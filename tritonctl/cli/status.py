# SPDX-License-Identifier: Apache-2.0
"""`tritonctl status`: is the server there, and is every model ready?"""

from __future__ import annotations

import typer

from tritonctl.cli import options
from tritonctl.errors import ServerError


def command(
    project: options.ProjectOption = None,
    profile: options.ProfileOption = None,
    overrides: options.SetOption = None,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Show the server's health; exit code 7 unless every model is ready."""
    from tritonctl.triton.server import status

    console = options.console(as_json, quiet)
    state, health = status(options.open_project(project, profile, overrides))
    record = {
        "ready": health.ready,
        "live": health.live,
        "pid": state.pid,
        "grpc": state.grpc_url,
        "http": state.http_url,
        "metrics": state.metrics_url,
        "models": health.models,
    }
    lines = [f"Triton {'ready' if health.ready else 'NOT READY'} (pid {state.pid})"]
    lines += [f"  gRPC {state.grpc_url}  HTTP {state.http_url}  metrics {state.metrics_url}"]
    lines += [f"  {model_state:<12} {name}" for name, model_state in health.models.items()]
    console.result(record, "\n".join(lines))
    if not health.ready:
        raise typer.Exit(ServerError.exit_code)
