# SPDX-License-Identifier: Apache-2.0
"""`tritonctl rollout differences`: show the differences that a rollout's shadow has found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options
from tritonctl.cli.rollout_compare import comparison_rows
from tritonctl.cli.rollout_status import NumberOption

if TYPE_CHECKING:
    from tritonctl.rollout.status import RolloutStatus


@options.expand_options
def command(
    *,
    number: NumberOption = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="the report, one HTML file"),
    ] = None,
    show_prompts: Annotated[
        bool,
        typer.Option("--show-prompts", help="include the prompts and answers"),
    ] = False,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Show how the candidate's answers differ from stable's; contacts no server."""
    from tritonctl.host.files import write_atomically
    from tritonctl.rollout.comparison_page import comparison_page
    from tritonctl.rollout.shadow.comparing import shadow_comparisons
    from tritonctl.rollout.shadow.comparison_log import ShadowCounts
    from tritonctl.rollout.status import rollout_status

    console = output_options.console()
    status = rollout_status(project.load(), number)
    names = _release_names(status)
    comparisons = shadow_comparisons(
        status.folder, names, tolerated=_tolerated(status), show_texts=show_prompts
    )
    counts = ShadowCounts.read(status.folder)
    if output is not None:
        title = f"rollout {status.number}: {names[1]} compared with {names[0]}"
        page = comparison_page(comparisons, title=title, show_texts=show_prompts, counts=counts)
        write_atomically(output, page)
    record = {
        "rollout": status.number,
        "comparisons": [each.as_record() for each in comparisons],
        "copies": {
            "total": counts.copies,
            "compared": counts.compared,
            "skipped": [
                {"reason": reason, "count": count} for reason, count in counts.left.items()
            ],
        },
        "report": str(output) if output else None,
    }
    rows = [
        row for each in comparisons for row in [["model", each.model, ""], *comparison_rows(each)]
    ]
    rows.append(["copies of requests", str(counts.copies), ""])
    rows.append(["compared", str(counts.compared), ""])
    rows += [[f"left: {reason}", str(count), ""] for reason, count in counts.left.items()]
    console.table(record, ("", "A, or A and A (noise)", "B, or A and B"), rows)
    if not comparisons:
        console.note(_missing_comparison_text(status))
    if output is not None:
        console.note(f"→ {output}")


def _missing_comparison_text(status: RolloutStatus) -> str:
    if not status.state.details.get("settings", {}).get("shadow"):
        return (
            "it has no shadow: set `rollout.shadow`, the share of requests copied to both "
            "versions; or compare with prompts: `tritonctl rollout compare`"
        )
    return "no comparisons yet: the shadow copies gateway requests when servers have capacity"


def _release_names(status: RolloutStatus) -> tuple[str, str]:
    about = status.state.details
    return str(about.get("stable") or "stable"), str(about.get("release") or "candidate")


def _tolerated(status: RolloutStatus) -> float:
    settings = status.state.details.get("settings", {})
    return float(settings.get("tolerated", {}).get("divergence", 0.0))
