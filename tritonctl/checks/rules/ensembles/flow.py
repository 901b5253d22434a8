# SPDX-License-Identifier: Apache-2.0
"""TC314 to TC318: unread tensors of an ensemble, and steps that can never run."""

from __future__ import annotations

from collections.abc import Iterator

from tritonctl.checks.analysis import wiring
from tritonctl.checks.analysis.graph import EnsembleGraph, GraphStep, StepScheduler
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import ENSEMBLE_REFUSED, error, warning


@error(
    "TC314 unread-tensor",
    summary="a mapped output of a step that nothing reads",
    reason="Triton refuses the ensemble. Omit an output that nothing reads from the output_map.",
)
def unread_tensor(ensemble: EnsembleGraph, model: Model) -> Iterator[Hit]:
    if _is_explained_by_other_rules(ensemble):
        return
    for name, links in ensemble.writers.items():
        if name not in ensemble.readers and name not in ensemble.outputs:
            yield Hit(
                f"no step reads {name}, and it is not an output of {model.name}",
                f"remove this entry, or declare {name} as an output of {model.name}",
                model.config.span(*links[0].path),
            )


@error(
    "TC315 unused-input",
    summary="an input of the ensemble that no step reads",
    reason=ENSEMBLE_REFUSED,
)
def unused_input(config: ConfigMessage, ensemble: EnsembleGraph) -> Iterator[Hit]:
    if _is_explained_by_other_rules(ensemble):
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
    reason="None of them can ever run: Triton refuses the ensemble.",
)
def steps_in_a_circle(ensemble: EnsembleGraph, model: Model) -> Iterator[Hit]:
    for circle in _find_cycles(ensemble):
        first = circle[0]
        written = {link.tensor for link in circle[-1].outputs}
        link = next(link for link in first.inputs if link.tensor in written)
        path = " → ".join(str(step.index + 1) for step in (*circle, first))
        problem = "reads its own output" if len(circle) == 1 else f"can never run: steps {path}"
        yield Hit(
            f"step {first.index + 1} {problem}",
            "let one of them read another tensor: a step runs once all of its inputs exist",
            model.config.span(*link.path),
        )


@warning(
    "TC318 output-feeds-a-step",
    summary="an output of the ensemble that a step reads, too",
    reason="A request for some of the outputs alone fails: `unexpected deadlock, at least one "
    "output is not set`. Triton drops the steps whose outputs nobody requested, and with them the "
    "tensors that other steps wait for.",
    shows="traffic",
    answers=("server#7482",),
)
def output_feeds_a_step(ensemble: EnsembleGraph, config: ConfigMessage) -> Iterator[Hit]:
    for fault in wiring.outputs_read_by_steps(ensemble):
        yield Hit(fault.message, fault.fix, config.span(*fault.path))


def _is_explained_by_other_rules(graph: EnsembleGraph) -> bool:
    """Whether another reported mistake explains an unread tensor.

    An unwritten tensor is most likely the unread one, misspelt.
    """
    unfinished = any(
        not step.inputs or not step.outputs or step.unmapped_inputs for step in graph.steps
    )
    return unfinished or next(wiring.unwritten_names(graph), None) is not None


def _find_cycles(graph: EnsembleGraph) -> Iterator[tuple[GraphStep, ...]]:
    """Yield the cycles of waiting steps, assuming no other mistakes; a step is in at most one."""
    scheduler = StepScheduler(graph.steps)
    ready_steps = scheduler.start({*graph.inputs, *wiring.unwritten_names(graph)})
    writers = {link.tensor: step for step in graph.steps for link in step.outputs}
    path: list[GraphStep] = []
    path_index: dict[int, int] = {}
    for first in graph.steps:
        while True:
            while ready_steps:
                ready_steps = scheduler.finish(ready_steps)
            # Steps after a reported cycle may run now; the remaining path leads to the next cycle.
            while path and path[-1].index not in scheduler.remaining:
                del path_index[path.pop().index]
            step = path[-1] if path else first
            if step.index not in scheduler.remaining:
                break
            if not path:
                path_index[step.index] = 0
                path.append(step)
            step = _awaited_step(step, writers, scheduler.written_tensors)
            if step.index not in path_index:
                path_index[step.index] = len(path)
                path.append(step)
                continue
            circle = path[path_index[step.index] :][::-1]
            start = circle.index(min(circle, key=lambda member: member.index))
            yield (*circle[start:], *circle[:start])
            for member in circle:
                scheduler.drop(member)
            ready_steps = circle


def _awaited_step(step: GraphStep, writers: dict[str, GraphStep], ready: set[str]) -> GraphStep:
    return next(writers[link.tensor] for link in step.inputs if link.tensor not in ready)
