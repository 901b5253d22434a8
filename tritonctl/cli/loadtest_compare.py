# SPDX-License-Identifier: Apache-2.0
"""`tritonctl loadtest compare`: compare two load tests or servers for significant differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import load_options, options

if TYPE_CHECKING:
    from tritonctl.cli.console.output import Console
    from tritonctl.loadtest.analysis.compare import Change, Estimate
    from tritonctl.loadtest.run.interleaving import Sides
    from tritonctl.project.schema import Project
    from tritonctl.protocol.channel import Endpoint

Side = Annotated[
    str,
    typer.Argument(
        help="a run: its folder, or its name in .tritonctl/loadtests; runs separated by commas "
        "count as one. Or HOST:PORT on both sides: load both servers now, alternately",
        show_default=False,
    ),
]


@options.expand_options
def command(
    *,
    left: Side,
    right: Annotated[str, typer.Argument(help="compared with LEFT; the same kinds")],
    allow_different_loads: Annotated[
        bool, typer.Option("--allow-different-loads", help="compare even if their loads differ")
    ] = False,
    scenario: Annotated[
        str | None,
        typer.Option(
            "--scenario",
            metavar="SCENARIO",
            help="load test to run on two servers",
            show_default="the only one",
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, help="rounds on two servers: A B, B A and so on")
    ] = 4,
    rate: load_options.Rate = None,
    duration: Annotated[
        float | None,
        typer.Option(
            "--duration",
            metavar="SECONDS",
            help="seconds of a run",
            show_default="the scenario's",
        ),
    ] = None,
    access: options.AccessOptions,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Compare load tests: the change of each figure with its 99 % interval, or "no difference"."""
    from tritonctl.loadtest.analysis.compare import compare

    console = output_options.console()
    if _two_endpoints(left, right):
        servers = [access.endpoint(url) for url in (left, right)]
        loaded = project.load()
        load = (scenario, rate, duration, project.profile)
        sides = _run(loaded, console, servers, rounds, load)
    else:
        access.endpoint(None)  # rejects options that only servers need
        sides = _folders(left, project.path), _folders(right, project.path)
    comparison = compare(*sides, force=allow_different_loads)
    for warning in comparison.warnings:
        console.warning(warning)
    for setting in comparison.settings:
        kind = "load differs" if setting.load else "differs"
        console.note(f"{kind}: {setting.field}: {setting.left} | {setting.right}")
    for note in comparison.notes:
        console.note(note)
    rows = [
        [c.name, _estimate(c, c.left), _estimate(c, c.right), _verdict(c)]
        for c in comparison.changes
    ]
    names = (_title(comparison.left), _title(comparison.right))
    console.table(asdict(comparison), ("", *names, "the second is"), rows)


def _two_endpoints(left: str, right: str) -> bool:
    """Whether both sides are servers. Raises UsageError when only one is."""
    from tritonctl.errors import UsageError
    from tritonctl.loadtest.run.interleaving import is_endpoint

    servers = [side for side in (left, right) if is_endpoint(side)]
    if len(servers) == 1:
        raise UsageError(
            f"`{servers[0]}` is a server, but the other side is a run",
            remedy="name two runs, or two servers as HOST:PORT",
        )
    return len(servers) > 1


def _run(
    project: Project,
    console: Console,
    servers: Sequence[Endpoint | None],
    rounds: int,
    load: tuple[str | None, float | None, float | None, str | None],
) -> Sides:
    """Load both servers alternately; each round has its own load, the same for both."""
    from tritonctl.loadtest.run.execution import LoadJob
    from tritonctl.loadtest.run.interleaving import run_interleaved
    from tritonctl.loadtest.run.jobs import create_load_job, resolve_target
    from tritonctl.loadtest.run.plan import Overrides, select_scenario

    scenario, rate, duration, profile = load
    name, configured = select_scenario(project, scenario)
    base_scenario = Overrides(rate=rate, duration_seconds=duration).apply_to(configured)
    targets = [resolve_target(project, base_scenario.protocol, server) for server in servers]

    def job(side: int, number: int) -> LoadJob:
        drawn = Overrides(seed=base_scenario.seed + number).apply_to(base_scenario)
        return create_load_job(project, name, drawn, targets[side], profile=profile)

    sides, interrupted = run_interleaved(job, rounds, console)
    if interrupted and not sides[0]:
        raise KeyboardInterrupt
    for target, folders in zip(targets, sides, strict=True):
        console.note(f"{target.url}: {', '.join(folder.name for folder in folders)}")
    return sides


def _folders(side: str, project: Path | None) -> list[Path]:
    """Return the folders that an argument names."""
    names = [side] if Path(side).is_dir() else [name for name in side.split(",") if name.strip()]
    return [_folder(name.strip(), project) for name in names]


def _folder(name: str, project: Path | None) -> Path:
    from tritonctl.errors import TritonctlError, UsageError

    if Path(name).is_dir():
        return Path(name)
    run_names: list[str] = []
    problem = None
    try:
        stored = options.ProjectOptions(project).load().state / "loadtests"
        if (stored / name).is_dir():
            return stored / name
        run_names = sorted((path.name for path in stored.glob("*") if path.is_dir()), reverse=True)
    except TritonctlError as error:
        problem = error.problem
    raise UsageError(
        f"no load test `{name}`",
        remedy=f"the latest: {', '.join(run_names[:5])}"
        if run_names
        else "run one: tritonctl loadtest run",
        details=problem,
    )


def _title(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} + {len(names) - 1}"


def _verdict(change: Change) -> str:
    """Return the verdict; without a difference also the interval of a possible one."""
    if change.differs or change.low is None or change.high is None:
        return change.verdict
    unit = "points" if change.unit == "share" else "%"
    return f"{change.verdict} [{100 * change.low:+.3g}, {100 * change.high:+.3g} {unit}]"


def _estimate(change: Change, estimate: Estimate) -> str:
    """Format an estimate: `12.3 ms [11.8, 12.9]`."""
    scale, unit = (100, " %") if change.unit == "share" else (1, f" {change.unit}")
    low, high = (
        "?" if bound is None else f"{scale * bound:.4g}" for bound in (estimate.low, estimate.high)
    )
    return f"{scale * estimate.value:.4g}{unit} [{low}, {high}]"
