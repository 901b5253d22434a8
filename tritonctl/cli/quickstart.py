# SPDX-License-Identifier: Apache-2.0
"""`tritonctl quickstart`: build, render, serve and stream, on the shipped checkpoint."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritonctl.cli import options
from tritonctl.cli.generate import show, timing_line
from tritonctl.errors import TritonctlError

if TYPE_CHECKING:
    from tritonctl.cli.console.voice import Console
    from tritonctl.project.schema import Project
    from tritonctl.server.state import Server


@options.expand_options
def command(
    *,
    folder: Annotated[
        Path | None,
        typer.Argument(help="project folder", show_default="here, else ./tritonctl-quickstart"),
    ] = None,
    voice: options.OutputOptions,
) -> None:
    """See it work: a checkpoint becomes streamed text from a real Triton ensemble."""
    from tritonctl.server.quickstart import quickstart_project

    console = voice.console()
    project = quickstart_project(folder)
    state = _serve(project, console)
    answers = _ask(console, state)
    _prepare_load_tests(console)
    name = _typed(project)
    where = "" if project.root == Path.cwd().resolve() else f"cd {project.root} && "
    record = {"project": str(project.root), "grpc": state.grpc_url, "answers": answers}
    console.result(
        record,
        f"\nTriton keeps serving at {state.grpc_url}. Next:\n"
        f'  {where}{name} generate speller "515 in Thai:"\n'
        f"  {where}{name} loadtest run     # 140 s, a verdict and a report\n"
        f"  {where}{name} status     # or: logs, down\n"
        f"  {where}{name} init CHECKPOINT --into my-project     # your own",
    )


def _typed(project: Project) -> str:
    """What to type for tritonctl: in a clone it is not on PATH."""
    program = Path(sys.argv[0]).absolute()
    if shutil.which("tritonctl") or not program.is_file():
        return "tritonctl"
    here = project.root if project.root == Path.cwd().resolve() else Path()
    return str(program.relative_to(here) if program.is_relative_to(here) else program)


def _serve(project: Project, console: Console) -> Server:
    from tritonctl.engines.build.engine import build_engine
    from tritonctl.project.file import FILE_NAME
    from tritonctl.repository.publish import render
    from tritonctl.server.lifecycle import start
    from tritonctl.server.quickstart import MODEL, with_free_ports

    artefact = build_engine(project, MODEL, console)
    if not artefact.fresh:
        console.note(f"the engine of {MODEL} is up to date")
    # A first build takes minutes, in which somebody else may have taken a port.
    project = with_free_ports(project.root / FILE_NAME)
    state, _ = start(project, render(project, console), console)
    return state


def _prepare_load_tests(console: Console) -> None:
    """Install now what the first load test needs; text is served without it."""
    from tritonctl.loadtest.run.environment import generator_python

    try:
        generator_python(console)
    except TritonctlError as error:
        console.warning(f"load tests cannot run yet: {error.problem} ({error.remedy})")


def _ask(console: Console, state: Server) -> list[dict[str, Any]]:
    from tritonctl.protocol.client import TritonClient
    from tritonctl.server.quickstart import MODEL, PROMPTS

    answers = []
    with TritonClient(state.grpc_url, tls=state.client_tls) as client:
        for prompt in PROMPTS:
            if not console.as_json:
                console.text(f"\n{prompt}")
            answer = show(console, client.stream(MODEL, prompt))
            console.note(f"  {timing_line(answer)}")
            answers.append({"text_input": prompt, "text_output": answer.text})
    return answers
