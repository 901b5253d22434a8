# SPDX-License-Identifier: Apache-2.0
"""`tritonctl init`: a project file for a checkpoint, or a commented one to start from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options
from tritonctl.errors import UsageError, suggest

if TYPE_CHECKING:
    from tritonctl.cli.console.voice import Console

_EXAMPLE_NAME, _EXAMPLE_CHECKPOINT = "my-model", "checkpoint"


@options.expand_options
def command(
    *,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="CHECKPOINT",
            help="a model's folder, an .onnx file, or OWNER/NAME of the Hugging Face Hub",
            show_default="a commented example",
        ),
    ] = None,
    into: Annotated[Path, typer.Option(help="the project's folder")] = Path(),
    name: Annotated[
        str | None, typer.Option(help="the model's name", show_default="the checkpoint's")
    ] = None,
    target: Annotated[str, typer.Option(help="cpu, or a GPU such as h100")] = "cpu",
    precision: Annotated[
        str | None, typer.Option(help="such as fp8", show_default="what suits the target")
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="branch, tag or commit of the hub", show_default="main")
    ] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="ask for each of these")
    ] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option(help="the earlier form: the argument then is the folder", show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace an existing file")] = False,
    voice: options.OutputOptions,
) -> None:
    """Write a project file that works for a checkpoint, and say why it is so."""
    console = voice.console()
    asked = _Asked.of(model, into, checkpoint, console)
    wanted = (name, target, precision)
    if interactive:
        asked, wanted = _questions(console, asked, wanted)
    if asked.file.exists() and not force:
        remedy = "edit it, or replace it with --force"
        raise UsageError(f"{asked.file} already exists", remedy=remedy)
    _write(console, asked, wanted, revision)


@dataclass(frozen=True)
class _Asked:
    """What to start from, and where the project goes; checkpoint None: the commented example."""

    checkpoint: str | None
    into: Path

    @property
    def file(self) -> Path:
        from tritonctl.project.file import FILE_NAME

        return self.into / FILE_NAME

    @classmethod
    def of(cls, model: str | None, into: Path, checkpoint: str | None, console: Console) -> _Asked:
        """In the earlier form, the argument was the project's folder."""
        if checkpoint is not None:
            if model is None:
                return cls(checkpoint, into)
            console.note(f"earlier form; today: `tritonctl init {checkpoint} --into {model}`")
            return cls(checkpoint, Path(model))
        if model is None:
            return cls(None, into)
        from tritonctl.engines.hub.cache import is_hub_id

        path = Path(model)
        if not path.exists() and is_hub_id(model):
            console.note(
                f"{model} is taken as a model of the Hugging Face Hub: there is no such folder here"
            )
            return cls(model, into)
        if _is_project(path, into) or (not path.exists() and not _names_a_file(path)):
            return cls(None, path)
        return cls(model, into)


_MODEL_FILES = (".onnx", ".gguf", ".safetensors", ".bin")


def _names_a_file(path: Path) -> bool:
    """Whether a path is a model's file by its end, or by what that was probably meant to be."""
    return suggest(path.suffix, _MODEL_FILES) is not None


def _is_project(path: Path, into: Path) -> bool:
    """Whether a folder can only be meant as the project's: `.` or one that has a project file."""
    from tritonctl.project.file import FILE_NAME

    holds_model = (path / "config.json").is_file() or any(
        next(path.glob(f"*{suffix}"), None) for suffix in _MODEL_FILES
    )
    meant = path.resolve() == into.resolve() or (path / FILE_NAME).exists()
    return meant and not holds_model


def _questions(
    console: Console, asked: _Asked, wanted: tuple[str | None, str, str | None]
) -> tuple[_Asked, tuple[str | None, str, str | None]]:
    """Ask for everything; an empty line, or the end of input, takes the default in brackets."""
    name, target, precision = wanted

    def ask(question: str, default: str) -> str:
        return (console.ask(f"{question} [{default}]: ") or "").strip() or default

    checkpoint = ask("Checkpoint: folder, .onnx file or OWNER/NAME", asked.checkpoint or ".")
    name = ask("Name of the model", name or _name_of(checkpoint))
    target = ask("Target: cpu, or a GPU such as h100", target)
    precision = ask("Precision", precision or "what suits the target")
    into = Path(ask("Folder of the project", str(asked.into)))
    chosen = None if precision == "what suits the target" else precision
    return _Asked(checkpoint, into), (name, target, chosen)


def _name_of(checkpoint: str) -> str:
    """A model's name from where it lies: `checkpoint` and the like say nothing."""
    path = Path(checkpoint).resolve()
    stem = path.stem if path.suffix == ".onnx" else path.name
    if path.exists() and stem.lower() in ("checkpoint", "model", "onnx", "hf"):
        stem = path.parent.name or stem
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).strip("-_.")
    return plain or _EXAMPLE_NAME


def _write(
    console: Console,
    asked: _Asked,
    wanted: tuple[str | None, str, str | None],
    revision: str | None,
) -> None:
    from tritonctl.project.schema import MODEL_NAME_PATTERN

    name, target, precision = wanted
    if name is not None and not re.fullmatch(MODEL_NAME_PATTERN, name):
        raise UsageError(
            f"`{name}` cannot be a Triton model's name",
            remedy="use letters, digits, `_`, `.` and `-`, beginning with a letter or digit",
        )
    if asked.checkpoint is None or _is_missing(asked):
        _write_example(console, asked, name)
        return
    from tritonctl.engines.proposals.proposal import Wishes
    from tritonctl.engines.proposals.writing import write_project

    wishes = Wishes(
        name or _name_of(asked.checkpoint), asked.checkpoint, target, precision, revision
    )
    written = write_project(asked.into, wishes)
    for reason in written.reasons:
        console.note(reason)
    following = " && ".join(written.following)
    console.result(
        {
            "file": str(asked.file),
            "written": [str(path) for path in written.files],
            "model": wishes.name,
            "reasons": list(written.reasons),
            "next": following,
        },
        f"wrote {' and '.join(str(path) for path in written.files)}; next: `{following}`",
    )


def _is_missing(asked: _Asked) -> bool:
    """Whether the earlier form names a checkpoint that is yet to come: FOLDER --checkpoint NAME."""
    from tritonctl.engines.hub.cache import is_hub_id

    text = str(asked.checkpoint)
    found = Path(text).exists() or (asked.into / text).exists()
    return not found and not is_hub_id(text) and not _names_a_file(Path(text))


def _write_example(console: Console, asked: _Asked, name: str | None) -> None:
    from tritonctl.host.files import write_atomically
    from tritonctl.project.example import example_project

    checkpoint = asked.checkpoint or _EXAMPLE_CHECKPOINT
    write_atomically(asked.file, example_project(name or _EXAMPLE_NAME, checkpoint))
    console.result(
        {"file": str(asked.file)},
        f"wrote {asked.file}, a commented example; next: set `checkpoint:` in it, or let "
        "`tritonctl init CHECKPOINT` write it for your model",
    )
