# SPDX-License-Identifier: Apache-2.0
"""`tritonctl init`: write a project file for a checkpoint, or a commented example."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options
from tritonctl.errors import UsageError

if TYPE_CHECKING:
    from tritonctl.cli.console.output import Console

_EXAMPLE_NAME, _EXAMPLE_CHECKPOINT = "my-model", "checkpoint"


@options.expand_options
def command(
    *,
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            help="a model's folder, an .onnx file, or OWNER/NAME of the Hugging Face Hub",
            show_default="a commented example",
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FOLDER", help="folder of the new project"),
    ] = Path(),
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="the model's name", show_default="the checkpoint's"),
    ] = None,
    target: Annotated[str, typer.Option(metavar="GPU", help="cpu, or a GPU such as h100")] = "cpu",
    precision: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="such as fp8", show_default="the target's best"),
    ] = None,
    revision: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="branch, tag or commit on the hub", show_default="main"),
    ] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="ask for each value")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="replace what exists")] = False,
    output_options: options.OutputOptions,
) -> None:
    """Write a working project file for a checkpoint, and explain its settings."""
    console = output_options.console()
    request, choices = _InitRequest(checkpoint, output), (name, target, precision)
    if interactive:
        request, choices = _ask_questions(console, request, choices)
    if request.file.exists() and not force:
        remedy = "edit it, or replace it with --force"
        raise UsageError(f"{request.file} already exists", remedy=remedy)
    _write(console, request, choices, revision)


@dataclass(frozen=True)
class _InitRequest:
    """The source and the folder of the new project."""

    checkpoint: str | None  # None: write the commented example
    folder: Path

    @property
    def file(self) -> Path:
        from tritonctl.project.file import FILE_NAME

        return self.folder / FILE_NAME


def _ask_questions(
    console: Console, request: _InitRequest, choices: tuple[str | None, str, str | None]
) -> tuple[_InitRequest, tuple[str | None, str, str | None]]:
    """Ask for every value; an empty line or the end of input selects the default."""
    name, target, precision = choices

    def ask(question: str, default: str) -> str:
        return (console.ask(f"{question} [{default}]: ") or "").strip() or default

    checkpoint = ask("Checkpoint: folder, .onnx file or OWNER/NAME", request.checkpoint or ".")
    name = ask("Name of the model", name or _name_of(checkpoint))
    target = ask("Target: cpu, or a GPU such as h100", target)
    precision = ask("Precision", precision or "what suits the target")
    folder = Path(ask("Folder of the project", str(request.folder)))
    chosen = None if precision == "what suits the target" else precision
    return _InitRequest(checkpoint, folder), (name, target, chosen)


def _name_of(checkpoint: str) -> str:
    """Derive a model's name from its path, skipping generic names such as `checkpoint`."""
    path = Path(checkpoint).resolve()
    stem = path.stem if path.suffix == ".onnx" else path.name
    if path.exists() and stem.lower() in ("checkpoint", "model", "onnx", "hf"):
        stem = path.parent.name or stem
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).strip("-_.")
    return plain or _EXAMPLE_NAME


def _write(
    console: Console,
    request: _InitRequest,
    choices: tuple[str | None, str, str | None],
    revision: str | None,
) -> None:
    from tritonctl.project.schema import MODEL_NAME_PATTERN

    name, target, precision = choices
    if name is not None and not re.fullmatch(MODEL_NAME_PATTERN, name):
        raise UsageError(
            f"`{name}` cannot be a Triton model's name",
            remedy="use letters, digits, `_`, `.` and `-`, beginning with a letter or digit",
        )
    if request.checkpoint is None:
        _write_example(console, request.file, name)
        return
    from tritonctl.engines.proposals.proposal import InitOptions
    from tritonctl.engines.proposals.writing import write_project
    from tritonctl.engines.sources.cache import is_hub_id

    if not Path(request.checkpoint).exists() and is_hub_id(request.checkpoint):
        console.note(
            f"using {request.checkpoint} of the Hugging Face Hub: there is no such folder here"
        )
    wishes = InitOptions(
        name or _name_of(request.checkpoint), request.checkpoint, target, precision, revision
    )
    written = write_project(request.folder, wishes)
    for reason in written.reasons:
        console.note(reason)
    following = " && ".join(written.next_commands)
    console.result(
        {
            "file": str(request.file),
            "written": [str(path) for path in written.files],
            "model": wishes.name,
            "reasons": list(written.reasons),
            "next": following,
        },
        f"wrote {' and '.join(str(path) for path in written.files)}; next: `{following}`",
    )


def _write_example(console: Console, file: Path, name: str | None) -> None:
    from tritonctl.host.files import write_atomically
    from tritonctl.project.example import example_project

    write_atomically(file, example_project(name or _EXAMPLE_NAME, _EXAMPLE_CHECKPOINT))
    console.result(
        {"file": str(file)},
        f"wrote {file}, a commented example; next: set `checkpoint:` in it, or let "
        "`tritonctl init CHECKPOINT` write it for your model",
    )
