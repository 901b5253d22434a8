# SPDX-License-Identifier: Apache-2.0
"""`tritonctl new`: a step or an ensemble of the project's own, with a test; a shipped example."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tritonctl.cli.console.voice import Console
    from tritonctl.project.schema import Project

app = typer.Typer(
    no_args_is_help=True, help="Write a step or an ensemble of your own, or copy an example."
)


@app.callback()
def root() -> None:
    """Write a step or an ensemble of your own, or copy an example."""


@app.command()
@options.expand_options
def step(
    *,
    name: Annotated[str, typer.Argument(help="its name, such as my_filter")],
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Write a step in Python that works, and its test; wire it with `tritonctl new ensemble`."""
    from tritonctl.repository.new_step import write_step

    console = voice.console()
    loaded = project.load()
    written = write_step(loaded.root, name)
    model = loaded.public[0] if len(loaded.public) == 1 else "MODEL"
    following = [
        "pytest tests",
        f"tritonctl new ensemble my_{name} --step {name} --model {model}",
    ]
    _tell(console, loaded, written, following)


@app.command()
@options.expand_options
def ensemble(
    *,
    name: Annotated[str, typer.Argument(help="the public model's name, such as guarded")],
    model: Annotated[
        str | None,
        typer.Option(help="the model it ends in", show_default="the project's only one"),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(
            help="the step before it, of python_backends/; a new one if there is none",
            show_default="NAME_step",
        ),
    ] = None,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Write a graph that serves a step of yours and a model as one, its test, and its entry."""
    from tritonctl.project.file import FILE_NAME
    from tritonctl.repository.new_ensemble import (
        Wishes,
        chosen_model,
        new_ensemble,
        question,
        refuse_name,
    )
    from tritonctl.repository.new_step import write_new, write_step
    from tritonctl.tuning.write_back import edited, read_exactly, write_exactly

    console = voice.console()
    loaded = project.load()
    refuse_name(loaded, name)
    ends_in = chosen_model(loaded, model)
    before = step or f"{name.replace('-', '_').replace('.', '_')}_step"
    file = project.path if project.path and project.path.is_file() else loaded.root / FILE_NAME
    entry = edited(read_exactly(file), ["ensembles"], {name: {}}, file=str(file))
    written = []
    if not (loaded.root / "python_backends" / before).is_dir():
        written = write_step(loaded.root, before)
    graph, test = new_ensemble(loaded, Wishes(name, ends_in, before))
    written += write_new(
        {
            loaded.root / "ensembles" / f"{name}.yaml": graph,
            loaded.root / "tests" / f"test_{name}_graph.py": test,
        }
    )
    write_exactly(file, entry)
    following = ["pytest tests", "tritonctl build", "tritonctl up", question(loaded, name)]
    _tell(console, loaded, [*written, file], following)


@app.command()
@options.expand_options
def example(
    *,
    name: Annotated[str, typer.Argument(help="number-speller, number-finder or digit-reader")],
    into: Annotated[Path | None, typer.Option(help="folder to make", show_default="./NAME")] = None,
    voice: options.OutputOptions,
) -> None:
    """Copy an example: a project with a checkpoint that is trained, scored and served as it is."""
    from tritonctl.errors import UsageError
    from tritonctl.project.shipped import copy_example

    console = voice.console()
    folder = into or Path(name)
    if folder.exists():
        raise UsageError(f"{folder} exists", remedy="name another folder: --into FOLDER")
    copy_example(name, folder)
    following = [f"cd {folder}", "tritonctl build", "tritonctl up"]
    lines = [f"wrote {folder}", "next:", *(f"  {line}" for line in following)]
    console.result({"written": [str(folder)], "next": following}, "\n".join(lines))


def _tell(
    console: Console, project: Project, written: Sequence[Path], following: Sequence[str]
) -> None:
    names = [
        str(file.relative_to(project.root) if file.is_relative_to(project.root) else file)
        for file in written
    ]
    lines = [*(f"wrote {name}" for name in names), "next:", *(f"  {line}" for line in following)]
    console.result({"written": names, "next": list(following)}, "\n".join(lines))
