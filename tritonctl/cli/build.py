# SPDX-License-Identifier: Apache-2.0
"""`tritonctl build`: checkpoint → engine."""

from __future__ import annotations

import shlex
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritonctl.cli import options

if TYPE_CHECKING:
    from tritonctl.cli.console.output import Console
    from tritonctl.engines.builds.contract import Proof
    from tritonctl.engines.builds.engine import Artefact
    from tritonctl.engines.builds.plan import BuildPlan
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
        list[str] | None,
        typer.Argument(metavar="MODEL", help="models of the project", show_default="all"),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="replace what exists: build even if nothing changed")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="show what would be done, change nothing")
    ] = False,
    locked: Annotated[
        bool, typer.Option("--locked", help="build only from what tritonctl.lock records")
    ] = False,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="NAME",
            help="stop after this stage, e.g. quantise",
            show_default=False,
        ),
    ] = None,
    offline: options.OfflineOption = False,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="models to build at once")] = 1,
    runner: Annotated[
        Runner | None, typer.Option("--runner", help="where the builders run", show_default=False)
    ] = None,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Build the engines; does nothing if nothing changed."""
    from tritonctl.engines.builds.requests import model_named

    console = output_options.console()
    loaded = project.load()
    names = list(models or sorted(loaded.models))
    if not names:
        console.note(options.NOTHING_TO_BUILD)
    for name in names:
        model_named(loaded, name)
    if runner:
        changes = [f"models.{name}.engine.runner={runner.value}" for name in names]
        loaded = project.load(changes)
    if dry_run:
        plans = _plan(loaded, names, console, until, project.profile, locked=locked)
        _print_commands(plans, console, force=force)
        return
    for name in names:
        _fetch(loaded, name, console, offline=offline, locked=locked)
    plans = _plan(loaded, names, console, until, project.profile, locked=locked)
    if offline:
        for plan in plans.values():
            _refuse_to_install(plan, force=force)
    _build(loaded, plans, console, project.profile, locked=locked, force=force, jobs=jobs)


def _print_commands(plans: dict[str, BuildPlan], console: Console, *, force: bool) -> None:
    from tritonctl.engines.builds.dry_run import plan_runs

    for name, plan in plans.items():
        for run in plan_runs(plan.requested, force=force):
            commands = [shlex.join(command) for command in run.commands]
            record = {
                "model": name,
                "stage": run.build.stage.name,
                "runner": run.build.runner,
                "required": run.is_needed,
                "folder": str(run.build.folder),
                "commands": [list(command) for command in run.commands],
            }
            status = "" if run.is_needed else ", up to date"
            title = f"# {name}: {run.build.label}, runner {run.build.runner}{status}"
            console.result(record, "\n".join([title, *commands]))


def _fetch(project: Project, name: str, console: Console, *, offline: bool, locked: bool) -> None:
    from tritonctl.engines.builds.requests import model_named
    from tritonctl.engines.sources.checkpoint import shadowing_note
    from tritonctl.engines.sources.fetch import fetch_checkpoint

    model = model_named(project, name)
    if note := shadowing_note(project, model):
        console.note(f"{name}: {note}")
    fetch_checkpoint(project, model, console, offline=offline, locked=locked)


def _plan(
    project: Project,
    names: list[str],
    console: Console,
    until: str | None,
    profile: str | None,
    *,
    locked: bool,
) -> dict[str, BuildPlan]:
    """Plan every model; with `locked` refuse inputs that tritonctl.lock does not record."""
    from tritonctl.engines.builds.lock import refuse_drift, refuse_unreadable_lock
    from tritonctl.engines.builds.plan import plan_builds

    refuse_unreadable_lock(project)
    plans = plan_builds(project, names, console, until=until)
    for name, plan in plans.items() if locked else ():
        refuse_drift(project, profile, name, plan.stages)
    return plans


def _refuse_to_install(plan: BuildPlan, *, force: bool) -> None:
    """Raise HostError if a build without a network would have to install an environment."""
    from tritonctl.engines.builds.runners import require_environments
    from tritonctl.engines.builds.shared_store import is_shared

    if force or not (plan.target.is_published or is_shared(plan.target)):
        require_environments(build for build in plan.requested if force or not build.is_published)


def _build(
    project: Project,
    plans: dict[str, BuildPlan],
    console: Console,
    profile: str | None,
    *,
    locked: bool,
    force: bool,
    jobs: int,
) -> None:
    from tritonctl.engines.builds.lock import refuse_other_tools, update_lock
    from tritonctl.engines.builds.parallel import build_engines

    built: list[tuple[str, Artefact]] = []
    try:
        with console.board(parallel=jobs > 1) as board:
            builds = build_engines(list(plans.values()), console, board, force=force, jobs=jobs)
            for name, artefact in builds:
                built.append((name, artefact))
                if locked:
                    refuse_other_tools(project, profile, name, artefact)
                else:
                    update_lock(project, profile, name, plans[name].stages, artefact)
    finally:  # report what is ready, even when another model failed
        for name, artefact in built:
            console.result(_record(name, artefact), _summary(name, artefact))


def _record(name: str, artefact: Artefact) -> dict[str, Any]:
    from tritonctl.engines.builds.engine import evaluation_of

    result, evaluation = artefact.manifest.result, evaluation_of(artefact)
    return {
        "model": name,
        "stage": artefact.manifest.stage,
        "built": artefact.is_new,
        "folder": str(artefact.folder),
        "fingerprint": artefact.manifest.fingerprint,
        "size_bytes": sum(file.size for file in result.files),
        "durations_seconds": result.durations_seconds,
        "evaluation": evaluation.model_dump() if evaluation else None,
        "proof": result.proof.model_dump() if result.proof else None,
    }


def _summary(name: str, artefact: Artefact) -> str:
    manifest = artefact.manifest
    stage = f" {manifest.stage}" if manifest.stage else ""
    engine = f"{manifest.builder}{stage} {manifest.request.precision}"
    if not artefact.is_new:
        return f"{name}: up to date ({engine}, {artefact.folder})"
    seconds = sum(manifest.result.durations_seconds.values())
    return f"{name}: built {engine} in {seconds:.1f} s{_accuracy(artefact)}\n  {artefact.folder}"


def _proof_text(proof: Proof) -> str:
    figures = ", ".join(f"{figure.name} {figure.value:.6g}" for figure in proof.figures)
    text = f", as {proof.reference} on {proof.cases} inputs\n  {figures}"
    text += f"; {len(proof.controls)} planted mistakes were detected"
    if evaluation := proof.evaluation:
        checkpoint_text = f"checkpoint {evaluation.reference:.1%}"
        engine = f"{evaluation.metric} {evaluation.engine:.1%} of {evaluation.samples}"
        text += f"\n  {engine} ({checkpoint_text})"
    return text


def _accuracy(artefact: Artefact) -> str:
    from tritonctl.engines.builds.engine import evaluation_of

    if proof := artefact.manifest.result.proof:
        return _proof_text(proof)
    evaluation = evaluation_of(artefact)
    if evaluation is None:
        return ""
    text = f", {evaluation.exact_match:.1%} of {evaluation.prompts} prompts as the checkpoint"
    if evaluation.answer_match is not None:
        text += f", {evaluation.answer_match:.1%} right"
    if evaluation.mean_kl_divergence is not None:
        text += f", mean KL divergence {evaluation.mean_kl_divergence:.1e} nats"
    return text
