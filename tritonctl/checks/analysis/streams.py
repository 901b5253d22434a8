# SPDX-License-Identifier: Apache-2.0
"""Which models answer a request with a stream of responses, and which run once for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tritonctl.checks.analysis import placement
from tritonctl.checks.analysis.nesting import models_in
from tritonctl.checks.analysis.senders import senders_of
from tritonctl.checks.memoize import memoized
from tritonctl.checks.model_py.source import PythonSource
from tritonctl.checks.repository import Model, Repository, Target


class PerResponse(NamedTuple):
    """A model that an ensemble runs once for every response of a decoupled one."""

    model: Model
    ensemble: str
    source: str


class Step(NamedTuple):
    """A step of an ensemble, with the ensemble's names of its tensors."""

    model: str
    reads: frozenset[str]
    writes: frozenset[str]


def steps(model: Model) -> tuple[Step, ...]:
    """The steps of an ensemble; () of anything else."""
    return tuple(
        Step(
            step.model_name, frozenset(step.input_map.values()), frozenset(step.output_map.values())
        )
        for step in model.config.message.ensemble_scheduling.step
    )


def decoupled(model: Model | None, repository: Repository) -> bool:
    """Whether a model is known to be decoupled, as an ensemble with such a step is, too."""
    if model is None:
        return False
    return model.name in memoized(repository, "streaming", lambda: _all_decoupled(repository))


def _all_decoupled(repository: Repository) -> set[str]:
    """From the models that say so outwards: ensembles may lie in each other, and in circles."""
    outer: dict[str, list[str]] = {}
    for name, model in repository.models.items():
        for step in set(models_in(model)):
            outer.setdefault(step, []).append(name)
    waiting = [name for name, model in repository.models.items() if _says_so(model)]
    decoupled = set(waiting)
    for name in waiting:
        fresh = [one for one in outer.get(name, ()) if one not in decoupled]
        decoupled.update(fresh)
        waiting += fresh
    return decoupled


def _says_so(model: Model) -> bool:
    policy = model.config.message.model_transaction_policy
    return bool(policy.decoupled) and model.backend != "ensemble"


def streaming_code(model: Model) -> PythonSource | None:
    """The code of a decoupled Python model; None of any other."""
    if not model.config.message.model_transaction_policy.decoupled:
        return None
    code = model.code
    return code if code is not None and code.tree is not None else None


def surely_not_decoupled(model: Model) -> bool:
    """A Python model that answers every request once: model.py cannot change that either."""
    code = model.code
    if code is None or code.tree is None:
        return False
    decoupled = model.config.message.model_transaction_policy.decoupled
    return not decoupled and not code.called("set_model_transaction_policy")


def composing(repository: Repository) -> frozenset[str]:
    """The models that are steps of an ensemble."""
    return frozenset(step.model for model in repository.models.values() for step in steps(model))


def per_response(repository: Repository) -> dict[str, PerResponse]:
    """The models, ensembles left out, that run once per response in some ensemble; by name."""
    return memoized(repository, "per response", lambda: _per_response(repository))


def _per_response(repository: Repository) -> dict[str, PerResponse]:
    models: dict[str, PerResponse] = {}
    seen: set[str] = set()
    for ensemble in repository.models.values():
        for name, source in _behind(ensemble, repository):
            for model in _inside(name, repository, seen):
                models[model.name] = PerResponse(model, ensemble.name, source)
    return models


def _behind(ensemble: Model, repository: Repository) -> Iterator[tuple[str, str]]:
    """The steps' models behind a decoupled one, near or far, each with that one's name."""
    all_steps = steps(ensemble)
    streamed = {
        tensor: step.model
        for step in all_steps
        if _streams(repository.models.get(step.model), repository)
        for tensor in step.writes
    }
    readers: dict[str, list[int]] = {}
    for index, step in enumerate(all_steps):
        for tensor in step.reads:
            readers.setdefault(tensor, []).append(index)
    reached: set[int] = set()
    fresh = set(streamed)
    while behind := {index for name in fresh for index in readers.get(name, ())} - reached:
        reached |= behind
        fresh = set()
        for step in (all_steps[index] for index in sorted(behind)):
            source = streamed[min(step.reads & streamed.keys())]
            yield step.model, source
            fresh |= step.writes - streamed.keys()
            streamed |= dict.fromkeys(step.writes - streamed.keys(), source)


def _streams(model: Model | None, repository: Repository) -> bool:
    """Whether a model is decoupled, and not only in order to answer late, or not at all."""
    if model is None or not decoupled(model, repository):
        return False
    senders = senders_of(model)
    return senders is None or not senders.single_response


def _inside(name: str, repository: Repository, seen: set[str]) -> Iterator[Model]:
    """The models that run when this one does, without those that were seen before."""
    waiting = [name]
    while waiting:
        model = repository.models.get(waiting.pop())
        if model is None or model.name in seen:
            continue
        seen.add(model.name)
        if model.backend != "ensemble":
            yield model
        waiting += reversed(models_in(model))


def instances(model: Model, target: Target) -> int:
    """How many instances a model has at least."""
    known = placement.instances(model, target)
    groups = model.config.message.instance_group
    written = sum(max(int(one.count), 1) * max(len(one.gpus), 1) for one in groups)
    return max(1, written) if known is None else known
