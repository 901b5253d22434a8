# SPDX-License-Identifier: Apache-2.0
"""A picture in the languages of Mermaid and Graphviz.

https://mermaid.js.org/syntax/flowchart.html, https://graphviz.org/doc/info/lang.html
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from tritonctl.checks.drawing.picture import Edge, Node, Picture
from tritonctl.checks.drawing.terminal import clean

# Mermaid breaks what stands at an arrow after 200 pixels, but not there.
_UNBROKEN = "\u00a0"
_RED, _BLUE = "#c0392b", "#2471a3"
# From, to, the tensors, whether they are broken.
Arrow = tuple[str, str, list[Edge], bool]


def mermaid(picture: Picture) -> str:
    """A flowchart, for Markdown."""
    lines = ["flowchart TD"]
    links: list[str] = []
    numbers = count()
    lines += _mermaid(picture, "m", numbers, links)
    lines += links
    lines.append(f"  classDef decoupled stroke:{_BLUE},stroke-width:3px")
    lines.append(f"  classDef broken stroke:{_RED},stroke-width:3px,stroke-dasharray:4")
    return "\n".join(lines) + "\n"


def _mermaid(picture: Picture, prefix: str, numbers: count[int], links: list[str]) -> Iterator[str]:
    for node in picture.nodes:
        name = f"{prefix}_{node.name}"
        if node.inner is not None:
            yield f'  subgraph {name} ["{_mermaid_text(_title(node))}"]'
            yield from _mermaid(node.inner, name, numbers, links)
            yield "  end"
        else:
            before, after = ("([", "])") if node.kind != "step" else ("[", "]")
            yield f'  {name}{before}"{_mermaid_text(_title(node))}"{after}'
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
    """The sound tensors between two nodes share an arrow, a broken one has its own."""
    inner = {node.name for node in picture.nodes if node.inner is not None}
    together: dict[tuple[str, str], list[Edge]] = {}
    for edge in picture.edges:
        if not edge.faults:
            together.setdefault((edge.source, edge.target), []).append(edge)
    broken = [((edge.source, edge.target), [edge], True) for edge in picture.edges if edge.faults]
    sound = [(ends, edges, False) for ends, edges in together.items()]
    for (source, target), edges, is_broken in (*sound, *broken):
        # A nested ensemble is entered by its request, and left by its answer.
        first = f"{prefix}_{source}" + ("_answer" if source in inner else "")
        last = f"{prefix}_{target}" + ("_request" if target in inner else "")
        yield first, last, edges, is_broken


def _title(node: Node) -> str:
    parts = [node.title if node.kind != "step" else f"{node.name} {node.title}"]
    parts += ["decoupled"] if node.decoupled else []
    parts += [f"✗ {', '.join(node.faults)}"] if node.faults else []
    return " · ".join(parts)


def _label(edge: Edge) -> str:
    optional = " optional" if edge.optional else ""
    mark = f"✗ {', '.join(edge.faults)} " if edge.faults else ""
    return f"{mark}{_names(edge)} {edge.dtype} {edge.shape}{optional}"


def _names(edge: Edge) -> str:
    """The ensemble's name of the tensor, and how the models on both ends call it."""
    names = list(dict.fromkeys(name for name in (edge.written_as, edge.read_as) if name))
    if edge.tensor in names:
        return " → ".join(names)
    return f"{edge.tensor} ({' → '.join(names)})" if names else edge.tensor


def _mermaid_text(text: str) -> str:
    """Entities, as HTML has them, for whatever Mermaid would read itself."""
    return "".join(
        c if c.isalnum() or c in " _-.,→✗·[]():?" else f"#{ord(c)};" for c in clean(text)
    )


def dot(picture: Picture) -> str:
    """A directed graph, for `dot`."""
    lines = ["digraph {", "  rankdir=TB", "  compound=true", "  node [shape=box]"]
    links: list[str] = []
    lines += _dot(picture, "m", "  ", links)
    return "\n".join([*lines, *links, "}"]) + "\n"


def _dot(picture: Picture, prefix: str, indent: str, links: list[str]) -> Iterator[str]:
    for node in picture.nodes:
        name = f"{prefix}_{node.name}"
        if node.inner is not None:
            yield f'{indent}subgraph "cluster_{name}" {{'
            yield f"{indent}  label={_quoted(_title(node))}"
            yield from _dot(node.inner, name, f"{indent}  ", links)
            yield f"{indent}}}"
        else:
            yield f'{indent}"{name}" [label={_quoted(_title(node))}{_dot_style(node)}]'
    for source, target, edges, broken in _arrows(picture, prefix):
        text = "".join(f"{_label(edge)}\n" for edge in edges)
        red = f', color="{_RED}", fontcolor="{_RED}", style=dashed' if broken else ""
        links.append(f'  "{source}" -> "{target}" [label={_quoted(text)}{red}]')


def _dot_style(node: Node) -> str:
    shape = ", shape=oval" if node.kind != "step" else ""
    if node.faults:
        return f'{shape}, color="{_RED}", style=dashed'
    return f'{shape}, color="{_BLUE}", penwidth=3' if node.decoupled else shape


def _quoted(text: str) -> str:
    """Lines end left-justified."""
    lines = (clean(line) for line in text.split("\n"))
    escaped = "\\l".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return f'"{escaped}"'
