# SPDX-License-Identifier: Apache-2.0
"""What was asked: how long prompts and answers were, and what delays the first token."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence

from tritonctl.loadtest.report.figures import Figure, Trace, axis, base_layout, line, rounded
from tritonctl.loadtest.report.latency import OK, SVG_POINTS, scales, thinned
from tritonctl.loadtest.report.over_time import quantile
from tritonctl.loadtest.report.run import Request, Run

_BARS = 40
_GROUPS = 12
_EACH = 10  # requests of a group, from which its median is drawn
_HEIGHT = 320
_NUMBERS = {"input": "input_tokens", "output": "output_tokens"}


def lengths(run: Run, side: str) -> Figure | None:
    """How long the prompts ("input") or the answers ("output") were, in tokens."""
    known = [getattr(r.record, _NUMBERS[side]) for r in run.requests if r.record.outcome == OK]
    tokens = sorted(value for value in known if value is not None)
    if not tokens:
        return None
    width = -(-(tokens[-1] - tokens[0] + 1) // _BARS)
    counts = Counter((value - tokens[0]) // width for value in tokens)
    begins = [tokens[0] + width * number for number in range(max(counts) + 1)]
    colour = "--ttft" if side == "input" else "--itl"
    bars: Trace = {
        "type": "bar",
        "name": f"{side} tokens",
        "x": [begin + (width - 1) / 2 for begin in begins],
        "y": [counts[number] for number in range(len(begins))],
        "width": [0.9 * width] * len(begins),
        "text": [_span(begin, width) for begin in begins],
        "textposition": "none",
        "hovertemplate": "%{text} tokens: %{y} requests<extra></extra>",
        "marker": {"color": colour},
    }
    layout = base_layout(_HEIGHT) | {"showlegend": False}
    layout["xaxis"] = axis("tokens")
    layout["yaxis"] = axis("requests", rangemode="tozero")
    ends = ", ".join(f"{name} {quantile(tokens, q):,}" for name, q in (("P50", 0.5), ("P90", 0.9)))
    note = f"{ends}, longest {tokens[-1]:,}; {sum(tokens):,} tokens in {len(tokens):,} requests."
    title = f"{side.capitalize()} length"
    return Figure(f"{side}-length", title, note, [bars], layout, height=_HEIGHT)


def _span(begin: int, width: int) -> str:
    return f"{begin:,}" if width == 1 else f"{begin:,} to {begin + width - 1:,}"


def against_concurrency(run: Run) -> Figure | None:
    """The first token (the end, without tokens) against how many others were under way."""
    others = in_flight_at_sending(run.requests)
    words = "other requests in flight when it was sent"
    title = f"{_measure(run)[0]} against concurrency"
    return _against(run, "concurrency", title, words, dict(zip(_ids(run), others, strict=True)))


def against_prompt(run: Run) -> Figure | None:
    """The first token against the length of the prompt."""
    known = {
        r.record.index: r.record.input_tokens
        for r in run.requests
        if r.record.input_tokens is not None
    }
    title = f"{_measure(run)[0]} against prompt length"
    return _against(run, "prompt-length", title, "tokens of the prompt", known)


def in_flight_at_sending(requests: Sequence[Request]) -> list[int]:
    """For each request how many others had been sent and not ended when it was sent."""
    sent = sorted(request.record.sent for request in requests)
    ended = sorted(request.record.end for request in requests)
    return [
        bisect_left(sent, request.record.sent) - bisect_right(ended, request.record.sent)
        for request in requests
    ]


def _ids(run: Run) -> list[int]:
    return [request.record.index for request in run.requests]


def _measure(run: Run) -> tuple[str, str]:
    """What is shown, and its colour."""
    return ("TTFT", "--ttft") if run.streams else ("End to end", "--e2e")


def _against(
    run: Run, name: str, title: str, words: str, causes: Mapping[int, int]
) -> Figure | None:
    """A point for each answered request, and the median where the cause is alike.

    Of many requests the points are a part, in which the slow ones are too many: the median is of
    all.
    """
    label, colour = _measure(run)
    points = _points(run, thinned(run.requests), causes)
    if not points or len(set(causes.values())) == 1:
        return None
    marks: Trace = {
        "type": "scattergl" if len(points) > SVG_POINTS else "scatter",
        "mode": "markers",
        "name": label,
        "x": [cause for cause, _ in points],
        "y": [rounded(ms) for _, ms in points],
        "hovertemplate": "%{y:.4~g} ms at %{x}<extra></extra>",
        "marker": {"color": colour, "size": 4, "opacity": 0.45},
        "cliponaxis": False,
    }
    middle = _medians(_points(run, run.requests, causes))
    style = {"width": 2.5, "dash": "solid"}
    more = {"mode": "lines+markers", "marker": {"size": 7, "symbol": "diamond"}, "line": style}
    medians = line("median", [x for x, _ in middle], [y for _, y in middle], "--ink", **more)
    layout = base_layout(_HEIGHT)
    layout["xaxis"] = axis(words)
    layout["yaxis"] = axis("ms from the planned time", rangemode="tozero")
    data = [marks, medians] if len(middle) > 1 else [marks]
    return Figure(
        name,
        title,
        _told(label, middle, words),
        data,
        layout,
        scales([ms for _, ms in points]),
        height=_HEIGHT,
    )


def _points(
    run: Run, requests: Sequence[Request], causes: Mapping[int, int]
) -> list[tuple[int, float]]:
    """(cause, ms) of the answered ones."""
    return [
        (causes[request.record.index], ms)
        for request in requests
        if request.record.outcome == OK and request.record.index in causes
        if (ms := request.ttft_ms if run.streams else request.e2e_ms) is not None
    ]


def _told(label: str, middle: Sequence[tuple[float, float]], words: str) -> str:
    """The ends of the median's line in words."""
    if len(middle) < 2:  # noqa: PLR2004
        return f"Answered requests. Too alike in {words} for more than one median."
    (low, first), (high, last) = middle[0], middle[-1]
    return f"Median {label} {first:.3g} ms at {low:.3g}, {last:.3g} ms at {high:.3g} {words}."


def _medians(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """(mean cause, median) of groups of about equal size; alike causes are never parted."""
    ordered = sorted(points)
    least = max(_EACH, -(-len(ordered) // _GROUPS))
    groups: list[list[tuple[int, float]]] = []
    for cause, ms in ordered:
        if not groups or (len(groups[-1]) >= least and groups[-1][-1][0] != cause):
            groups.append([])
        groups[-1].append((cause, ms))
    return [
        (
            sum(cause for cause, _ in group) / len(group),
            quantile(sorted(ms for _, ms in group), 0.5),
        )
        for group in groups
        if len(group) >= _EACH
    ]
