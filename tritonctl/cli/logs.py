# SPDX-License-Identifier: Apache-2.0
"""`tritonctl logs`: what Triton and its models printed."""

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
    from tritonctl.cli.console.voice import Console
    from tritonctl.project.schema import Project
    from tritonctl.server.kubernetes.installation import Installation
    from tritonctl.server.state import Server

_FRONTEND, _GATEWAY, _CANDIDATE = "frontend", "gateway", "candidate"
_SEARCHED = 5000  # lines of containers' logs among which those of one model are sought


@options.expand_options
def command(
    *,
    model: Annotated[
        str | None,
        typer.Argument(
            help="a model, or a step of one: its lines; or frontend, gateway, candidate: its log",
            show_default="all",
        ),
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="lines from the end")] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="keep printing, also across restarts")
    ] = False,
    cluster: ClusterOptions,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Print the end of the server's log, also after it has stopped."""
    from tritonctl.server.embedded.gateway import GatewayFiles
    from tritonctl.server.slots import stable_slot
    from tritonctl.server.state import ContainerServer, ServerFiles, read_state

    console = voice.console()
    if (installation := cluster.installation(project)) is not None:
        _of_cluster(console, installation, model, project, lines, follow=follow)
        return
    loaded = project.load()
    files = ServerFiles.of(loaded)
    if model == _CANDIDATE and model not in loaded.public:
        files, model = ServerFiles.of(loaded, stable_slot(loaded).other), None
    log, state = files.log, read_state(files)
    which = "server"
    own = {_FRONTEND: files.frontend_log, _GATEWAY: GatewayFiles.of(loaded).program.log}
    if model in own and model not in loaded.public:
        which, log, model = model, own[model], None
    wanted = _chooser(loaded, state, model)

    def write(line: str) -> None:
        if wanted(line):
            console.result({"line": line}, line)

    frontend = which == _FRONTEND
    if isinstance(state, ContainerServer) and (
        which == "server" or (frontend and _FRONTEND in state.deployment.profiles)
    ):
        from tritonctl.server.containers.lifecycle import print_log

        asked = max(lines, _SEARCHED) if model else lines
        print_log(state.deployment, asked, follow=follow, write=write, frontend=frontend)
        if follow:  # as `docker compose logs -f`: it goes on while one of them restarts
            console.note("the containers have ended; `tritonctl up` starts them")
        return
    if not log.exists():
        raise ServerError(f"this project has no {which} log yet", remedy="run `tritonctl up`")
    _of_file(console, log, lines, wanted, follow=follow)


def _of_file(
    console: Console, log: Path, lines: int, wanted: Callable[[str], bool], *, follow: bool
) -> None:
    from tritonctl.server.log import LogReader

    with closing(LogReader(log)) as reader:
        for line in reader.last_lines(lines, wanted):
            console.result({"line": line}, line)
        if not follow and lines and reader.unended and wanted(reader.unended):
            console.result({"line": reader.unended}, reader.unended)
        while follow:
            for line in filter(wanted, reader.new_lines()):
                console.result({"line": line}, line)
            time.sleep(0.2)


def _of_cluster(
    console: Console,
    installation: Installation,
    model: str | None,
    project: options.ProjectOptions,
    lines: int,
    *,
    follow: bool,
) -> None:
    from tritonctl.cli import cluster_logs

    part = model if model in (_FRONTEND, _GATEWAY) else "triton"
    named = None if model == part else model
    chooser = partial(_chooser, project.load(), None, named) if named else None
    cluster_logs.show(console, installation, part, lines, follow=follow, chooser=chooser)


def _chooser(project: Project, state: Server | None, model: str | None) -> Callable[[str], bool]:
    """Whether a line is to be printed. Raises UsageError for an unknown model."""
    if model is None:
        return lambda _: True
    from tritonctl.server.log import ModelLines

    return ModelLines(_names(project, state.models if state else (), model)).wanted


def _names(project: Project, served: Sequence[str], model: str) -> list[str]:
    """The model in Triton, and its steps."""
    from tritonctl.repository.contents import rendered_names
    from tritonctl.repository.steps import step_models

    if model in project.public:
        return [model, *step_models(project, model).values()]
    known = {*project.public, *served, *rendered_names(project)}
    if model not in known:
        raise UsageError(
            f"unknown model `{model}`", remedy=choices(model, sorted(known), "expected one of")
        )
    return [model]
