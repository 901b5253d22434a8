# SPDX-License-Identifier: Apache-2.0
"""`tritonctl plan`: estimate the resources of engines before starting anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options

if TYPE_CHECKING:
    from tritonctl.cli.documents.building import ModelEstimates, PlanDocument, PlannedFit
    from tritonctl.engines.planning.records import Fit, ModelPlan, ProjectPlan

_FIT_HEADINGS = ("  on", "needs", "has", "fits", "at most, batch x length")


@options.expand_options
def command(
    *,
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help="models of the project", show_default="all"),
    ] = None,
    gpus: Annotated[
        list[str] | None,
        typer.Option("--gpus", metavar="GPU", help="GPU types: H100,L4", show_default="all known"),
    ] = None,
    device_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="memory of another device, such as 80GiB", show_default=False
        ),
    ] = None,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Estimate memory, batch sizes, disk and build time of the engines; starts nothing."""
    from tritonctl.engines.planning.plans import plan_models
    from tritonctl.host.units import parse_bytes

    console = output_options.console()
    loaded = project.load()
    size = parse_bytes(device_memory) if device_memory else None
    planned = plan_models(loaded, models or sorted(loaded.models), options.split_names(gpus), size)
    plans, failure = planned.models, planned.failure
    for name, error in planned.without_figures.items():
        console.warning(f"no figures for {name}: {error.problem}")
    if output_options.as_json:
        console.result(_record(planned), "", failure)
        if failure:
            raise failure
        return
    if not loaded.models:
        console.note(options.NOTHING_TO_BUILD)
    for number, plan in enumerate(plans):
        console.text("\n" if number else "")
        console.text("".join(f"{line}\n" for line in _engine_lines(plan)))
        console.table({}, _FIT_HEADINGS, [_fit_row(fit) for fit in plan.fits])
    for plan in plans:
        for note in plan.notes:
            console.note(f"{plan.model}: {note}")
    if plans:
        console.note("estimates; how far each may be off: docs/explanation/estimates.md")
    if failure:
        raise failure


def _record(planned: ProjectPlan) -> PlanDocument:
    return {
        "models": [_model_record(plan) for plan in planned.models],
        "without_figures": list(planned.without_figures),
        "refused": {
            name: {"problem": error.problem, "remedy": error.remedy}
            for name, error in planned.refused.items()
        },
    }


def _model_record(plan: ModelPlan) -> ModelEstimates:
    return {
        "model": plan.model,
        "builder": plan.builder,
        "precision": plan.precision,
        "parameters": plan.parameters,
        "weights_bytes": plan.weights,
        "files_bytes": plan.files,
        "kv_bytes_per_token": plan.kv_bytes_per_token,
        "activations_bytes": plan.activations,
        "build_disk_bytes": plan.disk,
        "build_memory_bytes": plan.build_memory,
        "build_seconds": plan.build_seconds,
        "build_seconds_from": plan.build_seconds_from,
        "built_bytes": plan.built,
        "fits": [_fit_record(fit) for fit in plan.fits],
        "notes": plan.notes,
    }


def _fit_record(fit: Fit) -> PlannedFit:
    return {
        "device": fit.device.name,
        "device_memory_bytes": fit.device.memory,
        "devices": fit.count,
        "refused": fit.refused,
        "needed_bytes": fit.needed,
        "usable_bytes": fit.usable,
        "fits": fit.fits,
        "batch": fit.batch,
        "length_tokens": fit.length,
        "max_batch": fit.largest_batch,
        "max_length_tokens": fit.longest,
    }


def _engine_lines(plan: ModelPlan) -> Iterator[str]:
    """Yield the engine's figures that do not depend on the device, one per line."""
    from tritonctl.host.units import human_bytes, human_seconds

    yield f"{plan.model}: {plan.builder} {plan.precision}"
    seconds = "unknown" if plan.build_seconds is None else human_seconds(plan.build_seconds)
    figures = {
        "parameters": "unknown" if plan.parameters is None else f"{plan.parameters:,}",
        "weights": human_bytes(plan.weights),
        "files": human_bytes(plan.files if plan.built is None else plan.built),
        "KV/token": human_bytes(plan.kv_bytes_per_token) if plan.kv_bytes_per_token else "none",
        "activations": human_bytes(plan.activations),
        "build time": seconds if plan.built is None else "up to date",
        "build disk": human_bytes(plan.disk),
        "build memory": "unknown" if plan.build_memory is None else human_bytes(plan.build_memory),
    }
    yield from (f"  {name:<12}  {figure}" for name, figure in figures.items())


def _fit_row(fit: Fit) -> list[str]:
    from tritonctl.host.units import human_bytes

    count = f"{fit.count} x " if fit.count > 1 else ""
    return [
        f"  {count}{fit.device.name}",
        human_bytes(fit.needed),
        human_bytes(fit.usable),
        "yes" if fit.fits else "NO",
        fit.refused or _largest_batch(fit),
    ]


def _largest_batch(fit: Fit) -> str:
    if fit.length is None:
        return str(fit.largest_batch)
    return f"{fit.largest_batch} x {fit.length}, {fit.batch} x {fit.longest}"
