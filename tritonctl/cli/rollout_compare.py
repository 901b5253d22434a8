# SPDX-License-Identifier: Apache-2.0
"""`tritonctl rollout compare`: the answers of two versions, and what differs by more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.cli import options
from tritonctl.errors import UsageError

if TYPE_CHECKING:
    from tritonctl.cli.console.voice import Console
    from tritonctl.protocol.channel import Endpoint
    from tritonctl.rollout.compare import Comparison, Figure, Share

Side = Annotated[
    str,
    typer.Argument(help="a release of the project, or HOST:PORT of its gRPC", show_default=False),
]


@options.expand_options
def command(
    *,
    a: Side,
    b: Side,
    prompts: Annotated[
        Path,
        typer.Option(
            help="a question on each line; in .jsonl an object with text_input, or query and "
            "documents, as a rollout with `keep_prompts` records them",
            show_default=False,
        ),
    ],
    model: Annotated[
        str | None, typer.Option("--model", help="a model", show_default="the project's only one")
    ] = None,
    tolerated: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="share of the questions that B may answer otherwise"),
    ] = 0.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="of a generated text")] = 64,
    in_flight: Annotated[int, typer.Option(min=1, max=256, help="questions at once")] = 4,
    timeout: Annotated[float, typer.Option(min=0.1, help="seconds for a request")] = 60.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="the report, one HTML file")
    ] = None,
    show_prompts: Annotated[
        bool, typer.Option("--show-prompts", help="prompts and answers in the report and --json")
    ] = False,
    access: options.AccessOptions,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Ask A twice and B once: what differs beyond the noise that A has with itself."""
    from tritonctl.rollout.asking import Settings, ask_both, questions, served_alike
    from tritonctl.rollout.compare import compared

    console = voice.console()
    with ExitStack() as ended:
        left, right = (ended.enter_context(_side(one, access, project, console)) for one in (a, b))
        sides = left, right
        served = served_alike(*sides, model or _only_model(project))
        asked = questions(prompts, served.task.name, served.model)
        with console.step(f"Asking {len(asked)} questions of both") as step:
            settings = Settings(max_tokens, in_flight, timeout)
            answered, failed = ask_both(
                sides, served, asked, settings, lambda done: step.update(f"{done} of {len(asked)}")
            )
    comparison = compared(
        answered,
        (a, b),
        (served.model, served.task.name),
        tolerated=tolerated,
        shown=show_prompts,
        failed=failed,
    )
    if output is not None:
        _write(comparison, output, shown=show_prompts)
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
    from tritonctl.rollout.sides import release_served

    with release_served(project.load(), side, console) as endpoint:
        yield endpoint


def _only_model(project: options.ProjectOptions) -> str:
    public = project.load().public
    if len(public) == 1:
        return public[0]
    raise UsageError(
        f"the project has {len(public)} models", remedy=f"--model, one of {', '.join(public)}"
    )


def _write(comparison: Comparison, output: Path, *, shown: bool) -> None:
    from tritonctl.host.files import write_atomically
    from tritonctl.rollout.comparison_page import comparison_page

    title = f"{comparison.b} compared with {comparison.a}"
    write_atomically(output, comparison_page([comparison], title=title, shown=shown))


def _conclude(console: Console, comparison: Comparison, output: Path | None) -> None:
    record = {**comparison.as_record(), "report": str(output) if output else None}
    console.table(record, ("", "A, or A and A (noise)", "B, or A and B"), rows_of(comparison))
    for line in comparison.failed[:5]:
        console.warning(line)
    if len(comparison.failed) > 5:  # noqa: PLR2004 - the first ones say what it is
        console.warning(f"{len(comparison.failed) - 5} more have no answer")
    if output is not None:
        console.note(f"→ {output}")


def rows_of(comparison: Comparison) -> list[list[str]]:
    """A comparison as a table."""
    return [
        [
            "questions with another answer",
            _share(comparison.noise, comparison.questions),
            _share(comparison.different, comparison.questions),
        ],
        *([figure.name, *_values(figure)] for figure in comparison.figures),
        *([one.name, f"{one.a_ms:.1f} ms", f"{one.b_ms:.1f} ms"] for one in comparison.durations),
        ["evidence", "", f"{comparison.evidence:.3g} of {comparison.limit:.0f}"],
        ["B is", "", comparison.verdict],
    ]


def _share(share: Share, whole: int) -> str:
    low, high = 100 * share.low, 100 * share.high
    return f"{share.count} of {whole} = {100 * share.share:.1f} % [{low:.1f}, {high:.1f}]"


def _values(figure: Figure) -> list[str]:
    return ["-" if one is None else f"{one:.4g}" for one in (figure.noise, figure.difference)]
