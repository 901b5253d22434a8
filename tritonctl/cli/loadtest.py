# SPDX-License-Identifier: Apache-2.0
"""`tritonctl loadtest`: measure a running server under load."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import loadtest_compare, loadtest_mock, loadtest_report, options
from tritonctl.cli.load_options import LoadOptions, Rate, Scenario
from tritonctl.errors import (
    HostError,
    InterruptionError,
    InvalidMeasurementError,
    ServerError,
    SloMissedError,
    TritonctlError,
    UsageError,
)

if TYPE_CHECKING:
    from tritonctl.cli.console.output import Console
    from tritonctl.loadtest.run.capacity import CapacityRun, CapacitySearch
    from tritonctl.loadtest.run.execution import LoadRun

app = typer.Typer(no_args_is_help=True, help="Measure a running server under load.")


# Reasons for an early end, except an interruption by the user.
_EARLY_ENDS: dict[str, tuple[type[TritonctlError], str]] = {
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
        float | None,
        typer.Option(
            "--duration",
            metavar="SECONDS",
            help="seconds of a run",
            show_default="the scenario's",
        ),
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
    output_options: options.OutputOptions,
) -> None:
    """Run a scenario; exit code 8: SLO missed, 9: no valid measurement, 7: server gone."""
    from tritonctl.loadtest.run.execution import run_load
    from tritonctl.loadtest.run.jobs import create_load_job
    from tritonctl.loadtest.run.plan import Overrides, select_scenario

    console = output_options.console()
    loaded = project.load()
    name, configured = select_scenario(loaded, scenario)
    changes = Overrides(load.model, rate, concurrency, duration, count, load.seed, load.workers)
    effective = changes.apply_to(configured)
    with load.target(loaded, effective.protocol, console) as target:
        job = create_load_job(
            loaded,
            name,
            effective,
            target,
            profile=project.profile,
            engine=load.generator.value,
            output=load.output,
        )
        done = run_load(job, console)
    failure = _run_failure(done)
    _print_summary(console, done, failure)
    if report and not _write_report(console, done):
        failure = _run_failure(replace(done, interrupted=True))
    if not console.as_json:
        _print_next_step(console, done)
    if failure:
        raise failure


def _write_report(console: Console, done: LoadRun) -> bool:
    """Write the report; return False if the user interrupts it.

    Any failure only prints a warning: the verdict does not need it.
    """
    try:
        from tritonctl.loadtest.report.page import write_report

        with console.step("Writing the report"):
            write_report(done.folder)
    except TritonctlError as error:
        console.warning(f"no report was written: {error.problem} ({error.remedy})")
    except KeyboardInterrupt:
        console.warning("no report was written")
        return False
    except Exception as error:
        console.warning(
            f"no report was written: {type(error).__name__}: {error}, a bug in tritonctl"
        )
    return True


def _print_summary(console: Console, done: LoadRun, failure: TritonctlError | None) -> None:
    """Print what the run measured and its verdicts."""
    from tritonctl.loadtest.report.summary_text import (
        HEADINGS,
        metric_rows,
        opening_lines,
        verdict_lines,
    )

    summary = done.summary
    if console.as_json:
        document = {"folder": str(done.folder), **summary.to_record()}
        console.result(document, "", failure)
        return
    console.text(console.fold("\n".join(opening_lines(summary))) + "\n\n")
    console.table({}, HEADINGS, metric_rows(summary))
    console.text("\n" + console.fold("\n".join(verdict_lines(summary))) + "\n")


def _print_next_step(console: Console, done: LoadRun) -> None:
    """Print where the results are."""
    from tritonctl.loadtest.report.summary_text import next_lines

    # Users copy the path and the command: do not break them.
    console.text("\n".join(next_lines(done.folder)) + "\n")


def _run_failure(done: LoadRun) -> TritonctlError | None:
    """Return the failure for the exit code; None if a valid measurement met the SLO."""
    from tritonctl.loadtest.analysis.summary import MISSED

    summary = done.summary
    report = f"tritonctl loadtest report {done.folder}"
    if done.interrupted:
        return InterruptionError(
            f"interrupted; the measurements so far are in {done.folder}", remedy=report
        )
    if summary.reason in _EARLY_ENDS:
        kind, remedy = _EARLY_ENDS[summary.reason]
        return kind(f"the run ended early, {summary.reason}", remedy=remedy)
    if not summary.valid:
        reasons = "; ".join(summary.invalid_because)
        return InvalidMeasurementError(
            f"no valid measurement: {reasons}", remedy=f"see why: {report}"
        )
    if summary.failed:
        missed = [objective for objective in summary.slo if objective.verdict == MISSED]
        broken = "; ".join(f"{objective.name}: {objective.why}" for objective in missed)
        return SloMissedError(f"the SLO is missed: {broken}", remedy=f"see why: {report}")
    return None


@dataclass(frozen=True)
class SearchOptions:
    """Options of a capacity search."""

    lowest: Annotated[float, typer.Option("--lowest", metavar="RATE", help="lowest rate")] = 1.0
    highest: Annotated[float, typer.Option("--highest", metavar="RATE", help="highest rate")] = (
        10_000.0
    )
    resolution: Annotated[
        float,
        typer.Option(
            "--resolution",
            metavar="SHARE",
            min=0.01,
            max=1,
            help="stop when the rate is known to this share of it",
        ),
    ] = 0.1
    duration: Annotated[
        float,
        typer.Option(
            "--duration",
            metavar="SECONDS",
            min=1,
            help="seconds of a run",
        ),
    ] = 15.0
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget", metavar="MINUTES", help="minutes to spend", show_default="unlimited"
        ),
    ] = None

    def plan(self) -> CapacitySearch:
        """Return the search. Raises UsageError for an empty range of rates."""
        from tritonctl.loadtest.run.capacity import CapacitySearch

        if not 0 < self.lowest < self.highest:
            raise UsageError(
                f"--lowest {self.lowest:g} and --highest {self.highest:g} are not a range",
                remedy="use rates above 0, with --lowest below --highest",
            )
        seconds = None if self.budget is None else 60 * self.budget
        return CapacitySearch(self.lowest, self.highest, self.resolution, self.duration, seconds)


@app.command()
@options.expand_options
def capacity(
    *,
    scenario: Scenario = None,
    search: SearchOptions,
    load: LoadOptions,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Find the highest rate that keeps the SLO, and what happens beyond it.

    Exit code 8: no rate keeps it, 9: no valid measurement.
    """
    from tritonctl.loadtest.run.capacity import CapacityRunner
    from tritonctl.loadtest.run.plan import Overrides, select_scenario

    search_plan = search.plan()
    console = output_options.console()
    loaded = project.load()
    name, configured = select_scenario(loaded, scenario)
    effective = Overrides(model=load.model, seed=load.seed, workers=load.workers).apply_to(
        configured
    )
    with load.target(loaded, effective.protocol, console) as target:
        runner = CapacityRunner(
            loaded,
            name,
            effective,
            target,
            console,
            profile=project.profile,
            engine=load.generator.value,
            output=load.output,
        )
        result = runner.search(search_plan)
    _print_capacity(console, result)


def _print_capacity(console: Console, done: CapacityRun) -> None:
    from tritonctl.loadtest.report.capacity_text import (
        CAPACITY_HEADINGS,
        capacity_rows,
        conclusion_lines,
    )

    failure = _capacity_failure(done)
    if console.as_json:
        console.result(done.to_record(), "", failure)
    else:
        console.table({}, CAPACITY_HEADINGS, capacity_rows(done))
        console.text("\n" + "\n".join(conclusion_lines(done)) + "\n")
    if failure:
        raise failure


def _capacity_failure(done: CapacityRun) -> TritonctlError | None:
    if done.interrupted:
        return InterruptionError(
            f"interrupted; the measurements so far are in {done.folder}",
            remedy="search again; --lowest and --highest shorten the search",
        )
    if done.server_gone:
        return ServerError(
            "the search ended early, server gone", remedy=_EARLY_ENDS["server gone"][1]
        )
    if done.capacity.rate is not None:
        return None
    if not any(trial.valid for trial in done.capacity.trials):
        return InvalidMeasurementError(
            "no rate gave a valid measurement: the load generator did not keep up",
            remedy="use a lower --lowest, more --workers, or another machine for the load",
        )
    return SloMissedError(
        "no rate keeps the SLO",
        remedy="use a lower --lowest, or a larger --budget",
    )


app.command("compare")(loadtest_compare.command)
app.command("report")(loadtest_report.command)
app.command("mock")(loadtest_mock.command)
