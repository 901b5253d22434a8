# SPDX-License-Identifier: Apache-2.0
"""Render a picture as Mermaid or Graphviz.

https://mermaid.js.org/syntax/flowchart.html, https://graphviz.org/doc/info/lang.html
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from tritonctl.checks.drawing.picture import Edge, Picture, PictureNode
from tritonctl.checks.drawing.terminal import clean

# Mermaid wraps edge labels after 200 pixels, but not at this character.
_UNBROKEN = "\u00a0"
_RED, _BLUE = "#c0392b", "#2471a3"
# Source, target, the tensors, and whether they are broken.
Arrow = tuple[str, str, list[Edge], bool]


def mermaid(picture: Picture) -> str:
    """Render a flowchart for Markdown."""
    lines = ["flowchart TD"]
    links: list[str] = []
    numbers = count()
    lines += _mermaid_lines(picture, "m", numbers, links)
    lines += links
    lines.append(f"  classDef decoupled stroke:{_BLUE},stroke-width:3px")
    lines.append(f"  classDef broken stroke:{_RED},stroke-width:3px,stroke-dasharray:4")
    return "\n".join(lines) + "\n"


def _mermaid_lines(
    picture: Picture, prefix: str, numbers: count[int], links: list[str]
) -> Iterator[str]:
    for node in picture.nodes:
        name = f"{prefix}_{node.name}"
        if node.inner is not None:
            yield f'  subgraph {name} ["{_mermaid_text(_title(node))}"]'
            yield from _mermaid_lines(node.inner, name, numbers, links)
            yield "  end"
        else:
            opening, closing = ("([", "])") if node.kind != "step" else ("[", "]")
            yield f'  {name}{opening}"{_mermaid_text(_title(node))}"{closing}'
        if kind := "broken" if node.faults else "decoupled" if node.decoupled else "":
            yield f"  class {name} {kind}"
    for source, target, edges, broken in _arrows(picture, prefix):
        labels = (_mermaid_text(_label(edge)).replace(" ", _UNBROKEN) for edge in edges)
        text = "<br/>".join(labels)
        links.append(f'  {source} {"-.->" if broken else "-->"}|"{text}"| {target}')
        number = next(numbers)
        if broken:
            links.append(f"  linkStyle {number} stroke:{_RED},color:{_RED}")


def _arrows(picture: Picture, prefix: str) -> Iterator[Arrow]:
    """Yield the arrows: valid tensors between two nodes share one, broken tensors do not."""
    inner = {node.name for node in picture.nodes if node.inner is not None}
    edges_by_endpoints: dict[tuple[str, str], list[Edge]] = {}
    for edge in picture.edges:
        if not edge.faults:
            edges_by_endpoints.setdefault((edge.source, edge.target), []).append(edge)
    broken = [((edge.source, edge.target), [edge], True) for edge in picture.edges if edge.faults]
    sound = [(endpoints, edges, False) for endpoints, edges in edges_by_endpoints.items()]
    for (source, target), edges, is_broken in (*sound, *broken):
        # Arrows enter a nested ensemble at its request and leave it at its answer.
        start = f"{prefix}_{source}" + ("_answer" if source in inner else "")
        end = f"{prefix}_{target}" + ("_request" if target in inner else "")
        yield start, end, edges, is_broken


def _title(node: PictureNode) -> str:
    parts = [node.title if node.kind != "step" else f"{node.name} {node.title}"]
    parts += ["decoupled"] if node.decoupled else []
    parts += [f"✗ {', '.join(node.faults)}"] if node.faults else []
    return " · ".join(parts)


def _label(edge: Edge) -> str:
    optional = " optional" if edge.optional else ""
    mark = f"✗ {', '.join(edge.faults)} " if edge.faults else ""
    return f"{mark}{_names(edge)} {edge.dtype} {edge.shape}{optional}"


def _names(edge: Edge) -> str:
    """Return the tensor's name in the ensemble and in the models on both ends."""
    names = list(dict.fromkeys(name for name in (edge.written_as, edge.read_as) if name))
    if edge.tensor in names:
        return " → ".join(names)
    return f"{edge.tensor} ({' → '.join(names)})" if names else edge.tensor


def _mermaid_text(text: str) -> str:
    """Escape text as HTML entities, so that Mermaid does not interpret it."""
    return "".join(
        c if c.isalnum() or c in " _-.,→✗·[]():?" else f"#{ord(c)};" for c in clean(text)
    )


def dot(picture: Picture) -> str:
    """Render a directed graph for `dot`."""
    lines = ["digraph {", "  rankdir=TB", "  compound=true", "  node [shape=box]"]
    links: list[str] = []
    lines += _dot_lines(picture, "m", "  ", links)
    return "\n".join([*lines, *links, "}"]) + "\n"


def _dot_lines(picture: Picture, prefix: str, indent: str, links: list[str]) -> Iterator[str]:
    for node in picture.nodes:
        name = f"{prefix}_{node.name}"
        if node.inner is not None:
            yield f'{indent}subgraph "cluster_{name}" {{'
            yield f"{indent}  label={_quoted(_title(node))}"
            yield from _dot_lines(node.inner, name, f"{indent}  ", links)
            yield f"{indent}}}"
        else:
            yield f'{indent}"{name}" [label={_quoted(_title(node))}{_dot_style(node)}]'
    for source, target, edges, broken in _arrows(picture, prefix):
        text = "".join(f"{_label(edge)}\n" for edge in edges)
        red = f', color="{_RED}", fontcolor="{_RED}", style=dashed' if broken else ""
        links.append(f'  "{source}" -> "{target}" [label={_quoted(text)}{red}]')


def _dot_style(node: PictureNode) -> str:
    shape = ", shape=oval" if node.kind != "step" else ""
    if node.faults:
        return f'{shape}, color="{_RED}", style=dashed'
    return f'{shape}, color="{_BLUE}", penwidth=3' if node.decoupled else shape


def _quoted(text: str) -> str:
    """Quote text for `dot` with left-justified lines."""
    lines = (clean(line) for line in text.split("\n"))
    escaped = "\\l".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return f'"{escaped}"'
