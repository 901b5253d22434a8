# SPDX-License-Identifier: Apache-2.0
"""Draw a picture for a terminal: one node below the other, with a line per tensor it reads.

Lanes to the left of the nodes connect each node to its readers, as branches in `git log --graph`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Literal

from tritonctl.checks.drawing.picture import ANSWER, NOTHING, REQUEST, Edge, Picture, PictureNode

Style = Literal["", "bold", "dim", "fault", "stream"]
Segment = tuple[str, Style]
Line = tuple[Segment, ...]

_MARKS = {"request": "●", "answer": "◉", "step": "○", "nothing": "✗"}
_STREAM = "≋ decoupled"
_MIN_NAME_WIDTH, _MIN_TEXT_WIDTH, _GAP = 6, 20, 2


@dataclass
class _Rails:
    """The lanes to the left of the nodes."""

    lanes: list[str | None]  # the node that owns each lane
    pending_readers: dict[str, set[str]]  # the nodes that have yet to read a node's tensors

    def free(self) -> int:
        """Return the index of the first lane without an owner; add one if necessary."""
        if None not in self.lanes:
            self.lanes.append(None)
        return self.lanes.index(None)

    def prefix(self) -> str:
        """Return the lanes as the prefix of a line of text."""
        return " ".join("│" if owner else " " for owner in self.lanes)


def draw_lines(picture: Picture, width: int) -> list[Line]:
    """Return the picture as lines of at most `width` columns, unless names are too long."""
    lines: list[Line] = [_heading(picture), ()]
    lines += _body_lines(picture, width)
    if picture.findings:
        lines.append(())
    for rule, message in picture.findings:
        mark = f"✗ {rule} "
        first, *more = wrap(clean(message), max(width - len(mark), _MIN_TEXT_WIDTH))
        lines.append(((mark, "fault"), (first, "")))
        lines += [((" " * len(mark), ""), (text, "")) for text in more]
    return lines


def plain(lines: Sequence[Line]) -> str:
    """Return the lines as plain text."""
    texts = ("".join(text for text, _ in line).rstrip() for line in lines)
    return "\n".join(texts) + "\n"


def clean(text: str) -> str:
    """Escape non-printable characters, so that names cannot send terminal commands."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _heading(picture: Picture) -> Line:
    batch = f"batches of up to {picture.max_batch_size}" if picture.max_batch_size else "no batches"
    serving = f"  {picture.backend or 'model'}, {batch}"
    stream: list[Segment] = [(f", {_STREAM}", "stream")] if picture.decoupled else []
    return ((clean(picture.name), "bold"), (serving, "dim"), *stream)


def _body_lines(picture: Picture, width: int) -> Iterator[Line]:
    rails = _Rails([], {node.name: set() for node in picture.nodes})
    for edge in picture.edges:
        rails.pending_readers[edge.source].add(edge.target)
    nodes = [node for node in picture.nodes if node.name not in (ANSWER, NOTHING)]
    last = [node for node in picture.nodes if node.name == ANSWER]
    nowhere = [node for node in picture.nodes if node.name == NOTHING]
    unwritten = [node for node in nowhere if rails.pending_readers[NOTHING]]
    unread = [node for node in nowhere if any(picture.incoming_edges(node))]
    for node in (*nodes[:1], *unwritten, *nodes[1:], *last, *unread):
        yield from _node_lines(picture, node, rails, width)


def _node_lines(picture: Picture, node: PictureNode, rails: _Rails, width: int) -> Iterator[Line]:
    edges = list(picture.incoming_edges(node)) if node not in picture.nodes[:1] else []
    sources = {edge.source for edge in edges}
    row = _node_row(node, sources, rails)
    title: list[Segment] = [(f" {_title(node)}", "bold"), (_subtitle(node), "dim")]
    if node.decoupled and node.kind == "step":
        title.append((f"  {_STREAM}", "stream"))
    if node.faults:
        title.append((f"  ✗ {', '.join(node.faults)}", "fault"))
    yield ((row, "dim"), *title)
    prefix = rails.prefix()
    yield from _tensor_lines(edges, prefix, width)
    if node.inner is not None:
        yield from _nested_lines(node.inner, prefix, width)
    if any(rails.lanes):
        yield ((prefix, "dim"),)


def _node_row(node: PictureNode, sources: set[str], rails: _Rails) -> str:
    """Return a node's row, which connects the lanes it reads to its own; update the lanes."""
    finished_owners = set()
    for source in sources:
        rails.pending_readers[source].discard(node.name)
        if not rails.pending_readers[source]:
            finished_owners.add(source)
    reads = [lane_index for lane_index, owner in enumerate(rails.lanes) if owner in sources]
    # The node reuses a lane that ends here.
    freed = [lane_index for lane_index in reads if rails.lanes[lane_index] in finished_owners]
    lane = freed[0] if freed else rails.free()
    first, last = min([lane, *reads]), max([lane, *reads])
    cells = [
        _cell(lane_index, owner, reads, finished_owners, (first, last))
        for lane_index, owner in enumerate(rails.lanes)
    ]
    cells[lane] = _MARKS[node.kind]
    joints = ["─" if first <= lane_index < last else " " for lane_index in range(len(cells))]
    row = "".join(cell + joint for cell, joint in zip(cells, joints, strict=True)).rstrip()
    rails.lanes = [None if owner in finished_owners else owner for owner in rails.lanes]
    rails.lanes[lane] = node.name if rails.pending_readers[node.name] else None
    while rails.lanes and rails.lanes[-1] is None:
        rails.lanes.pop()
    return row


def _cell(
    at: int,
    owner: str | None,
    reads: list[int],
    finished_owners: set[str],
    line_ends: tuple[int, int],
) -> str:
    """Return the character of a lane where a node's row crosses it."""
    if owner is None:
        return "─" if line_ends[0] < at < line_ends[1] else " "
    if at not in reads:
        return "│"
    kinds = "└┴┘" if owner in finished_owners else "├┼┤"
    return kinds[0 if at == line_ends[0] else 2 if at == line_ends[1] else 1]


def _title(node: PictureNode) -> str:
    return f"{node.name} {clean(node.title)}" if node.kind == "step" else node.title


def _subtitle(node: PictureNode) -> str:
    if node.kind == "nothing":
        return ": no step, no request"
    if node.kind != "step":
        return ""
    return f"  {node.backend or 'not in this repository'}"


def _tensor_lines(edges: list[Edge], prefix: str, width: int) -> Iterator[Line]:
    """Yield a line for each tensor that a node reads; two if it does not fit into one."""
    names = [clean(edge.read_as or edge.tensor) for edge in edges]
    rows = [(n, e.dtype, e.shape, _origin(e)) for n, e in zip(names, edges, strict=True)]
    margin = len(prefix) + 3
    widths = [max((len(row[at]) for row in rows), default=0) for at in range(3)]
    available_width = width - margin - widths[1] - widths[2] - 2 * _GAP
    widths[0] = max(min(widths[0], available_width), _MIN_NAME_WIDTH)
    for edge, row in zip(edges, rows, strict=True):
        segments: list[Segment] = [(f"{prefix}   ", "dim")]
        segments.append((row[0].ljust(widths[0]), "fault" if edge.faults else ""))
        segments.append((f"  {row[1].ljust(widths[1])}  {row[2].ljust(widths[2])}", "dim"))
        used = margin + max(len(row[0]), widths[0]) + widths[1] + widths[2] + 2 * _GAP
        mark = f"✗ {', '.join(edge.faults)}" if edge.faults else ""
        trailing: list[Segment] = [(row[3], ""), (mark, "fault")]
        for text, style in trailing:
            if text and used + len(text) + _GAP > width:
                yield tuple(segments)
                segments, used = [(f"{prefix}     ", "dim")], margin + 2
            if text:
                segments.append((f"  {text}", style))
                used += len(text) + _GAP
        yield tuple(segments)


def _origin(edge: Edge) -> str:
    """Return the node that writes a tensor, and its name in the ensemble if it differs."""
    number = "" if edge.source in (REQUEST, NOTHING) else f" {edge.source}"
    name = "" if edge.tensor == (edge.read_as or edge.tensor) else f" {clean(edge.tensor)}"
    arrow = f"←{number}{name}" if number or name else ""
    return f"{arrow} optional".strip() if edge.optional else arrow


def _nested_lines(picture: Picture, prefix: str, width: int) -> Iterator[Line]:
    """Yield a nested ensemble in a frame."""
    inner_width = width - len(prefix) - 5
    yield ((f"{prefix}   ┌╌ ", "dim"), *_heading(picture))
    for line in _body_lines(picture, inner_width):
        yield ((f"{prefix}   ┊ ", "dim"), *line)
    yield ((f"{prefix}   └╌", "dim"),)
