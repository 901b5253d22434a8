# SPDX-License-Identifier: Apache-2.0
"""Show a running load test: a live table on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tritonctl.loadtest.run.live import RECENT_SECONDS, EngineFigures, LiveFigures, Quantiles

_LINE_EVERY_SECONDS = 5.0
_NAMES = {"ttft": "TTFT", "itl": "ITL", "e2e": "end to end"}
_BUSY_CPU, _LATE_MS = 0.8, 10.0
_NONE = "·"
_MIN_P99_SAMPLES = 500


class LoadView:
    """The live table; `show` receives the figures each second."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._figures: LiveFigures | None = None

    def live(self, console: object) -> Live:
        """Return a context that draws the view on a rich console."""
        return Live(get_renderable=self.view, console=console, refresh_per_second=2)  # type: ignore[arg-type]

    def show(self, figures: LiveFigures) -> None:
        """Store the figures for the next redraw."""
        self._figures = figures

    def view(self) -> Group:
        """Return the current view."""
        figures = self._figures
        title = Text(self._title, style="bold")
        if figures is None:
            return Group(title, Text("starting the load generator", style="dim"))
        title.append(f"  {_time(figures)}", style="dim")
        return Group(title, _requests(figures), _times(figures), *_server_and_generator(figures))


def _time(figures: LiveFigures) -> str:
    if figures.remaining_seconds is None:
        return f"{figures.seconds:.0f} s"
    if figures.remaining_seconds > 0:
        return f"{figures.seconds:.0f} s, {figures.remaining_seconds:.0f} s left"
    return f"{figures.seconds:.0f} s, waiting for the last {figures.in_flight} answers"


def _requests(figures: LiveFigures) -> Text:
    text = Text(
        f"offered {figures.offered_rps:.1f}/s  achieved {figures.achieved_rps:.1f}/s  "
        f"{figures.tokens_per_s:.0f} tokens/s  in flight {figures.in_flight}  "
        f"sent {figures.sent}  done {figures.done}  "
    )
    text.append(f"failed {figures.failed}", style="red" if figures.failed else "")
    if figures.empty:
        text.append(f"  without tokens {figures.empty}", style="red")
    return text


def _times(figures: LiveFigures) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("milliseconds")
    for heading in ("P50", "P99", f"P50 of {RECENT_SECONDS} s", f"P99 of {RECENT_SECONDS} s"):
        table.add_column(heading, justify="right")
    for metric, name in _NAMES.items():
        cells = (*_cells(figures.run.get(metric)), *_cells(figures.recent.get(metric)))
        table.add_row(name, *cells)
    return table


def _cells(quantiles: Quantiles | None) -> tuple[str, str]:
    if quantiles is None:
        return _NONE, _NONE
    return f"{quantiles.p50_ms:.1f}", _p99(quantiles)


def _p99(quantiles: Quantiles) -> str:
    """Format the P99; `~` marks one of so few values that it is close to the maximum."""
    return f"{'' if quantiles.n >= _MIN_P99_SAMPLES else '~'}{quantiles.p99_ms:.1f}"


def _server_and_generator(figures: LiveFigures) -> list[Text]:
    """Return the lines of server and load generator, to see which one is the limit."""
    cpu, lag = figures.generator_cpu, figures.lag_p99_ms
    generator = Text("generator  ")
    generator.append(
        f"CPU {_number(cpu and cpu * 100, '%')}",
        style="red" if cpu is not None and cpu > _BUSY_CPU else "",
    )
    generator.append(
        f"  send lag {_number(lag, ' ms')}",
        style="red" if lag is not None and lag > _LATE_MS else "",
    )
    return [Text(line) for line in _engine(figures.engine)] + [generator]


def _engine(engine: EngineFigures | None) -> list[str]:
    if engine is None:
        return []
    parts = {
        "queue": _number(engine.queue_ms, " ms"),
        "batch factor": _number(engine.batch_factor, ""),
        "waiting": _number(engine.waiting, ""),
        "active": _number(engine.active, ""),
    }
    available = [f"{name} {value}" for name, value in parts.items() if value != _NONE]
    return [f"{engine.model}  {'  '.join(available)}"] if available else []


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return _NONE
    is_integer = unit == "%" or float(value).is_integer()
    return f"{value:.0f}{unit}" if is_integer else f"{value:.2f}{unit}"


class LoadLines:
    """Prints a line every five seconds, for logs."""

    def __init__(self, title: str, note: Callable[[str], None]) -> None:
        self._note = note
        self._due = _LINE_EVERY_SECONDS
        note(title)

    def show(self, figures: LiveFigures) -> None:
        """Print a line if it is due."""
        if figures.seconds < self._due:
            return
        self._due = figures.seconds + _LINE_EVERY_SECONDS
        times = [
            f"{name} {quantiles.p50_ms:.1f}/{_p99(quantiles)} ms"
            for metric, name in _NAMES.items()
            if (quantiles := figures.recent.get(metric)) is not None
        ]
        self._note(
            f"{_time(figures)} · {figures.offered_rps:.1f}/s offered, {figures.achieved_rps:.1f}/s "
            f"achieved · {figures.in_flight} in flight, {figures.failed} failed"
            + (f", {figures.empty} without tokens" if figures.empty else "")
            + (f" · P50/P99 {', '.join(times)}" if times else "")
        )
