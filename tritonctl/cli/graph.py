# SPDX-License-Identifier: Apache-2.0
"""`tritonctl graph`: an ensemble as a picture, with its tensors and their mistakes."""

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
        Path | None, typer.Option(help="a folder of models", show_default="the project's")
    ] = None,
    output: Annotated[Format, typer.Option("--format", help="of the output")] = "terminal",
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Draw an ensemble: every tensor with type and shape, broken ones with the rule's id."""
    console = voice.console()
    folder = repository or project.load().repository
    picture = _picture(model, _read(folder))
    if voice.as_json:
        console.result(picture.as_record(), "")
    elif output == "terminal":
        console.picture(picture)
    elif output == "json":
        import json

        console.text(json.dumps(picture.as_record(), indent=2, ensure_ascii=False) + "\n")
    else:
        from tritonctl.checks.drawing.markup import dot, mermaid

        console.text({"mermaid": mermaid, "dot": dot}[output](picture))


def _read(folder: Path) -> Repository:
    from tritonctl.checks.repository import Repository, Target

    try:
        return Repository.at(folder, str(folder), Target())
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
