# SPDX-License-Identifier: Apache-2.0
"""`tritonctl rollout differences`: what the shadow of a rollout has found so far."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options
from tritonctl.cli.rollout_compare import rows_of
from tritonctl.cli.rollout_status import NumberOption

if TYPE_CHECKING:
    from tritonctl.rollout.standing import Rollout


@options.expand_options
def command(
    *,
    number: NumberOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="the report, one HTML file")
    ] = None,
    show_prompts: Annotated[
        bool,
        typer.Option(
            "--show-prompts", help="prompts and answers, where rollout.keep_prompts has kept them"
        ),
    ] = False,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Show how the candidate's answers differ from stable's. Asks no server."""
    from tritonctl.host.files import write_atomically
    from tritonctl.rollout.comparison_page import comparison_page
    from tritonctl.rollout.shadow.comparing import found_comparisons
    from tritonctl.rollout.shadow.found import Counts
    from tritonctl.rollout.standing import rollout

    console = voice.console()
    found = rollout(project.load(), number)
    names = _names(found)
    comparisons = found_comparisons(
        found.folder, names, tolerated=_tolerated(found), shown=show_prompts
    )
    counts = Counts.read(found.folder)
    if output is not None:
        title = f"rollout {found.number}: {names[1]} compared with {names[0]}"
        page = comparison_page(comparisons, title=title, shown=show_prompts, counts=counts)
        write_atomically(output, page)
    record = {
        "rollout": found.number,
        "comparisons": [each.as_record() for each in comparisons],
        "copies": {
            "taken": counts.copies,
            "compared": counts.compared,
            "left": [{"why": why, "count": count} for why, count in counts.left.items()],
        },
        "report": str(output) if output else None,
    }
    rows = [row for each in comparisons for row in [["model", each.model, ""], *rows_of(each)]]
    rows.append(["copies of requests", str(counts.copies), ""])
    rows.append(["compared", str(counts.compared), ""])
    rows += [[f"left: {why}", str(count), ""] for why, count in counts.left.items()]
    console.table(record, ("", "A, or A and A (noise)", "B, or A and B"), rows)
    if not comparisons:
        console.note(_why_none(found))
    if output is not None:
        console.note(f"→ {output}")


def _why_none(found: Rollout) -> str:
    if not found.state.about.get("settings", {}).get("shadow"):
        return (
            "it has no shadow: set `rollout.shadow`, the share of the requests that are asked of "
            "both; or ask them yourself: `tritonctl rollout compare`"
        )
    return "nothing is compared yet: requests come through the gateway, when servers have room"


def _names(found: Rollout) -> tuple[str, str]:
    about = found.state.about
    return str(about.get("stable") or "stable"), str(about.get("release") or "candidate")


def _tolerated(found: Rollout) -> float:
    settings = found.state.about.get("settings", {})
    return float(settings.get("tolerated", {}).get("divergence", 0.0))
