# SPDX-License-Identifier: Apache-2.0
"""`tritonctl loadtest`: measure a running server under load, honestly."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import loadtest_compare, loadtest_mock, loadtest_report, options
from tritonctl.cli.load_options import LoadOptions, Rate, Scenario
from tritonctl.errors import (
    HostError,
    InterruptionError,
    ServerError,
    SloMissedError,
    TritonctlError,
    UsageError,
)

if TYPE_CHECKING:
    from tritonctl.cli.console.voice import Console
    from tritonctl.loadtest.run.capacity import CapacityRun
    from tritonctl.loadtest.run.execution import LoadRun

app = typer.Typer(no_args_is_help=True, help="Measure a running server under load.")


# What ended a run early, other than the user.
_ENDS: dict[str, tuple[type[TritonctlError], str]] = {
    "server gone": (ServerError, "see `tritonctl status` and `tritonctl logs`"),
    "disk full": (HostError, "free space where the run's folder is"),
}


@app.command()
@options.expand_options
def run(
    *,
    scenario: Scenario = None,
    rate: Rate = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency", min=1, help="closed loop with this many users", show_default=False
        ),
    ] = None,
    duration: Annotated[
        float | None, typer.Option("--duration", help="seconds to send", show_default=False)
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--count", min=1, help="number of requests, instead of a duration", show_default=False
        ),
    ] = None,
    load: LoadOptions,
    report: Annotated[bool, typer.Option(help="write report.html into the folder")] = True,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Run a scenario; exit code 8: SLO missed or no valid measurement, 7: the server went away."""
    from tritonctl.loadtest.run.execution import run_load
    from tritonctl.loadtest.run.jobs import load_job
    from tritonctl.loadtest.run.plan import Overrides, chosen_scenario

    console = voice.console()
    loaded = project.load()
    name, written = chosen_scenario(loaded, scenario)
    changes = Overrides(load.model, rate, concurrency, duration, count, load.seed, load.workers)
    wanted = changes.applied(written)
    with load.target(loaded, wanted.protocol) as target:
        job = load_job(
            loaded,
            name,
            wanted,
            target,
            profile=project.profile,
            engine=load.engine.value,
            output=load.output,
        )
        done = run_load(job, console)
    if report:
        done = _reported(console, done)
    _print_run(console, done)


def _reported(console: Console, done: LoadRun) -> LoadRun:
    """Write the report; a run without one is still whole."""
    try:
        from tritonctl.loadtest.report.page import write_report

        with console.step("Writing the report"):
            write_report(done.folder)
    except TritonctlError as error:
        console.warning(f"no report was written: {error.problem} ({error.remedy})")
    except KeyboardInterrupt:
        console.warning("no report was written")
        return replace(done, interrupted=True)
    return done


def _print_run(console: Console, done: LoadRun) -> None:
    """The summary, then the exit code that a gate needs."""
    from tritonctl.loadtest.report.summary_text import HEADINGS, closing, opening, rows

    summary = done.summary
    failure = _run_failure(done)
    if console.as_json:
        console.result({"folder": str(done.folder), **summary.to_record()}, "", failure)
    else:
        console.text(console.folded("\n".join(opening(summary))) + "\n\n")
        console.table({}, HEADINGS, rows(summary))
        # A path and a command are copied: they stay in one piece.
        *verdicts, where, following = closing(summary, done.folder)
        console.text("\n" + console.folded("\n".join(verdicts)) + f"\n{where}\n{following}\n")
    if failure:
        raise failure


def _run_failure(done: LoadRun) -> TritonctlError | None:
    """The failure for a gate; None when a valid measurement met the SLO."""
    from tritonctl.loadtest.analysis.summary import MISSED

    summary = done.summary
    report = f"tritonctl loadtest report {done.folder}"
    if done.interrupted:
        return InterruptionError(
            f"interrupted; what was measured until then is in {done.folder}", remedy=report
        )
    if summary.reason in _ENDS:
        kind, remedy = _ENDS[summary.reason]
        return kind(f"the run ended early, {summary.reason}", remedy=remedy)
    if not summary.valid:
        reasons = "; ".join(summary.invalid_because)
        return SloMissedError(f"no valid measurement: {reasons}", remedy=f"see why: {report}")
    if summary.failed:
        missed = [one for one in summary.slo if one.verdict == MISSED]
        broken = "; ".join(f"{one.name}: {one.why}" for one in missed)
        return SloMissedError(f"the SLO is missed: {broken}", remedy=f"see why: {report}")
    return None


@app.command()
@options.expand_options
def capacity(
    *,
    scenario: Scenario = None,
    lowest: Annotated[
        float, typer.Option("--lowest", help="lowest rate, requests per second")
    ] = 1.0,
    highest: Annotated[
        float, typer.Option("--highest", help="highest rate, requests per second")
    ] = 10_000.0,
    precision: Annotated[
        float,
        typer.Option("--precision", min=0.01, max=1, help="of the result, as a share of the rate"),
    ] = 0.1,
    duration: Annotated[
        float,
        typer.Option("--duration", min=1, help="seconds of a trial; slow rates take longer"),
    ] = 15.0,
    budget: Annotated[
        float | None,
        typer.Option("--budget", help="minutes for the search", show_default=False),
    ] = None,
    load: LoadOptions,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Find the highest rate that keeps the SLO, and what happens beyond it."""
    from tritonctl.loadtest.run.capacity import CapacityRunner, Search
    from tritonctl.loadtest.run.plan import Overrides, chosen_scenario

    if not 0 < lowest < highest:
        raise UsageError(
            f"--lowest {lowest:g} and --highest {highest:g} are no range",
            remedy="give rates above 0, the lowest first",
        )
    console = voice.console()
    loaded = project.load()
    name, written = chosen_scenario(loaded, scenario)
    wanted = Overrides(model=load.model, seed=load.seed, workers=load.workers).applied(written)
    minutes = None if budget is None else 60 * budget
    with load.target(loaded, wanted.protocol) as target:
        runner = CapacityRunner(
            loaded,
            name,
            wanted,
            target,
            console,
            profile=project.profile,
            engine=load.engine.value,
            output=load.output,
        )
        found = runner.search(Search(lowest, highest, precision, duration, minutes))
    _print_capacity(console, found)


def _print_capacity(console: Console, done: CapacityRun) -> None:
    from tritonctl.loadtest.report.capacity_text import CAPACITY_HEADINGS, capacity_rows, conclusion

    failure = _capacity_failure(done)
    if console.as_json:
        console.result(done.to_record(), "", failure)
    else:
        console.table({}, CAPACITY_HEADINGS, capacity_rows(done))
        console.text("\n" + "\n".join(conclusion(done)) + "\n")
    if failure:
        raise failure


def _capacity_failure(done: CapacityRun) -> TritonctlError | None:
    if done.interrupted:
        return InterruptionError(
            f"interrupted; what was measured until then is in {done.folder}",
            remedy="search again; --lowest and --highest make the search shorter",
        )
    if done.server_gone:
        return ServerError("the search ended early, server gone", remedy=_ENDS["server gone"][1])
    if done.capacity.rate is None:
        return SloMissedError(
            "no rate was found that keeps the SLO",
            remedy="give a lower --lowest, or a larger --budget",
        )
    return None


app.command("compare")(loadtest_compare.command)
app.command("report")(loadtest_report.command)
app.command("mock")(loadtest_mock.command)
