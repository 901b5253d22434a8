# SPDX-License-Identifier: Apache-2.0
"""`tritonctl quickstart`: build, render, serve and stream, on the shipped checkpoint."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritonctl.cli import options
from tritonctl.cli.generate import print_stream, timing_line

if TYPE_CHECKING:
    from tritonctl.cli.console.output import Console
    from tritonctl.project.schema import Project
    from tritonctl.runtimes.server_state import Server


@options.expand_options
def command(
    *,
    folder: Annotated[
        Path | None,
        typer.Argument(help="project folder", show_default="here, else ./tritonctl-quickstart"),
    ] = None,
    output_options: options.OutputOptions,
) -> None:
    """Build, serve and stream from the shipped checkpoint with a real Triton ensemble."""
    from tritonctl.runtimes.quickstart import quickstart_project

    console = output_options.console()
    project = quickstart_project(folder)
    state = _serve(project, console)
    answers = _stream_answers(console, state)
    name = _program_name(project)
    prefix = "" if project.root == Path.cwd().resolve() else f"cd {project.root} && "
    record = {"project": str(project.root), "grpc": state.grpc_url, "answers": answers}
    console.result(
        record,
        f"\nTriton keeps serving at {state.grpc_url}. Next:\n"
        f'  {prefix}{name} generate speller "515 in Thai:"\n'
        f"  {prefix}{name} loadtest run     # 140 s, a verdict and a report\n"
        f"  {prefix}{name} status     # or: logs, down\n"
        f"  {prefix}{name} init CHECKPOINT -o my-project     # your model",
    )


def _program_name(project: Project) -> str:
    """Return the command for tritonctl, which is not on PATH in a clone."""
    program = Path(sys.argv[0]).absolute()
    if shutil.which("tritonctl") or not program.is_file():
        return "tritonctl"
    base = project.root if project.root == Path.cwd().resolve() else Path()
    return str(program.relative_to(base) if program.is_relative_to(base) else program)


def _serve(project: Project, console: Console) -> Server:
    from tritonctl.engines.builds.engine import build_engine
    from tritonctl.project.file import FILE_NAME
    from tritonctl.repository.publish import render
    from tritonctl.runtimes.lifecycle import start
    from tritonctl.runtimes.quickstart import MODEL, with_free_ports

    artefact = build_engine(project, MODEL, console)
    if not artefact.is_new:
        console.note(f"the engine of {MODEL} is up to date")
    # A first build takes minutes; meanwhile another process may take a port.
    project = with_free_ports(project.root / FILE_NAME)
    state, _ = start(project, render(project, console), console)
    return state


def _stream_answers(console: Console, state: Server) -> list[dict[str, Any]]:
    from tritonctl.protocol.client import TritonClient
    from tritonctl.runtimes.quickstart import MODEL, PROMPTS

    answers = []
    with TritonClient(state.grpc_url, tls=state.client_tls) as client:
        for prompt in PROMPTS:
            if not console.as_json:
                console.text(f"\n{prompt}")
            answer = print_stream(console, client.stream(MODEL, prompt))
            console.note(f"  {timing_line(answer)}")
            answers.append({"text_input": prompt, "text_output": answer.text})
    return answers
