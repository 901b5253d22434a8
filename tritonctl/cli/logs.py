# SPDX-License-Identifier: Apache-2.0
"""`tritonctl logs`: what Triton and its models printed."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from tritonctl.cli import options
from tritonctl.errors import ServerError


@options.expand_options
def command(
    *,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="lines from the end")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="keep printing new lines")] = False,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Print the end of the server's log, also after it has stopped."""
    from tritonctl.server.log import tail
    from tritonctl.server.state import ContainerServer, ServerFiles, read_state

    console = voice.console()
    files = ServerFiles.of(project.load())
    log, state = files.log, read_state(files)
    if isinstance(state, ContainerServer):
        from tritonctl.server.containers.lifecycle import print_log

        print_log(
            state.deployment,
            lines,
            follow=follow,
            write=lambda line: console.result({"line": line}, line),
        )
        return
    if not log.exists():
        raise ServerError("this project has no server log yet", remedy="run `tritonctl up`")
    with log.open(encoding="utf-8", errors="replace") as file:
        for line in tail(log, lines):
            console.result({"line": line}, line)
        file.seek(0, 2)
        begun = ""
        while follow:
            *whole, begun = (begun + file.read()).split("\n")
            for line in whole:
                console.result({"line": line}, line)
            time.sleep(0.2)
