# SPDX-License-Identifier: Apache-2.0
"""`tritonctl tune`: find the server settings with the highest rate within the SLO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import load_options, options
from tritonctl.errors import InvalidMeasurementError

_MINUTES, _BUDGET_FACTOR = 30.0, 4

if TYPE_CHECKING:
    from tritonctl.cli.console.output import Console
    from tritonctl.project.schema import Project
    from tritonctl.tuning.tuner import TuneJob, TuningResult


@options.expand_options
def command(
    *,
    scenario: load_options.Scenario = None,
    budget: Annotated[
        float, typer.Option("--budget", metavar="MINUTES", min=0.2, help="minutes to spend")
    ] = _MINUTES,
    apply: Annotated[
        bool, typer.Option("--apply", help="write the best settings into tritonctl.yaml")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="continue the last session for another --budget")
    ] = False,
    knob: Annotated[
        list[str] | None,
        typer.Option(
            "--knob", metavar="NAME", help="tune only this setting; repeatable", show_default=False
        ),
    ] = None,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Find the settings with the highest rate within the SLO; print them as a diff.

    Exit code 9: the budget ended before other settings were measured.
    """
    from tritonctl.loadtest.run.plan import select_scenario
    from tritonctl.tuning.tuner import TuneJob

    console = output_options.console()
    loaded = project.load()
    name, written = select_scenario(loaded, scenario)
    job = TuneJob(loaded, name, written, budget, resume=resume, knobs=tuple(knob or ()))
    tuned = _run_tuning(console, job)
    failure = _failure(job, tuned)
    _print_result(console, loaded, project, tuned, failure, apply=apply)
    if failure:
        raise failure


def _failure(job: TuneJob, tuned: TuningResult) -> InvalidMeasurementError | None:
    """Return the failure of a session whose budget was too small to compare settings."""
    outcome = tuned.outcome
    if outcome.complete or outcome.steps:
        return None
    stage = "with the current ones" if outcome.trials else "before the current ones were measured"
    longer = max(_MINUTES, _BUDGET_FACTOR * job.minutes)
    return InvalidMeasurementError(
        f"no other settings were tested: the budget of {job.minutes:g} minutes ended {stage}",
        remedy=f"continue with more: `tritonctl tune {job.name} --resume --budget {longer:g}`",
    )


def _run_tuning(console: Console, job: TuneJob) -> TuningResult:
    from tritonctl.tuning.tuner import tune

    title = f"tuning {job.scenario.model} under {job.name}"
    with console.watch_tuning(title, job.minutes) as watch:
        try:
            return tune(job, watch.board, watch)
        except KeyboardInterrupt:
            if watch.trials:
                resume_command = f"tritonctl tune {job.name} --resume"
                console.note(f"{watch.trials} trials are stored; continue with `{resume_command}`")
            raise


def _print_result(
    console: Console,
    loaded: Project,
    project: options.ProjectOptions,
    tuned: TuningResult,
    failure: InvalidMeasurementError | None,
    *,
    apply: bool,
) -> None:
    from tritonctl.tuning.report import (
        STEP_HEADINGS,
        conclusion_sentences,
        step_rows,
        to_record,
        write_report,
    )
    from tritonctl.tuning.write_back import create_project_edit, write_exactly

    page = write_report(tuned)
    edit = create_project_edit(
        loaded, project.path, tuned.space.model, project.profile, tuned.overlay
    )
    difference = edit.difference if tuned.worth_it else ""
    applied = apply and bool(difference)
    if applied:
        write_exactly(edit.file, edit.new_text)
    if console.as_json:
        record = to_record(tuned) | {"diff": difference, "applied": applied, "report": str(page)}
        console.result(record, "", failure)
        return
    console.table({}, STEP_HEADINGS, step_rows(tuned))
    console.text("\n" + "\n".join(conclusion_sentences(tuned)) + "\n")
    if difference:
        console.text(f"\n{difference}")
    console.text(f"\n{_next(applied, difference)}report: {page}\n")


def _next(applied: bool, difference: str) -> str:
    if applied:
        return "written to the project file; `tritonctl down` and `tritonctl up` apply it\n"
    return "write this with `tritonctl tune --resume --apply`\n" if difference else ""
