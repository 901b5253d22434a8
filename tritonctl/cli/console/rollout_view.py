# SPDX-License-Identifier: Apache-2.0
"""A rollout on a terminal: steps, both versions' requests, the evidence, what was done last."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.live import Live
from rich.text import Text

from tritonctl.rollout.journal import Event, Phase

if TYPE_CHECKING:
    from rich.console import Console as RichConsole

    from tritonctl.rollout.journal import Entry
    from tritonctl.rollout.standing import Rollout

COLUMNS = 80
_BAR = 24
_STYLES = {
    Phase.ROLLED_BACK: "bold red",
    Phase.PROMOTED: "bold green",
    Phase.HOLDING: "bold yellow",
}
_WORDS = {
    Phase.STARTING: "nobody is moved yet",
    Phase.STEPPING: "users are moving",
    Phase.HOLDING: "paused",
    Phase.ROLLED_BACK: "rolled back",
    Phase.PROMOTED: "promoted",
}
_TESTS = {
    "failures": "failures",
    "failures_alone": "failures, alone",
    "ttft": "time to first token",
    "response": "time to the answer",
    "itl": "time between tokens",
    "stalls": "standing still",
    "tokens_per_second": "tokens a second",
    "divergence": "other answers",
    "memory": "memory",
}
_OFTEN = ("divergence", "memory")  # what a rollout of any task may judge, and not each one does


class RolloutView:
    """The screen; `show` receives each look at the rollout."""

    def __init__(self) -> None:
        self._lines: list[Text] = [Text("reading the journal")]

    def live(self, console: RichConsole) -> Live:
        """The view, redrawn in place while the context lasts; its last state stays."""
        return Live(get_renderable=self._view, console=console, refresh_per_second=4)

    def show(self, rollout: Rollout) -> None:
        """Keep it for the next redraw."""
        self._lines = list(lines(rollout))

    def _view(self) -> Text:
        return Text("\n").join(self._lines)


def plain(rollout: Rollout) -> str:
    """The same as text."""
    return "".join(f"{line.plain.rstrip()}\n" for line in lines(rollout))


def lines(rollout: Rollout) -> Iterator[Text]:
    """At most 80 columns each."""
    state, about = rollout.state, rollout.state.about
    yield _cut(
        Text.assemble(
            (f"rollout {rollout.number}  ", "bold"),
            f"{about.get('release', '?')} beside {about.get('stable', '?')}  ",
            (_WORDS[state.phase], _STYLES.get(state.phase, "bold")),
        )
    )
    yield _steps(rollout)
    yield Text()
    yield from _figures(rollout.figures)
    yield _cut(Text(rollout.said, style=_STYLES.get(state.phase, "")))
    yield Text()
    for entry in rollout.events:
        yield _cut(Text(_event(entry), style="dim"))
    yield _cut(_controller(rollout))


def _steps(rollout: Rollout) -> Text:
    text = Text("users    ")
    for number, share in enumerate(rollout.steps):
        label = f"{share:g} %"
        if number == rollout.state.step and not rollout.state.ended:
            text.append(f"[{label}]", style="bold reverse")
        else:
            done = rollout.share >= share
            text.append(f" {label} ", style="green" if done else "dim")
        text.append(" ")
    return _cut(text)


def _figures(figures: Mapping[str, Any]) -> Iterator[Text]:
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
    yield Text(f"{'evidence against it':<22}{_short(total):>10} of {limit:g} rolls back")
    for name, value in figures["evidence"].items():
        weighted = value * figures["weights"].get(name, 0.0)
        filled = round(_BAR * max(0.0, min(1.0, weighted / limit)))
        bar = "█" * filled + "·" * (_BAR - filled)
        yield Text(f"  {_TESTS.get(name, name):<20}{_short(weighted):>10} {bar}")
    if missing := [_TESTS[name] for name in _OFTEN if name not in figures["evidence"]]:
        yield Text(f"  not judged: {', '.join(missing)}", style="dim")
    yield Text()


def _short(value: float) -> str:
    return f"{value:.2g}" if value >= 1000 else f"{value:.2f}"  # noqa: PLR2004 - what fits


def _event(entry: Entry) -> str:
    when = time.strftime("%H:%M:%S", time.localtime(entry.at))
    match entry.event:
        case Event.STEP:
            what = f"{entry.about['share']:g} % of the users"
        case Event.MOVED:
            read = "" if entry.about.get("confirmed") else "; the gateway has not confirmed it"
            what = f"done in {entry.about.get('seconds', 0):.1f} s{read}"
        case Event.CLOSED:
            what = f"slot {entry.about.get('slot', '?')} is unloaded"
        case _:
            why = entry.about.get("reason")
            what = entry.event.value.replace("_", " ") + (f": {why}" if why else "")
    return f"{when}  {what}"


def _controller(rollout: Rollout) -> Text:
    if rollout.left_alone:
        return Text(
            "its controller is gone: `tritonctl rollout resume` goes on, `abort` takes users back",
            style="bold red",
        )
    asked = f", asked to {', '.join(rollout.asked)}" if rollout.asked else ""
    who = f"process {rollout.controller}" if rollout.controller else "done"
    return Text(f"controller: {who}{asked}", style="dim")


def _cut(text: Text) -> Text:
    text.truncate(COLUMNS, overflow="ellipsis")
    return text
