# SPDX-License-Identifier: Apache-2.0
"""Folds steps of an ensemble into its engine; the public tensors stay the same.

`serving.inline_detokenizer` folds the last step. `serving.fused` folds all steps, and the engine
is the public model. Steps with `into_engine: true` are folded if the engine's backend can.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress

from tritonctl.errors import ConfigurationError
from tritonctl.repository.backends import PythonBackend
from tritonctl.repository.ensembles import DETOKENIZER, ENGINE_STEP, Ensemble, external_inputs, fold


def inline_detokenizer(
    name: str, ensemble: Ensemble, backends: Mapping[str, PythonBackend]
) -> tuple[Ensemble, dict[str, PythonBackend]]:
    """Fold the detokenizer step of model `name` into its engine step.

    Raises ConfigurationError if the steps or their backends do not allow it.
    """
    location = f"models.{name}.serving.inline_detokenizer"
    steps = {step.backend: key for key, step in ensemble.steps.items()}
    if not {ENGINE_STEP, DETOKENIZER} <= steps.keys():
        raise ConfigurationError(
            f"{location}: the task {ensemble.task} has no steps "
            f"with the backends {ENGINE_STEP} and {DETOKENIZER}",
            remedy="remove `inline_detokenizer: true`",
        )
    try:
        return _fold_step(ensemble, backends, steps[DETOKENIZER], steps[ENGINE_STEP])
    except ConfigurationError as error:
        raise ConfigurationError(f"{location}: {error.problem}", remedy=error.remedy) from error


def with_steps_in_engine(
    ensemble: Ensemble, backends: Mapping[str, PythonBackend]
) -> tuple[Ensemble, dict[str, PythonBackend]]:
    """Fold every step with `into_engine` into the engine step where possible."""
    steps = dict(backends)
    if any(step.into_engine for step in ensemble.steps.values()):
        engine = _engine_of(ensemble)
        for key in steps_in_engine(ensemble, backends[engine].inlines):
            ensemble, steps = _fold_step(ensemble, steps, key, engine)
    return ensemble, steps


def steps_in_engine(ensemble: Ensemble, inlines: Collection[str]) -> list[str]:
    """Return the `into_engine` steps whose backend the engine inlines.

    A step whose tensors another reader needs stays separate.
    """
    marked_steps = {key: step.backend for key, step in ensemble.steps.items() if step.into_engine}
    engine = _engine_of(ensemble)
    absorbed = []
    for key in (key for key, backend in marked_steps.items() if backend in inlines):
        with suppress(ConfigurationError):
            ensemble = fold(ensemble, key, engine)
            absorbed.append(key)
    return absorbed


def _fold_step(
    ensemble: Ensemble, backends: Mapping[str, PythonBackend], name: str, engine: str
) -> tuple[Ensemble, dict[str, PythonBackend]]:
    inputs = external_inputs(ensemble, name, engine)
    merged = backends[engine].with_inlined_step(backends[name], inputs)
    folded = fold(ensemble, name, engine)
    remaining = {step: backends[step] for step in folded.steps if step in backends}
    return folded, remaining | {engine: merged}


def _engine_of(ensemble: Ensemble) -> str:
    engines = [key for key, step in ensemble.steps.items() if step.backend == ENGINE_STEP]
    if len(engines) != 1:
        raise ConfigurationError(
            f"the task {ensemble.task} has {len(engines)} steps with the backend {ENGINE_STEP} "
            "and one with into_engine",
            remedy="remove `into_engine: true`, or give the task one engine step",
        )
    return engines[0]


def fuse_steps(
    name: str, ensemble: Ensemble, backends: Mapping[str, PythonBackend]
) -> dict[str, PythonBackend]:
    """Fold all steps of model `name` into the engine step, with the ensemble's tensors.

    Raises ConfigurationError if the steps or their backends do not allow it.
    """
    location = f"models.{name}.serving.fused"
    engines = [key for key, step in ensemble.steps.items() if step.backend == ENGINE_STEP]
    if len(engines) != 1:
        raise ConfigurationError(
            f"{location}: the task {ensemble.task} has {len(engines)} steps with the backend "
            f"{ENGINE_STEP}, expected one",
            remedy="remove `fused: true`",
        )
    if inner := [step.model for step in ensemble.steps.values() if step.model]:
        raise ConfigurationError(
            f"{location}: its step {inner[0]} is a public model and cannot be fused",
            remedy="remove `fused: true`",
        )
    [engine] = engines
    other_backends = [backend for key, backend in backends.items() if key != engine]
    names = _public_names(location, ensemble)
    try:
        merged = backends[engine].with_fused_steps(
            other_backends, ensemble.inputs, ensemble.outputs, names
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"{location}: {error.problem}", remedy=error.remedy) from error
    return {engine: merged}


def _public_names(location: str, ensemble: Ensemble) -> dict[str, str]:
    """Return the ensemble's name of each input that has another name in its steps."""
    inputs = {tensor.name for tensor in ensemble.inputs}
    outputs = {tensor.name for tensor in ensemble.outputs}
    names: dict[str, str] = {}
    for step in ensemble.steps.values():
        for step_name, public in step.inputs.items():
            if public in inputs and names.setdefault(step_name, public) != public:
                raise _ambiguous_name(
                    location, f"steps read both {names[step_name]} and {public} as {step_name}"
                )
        for step_name, public in step.outputs.items():
            if public in outputs and step_name != public:
                raise _ambiguous_name(
                    location, f"the output {public} is called {step_name} in its step"
                )
    return {step_name: public for step_name, public in names.items() if step_name != public}


def _ambiguous_name(location: str, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"{location}: {problem}, but a model has one name per tensor",
        remedy="give both the same name in ensembles/<task>.yaml, or remove `fused: true`",
    )
