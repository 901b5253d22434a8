# SPDX-License-Identifier: Apache-2.0
"""`tritonctl loadtest report`: write a run's report as one HTML file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from tritonctl.cli import options


@options.expand_options
def command(
    *,
    run: Annotated[
        str | None,
        typer.Argument(help="a run's folder or name", show_default="the project's latest"),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against", metavar="PATH", help="write a comparison with this run", show_default=False
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="the report, one HTML file",
            show_default="report.html in the folder",
        ),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="also write requests.csv")] = False,
    open_: Annotated[
        Literal["auto", "yes", "no"],
        typer.Option("--open", help="show it in a browser; auto: at a terminal with a display"),
    ] = "auto",
    project: options.ProjectOption = None,
    output_options: options.OutputOptions,
) -> None:
    """Write the report of a load test: one HTML file that works offline."""
    from tritonctl.loadtest.report.exports import write_requests
    from tritonctl.loadtest.report.run import restore_summary

    console = output_options.console()
    folder, baseline = _folders(run, against, project)
    if restore_summary(folder):
        console.note(f"{folder} had no readable summary: restored it from the records")
    page = _write(folder, baseline, output)
    requests = write_requests(folder) if csv else None
    record = {
        "run": str(folder),
        "against": str(baseline) if baseline else None,
        "report": str(page),
        "requests": str(requests) if requests else None,
    }
    console.result(record, "\n".join(str(path) for path in (page, requests) if path))
    if open_ == "yes" or (
        open_ == "auto"
        and not output_options.as_json
        and not output_options.quiet
        and _has_display()
    ):
        import webbrowser

        webbrowser.open(page.resolve().as_uri())


def _folders(
    run: str | None, against: str | None, project: Path | None
) -> tuple[Path, Path | None]:
    """Return the folders of the run and of its baseline."""
    from tritonctl.loadtest.report.run import find_run

    def state() -> Path:
        return options.ProjectOptions(project).load().state

    return find_run(run, state), find_run(against, state) if against else None


def _write(folder: Path, baseline: Path | None, output: Path | None) -> Path:
    if baseline is None:
        from tritonctl.loadtest.report.page import write_report

        return write_report(folder, output)
    from tritonctl.loadtest.report.comparison import write_comparison

    return write_comparison(baseline, folder, output)


def _has_display() -> bool:
    """Whether this is a terminal on a machine with a display."""
    display = sys.platform == "darwin" or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    return sys.stdout.isatty() and display
