# SPDX-License-Identifier: Apache-2.0
"""TC31x: whether every tensor of an ensemble is written once, and read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from tritonctl.checks.analysis.graph import Graph, Link, Step, graph_of
from tritonctl.checks.examples.ensembles import (
    CLASSIFY,
    ENSEMBLE,
    TOKENIZE,
    composing,
    ensemble,
    rewired,
)
from tritonctl.checks.findings import Hit
from tritonctl.checks.places import Span
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import File, Rule


def unwritten_tensor(model: Model, repository: Repository) -> Iterator[Hit]:
    """A step reads what no step writes and no request brings."""
    graph = graph_of(model, repository)
    for name in _unwritten(graph) if graph else ():
        if graph and name not in graph.outputs:
            link = graph.readers[name][0]
            yield Hit(
                f"nothing writes {name}, which step {_numbers(graph.readers[name])} reads",
                _instead(name, (*graph.inputs, *graph.writers)),
                _span(model, link),
            )


def unwritten_output(model: Model, repository: Repository) -> Iterator[Hit]:
    """An output of the ensemble that no step writes."""
    graph = graph_of(model, repository)
    for name in _unwritten(graph) if graph else ():
        if graph and model.config and name in graph.outputs:
            unread = [tensor for tensor in graph.writers if tensor not in graph.readers]
            yield Hit(
                f"no step writes the output {name}",
                _instead(name, unread),
                model.config.span(*graph.outputs[name].path, "name"),
            )


def written_twice(model: Model, repository: Repository) -> Iterator[Hit]:
    """Two entries of output maps with the same tensor."""
    graph = graph_of(model, repository)
    for name, links in graph.writers.items() if graph else ():
        for link in links[1:]:
            yield Hit(
                f"step {links[0].step + 1} writes {name} already",
                "give each output a tensor of its own",
                _span(model, link),
            )


def overwritten_input(model: Model, repository: Repository) -> Iterator[Hit]:
    """A step writes to an input of the ensemble."""
    graph = graph_of(model, repository)
    for name, links in graph.writers.items() if graph else ():
        # What nobody reads at all is told there.
        if graph and name in graph.inputs and (name in graph.readers or name in graph.outputs):
            yield Hit(
                f"{name} is an input of {model.name}: step {links[0].step + 1} writes it again",
                "give the step's output a tensor of its own",
                _span(model, links[0]),
            )


def unread_tensor(model: Model, repository: Repository) -> Iterator[Hit]:
    """A step's output that is mapped for nobody."""
    graph = graph_of(model, repository)
    if graph is None or _lacks_readers(graph):
        return
    for name, links in graph.writers.items():
        if name not in graph.readers and name not in graph.outputs:
            yield Hit(
                f"no step reads {name}, and it is no output of {model.name}",
                f"remove this entry, or declare {name} as an output of {model.name}",
                _span(model, links[0]),
            )


def unused_input(model: Model, repository: Repository) -> Iterator[Hit]:
    """An input of the ensemble that no step reads."""
    graph = graph_of(model, repository)
    if graph is None or _lacks_readers(graph):
        return
    for name, tensor in graph.inputs.items():
        if name not in graph.readers and name not in graph.writers and model.config:
            yield Hit(
                f"no step reads the input {name}",
                "remove it, or map it to the input of a step",
                model.config.span(*tensor.path, "name"),
            )


def steps_in_a_circle(model: Model, repository: Repository) -> Iterator[Hit]:
    """Steps that wait for each other's outputs."""
    graph = graph_of(model, repository)
    for circle in _circles(graph) if graph else ():
        first = circle[0]
        written = {link.tensor for link in circle[-1].outputs}
        link = next(link for link in first.inputs if link.tensor in written)
        way = " → ".join(str(step.index + 1) for step in (*circle, first))
        what = "reads its own output" if len(circle) == 1 else f"can never run: steps {way}"
        yield Hit(
            f"step {first.index + 1} {what}",
            "let one of them read something else: a step runs when all of its inputs are there",
            _span(model, link),
        )


def _lacks_readers(graph: Graph) -> bool:
    """Whether another mistake is why a tensor is not read, and is told in its place.

    What nobody writes is most likely that tensor, misspelt.
    """
    unfinished = any(not step.inputs or not step.outputs or step.unfed for step in graph.steps)
    return unfinished or next(_unwritten(graph), None) is not None


def _unwritten(graph: Graph) -> Iterator[str]:
    for name in graph.tensors:
        if name not in graph.inputs and name not in graph.writers:
            yield name


def _circles(graph: Graph) -> Iterator[tuple[Step, ...]]:
    """As if everything else were right. Each step is in one of them at most."""
    ready = {*graph.inputs, *_unwritten(graph)}
    left = {step.index: step for step in graph.steps}
    while True:
        while runs := [s for s in left.values() if all(link.tensor in ready for link in s.inputs)]:
            for step in runs:
                del left[step.index]
                ready.update(link.tensor for link in step.outputs)
        if not left:
            return
        circle = _circle_in(left, ready)
        yield circle
        for step in circle:
            del left[step.index]
            ready.update(link.tensor for link in step.outputs)


def _circle_in(left: dict[int, Step], ready: set[str]) -> tuple[Step, ...]:
    """Back from a step that waits to the one it waits for, until one comes again."""
    writers = {link.tensor: step for step in left.values() for link in step.outputs}
    step = next(iter(left.values()))
    way: list[Step] = []
    while step not in way:
        way.append(step)
        step = next(writers[link.tensor] for link in step.inputs if link.tensor not in ready)
    circle = way[way.index(step) :][::-1]
    start = min(range(len(circle)), key=lambda at: circle[at].index)
    return (*circle[start:], *circle[:start])


def _span(model: Model, link: Link) -> Span | None:
    return model.config.span(*link.path) if model.config else None


def _numbers(links: Iterable[Link]) -> str:
    return " and ".join(map(str, sorted({link.step + 1 for link in links})))


def _instead(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return "map a step's output to it, or declare it as an input of the ensemble"


_GOOD = ensemble()
_TWO = composing(
    "tokenize", {"TEXT": "STRING [ 1 ]"}, {"IDS": "INT32 [ 4 ]", "MASK": "INT32 [ 4 ]"}
)
_MIX = composing("mix", {"IN": "INT32 [ 4 ]", "BACK": "INT32 [ 4 ]"}, {"OUT": "INT32 [ 4 ]"})
_IDS = 'output_map { key: "IDS" value: "ids" }\n'
_READ = 'input_map { key: "IDS" value: "ids" }\n'
_INPUT_IDS = '"ids" data_type: TYPE_INT32 dims: [ 4 ]'
_INPUT = "dims: [ 1 ] } ]"
_MORE = 'dims: [ 1 ] },\n  { name: "LANGUAGE" data_type: TYPE_STRING dims: [ 1 ] } ]'


_SHIFT = composing("shift", {"IN": "INT32 [ 4 ]"}, {"OUT": "INT32 [ 4 ]"})


def _mapped(tensor: str) -> str:
    """With one more output of the first step."""
    return ENSEMBLE.replace(_IDS, f'{_IDS}      output_map {{ key: "MASK" value: "{tensor}" }}\n')


def _mixed(tensor: str) -> dict[str, str | File]:
    """With a step between the two, which reads that tensor, too."""
    step = f'''step [
    {{
      model_name: "mix"
      model_version: -1
      input_map {{ key: "IN" value: "ids" }}
      input_map {{ key: "BACK" value: "{tensor}" }}
      output_map {{ key: "OUT" value: "mixed" }}
    }},'''
    config = ENSEMBLE.replace(_READ, _READ.replace("ids", "mixed")).replace("step [", step)
    return ensemble(config, TOKENIZE, _MIX, CLASSIFY)


def _shifted(tensor: str) -> dict[str, str | File]:
    """An ensemble whose first step reads the input `ids` and writes that tensor."""
    config = (
        ENSEMBLE.replace('"TEXT" data_type: TYPE_STRING dims: [ 1 ]', _INPUT_IDS)
        .replace('model_name: "tokenize"', 'model_name: "shift"')
        .replace('input_map { key: "TEXT" value: "TEXT" }', 'input_map { key: "IN" value: "ids" }')
        .replace(_IDS, f'output_map {{ key: "OUT" value: "{tensor}" }}\n')
        .replace(_READ, f'input_map {{ key: "IDS" value: "{tensor}" }}\n')
    )
    return ensemble(config, _SHIFT, CLASSIFY)


RULES = (
    Rule(
        id="TC311",
        name="unwritten-tensor",
        severity="error",
        summary="a tensor that a step reads and nothing writes",
        why="The step can never run: Triton refuses the ensemble.",
        check=unwritten_tensor,
        bad=rewired(_READ, _READ.replace("ids", "id")),
        good=_GOOD,
        answers=("server#7280", "server#4260"),
    ),
    Rule(
        id="TC312",
        name="unwritten-output",
        severity="error",
        summary="an output of the ensemble that no step writes",
        why="Triton refuses the ensemble: no answer could ever be complete.",
        check=unwritten_output,
        bad=rewired('value: "SCORES"', 'value: "scores"'),
        good=_GOOD,
        answers=("server#5943",),
    ),
    Rule(
        id="TC313",
        name="written-twice",
        severity="error",
        summary="a tensor that two outputs are mapped to",
        why="Triton refuses the ensemble.",
        check=written_twice,
        bad=ensemble(_mapped("ids"), _TWO, CLASSIFY),
        good=ensemble(ENSEMBLE, _TWO, CLASSIFY),
    ),
    Rule(
        id="TC314",
        name="unread-tensor",
        severity="error",
        summary="an output of a step that is mapped and that nobody reads",
        why="Triton refuses the ensemble. Outputs of a step that nobody wants are left out of its "
        "output_map.",
        check=unread_tensor,
        bad=ensemble(_mapped("mask"), _TWO, CLASSIFY),
        good=ensemble(ENSEMBLE, _TWO, CLASSIFY),
    ),
    Rule(
        id="TC315",
        name="unused-input",
        severity="error",
        summary="an input of the ensemble that no step reads",
        why="Triton refuses the ensemble.",
        check=unused_input,
        bad=rewired(_INPUT, _MORE),
        good=_GOOD,
    ),
    Rule(
        id="TC316",
        name="steps-in-a-circle",
        severity="error",
        summary="steps that wait for each other",
        why="None of them can ever run: Triton refuses the ensemble.",
        check=steps_in_a_circle,
        bad=_mixed("mixed"),
        good=_mixed("ids"),
    ),
    Rule(
        id="TC317",
        name="overwritten-input",
        severity="error",
        summary="a step that writes to an input of the ensemble",
        why="Triton loads it, and what reads that input runs once more for what the step wrote: "
        "without end if the step itself does, which kills tritonserver 2.51.",
        check=overwritten_input,
        bad=_shifted("ids"),
        good=_shifted("shifted"),
        shows="traffic",
    ),
)
