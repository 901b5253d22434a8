# SPDX-License-Identifier: Apache-2.0
"""`tritonctl plan`: what the engines will need, before anything is started."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tritonctl.cli import options

if TYPE_CHECKING:
    from tritonctl.engines.planning.records import Fit, ModelPlan, ProjectPlan

_FIT_HEADINGS = ("  on", "needs", "has", "fits", "at most, batch x length")


@options.expand_options
def command(
    *,
    models: Annotated[
        list[str] | None, typer.Argument(help="models of the project", show_default="all")
    ] = None,
    gpus: Annotated[
        list[str] | None,
        typer.Option("--gpus", help="types of GPU: H100,L4", show_default="all known"),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="memory of the device, such as 80GiB", show_default=False)
    ] = None,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Estimate memory, batch sizes, disk and build time of the engines; nothing is started."""
    from tritonctl.engines.planning.plans import plan_models
    from tritonctl.host.units import parse_bytes

    console = voice.console()
    loaded = project.load()
    size = parse_bytes(memory) if memory else None
    planned = plan_models(loaded, models or sorted(loaded.models), options.listed(gpus), size)
    plans, failure = planned.models, planned.failure
    for name, error in planned.unknown.items():
        console.warning(f"no figures for {name}: {error.problem}")
    if voice.as_json:
        console.result(_record(planned), "", failure)
        if failure:
            raise failure
        return
    for number, plan in enumerate(plans):
        console.text("\n" if number else "")
        console.text("".join(f"{line}\n" for line in _engine(plan)))
        console.table({}, _FIT_HEADINGS, [_fit(fit) for fit in plan.fits])
    for plan in plans:
        for note in plan.notes:
            console.note(f"{plan.model}: {note}")
    if plans:
        console.note("estimates; how far off they have been is in docs/explanation/estimates.md")
    if failure:
        raise failure


def _record(planned: ProjectPlan) -> dict[str, Any]:
    return {
        "models": [asdict(plan) for plan in planned.models],
        "unknown": list(planned.unknown),
        "refused": {
            name: {"problem": error.problem, "remedy": error.remedy}
            for name, error in planned.refused.items()
        },
    }


def _engine(plan: ModelPlan) -> Iterator[str]:
    """What the engine is and takes, wherever it runs: a line for each figure."""
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


def _fit(fit: Fit) -> list[str]:
    from tritonctl.host.units import human_bytes

    count = f"{fit.count} x " if fit.count > 1 else ""
    return [
        f"  {count}{fit.device.name}",
        human_bytes(fit.needed),
        human_bytes(fit.usable),
        "yes" if fit.fits else "NO",
        fit.refused or _most(fit),
    ]


def _most(fit: Fit) -> str:
    if fit.length is None:
        return str(fit.largest_batch)
    return f"{fit.largest_batch} x {fit.length}, {fit.batch} x {fit.longest}"
