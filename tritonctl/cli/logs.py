# SPDX-License-Identifier: Apache-2.0
"""`tritonctl logs`: print the log of Triton and its models."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options
from tritonctl.cli.cluster_options import ClusterOptions
from tritonctl.errors import ServerError, UsageError, choices

if TYPE_CHECKING:
    from tritonctl.cli.console.output import Console
    from tritonctl.project.schema import Project
    from tritonctl.runtimes.kubernetes.installation import ChartInstallation
    from tritonctl.runtimes.server_state import Server

_FRONTEND, _GATEWAY, _CANDIDATE = "frontend", "gateway", "candidate"
_SEARCHED_LINES = 5000  # lines of containers' logs to search for one model's lines


@options.expand_options
def command(
    *,
    model: Annotated[
        str | None,
        typer.Argument(
            help="only lines of a model or step; or the log of frontend, gateway or candidate",
            show_default="all",
        ),
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="lines from the end")] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="keep printing, also across restarts")
    ] = False,
    cluster: ClusterOptions,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Print the end of the server's log, even after it has stopped."""
    from tritonctl.releases.slots import stable_slot
    from tritonctl.runtimes.embedded.gateway import GatewayFiles
    from tritonctl.runtimes.server_state import ContainerServer, ServerFiles, read_state

    console = output_options.console()
    if (installation := cluster.installation(project)) is not None:
        _print_cluster_logs(console, installation, model, project, lines, follow=follow)
        return
    loaded = project.load()
    files = ServerFiles.of(loaded)
    if model == _CANDIDATE and model not in loaded.public:
        files, model = ServerFiles.of(loaded, stable_slot(loaded).opposite), None
    log, state = files.log, read_state(files)
    log_name = "server"
    component_logs = {_FRONTEND: files.frontend_log, _GATEWAY: GatewayFiles.of(loaded).program.log}
    if model in component_logs and model not in loaded.public:
        log_name, log, model = model, component_logs[model], None
    matches = _line_filter(loaded, state, model)

    def write(line: str) -> None:
        if matches(line):
            console.result({"line": line}, line)

    frontend = log_name == _FRONTEND
    if isinstance(state, ContainerServer) and (
        log_name == "server" or (frontend and _FRONTEND in state.deployment.profiles)
    ):
        from tritonctl.runtimes.docker.lifecycle import print_log

        tail_lines = max(lines, _SEARCHED_LINES) if model else lines
        print_log(state.deployment, tail_lines, follow=follow, write=write, frontend=frontend)
        if follow:  # like `docker compose logs -f`, this continues while a container restarts
            console.note("the containers have ended; `tritonctl up` starts them")
        return
    if not log.exists():
        raise ServerError(f"this project has no {log_name} log yet", remedy="run `tritonctl up`")
    _print_file(console, log, lines, matches, follow=follow)


def _print_file(
    console: Console, log: Path, lines: int, matches: Callable[[str], bool], *, follow: bool
) -> None:
    from tritonctl.runtimes.server_log import LogReader

    with closing(LogReader(log)) as reader:
        for line in reader.last_lines(lines, matches):
            console.result({"line": line}, line)
        if not follow and lines and reader.partial_line and matches(reader.partial_line):
            console.result({"line": reader.partial_line}, reader.partial_line)
        while follow:
            for line in filter(matches, reader.new_lines()):
                console.result({"line": line}, line)
            time.sleep(0.2)


def _print_cluster_logs(
    console: Console,
    installation: ChartInstallation,
    model: str | None,
    project: options.ProjectOptions,
    lines: int,
    *,
    follow: bool,
) -> None:
    from tritonctl.cli import cluster_logs

    part = model if model in (_FRONTEND, _GATEWAY) else "triton"
    filtered_model = None if model == part else model
    make_filter = (
        partial(_line_filter, project.load(), None, filtered_model) if filtered_model else None
    )
    cluster_logs.show(console, installation, part, lines, follow=follow, make_filter=make_filter)


def _line_filter(
    project: Project, state: Server | None, model: str | None
) -> Callable[[str], bool]:
    """Return the filter for a model's lines. Raises UsageError for an unknown model."""
    if model is None:
        return lambda _: True
    from tritonctl.runtimes.server_log import ModelLineFilter

    return ModelLineFilter(_model_names(project, state.models if state else (), model)).matches


def _model_names(project: Project, live_models: Sequence[str], model: str) -> list[str]:
    """Return the model's name in Triton and its steps."""
    from tritonctl.repository.contents import rendered_names
    from tritonctl.repository.steps import step_models

    if model in project.public:
        return [model, *step_models(project, model).values()]
    known_models = {*project.public, *live_models, *rendered_names(project)}
    if model not in known_models:
        raise UsageError(
            f"unknown model `{model}`",
            remedy=choices(model, sorted(known_models), "expected one of"),
        )
    return [model]
