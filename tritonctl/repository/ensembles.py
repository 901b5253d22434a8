# SPDX-License-Identifier: Apache-2.0
"""Ensembles as data: reads `ensembles/<task>.yaml`, checks the graph, lowers it to a config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tritonctl.checks.analysis.declared import dims_match
from tritonctl.errors import ConfigurationError, choices
from tritonctl.host import bundled
from tritonctl.project.yaml import YamlSource, read_yaml
from tritonctl.repository.backends import BackendTensor, PythonBackend
from tritonctl.repository.model_config import EnsembleStep, ModelConfig, Tensor


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EnsembleInput(BackendTensor):
    """A public input. only_if_read: it is left out where no step's backend has a tensor for it."""

    only_if_read: bool = False


class Step(_Record):
    """A step: its backend and, by its own tensor names, the ensemble's tensors."""

    backend: str = Field(description="a folder of python_backends/, or `engine`")
    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}


class Ensemble(_Record):
    """A task's file; `steps` are in the order of the flow.

    kind model: there is no ensemble. The only step is the public model, with tensors of its own.
    """

    schema_: Literal["tritonctl/ensemble/v1"] = Field(alias="schema")
    task: str
    summary: str
    kind: Literal["ensemble", "model"] = "ensemble"
    max_batch_size: int = Field(0, ge=0)
    inputs: list[EnsembleInput] = []
    outputs: list[BackendTensor] = []
    steps: dict[str, Step]

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        wired = bool(self.inputs and self.outputs)
        if self.kind == "ensemble" and not wired:
            raise ValueError("an ensemble needs inputs and outputs")
        bare = [step for step in self.steps.values() if not step.inputs and not step.outputs]
        if self.kind == "model" and (wired or len(self.steps) != 1 or not bare):
            raise ValueError("kind model: exactly one step, and no tensors but its own")
        return self


@dataclass(frozen=True)
class _Edge:
    """A tensor of the ensemble: who writes it, and what it is there."""

    writer: str
    tensor: Tensor


def ensemble_for(task: str, project_root: Path | None = None) -> tuple[Ensemble, YamlSource]:
    """The ensemble of a task, with its source for error messages. Raises ConfigurationError."""
    known = bundled.names("ensembles", ".yaml", project_root)
    if task not in known:
        raise ConfigurationError(
            f"there is no task `{task}`", remedy=choices(task, known, "tasks:")
        )
    source = read_yaml(bundled.find(f"ensembles/{task}.yaml", project_root))
    try:
        return Ensemble.model_validate(source.data), source
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigurationError(
            f"{source.where(first['loc'])}: {first['msg']}",
            remedy="compare it with ensembles/text_generation.yaml",
        ) from error


def fitted(ensemble: Ensemble, backends: Mapping[str, PythonBackend]) -> Ensemble:
    """The ensemble for these backends of its steps: without the `only_if_read` nobody reads."""
    offered = {tensor.name for tensor in ensemble.inputs if tensor.only_if_read}
    steps = {
        name: _without_unknown(step, {tensor.name for tensor in backends[name].inputs}, offered)
        for name, step in ensemble.steps.items()
    }
    unread = offered.difference(*(step.inputs.values() for step in steps.values()))
    inputs = [tensor for tensor in ensemble.inputs if tensor.name not in unread]
    return ensemble.model_copy(update={"inputs": inputs, "steps": steps})


def _without_unknown(step: Step, known: set[str], offered: set[str]) -> Step:
    inputs = {t: edge for t, edge in step.inputs.items() if t in known or edge not in offered}
    return step.model_copy(update={"inputs": inputs})


def check_graph(
    ensemble: Ensemble, backends: Mapping[str, PythonBackend], source: YamlSource
) -> None:
    """Every tensor is written once before it is read, with the type and shape its reader wants.

    Raises ConfigurationError with the line of the offending edge.
    """
    edges = {t.name: _Edge("the request", t.tensor()) for t in ensemble.inputs}
    for name, step in ensemble.steps.items():
        _check_inputs(name, step, backends[name], edges, source)
        _check_outputs(name, step, backends[name], edges, source)
    for index, wanted in enumerate(ensemble.outputs):
        where = source.where(("outputs", index))
        _check_edge("the ensemble", wanted.tensor(), wanted.name, edges, where)


def _check_inputs(
    name: str, step: Step, backend: PythonBackend, edges: dict[str, _Edge], source: YamlSource
) -> None:
    known = {t.name: t.tensor() for t in backend.inputs}
    for tensor, edge in step.inputs.items():
        where = source.where(("steps", name, "inputs", tensor))
        _require(tensor in known, where, f"step {name} has no input `{tensor}`", sorted(known))
        _check_edge(f"step {name}", known[tensor], edge, edges, where)
    missing = [t for t, spec in known.items() if not spec.optional and t not in step.inputs]
    where = source.where(("steps", name, "inputs"))
    _require(not missing, where, f"step {name} needs the inputs {missing}", sorted(known))


def _check_outputs(
    name: str, step: Step, backend: PythonBackend, edges: dict[str, _Edge], source: YamlSource
) -> None:
    known = {t.name: t.tensor() for t in backend.outputs}
    for tensor, edge in step.outputs.items():
        where = source.where(("steps", name, "outputs", tensor))
        _require(tensor in known, where, f"step {name} has no output `{tensor}`", sorted(known))
        free = edge not in edges
        _require(free, where, f"`{edge}` is written twice, by step {name} too", sorted(edges))
        edges[edge] = _Edge(f"step {name}", known[tensor])


def _check_edge(
    reader: str, wanted: Tensor, edge: str, edges: Mapping[str, _Edge], where: str
) -> None:
    _require(edge in edges, where, f"{reader} reads `{edge}`, which nothing wrote", sorted(edges))
    given = edges[edge]
    fits = given.tensor.data_type == wanted.data_type and dims_match(given.tensor.dims, wanted.dims)
    said = f"{given.writer} writes `{edge}` as {_show(given.tensor)}"
    _require(fits, where, f"{said}, {reader} reads it as {_show(wanted)}", [])
    possible = wanted.optional or not given.tensor.optional or reader == "the ensemble"
    _require(possible, where, f"`{edge}` is optional, but {reader} requires it", [])


def _show(tensor: Tensor) -> str:
    return f"{tensor.data_type}{list(tensor.dims)}"


def _require(condition: bool, where: str, problem: str, candidates: list[str]) -> None:
    if not condition:
        listing = f"; known there: {', '.join(candidates)}" if candidates else ""
        raise ConfigurationError(f"{where}: {problem}", remedy=f"correct that edge{listing}")


def fold(ensemble: Ensemble, name: str, into: str) -> Ensemble:
    """Step `into` takes over the work and the outputs of step `name`, which is fed by it alone.

    Raises ConfigurationError where anything else feeds that step, or reads what `into` wrote.
    """
    taken, keeper = ensemble.steps[name], ensemble.steps[into]
    between = set(keeper.outputs.values())
    rest = {key: step for key, step in ensemble.steps.items() if key not in (name, into)}
    foreign = sorted(set(taken.inputs.values()) - between)
    _require_foldable(not foreign, name, into, f"step {name} also reads {foreign}")
    readers = {key: sorted(between & set(step.inputs.values())) for key, step in rest.items()}
    readers["the ensemble"] = sorted(between & {tensor.name for tensor in ensemble.outputs})
    others = "; ".join(f"{key} reads {edges} too" for key, edges in readers.items() if edges)
    _require_foldable(not others, name, into, others)
    merged = keeper.model_copy(update={"outputs": taken.outputs})
    steps = {key: step for key, step in ensemble.steps.items() if key != name} | {into: merged}
    return ensemble.model_copy(update={"steps": steps})


def _require_foldable(condition: bool, name: str, into: str, problem: str) -> None:
    if not condition:
        raise ConfigurationError(
            f"step {into} cannot take over step {name}: {problem}",
            remedy=f"rewire ensembles/<task>.yaml, or serve {name} as a step of its own",
        )


def lower(ensemble: Ensemble, model: str) -> ModelConfig:
    """The ensemble's configuration for a public model; its steps are `<model>_<step>`."""
    steps = tuple(
        EnsembleStep(step_model_name(model, name), dict(step.inputs), dict(step.outputs))
        for name, step in ensemble.steps.items()
    )
    return ModelConfig(
        name=model,
        max_batch_size=ensemble.max_batch_size,
        inputs=tuple(t.tensor() for t in ensemble.inputs),
        outputs=tuple(t.tensor() for t in ensemble.outputs),
        steps=steps,
    )


def step_model_name(model: str, step: str) -> str:
    """The composing model's name, so that any number of models share a repository."""
    return f"{model}_{step}"
