# SPDX-License-Identifier: Apache-2.0
"""Show a rollout: steps, requests of both versions, evidence, latest events."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.live import Live
from rich.text import Text

from tritonctl.rollout.journal import JournalEvent, RolloutPhase

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

    from tritonctl.rollout.journal import JournalEntry
    from tritonctl.rollout.status import RolloutStatus

COLUMNS = 80
_BAR = 24
_STYLES = {
    RolloutPhase.ROLLED_BACK: "bold red",
    RolloutPhase.PROMOTED: "bold green",
    RolloutPhase.HOLDING: "bold yellow",
}
_PHASE_TEXTS = {
    RolloutPhase.STARTING: "no traffic moved yet",
    RolloutPhase.STEPPING: "traffic is moving",
    RolloutPhase.HOLDING: "paused",
    RolloutPhase.ROLLED_BACK: "rolled back",
    RolloutPhase.PROMOTED: "promoted",
}
_TESTS = {
    "failures": "failures",
    "failures_alone": "candidate's failures",
    "ttft": "time to first token",
    "response": "response time",
    "itl": "time between tokens",
    "stalls": "stalled streams",
    "tokens_per_second": "tokens per second",
    "divergence": "different answers",
    "memory": "memory",
}
_OPTIONAL_TESTS = ("divergence", "memory")  # tests that not every rollout has


class RolloutView:
    """The live view; `show` receives each status of the rollout."""

    def __init__(self) -> None:
        self._lines: list[Text] = [Text("reading the journal")]

    def live(self, console: RichConsole) -> Live:
        """Return a context that redraws the view in place; the last state stays on screen."""
        return Live(get_renderable=self._view, console=console, refresh_per_second=4)

    def show(self, rollout: RolloutStatus) -> None:
        """Store the status for the next redraw."""
        self._lines = list(rollout_lines(rollout))

    def _view(self) -> Text:
        return Text("\n").join(self._lines)


def plain_text(rollout: RolloutStatus) -> str:
    """Return the view as plain text."""
    return "".join(f"{line.plain.rstrip()}\n" for line in rollout_lines(rollout))


def rollout_lines(rollout: RolloutStatus) -> Iterator[Text]:
    """Yield the lines of the view, at most 80 columns each."""
    state, about = rollout.state, rollout.state.details
    yield _truncate(
        Text.assemble(
            (f"rollout {rollout.number}  ", "bold"),
            f"{about.get('release', '?')} against {about.get('stable', '?')}  ",
            (_PHASE_TEXTS[state.phase], _STYLES.get(state.phase, "bold")),
        )
    )
    yield _steps_line(rollout)
    yield Text()
    yield from _figure_lines(rollout.figures)
    yield _truncate(Text(rollout.reason, style=_STYLES.get(state.phase, "")))
    yield Text()
    for entry in rollout.recent_events:
        yield _truncate(Text(_event_line(entry), style="dim"))
    yield _truncate(_controller_line(rollout))


def _steps_line(rollout: RolloutStatus) -> Text:
    text = Text("users    ")
    for number, share in enumerate(rollout.steps):
        label = f"{share:g} %"
        if number == rollout.state.step and not rollout.state.is_over:
            text.append(f"[{label}]", style="bold reverse")
        else:
            done = rollout.share >= share
            text.append(f" {label} ", style="green" if done else "dim")
        text.append(" ")
    return _truncate(text)


def _figure_lines(figures: Mapping[str, Any]) -> Iterator[Text]:
    if not figures:
        return
    yield Text(f"{'':<22}{'requests':>10}{'failed':>10}{'':>9}", style="bold")
    for name in ("stable", "candidate"):
        counted = figures[name]
        share = 100 * counted["failures"] / max(1, counted["requests"])
        row = f"{name:<22}{counted['requests']:>10}{counted['failures']:>10}{share:>7.2f} %"
        yield Text(row)
    limit, total = figures["limit"], figures["total"]
    yield Text()
    yield Text(f"{'evidence of harm':<22}{_format_number(total):>10}, rollback at {limit:g}")
    for name, value in figures["evidence"].items():
        weighted = value * figures["weights"].get(name, 0.0)
        filled = round(_BAR * max(0.0, min(1.0, weighted / limit)))
        bar = "█" * filled + "·" * (_BAR - filled)
        yield Text(f"  {_TESTS.get(name, name):<20}{_format_number(weighted):>10} {bar}")
    if missing := [_TESTS[name] for name in _OPTIONAL_TESTS if name not in figures["evidence"]]:
        yield Text(f"  not tested: {', '.join(missing)}", style="dim")
    yield Text()


def _format_number(value: float) -> str:
    return f"{value:.2g}" if value >= 1000 else f"{value:.2f}"  # noqa: PLR2004 - what fits


def _event_line(entry: JournalEntry) -> str:
    when = time.strftime("%H:%M:%S", time.localtime(entry.at))
    match entry.event:
        case JournalEvent.STEP:
            description = f"{entry.details['share']:g} % of the traffic"
        case JournalEvent.MOVED:
            suffix = "" if entry.details.get("confirmed") else "; the gateway has not confirmed it"
            description = f"done in {entry.details.get('seconds', 0):.1f} s{suffix}"
        case JournalEvent.CLOSED:
            description = f"slot {entry.details.get('slot', '?')} is unloaded"
        case _:
            reason = entry.details.get("reason")
            description = entry.event.value.replace("_", " ") + (f": {reason}" if reason else "")
    return f"{when}  {description}"


def _controller_line(rollout: RolloutStatus) -> Text:
    if rollout.needs_controller:
        return Text(
            "the controller is gone: `tritonctl rollout resume` continues, `abort` rolls back",
            style="bold red",
        )
    pending = (
        f", pending: {', '.join(rollout.unfinished_commands)}"
        if rollout.unfinished_commands
        else ""
    )
    controller = f"process {rollout.controller}" if rollout.controller else "done"
    return Text(f"controller: {controller}{pending}", style="dim")


def _truncate(text: Text) -> Text:
    text.truncate(COLUMNS, overflow="ellipsis")
    return text
