# SPDX-License-Identifier: Apache-2.0
"""`tritonctl new`: write a custom step or ensemble with a test, or copy an example."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tritonctl.cli.console.output import Console
    from tritonctl.project.schema import Project

app = typer.Typer(no_args_is_help=True, help="Write a custom step or ensemble, or copy an example.")


@app.callback()
def root() -> None:
    """Write a custom step or ensemble, or copy an example."""


@app.command()
@options.expand_options
def step(
    *,
    name: Annotated[str, typer.Argument(help="its name, such as my_filter")],
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Write a working Python step and its test; wire it with `tritonctl new ensemble`."""
    from tritonctl.repository.new_step import write_step

    console = output_options.console()
    loaded = project.load()
    written = write_step(loaded.root, name)
    model = loaded.public[0] if len(loaded.public) == 1 else "MODEL"
    following = [
        "pytest tests",
        f"tritonctl new ensemble my_{name} --step {name} --model {model}",
    ]
    _print_written(console, loaded, written, following)


@app.command()
@options.expand_options
def ensemble(
    *,
    name: Annotated[str, typer.Argument(help="the public model's name, such as guarded")],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="the ensemble's last model", show_default="the project's only one"
        ),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="the step before it, in python_backends/; created if missing",
            show_default="NAME_step",
        ),
    ] = None,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Write an ensemble of a custom step and a model, its test, and its project entry."""
    from tritonctl.project.file import FILE_NAME
    from tritonctl.repository.new_ensemble import (
        EnsembleOptions,
        chosen_model,
        example_command,
        new_ensemble,
        refuse_name,
    )
    from tritonctl.repository.new_step import write_new, write_step
    from tritonctl.tuning.write_back import edit_yaml, read_exactly, write_exactly

    console = output_options.console()
    loaded = project.load()
    refuse_name(loaded, name)
    final_model = chosen_model(loaded, model)
    step_name = step or f"{name.replace('-', '_').replace('.', '_')}_step"
    file = project.path if project.path and project.path.is_file() else loaded.root / FILE_NAME
    entry = edit_yaml(read_exactly(file), ["ensembles"], {name: {}}, file=str(file))
    written = []
    if not (loaded.root / "python_backends" / step_name).is_dir():
        written = write_step(loaded.root, step_name)
    graph, test = new_ensemble(loaded, EnsembleOptions(name, final_model, step_name))
    written += write_new(
        {
            loaded.root / "ensembles" / f"{name}.yaml": graph,
            loaded.root / "tests" / f"test_{name}_graph.py": test,
        }
    )
    write_exactly(file, entry)
    following = ["pytest tests", "tritonctl build", "tritonctl up", example_command(loaded, name)]
    _print_written(console, loaded, [*written, file], following)


@app.command()
@options.expand_options
def example(
    *,
    name: Annotated[str, typer.Argument(help="number-speller, number-finder or digit-reader")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="folder of the new project",
            show_default="./NAME",
        ),
    ] = None,
    output_options: options.OutputOptions,
) -> None:
    """Copy an example: a project with a trained checkpoint, ready to build and serve."""
    from tritonctl.errors import UsageError
    from tritonctl.project.shipped import copy_example

    console = output_options.console()
    folder = output or Path(name)
    if folder.exists():
        raise UsageError(f"{folder} exists", remedy="name another folder: --output FOLDER")
    copy_example(name, folder)
    following = [f"cd {folder}", "tritonctl build", "tritonctl up"]
    lines = [f"wrote {folder}", "next:", *(f"  {line}" for line in following)]
    console.result({"written": [str(folder)], "next": following}, "\n".join(lines))


def _print_written(
    console: Console, project: Project, written: Sequence[Path], following: Sequence[str]
) -> None:
    names = [
        str(file.relative_to(project.root) if file.is_relative_to(project.root) else file)
        for file in written
    ]
    lines = [*(f"wrote {name}" for name in names), "next:", *(f"  {line}" for line in following)]
    console.result({"written": names, "next": list(following)}, "\n".join(lines))
