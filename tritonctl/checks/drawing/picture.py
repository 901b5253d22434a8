# SPDX-License-Identifier: Apache-2.0
"""The picture that `tritonctl graph` draws: nodes, the tensors between them, and their faults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tritonctl.checks.analysis import declared
from tritonctl.checks.analysis.graph import (
    EndpointSpec,
    EnsembleGraph,
    GraphStep,
    Link,
    graph_of,
    interface_of,
)
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rules import RULES
from tritonctl.checks.source_span import Span

Kind = Literal["request", "answer", "step", "nothing"]
REQUEST: Kind = "request"
ANSWER: Kind = "answer"
NOTHING: Kind = "nothing"
# Limit for all nested ensembles together; beyond it they are not expanded.
_MAX_NODES = 500


@dataclass(frozen=True)
class PictureNode:
    """A request, answer or step, or the placeholder at the open end of a broken edge."""

    name: str
    kind: Kind
    title: str
    backend: str | None = None
    decoupled: bool | None = None
    faults: tuple[str, ...] = ()  # ids of the rules that report the step itself
    inner: Picture | None = None  # the nested ensemble


@dataclass(frozen=True)
class Edge:
    """A tensor from one node to another."""

    tensor: str  # its name in the ensemble
    source: str
    target: str
    written_as: str  # its name in the source model
    read_as: str  # its name in the target model
    written_spec: EndpointSpec | None  # declared by the source; None if unknown
    read_spec: EndpointSpec | None  # declared by the target; None if unknown
    optional: bool
    faults: tuple[str, ...] = ()

    @property
    def dtype(self) -> str:
        """The data type; both if the two sides differ."""
        return _joined_values(
            *(spec.dtype and spec.dtype.removeprefix("TYPE_") for spec in self._specs)
        )

    @property
    def shape(self) -> str:
        """The shape with its batch dimension; both if the two sides differ."""
        return _joined_values(*(spec.shape for spec in self._specs))

    @property
    def _specs(self) -> list[EndpointSpec]:
        return [spec for spec in (self.written_spec, self.read_spec) if spec is not None]


@dataclass(frozen=True)
class Picture:
    """An ensemble or a single model."""

    name: str
    backend: str | None
    max_batch_size: int
    decoupled: bool | None
    nodes: tuple[PictureNode, ...]
    edges: tuple[Edge, ...]
    findings: tuple[tuple[str, str], ...] = ()  # rule id and message

    def incoming_edges(self, node: PictureNode) -> Iterator[Edge]:
        """Yield the edges that end at a node."""
        return (edge for edge in self.edges if edge.target == node.name)

    def as_record(self) -> dict[str, Any]:
        """Return the picture as plain data."""
        return {
            "model": self.name,
            "backend": self.backend,
            "max_batch_size": self.max_batch_size,
            "decoupled": self.decoupled,
            "nodes": [_node_record(node) for node in self.nodes],
            "edges": [_edge_record(edge) for edge in self.edges],
            "findings": [{"rule": rule, "message": text} for rule, text in self.findings],
        }


def _node_record(node: PictureNode) -> dict[str, Any]:
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
        "source": {"node": edge.source, "name": edge.written_as} | _spec_record(edge.written_spec),
        "target": {"node": edge.target, "name": edge.read_as} | _spec_record(edge.read_spec),
        "optional": edge.optional,
        "broken": list(edge.faults),
    }


def _spec_record(side: EndpointSpec | None) -> dict[str, Any]:
    if side is None:
        return {"data_type": None, "dims": None, "batched": None}
    dims = None if side.dims is None else list(side.dims)
    return {"data_type": side.dtype, "dims": dims, "batched": side.is_batched}


def _joined_values(*values: str | None) -> str:
    distinct = list(dict.fromkeys(text for text in values if text is not None))
    return " → ".join(distinct) or "?"


def picture_of(model: Model, repository: Repository) -> Picture | None:
    """Return the model's picture; None if its configuration cannot be read."""
    return _PictureBuilder(repository).paint(model, ())


class _PictureBuilder:
    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._nodes = 0

    def paint(self, model: Model, outer: tuple[str, ...]) -> Picture | None:
        graph = graph_of(model, self._repository)
        if graph is None:
            return self._single_model(model)
        interface = interface_of(model, self._repository)
        faults = _FaultIndex(model, self._repository)
        steps = [step for layer in graph.layers for step in layer]
        steps += [step for step in graph.steps if step not in steps]
        self._nodes += len(steps)
        nodes = [self._node(step, faults, (*outer, model.name)) for step in steps]
        edges = tuple(_edges(graph, faults))
        unused = any(NOTHING in (edge.source, edge.target) for edge in edges)
        nothing = [PictureNode(NOTHING, NOTHING, "nothing")] if unused else []
        return Picture(
            name=model.name,
            backend="ensemble",
            max_batch_size=graph.max_batch_size,
            decoupled=interface.decoupled if interface else None,
            nodes=(_REQUEST, *nothing, *nodes, _ANSWER),
            edges=edges,
            findings=faults.messages,
        )

    def _single_model(self, model: Model) -> Picture | None:
        interface = interface_of(model, self._repository)
        if interface is None or not model.has_config:
            return None
        node = PictureNode("1", "step", model.name, model.backend, interface.decoupled)
        inputs = [(t, interface.tensor_spec(t)) for t in declared.inputs(model)]
        outputs = [(t, interface.tensor_spec(t)) for t in declared.outputs(model)]
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

    def _node(self, step: GraphStep, faults: _FaultIndex, outer: tuple[str, ...]) -> PictureNode:
        model = self._repository.models.get(step.name)
        node = PictureNode(
            name=str(step.index + 1),
            kind="step",
            title=step.name or "?",
            backend=model.backend if model else None,
            decoupled=step.interface.decoupled if step.interface else None,
            faults=faults.step_faults(step),
        )
        is_expandable = (
            model is not None and model.backend == "ensemble" and model.name not in outer
        )
        if model is None or not is_expandable or self._nodes > _MAX_NODES:
            return node
        return replace(node, inner=self.paint(model, outer))


_REQUEST = PictureNode(REQUEST, "request", "request")
_ANSWER = PictureNode(ANSWER, "answer", "answer")


@dataclass
class _FaultIndex:
    """The rules that an ensemble breaks, by the span they report."""

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
                for hit in rule.find_in_model(self.model, self.repository):
                    yield rule.id, hit

    def step_faults(self, step: GraphStep) -> tuple[str, ...]:
        return self._at((*step.path, "model_name"), (*step.path, "model_version"), step.path)

    def link_faults(self, link: Link) -> tuple[str, ...]:
        return self._at(link.path)

    def tensor_faults(
        self, name: str, tensors: Mapping[str, declared.DeclaredTensor]
    ) -> tuple[str, ...]:
        """Return the rules that report an input or output of the ensemble."""
        path = tensors[name].path
        return self._at((*path, "name"), (*path, "optional"))

    def _at(self, *paths: tuple[str | int, ...]) -> tuple[str, ...]:
        config = self.model.config
        spans: list[Span] = []
        for path in paths:
            spans += [
                spans_by_path[path]
                for spans_by_path in (config.value_spans, config.name_spans)
                if path in spans_by_path
            ]
        rules = (rule for span in dict.fromkeys(spans) for rule in self._by_span.get(span, ()))
        return tuple(dict.fromkeys(rules))


def _edges(graph: EnsembleGraph, faults: _FaultIndex) -> Iterator[Edge]:
    """Yield the edges into the steps, then into the answer, then those without a target."""
    for step in graph.steps:
        for link in step.inputs:
            yield _edge(graph, faults, link.tensor, link)
    for name in graph.outputs:
        yield _edge(graph, faults, name, None)
    for name, links in graph.writers.items():
        if name not in graph.readers and name not in graph.outputs:
            link = links[0]
            written = (link.tensor, str(link.step + 1), NOTHING, link.name, "", link.spec)
            yield Edge(*written, None, False, faults.link_faults(link))
    for name in graph.inputs:
        if name not in graph.readers and name not in graph.outputs:
            spec = graph.ensemble_spec(name)
            mistakes = faults.tensor_faults(name, graph.inputs)
            yield Edge(name, REQUEST, NOTHING, name, "", spec, None, False, mistakes)


def _edge(graph: EnsembleGraph, faults: _FaultIndex, tensor: str, reader: Link | None) -> Edge:
    """Return the edge from the tensor's writer to a step, or to the answer."""
    source, written_as, written_spec, mistakes = _source(graph, faults, tensor)
    ensemble_input = graph.inputs.get(tensor)
    if reader is not None:
        target, read_as, read_spec = str(reader.step + 1), reader.name, reader.spec
        mistakes += faults.link_faults(reader)
    else:
        target, read_as, read_spec = ANSWER, tensor, graph.ensemble_spec(tensor)
        mistakes += faults.tensor_faults(tensor, graph.outputs)
    optional = ensemble_input is not None and ensemble_input.optional
    faulty = tuple(dict.fromkeys(mistakes))
    return Edge(
        tensor, source, target, written_as, read_as, written_spec, read_spec, optional, faulty
    )


def _source(
    graph: EnsembleGraph, faults: _FaultIndex, tensor: str
) -> tuple[str, str, EndpointSpec | None, tuple[str, ...]]:
    if tensor in graph.inputs:
        return (
            REQUEST,
            tensor,
            graph.ensemble_spec(tensor),
            faults.tensor_faults(tensor, graph.inputs),
        )
    for writer in graph.writers.get(tensor, ())[:1]:
        mistakes = tuple(
            rule for link in graph.writers[tensor] for rule in faults.link_faults(link)
        )
        return str(writer.step + 1), writer.name, writer.spec, mistakes
    return NOTHING, "", None, ()
