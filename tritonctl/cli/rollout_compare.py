# SPDX-License-Identifier: Apache-2.0
"""`tritonctl rollout compare`: compare the answers of two versions beyond noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options
from tritonctl.errors import UsageError

if TYPE_CHECKING:
    from tritonctl.cli.console.output import Console
    from tritonctl.protocol.channel import Endpoint
    from tritonctl.protocol.tasks import ServedTask
    from tritonctl.rollout.compare import (
        ComparedQuestion,
        ComparisonMeasure,
        ShareInterval,
        VersionComparison,
    )
    from tritonctl.rollout.replay_prompts import ReplayPrompt, ReplaySettings

Side = Annotated[
    str,
    typer.Argument(help="a release of the project, or HOST:PORT of its gRPC", show_default=False),
]


@dataclass(frozen=True)
class ReplayOptions:
    """How the prompts are sent."""

    max_tokens: Annotated[int, typer.Option(min=1, help="maximum tokens of an answer")] = 64
    in_flight: Annotated[int, typer.Option(min=1, max=256, help="requests at once")] = 4
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="seconds for a whole request")
    ] = 60.0

    def settings(self) -> ReplaySettings:
        """Return the settings of the replay."""
        from tritonctl.rollout.replay_prompts import ReplaySettings

        return ReplaySettings(self.max_tokens, self.in_flight, self.timeout)


@options.expand_options
def command(
    *,
    a: Side,
    b: Annotated[str, typer.Argument(help="compared with A; the same kinds")],
    prompts: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="one prompt per line; in .jsonl an object with text_input, or query and "
            "documents, as a rollout with `keep_prompts` records them",
            show_default=False,
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="MODEL", help="model to query", show_default="the project's only one"
        ),
    ] = None,
    tolerated: Annotated[
        float,
        typer.Option(
            metavar="SHARE", min=0.0, max=1.0, help="prompts that B may answer differently"
        ),
    ] = 0.0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="the report, one HTML file"),
    ] = None,
    show_prompts: Annotated[
        bool, typer.Option("--show-prompts", help="include the prompts and answers")
    ] = False,
    replay: ReplayOptions,
    access: options.AccessOptions,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Query A twice and B once; find differences beyond A's own noise."""
    from tritonctl.rollout.compare import compare_answers
    from tritonctl.rollout.replay_prompts import read_prompts, require_same_task

    console = output_options.console()
    with ExitStack() as stack:
        left, right = (
            stack.enter_context(_side(name, access, project, console)) for name in (a, b)
        )
        target = require_same_task(left, right, model or _only_model(project))
        questions = read_prompts(prompts, target.task.name, target.model)
        answered, failed = _replay((left, right), target, questions, replay.settings(), console)
    comparison = compare_answers(
        answered,
        (a, b),
        (target.model, target.task.name),
        tolerated=tolerated,
        show_texts=show_prompts,
        failed=failed,
    )
    if output is not None:
        _write(comparison, output, show_prompts=show_prompts)
    _conclude(console, comparison, output)


@contextmanager
def _side(
    side: str, access: options.AccessOptions, project: options.ProjectOptions, console: Console
) -> Iterator[Endpoint]:
    if ":" in side:
        endpoint = access.endpoint(side)
        assert endpoint is not None  # noqa: S101 - one is named
        yield endpoint
        return
    from tritonctl.rollout.comparison_targets import release_endpoint

    with release_endpoint(project.load(), side, console) as endpoint:
        yield endpoint


def _replay(
    sides: tuple[Endpoint, Endpoint],
    target: ServedTask,
    prompts: Sequence[ReplayPrompt],
    settings: ReplaySettings,
    console: Console,
) -> tuple[list[ComparedQuestion], list[str]]:
    """Query both servers, show the progress, and return answers and failures."""
    from tritonctl.rollout.replay_prompts import ask_both_servers

    with console.step(f"Asking {len(prompts)} questions of both") as step:
        return ask_both_servers(
            sides, target, prompts, settings, lambda done: step.update(f"{done} of {len(prompts)}")
        )


def _only_model(project: options.ProjectOptions) -> str:
    public = project.load().public
    if len(public) == 1:
        return public[0]
    raise UsageError(
        f"the project has {len(public)} models", remedy=f"--model, one of {', '.join(public)}"
    )


def _write(comparison: VersionComparison, output: Path, *, show_prompts: bool) -> None:
    from tritonctl.host.files import write_atomically
    from tritonctl.rollout.comparison_page import comparison_page

    title = f"{comparison.b} compared with {comparison.a}"
    write_atomically(output, comparison_page([comparison], title=title, show_texts=show_prompts))


def _conclude(console: Console, comparison: VersionComparison, output: Path | None) -> None:
    record = {**comparison.as_record(), "report": str(output) if output else None}
    console.table(
        record, ("", "A, or A and A (noise)", "B, or A and B"), comparison_rows(comparison)
    )
    for line in comparison.failed[:5]:
        console.warning(line)
    if len(comparison.failed) > 5:  # noqa: PLR2004 - the first ones say what it is
        console.warning(f"{len(comparison.failed) - 5} more failed")
    if output is not None:
        console.note(f"→ {output}")


def comparison_rows(comparison: VersionComparison) -> list[list[str]]:
    """Return the table rows of a comparison."""
    return [
        [
            "prompts with another answer",
            _share(comparison.noise, comparison.questions),
            _share(comparison.different, comparison.questions),
        ],
        *([figure.name, *_values(figure)] for figure in comparison.figures),
        *(
            [duration.name, f"{duration.a_ms:.1f} ms", f"{duration.b_ms:.1f} ms"]
            for duration in comparison.durations
        ),
        ["evidence", "", f"{comparison.evidence:.3g} of {comparison.limit:.0f}"],
        ["B is", "", comparison.verdict],
    ]


def _share(share: ShareInterval, total: int) -> str:
    low, high = 100 * share.low, 100 * share.high
    return f"{share.count} of {total} = {100 * share.share:.1f} % [{low:.1f}, {high:.1f}]"


def _values(figure: ComparisonMeasure) -> list[str]:
    return ["-" if value is None else f"{value:.4g}" for value in (figure.noise, figure.difference)]
