# SPDX-License-Identifier: Apache-2.0
"""Fewer steps for the same public tensors: an engine that does the work of the steps around it.

`serving.inline_detokenizer`: the last step goes into the engine. `serving.fused`: all go into it,
and the engine is the public model. Steps with `into_engine: true` go into it wherever they can.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress

from tritonctl.errors import ConfigurationError
from tritonctl.repository.backends import PythonBackend
from tritonctl.repository.ensembles import DETOKENIZER, ENGINE_STEP, Ensemble, fold, own_inputs


def inlined(
    name: str, ensemble: Ensemble, backends: Mapping[str, PythonBackend]
) -> tuple[Ensemble, dict[str, PythonBackend]]:
    """The ensemble of model `name` whose engine step takes over the detokenizer step.

    Raises ConfigurationError where the steps or their backends do not allow it.
    """
    where = f"models.{name}.serving.inline_detokenizer"
    steps = {step.backend: key for key, step in ensemble.steps.items()}
    if not {ENGINE_STEP, DETOKENIZER} <= steps.keys():
        raise ConfigurationError(
            f"{where}: the task {ensemble.task} has no steps "
            f"with the backends {ENGINE_STEP} and {DETOKENIZER}",
            remedy="remove `inline_detokenizer: true`",
        )
    try:
        return _folded(ensemble, backends, steps[DETOKENIZER], steps[ENGINE_STEP])
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error.problem}", remedy=error.remedy) from error


def with_steps_in_engine(
    ensemble: Ensemble, backends: Mapping[str, PythonBackend]
) -> tuple[Ensemble, dict[str, PythonBackend]]:
    """The ensemble whose engine step takes over every step with `into_engine` that it can."""
    steps = dict(backends)
    if any(step.into_engine for step in ensemble.steps.values()):
        engine = _engine_of(ensemble)
        for key in steps_in_engine(ensemble, backends[engine].inlines):
            ensemble, steps = _folded(ensemble, steps, key, engine)
    return ensemble, steps


def steps_in_engine(ensemble: Ensemble, inlines: Collection[str]) -> list[str]:
    """The steps that the engine takes over: those marked so, of the backends whose work it knows.

    One whose tensors somebody else needs stays a step of its own.
    """
    marked = {key: step.backend for key, step in ensemble.steps.items() if step.into_engine}
    engine = _engine_of(ensemble)
    taken = []
    for key in (key for key, backend in marked.items() if backend in inlines):
        with suppress(ConfigurationError):
            ensemble = fold(ensemble, key, engine)
            taken.append(key)
    return taken


def _folded(
    ensemble: Ensemble, backends: Mapping[str, PythonBackend], name: str, engine: str
) -> tuple[Ensemble, dict[str, PythonBackend]]:
    inputs = own_inputs(ensemble, name, engine)
    merged = backends[engine].inlining(backends[name], inputs)
    folded = fold(ensemble, name, engine)
    kept = {step: backends[step] for step in folded.steps if step in backends}
    return folded, kept | {engine: merged}


def _engine_of(ensemble: Ensemble) -> str:
    engines = [key for key, step in ensemble.steps.items() if step.backend == ENGINE_STEP]
    if len(engines) != 1:
        raise ConfigurationError(
            f"the task {ensemble.task} has {len(engines)} steps with the backend {ENGINE_STEP} "
            "and one with into_engine",
            remedy="remove `into_engine: true`, or give the task one engine step",
        )
    return engines[0]


def fused(
    name: str, ensemble: Ensemble, backends: Mapping[str, PythonBackend]
) -> dict[str, PythonBackend]:
    """The engine step alone, with the tensors of the ensemble of model `name`.

    Raises ConfigurationError where the steps or their backends do not allow it.
    """
    where = f"models.{name}.serving.fused"
    engines = [key for key, step in ensemble.steps.items() if step.backend == ENGINE_STEP]
    if len(engines) != 1:
        raise ConfigurationError(
            f"{where}: the task {ensemble.task} has {len(engines)} steps with the backend "
            f"{ENGINE_STEP}, expected one",
            remedy="remove `fused: true`",
        )
    if inner := [step.model for step in ensemble.steps.values() if step.model]:
        raise ConfigurationError(
            f"{where}: {inner[0]} is a step of it, a model that stays one",
            remedy="remove `fused: true`",
        )
    [engine] = engines
    others = [backend for key, backend in backends.items() if key != engine]
    names = _public_names(where, ensemble)
    try:
        merged = backends[engine].fused(others, ensemble.inputs, ensemble.outputs, names)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error.problem}", remedy=error.remedy) from error
    return {engine: merged}


def _public_names(where: str, ensemble: Ensemble) -> dict[str, str]:
    """By the steps' own name of an input, the ensemble's, where they differ."""
    inputs = {tensor.name for tensor in ensemble.inputs}
    outputs = {tensor.name for tensor in ensemble.outputs}
    names: dict[str, str] = {}
    for step in ensemble.steps.values():
        for own, public in step.inputs.items():
            if public in inputs and names.setdefault(own, public) != public:
                raise _unclear(where, f"steps read both {names[own]} and {public} as {own}")
        for own, public in step.outputs.items():
            if public in outputs and own != public:
                raise _unclear(where, f"the output {public} is called {own} in its step")
    return {own: public for own, public in names.items() if own != public}


def _unclear(where: str, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"{where}: {problem}, and one model has one name for a tensor",
        remedy="give both the same name in ensembles/<task>.yaml, or remove `fused: true`",
    )
