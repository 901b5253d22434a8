# SPDX-License-Identifier: Apache-2.0
"""`tritonctl build`: checkpoint → engine."""

from __future__ import annotations

import shlex
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritonctl.cli import options

if TYPE_CHECKING:
    from tritonctl.cli.console.voice import Console
    from tritonctl.engines.build.contract import Proof
    from tritonctl.engines.build.engine import Artefact
    from tritonctl.engines.build.stages import StageBuild
    from tritonctl.project.schema import Project


class Runner(StrEnum):
    """Where a builder can run."""

    CURRENT = "current"
    VENV = "venv"
    CONTAINER = "container"


@options.expand_options
def command(
    *,
    models: Annotated[
        list[str] | None, typer.Argument(help="models of the project", show_default="all")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="build even if nothing changed")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the commands, run nothing")
    ] = False,
    locked: Annotated[
        bool, typer.Option("--locked", help="build only from what tritonctl.lock records")
    ] = False,
    until: Annotated[
        str | None,
        typer.Option("--until", help="stop after this stage, e.g. quantise", show_default=False),
    ] = None,
    offline: options.OfflineOption = False,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="models to build at once")] = 1,
    runner: Annotated[
        Runner | None, typer.Option("--runner", help="where the builders run", show_default=False)
    ] = None,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Build the engines: a second call with nothing changed does nothing."""
    from tritonctl.engines.build.requests import model_named

    console = voice.console()
    loaded = project.load()
    names = list(models or sorted(loaded.models))
    for name in names:
        model_named(loaded, name)
    if runner:
        changes = [f"models.{name}.engine.runner={runner.value}" for name in names]
        loaded = project.load(changes)
    if dry_run:
        _print_commands(loaded, names, console, force=force)
    else:
        steps = {"force": force, "until": until, "jobs": jobs, "offline": offline}
        for name in names:
            _fetch(loaded, name, console, offline=offline, locked=locked)
        _build(loaded, names, console, steps, profile=project.profile, locked=locked)


def _print_commands(project: Project, names: list[str], console: Console, *, force: bool) -> None:
    from tritonctl.engines.build.dry_run import planned_runs
    from tritonctl.engines.build.stages import plan_stages

    for name in names:
        for run in planned_runs(plan_stages(project, name), force=force):
            commands = [shlex.join(command) for command in run.commands]
            record = {
                "model": name,
                "stage": run.build.stage.name,
                "runner": run.build.runner,
                "needed": run.needed,
                "folder": str(run.build.folder),
                "commands": [list(command) for command in run.commands],
            }
            why = "" if run.needed else ", up to date"
            title = f"# {name}: {run.build.label}, runner {run.build.runner}{why}"
            console.result(record, "\n".join([title, *commands]))


def _fetch(project: Project, name: str, console: Console, *, offline: bool, locked: bool) -> None:
    from tritonctl.engines.build.requests import model_named
    from tritonctl.engines.hub.checkpoint import hidden_by_folder
    from tritonctl.engines.hub.fetch import fetch_checkpoint

    model = model_named(project, name)
    if note := hidden_by_folder(project, model):
        console.note(f"{name}: {note}")
    fetch_checkpoint(project, model, console, offline=offline, locked=locked)


def _refuse_to_install(stages: list[StageBuild], until: str | None, *, force: bool) -> None:
    """Raises HostError where a build without a network would have to install an environment."""
    from tritonctl.engines.build.runners import refuse_to_install
    from tritonctl.engines.build.shared_store import offered
    from tritonctl.engines.build.stages import stages_until

    stages = stages_until(stages, until)
    if force or not (stages[-1].published or offered(stages[-1])):
        refuse_to_install(build for build in stages if force or not build.published)


def _build(
    project: Project,
    names: list[str],
    console: Console,
    steps: dict[str, Any],
    *,
    profile: str | None,
    locked: bool,
) -> None:
    from tritonctl.engines.build.lock import (
        refuse_damaged,
        refuse_drift,
        refuse_other_tools,
        update_lock,
    )
    from tritonctl.engines.build.parallel import build_engines
    from tritonctl.engines.build.stages import plan_stages

    refuse_damaged(project)
    stages = {name: plan_stages(project, name) for name in names}
    for name in names if locked else ():
        refuse_drift(project, profile, name, stages[name])
    if steps.pop("offline"):
        for name in names:
            _refuse_to_install(stages[name], steps["until"], force=steps["force"])
    built: list[tuple[str, Artefact]] = []
    try:
        with console.board(parallel=steps["jobs"] > 1) as board:
            for name, artefact in build_engines(project, names, console, board, **steps):
                built.append((name, artefact))
                if locked:
                    refuse_other_tools(project, profile, name, artefact)
                else:
                    update_lock(project, profile, name, stages[name], artefact)
    finally:  # report what is ready, even when another model failed
        for name, artefact in built:
            console.result(_record(name, artefact), _summary(name, artefact))


def _record(name: str, artefact: Artefact) -> dict[str, Any]:
    from tritonctl.engines.build.engine import evaluation_of

    result, evaluation = artefact.manifest.result, evaluation_of(artefact)
    return {
        "model": name,
        "stage": artefact.manifest.stage,
        "built": artefact.fresh,
        "folder": str(artefact.folder),
        "fingerprint": artefact.manifest.fingerprint,
        "bytes": sum(file.size for file in result.files),
        "durations_seconds": result.durations_seconds,
        "evaluation": evaluation.model_dump() if evaluation else None,
        "proof": result.proof.model_dump() if result.proof else None,
    }


def _summary(name: str, artefact: Artefact) -> str:
    manifest = artefact.manifest
    stage = f" {manifest.stage}" if manifest.stage else ""
    engine = f"{manifest.builder}{stage} {manifest.request.precision}"
    if not artefact.fresh:
        return f"{name}: up to date ({engine}, {artefact.folder})"
    seconds = sum(manifest.result.durations_seconds.values())
    return f"{name}: built {engine} in {seconds:.1f} s{_accuracy(artefact)}\n  {artefact.folder}"


def _proven(proof: Proof) -> str:
    figures = ", ".join(f"{figure.name} {figure.value:.6g}" for figure in proof.figures)
    text = f", as {proof.reference} on {proof.cases} inputs\n  {figures}"
    text += f"; {len(proof.controls)} mistakes made on purpose were caught"
    if own := proof.evaluation:
        before = f"checkpoint {own.reference:.1%}"
        text += f"\n  {own.metric} {own.engine:.1%} of {own.samples} ({before})"
    return text


def _accuracy(artefact: Artefact) -> str:
    from tritonctl.engines.build.engine import evaluation_of

    if proof := artefact.manifest.result.proof:
        return _proven(proof)
    evaluation = evaluation_of(artefact)
    if evaluation is None:
        return ""
    text = f", {evaluation.exact_match:.1%} of {evaluation.prompts} prompts as the checkpoint"
    if evaluation.answer_match is not None:
        text += f", {evaluation.answer_match:.1%} right"
    if evaluation.mean_kl_divergence is not None:
        text += f", mean KL divergence {evaluation.mean_kl_divergence:.1e} nats"
    return text
