# SPDX-License-Identifier: Apache-2.0
"""Reads `ensembles/<task>.yaml`, checks the graph and lowers it to a model configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tritonctl.checks.analysis import declared, wiring
from tritonctl.checks.analysis.graph import STEPS, EnsembleGraph, Interface, step_of
from tritonctl.checks.analysis.wiring import WiringFault
from tritonctl.checks.config.message import Path as Place
from tritonctl.errors import ConfigurationError
from tritonctl.project.expected import error_location, explain_error, sort_errors
from tritonctl.project.schema import Project
from tritonctl.project.tasks import task_source
from tritonctl.project.yaml import YamlSource
from tritonctl.protocol.sampling_table import SamplingParameter, sampling_parameters
from tritonctl.repository.backends import BackendTensor, sampling_tensors
from tritonctl.repository.model_config import EnsembleStep, ModelConfig

# The placeholder for the backend that serves the built engine, and the name of its step.
ENGINE_STEP = "engine"
STEP_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"  # it becomes part of a folder's name
TOKENIZER, DETOKENIZER = "tokenizer", "detokenizer"
# The whole ensemble behind a response cache: `tritonctl.repository.response_cache`.
CACHED = "cached"


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StepInterface(Protocol):
    """The interface of a step's backend or model."""

    @property
    def inputs(self) -> Sequence[BackendTensor]:
        """Input tensors."""

    @property
    def outputs(self) -> Sequence[BackendTensor]:
        """Output tensors."""

    @property
    def decoupled(self) -> bool:
        """Whether a request may have any number of responses."""


class EnsembleInput(BackendTensor):
    """A public input."""

    only_if_read: bool = False  # omitted if no step's backend has a tensor for it


class EnsembleOutput(BackendTensor):
    """A public output."""

    only_if_written: bool = False  # omitted if no step's backend has a tensor for it


class TaskStep(_Record):
    """A step: its backend or model, and the ensemble's tensors by the step's tensor names."""

    backend: str | None = Field(None, description="a folder of python_backends/, or `engine`")
    model: str | None = Field(None, description="another public model of the project")
    inputs: dict[str, str] = {}
    # Inputs to omit if the backend lacks them, together with tensors that then have no reader.
    only_if_read: list[str] = []
    outputs: dict[str, str] = {}
    into_engine: bool = False  # the engine performs the step if its backend can

    @model_validator(mode="after")
    def _backend_or_model(self) -> Self:
        if (self.backend is None) == (self.model is None):
            raise ValueError("a step has either a `backend` or a `model`")
        return self


class Ensemble(_Record):
    """A task's file."""

    schema_: Literal["tritonctl/ensemble/v1"] = Field(alias="schema")
    task: str
    engine_task: str | None = None  # of the step `engine`, if it differs from `task`
    summary: str
    kind: Literal["ensemble", "model"] = "ensemble"  # model: the only step is the public model
    max_batch_size: Annotated[int, Field(ge=0)] | Literal["engine"] = 0  # engine: as the engine
    inputs: list[EnsembleInput] = []
    outputs: list[EnsembleOutput] = []
    # The step that reads the sampling parameters of textlib/triton/sampling.json. They become
    # inputs of the ensemble, as far as the step's backend or model has them.
    sampling: str | None = None
    # In the order of the data flow.
    steps: dict[Annotated[str, Field(pattern=STEP_NAME_PATTERN)], TaskStep] = Field(min_length=1)

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        wired = bool(self.inputs and self.outputs)
        if self.kind == "ensemble" and not wired:
            raise ValueError("an ensemble needs inputs and outputs")
        bare = [step for step in self.steps.values() if not step.inputs and not step.outputs]
        if self.kind == "model" and (wired or len(self.steps) != 1 or not bare):
            raise ValueError("kind model: exactly one step, without ensemble tensors")
        if self.kind == "model" and bare and bare[0].model:
            raise ValueError("kind model: a step that is another model needs an ensemble around it")
        if self.sampling is not None and self.sampling not in self.steps:
            raise ValueError(f"`sampling` is {self.sampling}, expected the name of a step")
        return self


# In order of severity: an earlier mistake may cause later ones.
_FAULTS: tuple[Callable[[EnsembleGraph], Iterator[WiringFault]], ...] = (
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
    wiring.outputs_read_by_steps,
)


def ensemble_for(task: str, project_root: Path | None = None) -> tuple[Ensemble, YamlSource]:
    """Return the ensemble of a task and its source for messages. Raises ConfigurationError."""
    source = task_source(task, project_root)
    try:
        ensemble = Ensemble.model_validate(source.data)
    except ValidationError as error:
        first = sort_errors(error)[0]
        place = error_location(first, source.data)
        problem, remedy = explain_error(first, place, Ensemble)
        raise ConfigurationError(
            f"{source.line_of(place)}: {problem}",
            remedy=remedy or "compare it with ensembles/text_generation.yaml",
        ) from error
    _refuse_other_names(ensemble, source)
    return _with_sampling(ensemble, sampling_parameters(project_root).values()), source


def _with_sampling(ensemble: Ensemble, parameters: Iterable[SamplingParameter]) -> Ensemble:
    """Return the ensemble with the inputs that `sampling` stands for; the file's own come first."""
    if ensemble.sampling is None:
        return ensemble
    step = ensemble.steps[ensemble.sampling]
    inputs = {tensor.name: tensor for tensor in ensemble.inputs}
    step_inputs: dict[str, str] = {}
    for parameter in parameters:
        for public, tensor in sampling_tensors(parameter).items():
            update = {"name": public, "only_if_read": True}
            inputs.setdefault(public, EnsembleInput(**tensor.model_dump() | update))
            step_inputs[public if step.model else tensor.name] = public
    steps = dict(ensemble.steps)
    steps[ensemble.sampling] = step.model_copy(update={"inputs": step_inputs | step.inputs})
    return ensemble.model_copy(update={"inputs": list(inputs.values()), "steps": steps})


def _refuse_other_names(ensemble: Ensemble, source: YamlSource) -> None:
    """Raise ConfigurationError unless the engine's step is named `engine`, as in the settings."""
    for name, step in ensemble.steps.items():
        if step.backend == ENGINE_STEP != name:
            raise ConfigurationError(
                f"{source.line_of(('steps', name))}: step {name} has the backend `{ENGINE_STEP}`, "
                "whose settings apply to the step of that name",
                remedy=f"name the step `{ENGINE_STEP}`; a graph has one engine, and others as "
                "`model: NAME`",
            )


def drop_unread_inputs(ensemble: Ensemble, backends: Mapping[str, StepInterface]) -> Ensemble:
    """Return the ensemble without the `only_if_read` tensors that no backend reads.

    Without the `only_if_written` outputs that none writes, too.
    """
    ensemble = _without_unwritten_outputs(ensemble, backends)
    optional_inputs = {tensor.name for tensor in ensemble.inputs if tensor.only_if_read}
    steps = {
        name: _without_unknown_inputs(
            step, {tensor.name for tensor in backends[name].inputs}, optional_inputs
        )
        for name, step in ensemble.steps.items()
    }
    read = {edge for step in steps.values() for edge in step.inputs.values()}
    inputs = [tensor for tensor in ensemble.inputs if tensor.name not in optional_inputs - read]
    optional = {
        step.inputs[tensor]
        for step in ensemble.steps.values()
        for tensor in step.only_if_read
        if tensor in step.inputs
    }
    unread = optional - read - {tensor.name for tensor in ensemble.outputs}
    steps = {name: _without_outputs(step, unread) for name, step in steps.items()}
    return ensemble.model_copy(update={"inputs": inputs, "steps": steps})


def _without_unwritten_outputs(
    ensemble: Ensemble, backends: Mapping[str, StepInterface]
) -> Ensemble:
    optional = {tensor.name for tensor in ensemble.outputs if tensor.only_if_written}
    unwritten = {
        edge
        for name, step in ensemble.steps.items()
        for tensor, edge in step.outputs.items()
        if edge in optional and tensor not in {output.name for output in backends[name].outputs}
    }
    steps = {name: _without_outputs(step, unwritten) for name, step in ensemble.steps.items()}
    outputs = [tensor for tensor in ensemble.outputs if tensor.name not in unwritten]
    return ensemble.model_copy(update={"steps": steps, "outputs": outputs})


def _without_unknown_inputs(
    step: TaskStep, tensor_names: set[str], optional_inputs: set[str]
) -> TaskStep:
    inputs = {
        tensor: edge
        for tensor, edge in step.inputs.items()
        if tensor in tensor_names or not (edge in optional_inputs or tensor in step.only_if_read)
    }
    return step.model_copy(update={"inputs": inputs})


def _without_outputs(step: TaskStep, edges: set[str]) -> TaskStep:
    outputs = {tensor: edge for tensor, edge in step.outputs.items() if edge not in edges}
    return step.model_copy(update={"outputs": outputs})


def check_graph(
    ensemble: Ensemble, backends: Mapping[str, StepInterface], source: YamlSource
) -> None:
    """Check that every tensor is written once before it is read, with matching type and shape.

    Raises ConfigurationError with the line of the faulty edge.
    """
    graph = _graph(ensemble, backends)
    faults = (fault for faults_of in _FAULTS for fault in faults_of(graph))
    for fault in chain(faults, _read_too_early(graph)):
        location = source.line_of(_location(fault.path, ensemble))
        raise ConfigurationError(f"{location}: {fault.message}", remedy=fault.fix)


def _graph(ensemble: Ensemble, backends: Mapping[str, StepInterface]) -> EnsembleGraph:
    """Return the graph for `tritonctl check`'s rules; tensors have no batch dimension."""
    steps = [
        step_of(index, f"step {name}", _interface(name, backends[name]), step.inputs, step.outputs)
        for index, (name, step) in enumerate(ensemble.steps.items())
    ]
    inputs, outputs = _declared(ensemble.inputs, "input"), _declared(ensemble.outputs, "output")
    return EnsembleGraph("the ensemble", tuple(steps), inputs, outputs, max_batch_size=0)


def _interface(step: str, backend: StepInterface) -> Interface:
    inputs, outputs = _declared(backend.inputs, "input"), _declared(backend.outputs, "output")
    return Interface(f"step {step}", inputs, outputs, True, True, 0, backend.decoupled)


def _declared(
    tensors: Sequence[BackendTensor], direction: str
) -> dict[str, declared.DeclaredTensor]:
    return {
        tensor.name: declared.DeclaredTensor(
            tensor.name, tensor.data_type, tuple(tensor.dims), (direction, index), tensor.optional
        )
        for index, tensor in enumerate(tensors)
    }


def _read_too_early(graph: EnsembleGraph) -> Iterator[WiringFault]:
    """Yield reads of tensors that a later step writes: steps must be in the order of the flow."""
    written = set(graph.inputs)
    for step in graph.steps:
        for link in step.inputs:
            if link.tensor not in written:
                problem = f"{step.name} reads {link.tensor}, which a later step writes"
                yield WiringFault(problem, "list the steps in the order of the flow", link.path)
        written.update(link.tensor for link in step.outputs)


def _location(path: Place, ensemble: Ensemble) -> Place:
    """Map a path in the configuration to the location in the task's file."""
    if path[:2] != STEPS:
        return (f"{path[0]}s", path[1])
    step = list(ensemble.steps)[int(path[2])]
    side = "outputs" if path[3:4] == ("output_map",) else "inputs"
    return ("steps", step, side, *path[4:])


def fold(ensemble: Ensemble, name: str, into: str) -> Ensemble:
    """Fold step `name` into step `into`, which takes over its work, outputs and other inputs.

    Raises ConfigurationError if such an input comes from a later step, or another reader needs the
    former outputs of `into`.
    """
    folded, keeper = ensemble.steps[name], ensemble.steps[into]
    between = set(keeper.outputs.values())
    other_steps = {key: step for key, step in ensemble.steps.items() if key not in (name, into)}
    added_inputs = external_inputs(ensemble, name, into)
    later_steps = list(ensemble.steps)[list(ensemble.steps).index(into) + 1 :]
    written = {edge for key in later_steps for edge in ensemble.steps[key].outputs.values()}
    later = written & set(added_inputs.values())
    _require_foldable(not later, name, into, f"step {name} also reads {sorted(later)}")
    renamed = sorted(t for t, edge in added_inputs.items() if keeper.inputs.get(t, edge) != edge)
    _require_foldable(not renamed, name, into, f"both have an input {', '.join(renamed)}")
    readers = {
        key: sorted(between & set(step.inputs.values())) for key, step in other_steps.items()
    }
    readers["the ensemble"] = sorted(between & {tensor.name for tensor in ensemble.outputs})
    other_readers = "; ".join(f"{key} reads {edges} too" for key, edges in readers.items() if edges)
    _require_foldable(not other_readers, name, into, other_readers)
    update = {"inputs": keeper.inputs | added_inputs, "outputs": folded.outputs}
    merged = keeper.model_copy(update=update)
    steps = {key: step for key, step in ensemble.steps.items() if key != name} | {into: merged}
    return ensemble.model_copy(update={"steps": steps})


def external_inputs(ensemble: Ensemble, name: str, into: str) -> dict[str, str]:
    """Return the inputs of step `name` that do not come from step `into`."""
    between = set(ensemble.steps[into].outputs.values())
    inputs = ensemble.steps[name].inputs
    return {tensor: edge for tensor, edge in inputs.items() if edge not in between}


def _require_foldable(condition: bool, name: str, into: str, problem: str) -> None:
    if not condition:
        raise ConfigurationError(
            f"step {into} cannot take over step {name}: {problem}",
            remedy=f"rewire ensembles/<task>.yaml, or serve {name} as a separate step",
        )


def max_batch_size_of(ensemble: Ensemble, engine_batch: int) -> int:
    """Return the ensemble's max_batch_size for an engine with this max_batch_size."""
    max_batch_size = ensemble.max_batch_size
    return engine_batch if isinstance(max_batch_size, str) else max_batch_size


def lower(ensemble: Ensemble, model: str, engine_batch: int) -> ModelConfig:
    """Return the ensemble's configuration for a public model; its steps are `<model>_<step>`."""
    steps = tuple(
        EnsembleStep(
            step.model or step_model_name(model, name), dict(step.inputs), dict(step.outputs)
        )
        for name, step in ensemble.steps.items()
    )
    return ModelConfig(
        name=model,
        max_batch_size=max_batch_size_of(ensemble, engine_batch),
        inputs=tuple(t.as_config_tensor() for t in ensemble.inputs),
        outputs=tuple(t.as_config_tensor() for t in ensemble.outputs),
        steps=steps,
    )


def task_of(project: Project, name: str) -> str:
    """Return the task of a project's model or ensemble."""
    if name in project.ensembles:
        return project.ensembles[name].task or name
    return project.models[name].task


def step_model_name(model: str, step: str) -> str:
    """Return the composing model's name, unique within a shared repository."""
    return f"{model}_{step}"
