# SPDX-License-Identifier: Apache-2.0
"""Show `tritonctl top` on a terminal or in a log, with as many columns as fit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import StringIO

from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tritonctl.top.figures import GpuLoad, ModelLoad, ServerLoad, WindowFigures
from tritonctl.top.histograms import TimeQuantiles
from tritonctl.top.watching import MetricsSnapshot

_NONE = "·"
_GAP = 2
_BUSY = 0.9
_NAME_SHARE, _MIN_NAME_WIDTH = 3, 12
_LATE_INTERVALS = 2
_MIN_P99_SAMPLES, _TEN = 500, 10


@dataclass(frozen=True)
class _Column:
    """A column; a `rare` one is hidden if no model has a value."""

    heading: str
    cell: Callable[[ModelLoad], str]
    rare: bool = False


# The most important first: a narrow terminal hides the last ones.
_COLUMNS = (
    _Column("req/s", lambda m: _rate(m.requests_per_s)),
    _Column("failed/s", lambda m: _rate(m.failures_per_s) if m.failures_per_s else "0"),
    _Column("cache", lambda m: _formatted(m.cache_hits, "{:.0%}"), rare=True),
    _Column("TTFT ms", lambda m: _times(m.ttft)),
    _Column("ITL ms", lambda m: _times(m.itl)),
    _Column("tok/s", lambda m: _rate(m.tokens_per_s)),
    _Column("wait", lambda m: _count(m.waiting)),
    _Column("queue", lambda m: _formatted(m.queue_share, "{:.0%}")),
    _Column("batch", lambda m: _formatted(m.batch_factor, "{:.2f}")),
    _Column("active", lambda m: _count(m.active_streams)),
    _Column("KV", lambda m: _formatted(m.kv_used, "{:.0%}")),
    _Column("E2E ms", lambda m: _times(m.e2e)),
    _Column("ms/req", lambda m: _rate(m.latency_ms)),
    _Column("inst", lambda m: _NONE if m.instances is None else str(m.instances)),
)
SORTS: dict[str, Callable[[ModelLoad], float]] = {
    "name": lambda _: 0.0,
    "requests": lambda m: m.requests_per_s,
    "failed": lambda m: m.failures_per_s,
    "ttft": lambda m: m.ttft.p99_ms if m.ttft else 0.0,
    "waiting": lambda m: m.waiting or 0.0,
}


class TopView:
    """The live view; `show` receives each snapshot."""

    def __init__(self, sort: str = "requests", clock: Callable[[], float] = time.monotonic) -> None:
        self._key = SORTS[sort]
        self._clock = clock
        self._snapshot: MetricsSnapshot | None = None

    def live(self, console: RichConsole) -> Live:
        """Return a context that draws the view on the whole screen."""
        return Live(get_renderable=self.view, console=console, screen=True, refresh_per_second=4)

    def show(self, snapshot: MetricsSnapshot) -> None:
        """Store the snapshot for the next redraw."""
        self._snapshot = snapshot

    def view(self) -> RenderableType:
        """Return the current view."""
        if self._snapshot is None:
            return Text("tritonctl top: reading the metrics", style="bold")
        return Group(_title(self._snapshot, self._clock()), *self._body(self._snapshot))

    def plain(self, snapshot: MetricsSnapshot, width: int) -> str:
        """Return the view as text, for a file or a pipe."""
        console = RichConsole(file=StringIO(), width=width, color_system=None, highlight=False)
        self.show(snapshot)
        with console.capture() as captured:
            console.print(self.view())
        return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()) + "\n"

    def _body(self, snapshot: MetricsSnapshot) -> list[RenderableType]:
        if snapshot.figures is None:
            return []
        models = sorted(snapshot.figures.models, key=lambda m: (-self._key(m), m.model))
        stale = snapshot.problem is not None
        return [_server(snapshot.figures.server), _Models(models, stale), *_notes(snapshot.figures)]


def _title(snapshot: MetricsSnapshot, now: float) -> Text:
    """Return the title: server and time span, in red if the figures are old."""
    title = Text("tritonctl top  ", style="bold", no_wrap=True, overflow="ellipsis")
    title.append(snapshot.url, style="not bold")
    if snapshot.release:
        title.append(f"  release {snapshot.release}", style="not bold")
    if snapshot.problem is not None:
        silent = now - (snapshot.silent_since or now)
        title.append(f"\nno answer for {silent:.0f} s: {snapshot.problem}", style="bold red")
        if snapshot.figures is not None:
            title.append("\nlast figures:", style="not bold")
        return title
    if snapshot.figures is not None:
        title.append(f"  the last {snapshot.figures.interval_seconds:.0f} s", style="not bold dim")
    if now - snapshot.read_at > _LATE_INTERVALS * snapshot.interval + 1:
        title.append(f"  (no answer for {now - snapshot.read_at:.0f} s)", style="bold red")
    return title


def _server(server: ServerLoad) -> Text:
    parts = [
        ("CPU", _formatted(server.cpu_cores, "{:.2f}"), "cores"),
        ("memory", _bytes(server.rss_bytes), ""),
        ("machine CPU", _formatted(server.host_cpu, "{:.0%}"), ""),
        (
            "machine memory",
            _used_of_total(server.host_memory_used_bytes, server.host_memory_total_bytes),
            "",
        ),
        *(_gpu(number, gpu) for number, gpu in enumerate(server.gpus)),
    ]
    available = [f"{name} {value} {unit}".rstrip() for name, value, unit in parts if value != _NONE]
    return Text("  ".join(available), style="dim")


def _gpu(number: int, gpu: GpuLoad) -> tuple[str, str, str]:
    memory = _used_of_total(gpu.memory_used_bytes, gpu.memory_total_bytes)
    return f"GPU {number}", _formatted(gpu.utilization, "{:.0%}"), "" if memory == _NONE else memory


def _notes(figures: WindowFigures) -> list[Text]:
    everything = [m for model in figures.models for m in (model, *model.steps)]
    reasons = {
        model.model: ", ".join(f"{reason} {count:.0f}" for reason, count in model.failures.items())
        for model in figures.models
    }
    notes = [
        Text(f"{name} failed: {causes}", style="red") for name, causes in reasons.items() if causes
    ]
    notes += [
        Text(f"{m.model}: {m.silent} of its processes have stopped reporting", style="bold red")
        for m in everything
        if m.silent
    ]
    reloaded = [m.model for m in everything if m.restarted]
    if reloaded:
        notes.append(Text(f"reloaded, counters restarted: {', '.join(reloaded)}", style="yellow"))
    return notes


class _Models:
    """The table of models; it selects its columns by the width."""

    def __init__(self, models: Sequence[ModelLoad], stale: bool) -> None:
        self._models = models
        self._stale = stale

    def __rich_console__(
        self,
        console: RichConsole,
        options: ConsoleOptions,
    ) -> RenderResult:
        width = options.max_width
        name_limit = max(_MIN_NAME_WIDTH, width // _NAME_SHARE)
        rows = [
            (_truncate(name, name_limit), m) for model in self._models for name, m in _rows(model)
        ]
        name_width = max((cell_len(name) for name, _ in rows), default=_MIN_NAME_WIDTH)
        columns = _columns_that_fit([m for _, m in rows], width - name_width)
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
        table.add_column("model", no_wrap=True)
        for column in columns:
            table.add_column(column.heading, justify="right", no_wrap=True)
        for name, model in rows:
            cells = (Text(column.cell(model)) for column in columns)
            table.add_row(Text(name), *cells, style=self._style(model))
        yield table

    def _style(self, model: ModelLoad) -> str:
        if self._stale:
            return "dim"
        full = model.kv_used is not None and model.kv_used > _BUSY
        return "red" if model.failures_per_s else "yellow" if full else ""


def _rows(model: ModelLoad) -> Iterable[tuple[str, ModelLoad]]:
    yield model.model, model
    for step in model.steps:
        yield f"  {step.model.removeprefix(f'{model.model}_')}", step


def _columns_that_fit(models: Sequence[ModelLoad], width: int) -> list[_Column]:
    columns = []
    for column in _COLUMNS:
        cells = [column.heading, *(column.cell(model) for model in models)]
        if column.rare and {*cells[1:]} == {_NONE}:
            continue
        width -= max(map(cell_len, cells)) + _GAP
        if width < 0:
            break
        columns.append(column)
    return columns


def _truncate(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _rate(value: float | None) -> str:
    """Format with three significant digits: 0.04, 1.23, 12.3, 1234."""
    if value is None:
        return _NONE
    decimals = next((d for limit, d in ((10, 2), (100, 1)) if value < limit), 0)
    return f"{value:.{decimals}f}"


def _count(value: float | None) -> str:
    """Format a mean of integers."""
    if value is None:
        return _NONE
    return f"{value:.0f}" if value == int(value) or value >= _TEN else f"{value:.1f}"


def _formatted(value: float | None, form: str) -> str:
    return _NONE if value is None else form.format(value)


def _times(times: TimeQuantiles | None) -> str:
    """Format median and 99th percentile; `~` marks one of few values."""
    if times is None:
        return _NONE
    beyond = ">" if times.p99_ms >= times.highest_ms else ""
    return (
        f"{_rate(times.p50_ms)}/{beyond or '~' * (times.n < _MIN_P99_SAMPLES)}{_rate(times.p99_ms)}"
    )


def _bytes(value: float | None) -> str:
    return _NONE if value is None else f"{value / 2**30:.2f} GiB"


def _used_of_total(used: float | None, total: float | None) -> str:
    if used is None or total is None:
        return _NONE
    return f"{used / 2**30:.1f}/{total / 2**30:.1f} GiB"
