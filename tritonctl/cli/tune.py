# SPDX-License-Identifier: Apache-2.0
"""`tritonctl tune`: the server settings with the highest rate within the SLO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import load_options as asked
from tritonctl.cli import options
from tritonctl.errors import SloMissedError

_MINUTES, _LONGER = 30.0, 4

if TYPE_CHECKING:
    from tritonctl.cli.console.voice import Console
    from tritonctl.project.schema import Project
    from tritonctl.tuning.tuner import Tuned, TuneJob


@options.expand_options
def command(
    *,
    scenario: asked.Scenario = None,
    budget: Annotated[float, typer.Option("--budget", min=0.2, help="minutes to spend")] = _MINUTES,
    apply: Annotated[
        bool, typer.Option("--apply", help="write the best settings into tritonctl.yaml")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="continue the last session for another --budget")
    ] = False,
    knob: Annotated[
        list[str] | None,
        typer.Option("--knob", help="tune only this setting; repeatable", show_default=False),
    ] = None,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Find the settings with the highest rate under the SLO; prints them as a diff."""
    from tritonctl.loadtest.run.plan import chosen_scenario
    from tritonctl.tuning.tuner import TuneJob

    console = voice.console()
    loaded = project.load()
    name, written = chosen_scenario(loaded, scenario)
    job = TuneJob(loaded, name, written, budget, resume=resume, knobs=tuple(knob or ()))
    tuned = _tuned(console, job)
    failure = _failure(job, tuned)
    _print_result(console, loaded, project, tuned, failure, apply=apply)
    if failure:
        raise failure


def _failure(job: TuneJob, tuned: Tuned) -> SloMissedError | None:
    """The failure of a session that has compared nothing, for want of time."""
    outcome = tuned.outcome
    if outcome.complete or outcome.steps:
        return None
    ended = "with today's" if outcome.trials else "before even today's were measured"
    longer = max(_MINUTES, _LONGER * job.minutes)
    return SloMissedError(
        f"no other settings were tried: the budget of {job.minutes:g} minutes ended {ended}",
        remedy=f"go on with more: `tritonctl tune {job.name} --resume --budget {longer:g}`",
    )


def _tuned(console: Console, job: TuneJob) -> Tuned:
    from tritonctl.tuning.tuner import tune

    title = f"tuning {job.scenario.model} under {job.name}"
    with console.watch_tuning(title, job.minutes) as watch:
        try:
            return tune(job, watch.board, watch)
        except KeyboardInterrupt:
            if watch.trials:
                again = f"tritonctl tune {job.name} --resume"
                console.note(f"{watch.trials} trials are kept; continue with `{again}`")
            raise


def _print_result(
    console: Console,
    loaded: Project,
    project: options.ProjectOptions,
    tuned: Tuned,
    failure: SloMissedError | None,
    *,
    apply: bool,
) -> None:
    from tritonctl.tuning.report import (
        STEP_HEADINGS,
        conclusion,
        step_rows,
        to_record,
        write_report,
    )
    from tritonctl.tuning.write_back import project_edit, write_exactly

    page = write_report(tuned)
    edit = project_edit(loaded, project.path, tuned.space.model, project.profile, tuned.overlay)
    difference = edit.difference if tuned.worth_it else ""
    applied = apply and bool(difference)
    if applied:
        write_exactly(edit.file, edit.after)
    if console.as_json:
        record = to_record(tuned) | {"diff": difference, "applied": applied, "report": str(page)}
        console.result(record, "", failure)
        return
    console.table({}, STEP_HEADINGS, step_rows(tuned))
    console.text("\n" + "\n".join(conclusion(tuned)) + "\n")
    if difference:
        console.text(f"\n{difference}")
    console.text(f"\n{_next(applied, difference)}report: {page}\n")


def _next(applied: bool, difference: str) -> str:
    if applied:
        return "written into the project file; `tritonctl down` and `tritonctl up` serve it\n"
    return "write this with `tritonctl tune --resume --apply`\n" if difference else ""
