# SPDX-License-Identifier: Apache-2.0
"""TC314 to TC316: whether every tensor of an ensemble is read, and every step can run."""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.analysis import wiring
from tritonctl.checks.analysis.graph import Graph, Step, Waiting
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import error


@error(
    "TC314 unread-tensor",
    summary="a mapped output of a step that nothing reads",
    why="Triton refuses the ensemble. Leave an output that nothing reads out of the output_map.",
)
def unread_tensor(ensemble: Graph, model: Model) -> Iterator[Hit]:
    if _lacks_readers(ensemble):
        return
    for name, links in ensemble.writers.items():
        if name not in ensemble.readers and name not in ensemble.outputs:
            yield Hit(
                f"no step reads {name}, and it is not an output of {model.name}",
                f"remove this entry, or declare {name} as an output of {model.name}",
                model.config.span(*links[0].path),
            )


@error("TC315 unused-input", summary="an input of the ensemble that no step reads")
def unused_input(config: ConfigMessage, ensemble: Graph) -> Iterator[Hit]:
    if _lacks_readers(ensemble):
        return
    for name, tensor in ensemble.inputs.items():
        if name not in ensemble.readers and name not in ensemble.writers:
            yield Hit(
                f"no step reads the input {name}",
                "remove it, or map it to the input of a step",
                config.span(*tensor.path, "name"),
            )


@error(
    "TC316 steps-in-a-circle",
    summary="steps that wait for each other",
    why="None of them can ever run: Triton refuses the ensemble.",
)
def steps_in_a_circle(ensemble: Graph, model: Model) -> Iterator[Hit]:
    for circle in _circles(ensemble):
        first = circle[0]
        written = {link.tensor for link in circle[-1].outputs}
        link = next(link for link in first.inputs if link.tensor in written)
        way = " → ".join(str(step.index + 1) for step in (*circle, first))
        what = "reads its own output" if len(circle) == 1 else f"can never run: steps {way}"
        yield Hit(
            f"step {first.index + 1} {what}",
            "let one of them read something else: a step runs once all of its inputs are there",
            model.config.span(*link.path),
        )


def _lacks_readers(graph: Graph) -> bool:
    """Whether another mistake is why a tensor is not read, and is reported in its place.

    What nobody writes is most likely that tensor, misspelt.
    """
    unfinished = any(not step.inputs or not step.outputs or step.unfed for step in graph.steps)
    return unfinished or next(wiring.unwritten(graph), None) is not None


def _circles(graph: Graph) -> Iterator[tuple[Step, ...]]:
    """As if everything else were right. Each step is in one of them at most."""
    waiting = Waiting(graph.steps)
    runs = waiting.start({*graph.inputs, *wiring.unwritten(graph)})
    writers = {link.tensor: step for step in graph.steps for link in step.outputs}
    way: list[Step] = []
    on_way: dict[int, int] = {}
    for first in graph.steps:
        while True:
            while runs:
                runs = waiting.done(runs)
            # Steps behind a circle may run now; what is left of the way still leads to the next.
            while way and way[-1].index not in waiting.left:
                del on_way[way.pop().index]
            step = way[-1] if way else first
            if step.index not in waiting.left:
                break
            if not way:
                on_way[step.index] = 0
                way.append(step)
            step = _waits_for(step, writers, waiting.ready)
            if step.index not in on_way:
                on_way[step.index] = len(way)
                way.append(step)
                continue
            circle = way[on_way[step.index] :][::-1]
            start = circle.index(min(circle, key=lambda one: one.index))
            yield (*circle[start:], *circle[:start])
            for one in circle:
                waiting.drop(one)
            runs = circle


def _waits_for(step: Step, writers: dict[str, Step], ready: set[str]) -> Step:
    return next(writers[link.tensor] for link in step.inputs if link.tensor not in ready)
