# SPDX-License-Identifier: Apache-2.0
"""What `tritonctl graph` draws: nodes and the tensors between them, with what is wrong marked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tritonctl.checks.analysis import declared
from tritonctl.checks.analysis.graph import Graph, Link, Side, Step, graph_of, interface_of
from tritonctl.checks.findings import Hit
from tritonctl.checks.places import Span
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rules import RULES

Kind = Literal["request", "answer", "step", "nothing"]
REQUEST: Kind = "request"
ANSWER: Kind = "answer"
NOTHING: Kind = "nothing"
# Of all nested ensembles together: beyond, they stay closed.
_MOST_NODES = 500


@dataclass(frozen=True)
class Node:
    """The request, the answer, a step, or the nothing that a broken edge ends in.

    faults: ids of rules, of what is wrong with the step itself. inner: the nested ensemble.
    """

    name: str
    kind: Kind
    title: str
    backend: str | None = None
    decoupled: bool | None = None
    faults: tuple[str, ...] = ()
    inner: Picture | None = None


@dataclass(frozen=True)
class Edge:
    """A tensor from one node to another. `tensor` is the ensemble's name, the others the models'.

    given, wanted: what the two sides say of it; None where that is not known.
    """

    tensor: str
    source: str
    target: str
    written_as: str
    read_as: str
    given: Side | None
    wanted: Side | None
    optional: bool
    faults: tuple[str, ...] = ()

    @property
    def dtype(self) -> str:
        """The data type; both where they differ."""
        return _both(*(side.dtype and side.dtype.removeprefix("TYPE_") for side in self._sides))

    @property
    def shape(self) -> str:
        """The shape with its batch dimension; both where they differ."""
        return _both(*(side.shape for side in self._sides))

    @property
    def _sides(self) -> list[Side]:
        return [side for side in (self.given, self.wanted) if side is not None]


@dataclass(frozen=True)
class Picture:
    """An ensemble, or a single model. findings: what `tritonctl check` reports."""

    name: str
    backend: str | None
    max_batch_size: int
    decoupled: bool | None
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    findings: tuple[tuple[str, str], ...] = ()

    def into(self, node: Node) -> Iterator[Edge]:
        """The edges that end there."""
        return (edge for edge in self.edges if edge.target == node.name)

    def as_record(self) -> dict[str, Any]:
        """The picture as plain data."""
        return {
            "model": self.name,
            "backend": self.backend,
            "max_batch_size": self.max_batch_size,
            "decoupled": self.decoupled,
            "nodes": [_node_record(node) for node in self.nodes],
            "edges": [_edge_record(edge) for edge in self.edges],
            "findings": [{"rule": rule, "message": text} for rule, text in self.findings],
        }


def _node_record(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "kind": node.kind,
        "model": node.title if node.kind == "step" else None,
        "backend": node.backend,
        "decoupled": node.decoupled,
        "broken": list(node.faults),
        "inner": node.inner.as_record() if node.inner else None,
    }


def _edge_record(edge: Edge) -> dict[str, Any]:
    return {
        "tensor": edge.tensor,
        "from": {"node": edge.source, "name": edge.written_as} | _side_record(edge.given),
        "to": {"node": edge.target, "name": edge.read_as} | _side_record(edge.wanted),
        "optional": edge.optional,
        "broken": list(edge.faults),
    }


def _side_record(side: Side | None) -> dict[str, Any]:
    if side is None:
        return {"data_type": None, "dims": None, "batched": None}
    dims = None if side.dims is None else list(side.dims)
    return {"data_type": side.dtype, "dims": dims, "batched": side.batches}


def _both(*said: str | None) -> str:
    known = list(dict.fromkeys(text for text in said if text is not None))
    return " → ".join(known) or "?"


def picture_of(model: Model, repository: Repository) -> Picture | None:
    """The model's picture; None where its configuration cannot be read."""
    return _Painter(repository).paint(model, ())


class _Painter:
    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._nodes = 0

    def paint(self, model: Model, outer: tuple[str, ...]) -> Picture | None:
        graph = graph_of(model, self._repository)
        if graph is None:
            return self._alone(model)
        interface = interface_of(model, self._repository)
        faults = _Faults(model, self._repository)
        steps = [step for layer in graph.layers for step in layer]
        steps += [step for step in graph.steps if step not in steps]
        self._nodes += len(steps)
        nodes = [self._node(step, faults, (*outer, model.name)) for step in steps]
        edges = tuple(_edges(graph, faults))
        unused = any(NOTHING in (edge.source, edge.target) for edge in edges)
        nothing = [Node(NOTHING, NOTHING, "nothing")] if unused else []
        return Picture(
            name=model.name,
            backend="ensemble",
            max_batch_size=graph.max_batch_size,
            decoupled=interface.decoupled if interface else None,
            nodes=(_REQUEST, *nothing, *nodes, _ANSWER),
            edges=edges,
            findings=faults.messages,
        )

    def _alone(self, model: Model) -> Picture | None:
        interface = interface_of(model, self._repository)
        if interface is None or not model.has_config:
            return None
        node = Node("1", "step", model.name, model.backend, interface.decoupled)
        inputs = [(t, interface.side(t)) for t in declared.inputs(model)]
        outputs = [(t, interface.side(t)) for t in declared.outputs(model)]
        return Picture(
            name=model.name,
            backend=model.backend,
            max_batch_size=model.config.message.max_batch_size,
            decoupled=interface.decoupled,
            nodes=(_REQUEST, node, _ANSWER),
            edges=(
                *(Edge(t.name, REQUEST, "1", t.name, t.name, s, s, t.optional) for t, s in inputs),
                *(Edge(t.name, "1", ANSWER, t.name, t.name, s, s, False) for t, s in outputs),
            ),
        )

    def _node(self, step: Step, faults: _Faults, outer: tuple[str, ...]) -> Node:
        model = self._repository.models.get(step.name)
        node = Node(
            name=str(step.index + 1),
            kind="step",
            title=step.name or "?",
            backend=model.backend if model else None,
            decoupled=step.interface.decoupled if step.interface else None,
            faults=faults.of_step(step),
        )
        opened = model is not None and model.backend == "ensemble" and model.name not in outer
        if model is None or not opened or self._nodes > _MOST_NODES:
            return node
        return replace(node, inner=self.paint(model, outer))


_REQUEST = Node(REQUEST, "request", "request")
_ANSWER = Node(ANSWER, "answer", "answer")


@dataclass
class _Faults:
    """What the rules say of an ensemble, by the place that they point at."""

    model: Model
    repository: Repository
    messages: tuple[tuple[str, str], ...] = ()
    _by_span: dict[Span, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        hits = list(self._hits())
        self.messages = tuple((rule, hit.message) for rule, hit in hits)
        for rule, hit in hits:
            if hit.span is not None:
                self._by_span.setdefault(hit.span, []).append(rule)

    def _hits(self) -> Iterator[tuple[str, Hit]]:
        for rule in RULES.values():
            if rule.family == "ensembles" and rule.severity != "advice":
                for hit in rule.hits_of(self.model, self.repository):
                    yield rule.id, hit

    def of_step(self, step: Step) -> tuple[str, ...]:
        return self._at((*step.path, "model_name"), (*step.path, "model_version"), step.path)

    def of_link(self, link: Link) -> tuple[str, ...]:
        return self._at(link.path)

    def of_own(self, name: str, tensors: Mapping[str, declared.Tensor]) -> tuple[str, ...]:
        """Of an input or output of the ensemble."""
        path = tensors[name].path
        return self._at((*path, "name"), (*path, "optional"))

    def _at(self, *paths: tuple[str | int, ...]) -> tuple[str, ...]:
        config = self.model.config
        spans: list[Span] = []
        for path in paths:
            spans += [known[path] for known in (config.values, config.names) if path in known]
        rules = (rule for span in dict.fromkeys(spans) for rule in self._by_span.get(span, ()))
        return tuple(dict.fromkeys(rules))


def _edges(graph: Graph, faults: _Faults) -> Iterator[Edge]:
    """Those into the steps, then those into the answer, then those that lead nowhere."""
    for step in graph.steps:
        for link in step.inputs:
            yield _edge(graph, faults, link.tensor, link)
    for name in graph.outputs:
        yield _edge(graph, faults, name, None)
    for name, links in graph.writers.items():
        if name not in graph.readers and name not in graph.outputs:
            link = links[0]
            written = (link.tensor, str(link.step + 1), NOTHING, link.name, "", link.side)
            yield Edge(*written, None, False, faults.of_link(link))
    for name in graph.inputs:
        if name not in graph.readers and name not in graph.outputs:
            side = graph.given(name)
            mistakes = faults.of_own(name, graph.inputs)
            yield Edge(name, REQUEST, NOTHING, name, "", side, None, False, mistakes)


def _edge(graph: Graph, faults: _Faults, tensor: str, reader: Link | None) -> Edge:
    """From whoever writes the tensor to a step, or to the answer."""
    source, written_as, given, mistakes = _source(graph, faults, tensor)
    own = graph.inputs.get(tensor)
    if reader is not None:
        target, read_as, wanted = str(reader.step + 1), reader.name, reader.side
        mistakes += faults.of_link(reader)
    else:
        target, read_as, wanted = ANSWER, tensor, graph.given(tensor)
        mistakes += faults.of_own(tensor, graph.outputs)
    optional = own is not None and own.optional
    faulty = tuple(dict.fromkeys(mistakes))
    return Edge(tensor, source, target, written_as, read_as, given, wanted, optional, faulty)


def _source(
    graph: Graph, faults: _Faults, tensor: str
) -> tuple[str, str, Side | None, tuple[str, ...]]:
    if tensor in graph.inputs:
        return REQUEST, tensor, graph.given(tensor), faults.of_own(tensor, graph.inputs)
    for writer in graph.writers.get(tensor, ())[:1]:
        mistakes = tuple(rule for link in graph.writers[tensor] for rule in faults.of_link(link))
        return str(writer.step + 1), writer.name, writer.side, mistakes
    return NOTHING, "", None, ()
