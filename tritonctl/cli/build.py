# SPDX-License-Identifier: Apache-2.0
"""`tritonctl build`: checkpoint → engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritonctl.cli import options

if TYPE_CHECKING:
    from tritonctl.engines.building import Artefact


def command(
    models: Annotated[
        list[str] | None, typer.Argument(help="models of the project [default: all]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="build even if nothing changed")] = False,
    project: options.ProjectOption = None,
    profile: options.ProfileOption = None,
    overrides: options.SetOption = None,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Build the engines: a second call with nothing changed does nothing."""
    from tritonctl.engines.building import build_engine

    console = options.console(as_json, quiet)
    loaded = options.open_project(project, profile, overrides)
    for name in models or sorted(loaded.models):
        artefact = build_engine(loaded, name, console, force=force)
        console.result(_record(name, artefact), _summary(name, artefact))


def _record(name: str, artefact: Artefact) -> dict[str, Any]:
    result = artefact.manifest.result
    return {
        "model": name,
        "built": artefact.fresh,
        "folder": str(artefact.folder),
        "fingerprint": artefact.manifest.fingerprint,
        "bytes": sum(file.size for file in result.files),
        "durations_seconds": result.durations_seconds,
        "evaluation": result.evaluation.model_dump() if result.evaluation else None,
    }


def _summary(name: str, artefact: Artefact) -> str:
    manifest = artefact.manifest
    engine = f"{manifest.builder} {manifest.request.precision}"
    if not artefact.fresh:
        return f"{name}: up to date ({engine}, {artefact.folder})"
    seconds = sum(manifest.result.durations_seconds.values())
    return f"{name}: built {engine} in {seconds:.1f} s{_accuracy(artefact)}\n  {artefact.folder}"


def _accuracy(artefact: Artefact) -> str:
    evaluation = artefact.manifest.result.evaluation
    if evaluation is None:
        return ""
    text = f", {evaluation.exact_match:.1%} of {evaluation.prompts} prompts as the checkpoint"
    if evaluation.answer_match is not None:
        text += f", {evaluation.answer_match:.1%} right"
    return text
