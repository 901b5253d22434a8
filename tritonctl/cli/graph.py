# SPDX-License-Identifier: Apache-2.0
"""`tritonctl graph`: draw an ensemble with its tensors and their mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tritonctl.cli import options
from tritonctl.errors import RepositoryError, UsageError, choices

if TYPE_CHECKING:
    from tritonctl.checks.drawing.picture import Picture
    from tritonctl.checks.repository import Repository

Format = Literal["terminal", "mermaid", "dot", "json"]


@options.expand_options
def command(
    *,
    model: Annotated[str, typer.Argument(help="a model of the repository")],
    repository: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="a folder of models", show_default="the project's"),
    ] = None,
    output: Annotated[Format, typer.Option("--format", help="output format")] = "terminal",
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Draw an ensemble: tensors with type and shape, broken ones with the rule's id."""
    console = output_options.console()
    folder = repository or project.load().repository
    picture = _picture(model, _read_repository(folder))
    if output_options.as_json:
        console.result(picture.as_record(), "")
    elif output == "terminal":
        console.draw(picture)
    elif output == "json":
        import json

        console.text(json.dumps(picture.as_record(), indent=2, ensure_ascii=False) + "\n")
    else:
        from tritonctl.checks.drawing.markup import dot, mermaid

        console.text({"mermaid": mermaid, "dot": dot}[output](picture))


def _read_repository(folder: Path) -> Repository:
    from tritonctl.checks.repository import CheckTarget, Repository

    try:
        return Repository.read(folder, str(folder), CheckTarget())
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be read: {error.strerror}",
            remedy="name a folder with a model in each of its folders, or run tritonctl render",
        ) from error


def _picture(name: str, repository: Repository) -> Picture:
    from tritonctl.checks.drawing.picture import picture_of

    model = repository.models.get(name)
    if model is None:
        raise UsageError(
            f"{repository.path} has no model {name}",
            remedy=choices(name, repository.models, "its models:"),
        )
    picture = picture_of(model, repository)
    if picture is None:
        raise RepositoryError(
            f"the configuration of {name} cannot be read",
            remedy=f"run tritonctl check {repository.path}",
        )
    return picture
