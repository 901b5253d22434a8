# SPDX-License-Identifier: Apache-2.0
"""A picture for a terminal: one node below the other, with a line for each tensor that it reads.

Rails run next to them, one for each node whose tensors are still to be read, as `git log --graph`
draws branches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Literal

from tritonctl.checks.drawing.picture import ANSWER, NOTHING, REQUEST, Edge, Node, Picture

Style = Literal["", "bold", "dim", "fault", "stream"]
Segment = tuple[str, Style]
Line = tuple[Segment, ...]

_MARKS = {"request": "●", "answer": "◉", "step": "○", "nothing": "✗"}
_STREAM = "≋ decoupled"
_LEAST_NAME, _LEAST_TEXT, _GAP = 6, 20, 2


@dataclass
class _Rails:
    """The lanes: which node each belongs to, and how often it is still to be read."""

    lanes: list[str | None]
    left: dict[str, set[str]]

    def free(self) -> int:
        """The first lane that nobody has."""
        if None not in self.lanes:
            self.lanes.append(None)
        return self.lanes.index(None)

    def shown(self) -> str:
        """The lanes that continue next to a line of text."""
        return " ".join("│" if owner else " " for owner in self.lanes)


def drawn(picture: Picture, width: int) -> list[Line]:
    """The picture in lines of at most so many columns, where names allow."""
    lines: list[Line] = [_heading(picture), ()]
    lines += _body(picture, width)
    if picture.findings:
        lines.append(())
    for rule, message in picture.findings:
        mark = f"✗ {rule} "
        first, *more = wrap(clean(message), max(width - len(mark), _LEAST_TEXT))
        lines.append(((mark, "fault"), (first, "")))
        lines += [((" " * len(mark), ""), (text, "")) for text in more]
    return lines


def plain(lines: Sequence[Line]) -> str:
    """The lines as plain text."""
    texts = ("".join(text for text, _ in line).rstrip() for line in lines)
    return "\n".join(texts) + "\n"


def clean(text: str) -> str:
    """Names may hold anything: nothing of it may reach a terminal as a command."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _heading(picture: Picture) -> Line:
    batch = f"batches of up to {picture.max_batch_size}" if picture.max_batch_size else "no batches"
    serving = f"  {picture.backend or 'model'}, {batch}"
    stream: list[Segment] = [(f", {_STREAM}", "stream")] if picture.decoupled else []
    return ((clean(picture.name), "bold"), (serving, "dim"), *stream)


def _body(picture: Picture, width: int) -> Iterator[Line]:
    rails = _Rails([], {node.name: set() for node in picture.nodes})
    for edge in picture.edges:
        rails.left[edge.source].add(edge.target)
    nodes = [node for node in picture.nodes if node.name not in (ANSWER, NOTHING)]
    last = [node for node in picture.nodes if node.name == ANSWER]
    nowhere = [node for node in picture.nodes if node.name == NOTHING]
    unwritten = [node for node in nowhere if rails.left[NOTHING]]
    unread = [node for node in nowhere if any(picture.into(node))]
    for node in (*nodes[:1], *unwritten, *nodes[1:], *last, *unread):
        yield from _node(picture, node, rails, width)


def _node(picture: Picture, node: Node, rails: _Rails, width: int) -> Iterator[Line]:
    edges = list(picture.into(node)) if node not in picture.nodes[:1] else []
    sources = {edge.source for edge in edges}
    row = _row(node, sources, rails)
    title: list[Segment] = [(f" {_title(node)}", "bold"), (_said(node), "dim")]
    if node.decoupled and node.kind == "step":
        title.append((f"  {_STREAM}", "stream"))
    if node.faults:
        title.append((f"  ✗ {', '.join(node.faults)}", "fault"))
    yield ((row, "dim"), *title)
    prefix = rails.shown()
    yield from _tensors(edges, prefix, width)
    if node.inner is not None:
        yield from _inner(node.inner, prefix, width)
    if any(rails.lanes):
        yield ((prefix, "dim"),)


def _row(node: Node, sources: set[str], rails: _Rails) -> str:
    """A node's line, from the lanes that it reads to its own."""
    ending = set()
    for source in sources:
        rails.left[source].discard(node.name)
        if not rails.left[source]:
            ending.add(source)
    reads = [at for at, owner in enumerate(rails.lanes) if owner in sources]
    # A lane that ends here goes on as the node's own.
    freed = [at for at in reads if rails.lanes[at] in ending]
    lane = freed[0] if freed else rails.free()
    first, last = min([lane, *reads]), max([lane, *reads])
    cells = [_cell(at, owner, reads, ending, (first, last)) for at, owner in enumerate(rails.lanes)]
    cells[lane] = _MARKS[node.kind]
    joints = ["─" if first <= at < last else " " for at in range(len(cells))]
    row = "".join(cell + joint for cell, joint in zip(cells, joints, strict=True)).rstrip()
    rails.lanes = [None if owner in ending else owner for owner in rails.lanes]
    rails.lanes[lane] = node.name if rails.left[node.name] else None
    while rails.lanes and rails.lanes[-1] is None:
        rails.lanes.pop()
    return row


def _cell(
    at: int, owner: str | None, reads: list[int], ending: set[str], ends: tuple[int, int]
) -> str:
    """A lane where a node's line, from one end to the other, meets it."""
    if owner is None:
        return "─" if ends[0] < at < ends[1] else " "
    if at not in reads:
        return "│"
    kinds = "└┴┘" if owner in ending else "├┼┤"
    return kinds[0 if at == ends[0] else 2 if at == ends[1] else 1]


def _title(node: Node) -> str:
    return f"{node.name} {clean(node.title)}" if node.kind == "step" else node.title


def _said(node: Node) -> str:
    if node.kind == "nothing":
        return ": no step, no request"
    if node.kind != "step":
        return ""
    return f"  {node.backend or 'not in this repository'}"


def _tensors(edges: list[Edge], prefix: str, width: int) -> Iterator[Line]:
    """A line for each tensor that a node reads; two where one is too narrow."""
    names = [clean(edge.read_as or edge.tensor) for edge in edges]
    rows = [(n, e.dtype, e.shape, _origin(e)) for n, e in zip(names, edges, strict=True)]
    margin = len(prefix) + 3
    wide = [max((len(row[at]) for row in rows), default=0) for at in range(3)]
    room = width - margin - wide[1] - wide[2] - 2 * _GAP
    wide[0] = max(min(wide[0], room), _LEAST_NAME)
    for edge, row in zip(edges, rows, strict=True):
        segments: list[Segment] = [(f"{prefix}   ", "dim")]
        segments.append((row[0].ljust(wide[0]), "fault" if edge.faults else ""))
        segments.append((f"  {row[1].ljust(wide[1])}  {row[2].ljust(wide[2])}", "dim"))
        used = margin + max(len(row[0]), wide[0]) + wide[1] + wide[2] + 2 * _GAP
        mark = f"✗ {', '.join(edge.faults)}" if edge.faults else ""
        rest: list[Segment] = [(row[3], ""), (mark, "fault")]
        for text, style in rest:
            if text and used + len(text) + _GAP > width:
                yield tuple(segments)
                segments, used = [(f"{prefix}     ", "dim")], margin + 2
            if text:
                segments.append((f"  {text}", style))
                used += len(text) + _GAP
        yield tuple(segments)


def _origin(edge: Edge) -> str:
    """Whose tensor it is, and what the ensemble calls it where that is another name."""
    number = "" if edge.source in (REQUEST, NOTHING) else f" {edge.source}"
    name = "" if edge.tensor == (edge.read_as or edge.tensor) else f" {clean(edge.tensor)}"
    arrow = f"←{number}{name}" if number or name else ""
    return f"{arrow} optional".strip() if edge.optional else arrow


def _inner(picture: Picture, prefix: str, width: int) -> Iterator[Line]:
    """A nested ensemble, in a frame."""
    room = width - len(prefix) - 5
    yield ((f"{prefix}   ┌╌ ", "dim"), *_heading(picture))
    for line in _body(picture, room):
        yield ((f"{prefix}   ┊ ", "dim"), *line)
    yield ((f"{prefix}   └╌", "dim"),)
