# SPDX-License-Identifier: Apache-2.0
"""Find models that answer with a stream of responses, and models that run once per response."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tritonctl.checks.analysis import placement
from tritonctl.checks.analysis.nesting import step_models
from tritonctl.checks.analysis.response_senders import senders_of
from tritonctl.checks.memoize import memoized
from tritonctl.checks.model_py.source import PythonSource
from tritonctl.checks.repository import CheckTarget, Model, Repository


class PerResponseModel(NamedTuple):
    """A model that an ensemble runs once for each response of a decoupled model."""

    model: Model
    ensemble: str
    source: str  # name of the decoupled model


class StepTensors(NamedTuple):
    """A step of an ensemble with the ensemble tensors it reads and writes."""

    model: str
    reads: frozenset[str]
    writes: frozenset[str]


def step_tensors(model: Model) -> tuple[StepTensors, ...]:
    """Return the steps of an ensemble; () for other models."""
    return tuple(
        StepTensors(
            step.model_name, frozenset(step.input_map.values()), frozenset(step.output_map.values())
        )
        for step in model.config.message.ensemble_scheduling.step
    )


def is_decoupled(model: Model | None, repository: Repository) -> bool:
    """Whether a model is known to be decoupled; an ensemble is if one of its steps is."""
    if model is None:
        return False
    return model.name in memoized(repository, "streaming", lambda: _all_decoupled(repository))


def _all_decoupled(repository: Repository) -> set[str]:
    """Return the decoupled models and all ensembles around them; ensembles may form cycles."""
    outer: dict[str, list[str]] = {}
    for name, model in repository.models.items():
        for step in set(step_models(model)):
            outer.setdefault(step, []).append(name)
    queue = [name for name, model in repository.models.items() if _declares_decoupled(model)]
    decoupled = set(queue)
    for name in queue:
        added = [outer_name for outer_name in outer.get(name, ()) if outer_name not in decoupled]
        decoupled.update(added)
        queue += added
    return decoupled


def _declares_decoupled(model: Model) -> bool:
    policy = model.config.message.model_transaction_policy
    return bool(policy.decoupled) and model.backend != "ensemble"


def streaming_code(model: Model) -> PythonSource | None:
    """Return the code of a decoupled Python model; None for other models."""
    if not model.config.message.model_transaction_policy.decoupled:
        return None
    code = model.code
    return code if code is not None and code.tree is not None else None


def surely_not_decoupled(model: Model) -> bool:
    """Whether a Python model answers each request once and its code cannot change that."""
    code = model.code
    if code is None or code.tree is None:
        return False
    decoupled = model.config.message.model_transaction_policy.decoupled
    return not decoupled and not code.calls_named("set_model_transaction_policy")


def composing_models(repository: Repository) -> frozenset[str]:
    """Return the names of the models that are steps of an ensemble."""
    return frozenset(
        step.model for model in repository.models.values() for step in step_tensors(model)
    )


def models_per_response(repository: Repository) -> dict[str, PerResponseModel]:
    """Return the models, without ensembles, that run once per response in an ensemble, by name."""
    return memoized(repository, "per response", lambda: _find_models_per_response(repository))


def _find_models_per_response(repository: Repository) -> dict[str, PerResponseModel]:
    models: dict[str, PerResponseModel] = {}
    seen: set[str] = set()
    for ensemble in repository.models.values():
        for name, source in _steps_after_streams(ensemble, repository):
            for model in _models_run_by(name, repository, seen):
                models[model.name] = PerResponseModel(model, ensemble.name, source)
    return models


def _steps_after_streams(ensemble: Model, repository: Repository) -> Iterator[tuple[str, str]]:
    """Yield each model downstream of a decoupled step, with the name of the decoupled model."""
    all_steps = step_tensors(ensemble)
    source_by_tensor = {
        tensor: step.model
        for step in all_steps
        if _sends_stream(repository.models.get(step.model), repository)
        for tensor in step.writes
    }
    readers: dict[str, list[int]] = {}
    for index, step in enumerate(all_steps):
        for tensor in step.reads:
            readers.setdefault(tensor, []).append(index)
    reached: set[int] = set()
    new_tensors = set(source_by_tensor)
    while (
        next_indices := {index for name in new_tensors for index in readers.get(name, ())} - reached
    ):
        reached |= next_indices
        new_tensors = set()
        for step in (all_steps[index] for index in sorted(next_indices)):
            source = source_by_tensor[min(step.reads & source_by_tensor.keys())]
            yield step.model, source
            new_tensors |= step.writes - source_by_tensor.keys()
            source_by_tensor |= dict.fromkeys(step.writes - source_by_tensor.keys(), source)


def _sends_stream(model: Model | None, repository: Repository) -> bool:
    """Whether a model is decoupled and may send several responses to a request."""
    if model is None or not is_decoupled(model, repository):
        return False
    senders = senders_of(model)
    return senders is None or not senders.sends_single_response


def _models_run_by(name: str, repository: Repository, seen: set[str]) -> Iterator[Model]:
    """Yield the models that run when this one does; skip and extend `seen`."""
    queue = [name]
    while queue:
        model = repository.models.get(queue.pop())
        if model is None or model.name in seen:
            continue
        seen.add(model.name)
        if model.backend != "ensemble":
            yield model
        queue += reversed(step_models(model))


def min_instances(model: Model, target: CheckTarget) -> int:
    """Return the minimum number of instances of a model."""
    exact_count = placement.instance_count(model, target)
    groups = model.config.message.instance_group
    configured_count = sum(max(int(group.count), 1) * max(len(group.gpus), 1) for group in groups)
    return max(1, configured_count) if exact_count is None else exact_count
