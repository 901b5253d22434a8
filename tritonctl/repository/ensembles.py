# SPDX-License-Identifier: Apache-2.0
"""Ensembles as data: reads `ensembles/<task>.yaml`, checks the graph, lowers it to a config."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tritonctl.checks.analysis import declared, wiring
from tritonctl.checks.analysis.graph import STEPS, Graph, Interface, step_of
from tritonctl.checks.analysis.wiring import Fault
from tritonctl.checks.config.message import Path as Place
from tritonctl.errors import ConfigurationError
from tritonctl.project.expected import explained, place_in, worst_first
from tritonctl.project.schema import Project
from tritonctl.project.tasks import task_source
from tritonctl.project.yaml import YamlSource
from tritonctl.repository.backends import BackendTensor
from tritonctl.repository.model_config import EnsembleStep, ModelConfig

# The backend that stands for whatever serves the built engine, and the step named after it.
ENGINE_STEP = "engine"
STEP_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"  # it becomes part of a folder's name
TOKENIZER, DETOKENIZER = "tokenizer", "detokenizer"
# The whole ensemble behind a response cache: `tritonctl.repository.response_cache`.
CACHED = "cached"


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StepInterface(Protocol):
    """What a graph must know of the backend or model of a step."""

    @property
    def inputs(self) -> Sequence[BackendTensor]:
        """What it reads."""

    @property
    def outputs(self) -> Sequence[BackendTensor]:
        """What it writes."""

    @property
    def decoupled(self) -> bool:
        """Whether it answers with any number of responses."""


class EnsembleInput(BackendTensor):
    """A public input. only_if_read: it is left out where no step's backend has a tensor for it."""

    only_if_read: bool = False


class Step(_Record):
    """A step: its backend or model and, by its own tensor names, the ensemble's tensors.

    only_if_read: its inputs that are left out where the backend has none of that name, and with
    them what nobody else reads of their tensors. into_engine: the engine does the step's work too,
    if its backend can.
    """

    backend: str | None = Field(None, description="a folder of python_backends/, or `engine`")
    model: str | None = Field(None, description="another public model of the project")
    inputs: dict[str, str] = {}
    only_if_read: list[str] = []
    outputs: dict[str, str] = {}
    into_engine: bool = False

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.backend is None) == (self.model is None):
            raise ValueError("a step has either a `backend` or a `model`")
        return self


class Ensemble(_Record):
    """A task's file; `steps` are in the order of the flow.

    kind model: no ensemble; the only step is the public model, with its own tensors.
    engine_task: the task whose engine the step `engine` is, where that is another one.
    max_batch_size engine: as many items as the model's engine takes at once.
    """

    schema_: Literal["tritonctl/ensemble/v1"] = Field(alias="schema")
    task: str
    engine_task: str | None = None
    summary: str
    kind: Literal["ensemble", "model"] = "ensemble"
    max_batch_size: Annotated[int, Field(ge=0)] | Literal["engine"] = 0
    inputs: list[EnsembleInput] = []
    outputs: list[BackendTensor] = []
    steps: dict[Annotated[str, Field(pattern=STEP_NAME_PATTERN)], Step] = Field(min_length=1)

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        wired = bool(self.inputs and self.outputs)
        if self.kind == "ensemble" and not wired:
            raise ValueError("an ensemble needs inputs and outputs")
        bare = [step for step in self.steps.values() if not step.inputs and not step.outputs]
        if self.kind == "model" and (wired or len(self.steps) != 1 or not bare):
            raise ValueError("kind model: exactly one step, and no tensors but its own")
        if self.kind == "model" and bare and bare[0].model:
            raise ValueError("kind model: a step that is another model needs an ensemble around it")
        return self


# The mistakes that are worst first: each may be why there are others.
_FAULTS: tuple[Callable[[Graph], Iterator[Fault]], ...] = (
    wiring.unfinished_steps,
    wiring.unknown_inputs,
    wiring.unknown_outputs,
    wiring.written_twice,
    wiring.overwritten_inputs,
    wiring.unwritten_tensors,
    wiring.unwritten_outputs,
    wiring.unfed_inputs,
    wiring.types_differ,
    wiring.shapes_differ,
    wiring.shapes_differ_later,
    wiring.optional_required,
)


def ensemble_for(task: str, project_root: Path | None = None) -> tuple[Ensemble, YamlSource]:
    """The ensemble of a task, with its source for error messages. Raises ConfigurationError."""
    source = task_source(task, project_root)
    try:
        ensemble = Ensemble.model_validate(source.data)
    except ValidationError as error:
        first = worst_first(error)[0]
        place = place_in(first, source.data)
        problem, remedy = explained(first, place, Ensemble)
        raise ConfigurationError(
            f"{source.where(place)}: {problem}",
            remedy=remedy or "compare it with ensembles/text_generation.yaml",
        ) from error
    _refuse_other_names(ensemble, source)
    return ensemble, source


def _refuse_other_names(ensemble: Ensemble, source: YamlSource) -> None:
    """What a model's settings say of its engine goes to the step of that name."""
    for name, step in ensemble.steps.items():
        if step.backend == ENGINE_STEP != name:
            raise ConfigurationError(
                f"{source.where(('steps', name))}: step {name} has the backend `{ENGINE_STEP}`, "
                "whose settings go to the step of that name",
                remedy=f"call the step `{ENGINE_STEP}`; a graph takes one engine, and others as "
                "`model: NAME`",
            )


def fitted(ensemble: Ensemble, backends: Mapping[str, StepInterface]) -> Ensemble:
    """The ensemble for these backends of its steps: without the `only_if_read` nobody reads."""
    offered = {tensor.name for tensor in ensemble.inputs if tensor.only_if_read}
    steps = {
        name: _without_unknown(step, {tensor.name for tensor in backends[name].inputs}, offered)
        for name, step in ensemble.steps.items()
    }
    read = {edge for step in steps.values() for edge in step.inputs.values()}
    inputs = [tensor for tensor in ensemble.inputs if tensor.name not in offered - read]
    optional = {
        step.inputs[tensor]
        for step in ensemble.steps.values()
        for tensor in step.only_if_read
        if tensor in step.inputs
    }
    unread = optional - read - {tensor.name for tensor in ensemble.outputs}
    steps = {name: _without_outputs(step, unread) for name, step in steps.items()}
    return ensemble.model_copy(update={"inputs": inputs, "steps": steps})


def _without_unknown(step: Step, known: set[str], offered: set[str]) -> Step:
    inputs = {
        tensor: edge
        for tensor, edge in step.inputs.items()
        if tensor in known or not (edge in offered or tensor in step.only_if_read)
    }
    return step.model_copy(update={"inputs": inputs})


def _without_outputs(step: Step, edges: set[str]) -> Step:
    outputs = {tensor: edge for tensor, edge in step.outputs.items() if edge not in edges}
    return step.model_copy(update={"outputs": outputs})


def check_graph(
    ensemble: Ensemble, backends: Mapping[str, StepInterface], source: YamlSource
) -> None:
    """Every tensor is written once before it is read, with the type and shape its reader wants.

    Raises ConfigurationError with the line of the offending edge.
    """
    graph = _graph(ensemble, backends)
    faults = (fault for faults_of in _FAULTS for fault in faults_of(graph))
    for fault in chain(faults, _read_too_early(graph)):
        where = source.where(_location(fault.path, ensemble))
        raise ConfigurationError(f"{where}: {fault.message}", remedy=fault.fix)


def _graph(ensemble: Ensemble, backends: Mapping[str, StepInterface]) -> Graph:
    """As `tritonctl check` sees it; no tensor has its batch dimension here."""
    steps = [
        step_of(index, f"step {name}", _interface(name, backends[name]), step.inputs, step.outputs)
        for index, (name, step) in enumerate(ensemble.steps.items())
    ]
    inputs, outputs = _declared(ensemble.inputs, "input"), _declared(ensemble.outputs, "output")
    return Graph("the ensemble", tuple(steps), inputs, outputs, max_batch_size=0)


def _interface(step: str, backend: StepInterface) -> Interface:
    inputs, outputs = _declared(backend.inputs, "input"), _declared(backend.outputs, "output")
    return Interface(f"step {step}", inputs, outputs, True, True, 0, backend.decoupled)


def _declared(tensors: Sequence[BackendTensor], direction: str) -> dict[str, declared.Tensor]:
    return {
        one.name: declared.Tensor(
            one.name, one.data_type, tuple(one.dims), (direction, index), one.optional
        )
        for index, one in enumerate(tensors)
    }


def _read_too_early(graph: Graph) -> Iterator[Fault]:
    """In the file, steps are in the order of the flow."""
    written = set(graph.inputs)
    for step in graph.steps:
        for link in step.inputs:
            if link.tensor not in written:
                problem = f"{step.name} reads {link.tensor}, which a later step writes"
                yield Fault(problem, "list the steps in the order of the flow", link.path)
        written.update(link.tensor for link in step.outputs)


def _location(path: Place, ensemble: Ensemble) -> Place:
    """Where the task's file has what stands at a path of the configuration."""
    if path[:2] != STEPS:
        return (f"{path[0]}s", path[1])
    step = list(ensemble.steps)[int(path[2])]
    side = "outputs" if path[3:4] == ("output_map",) else "inputs"
    return ("steps", step, side, *path[4:])


def fold(ensemble: Ensemble, name: str, into: str) -> Ensemble:
    """Step `into` takes over the work and the outputs of step `name`, and what else that one reads.

    Raises ConfigurationError where that comes from a later step, or something else reads what
    `into` wrote.
    """
    taken, keeper = ensemble.steps[name], ensemble.steps[into]
    between = set(keeper.outputs.values())
    rest = {key: step for key, step in ensemble.steps.items() if key not in (name, into)}
    own = own_inputs(ensemble, name, into)
    after = list(ensemble.steps)[list(ensemble.steps).index(into) + 1 :]
    written = {edge for key in after for edge in ensemble.steps[key].outputs.values()}
    later = written & set(own.values())
    _require_foldable(not later, name, into, f"step {name} also reads {sorted(later)}")
    renamed = sorted(t for t, edge in own.items() if keeper.inputs.get(t, edge) != edge)
    _require_foldable(not renamed, name, into, f"both have an input {', '.join(renamed)}")
    readers = {key: sorted(between & set(step.inputs.values())) for key, step in rest.items()}
    readers["the ensemble"] = sorted(between & {tensor.name for tensor in ensemble.outputs})
    others = "; ".join(f"{key} reads {edges} too" for key, edges in readers.items() if edges)
    _require_foldable(not others, name, into, others)
    update = {"inputs": keeper.inputs | own, "outputs": taken.outputs}
    merged = keeper.model_copy(update=update)
    steps = {key: step for key, step in ensemble.steps.items() if key != name} | {into: merged}
    return ensemble.model_copy(update={"steps": steps})


def own_inputs(ensemble: Ensemble, name: str, into: str) -> dict[str, str]:
    """The inputs of step `name` that do not come from step `into`."""
    between = set(ensemble.steps[into].outputs.values())
    inputs = ensemble.steps[name].inputs
    return {tensor: edge for tensor, edge in inputs.items() if edge not in between}


def _require_foldable(condition: bool, name: str, into: str, problem: str) -> None:
    if not condition:
        raise ConfigurationError(
            f"step {into} cannot take over step {name}: {problem}",
            remedy=f"rewire ensembles/<task>.yaml, or serve {name} as a separate step",
        )


def most_items(ensemble: Ensemble, engine_batch: int) -> int:
    """The ensemble's max_batch_size, for an engine that takes so many items at once."""
    most = ensemble.max_batch_size
    return engine_batch if isinstance(most, str) else most


def lower(ensemble: Ensemble, model: str, engine_batch: int) -> ModelConfig:
    """The ensemble's configuration for a public model; its own steps are `<model>_<step>`."""
    steps = tuple(
        EnsembleStep(
            step.model or step_model_name(model, name), dict(step.inputs), dict(step.outputs)
        )
        for name, step in ensemble.steps.items()
    )
    return ModelConfig(
        name=model,
        max_batch_size=most_items(ensemble, engine_batch),
        inputs=tuple(t.tensor() for t in ensemble.inputs),
        outputs=tuple(t.tensor() for t in ensemble.outputs),
        steps=steps,
    )


def task_of(project: Project, name: str) -> str:
    """The task of one of the project's models, or of its ensembles without an engine."""
    if name in project.ensembles:
        return project.ensembles[name].task or name
    return project.models[name].task


def step_model_name(model: str, step: str) -> str:
    """The composing model's name, so that any number of models share a repository."""
    return f"{model}_{step}"
