# SPDX-License-Identifier: Apache-2.0
"""The steps that a model of the project is served in, and the models in Triton that they are."""

from __future__ import annotations

from tritonctl.engines.build.catalog import builder_named
from tritonctl.project.schema import Project
from tritonctl.project.tasks import asked_task
from tritonctl.repository.backends import backend_named
from tritonctl.repository.ensembles import (
    CACHED,
    DETOKENIZER,
    ENGINE_STEP,
    Ensemble,
    ensemble_for,
    step_model_name,
    task_of,
)
from tritonctl.repository.folding import steps_in_engine
from tritonctl.repository.native import NATIVE


def step_models(project: Project, name: str) -> dict[str, str]:
    """The steps that a model of the project is served in, and the model in Triton of each.

    One that is served without an ensemble is its only step itself, or the only one behind a cache;
    other models of the project that it has for steps are not among them. Raises ConfigurationError.
    """
    ensemble, _ = ensemble_for(task_of(project, name), project.root)
    model = project.models.get(name)
    cached = model is not None and model.serving.cache
    if ensemble.kind == "model" or (model is not None and model.serving.fused):
        [alone] = ensemble.steps if ensemble.kind == "model" else [ENGINE_STEP]
        return {alone: step_model_name(name, alone) if cached else name}
    folded = [key for key, step in ensemble.steps.items() if step.model]
    if model is not None:
        folded += _in_engine(project, name, ensemble)
        if model.serving.inline_detokenizer:
            folded += [key for key, step in ensemble.steps.items() if step.backend == DETOKENIZER]
    steps = [key for key in ensemble.steps if key not in folded]
    return {key: step_model_name(name, key) for key in (*steps, *([CACHED] if cached else []))}


def cached_model(project: Project, name: str) -> str:
    """The model in Triton that has the response cache of a model of the project."""
    steps = step_models(project, name)
    return steps.get(CACHED) or next(iter(steps.values()))


def _in_engine(project: Project, name: str, ensemble: Ensemble) -> list[str]:
    """The steps whose work the engine does, because its backend can."""
    if not any(step.into_engine for step in ensemble.steps.values()):
        return []
    model = project.models[name]
    builder = builder_named(model.engine.builder, project.root)
    own = builder.served_by(asked_task(model.task, project.root))
    backend = own if model.serving.backend in (None, "python") else model.serving.backend
    if backend in NATIVE:
        return []
    return steps_in_engine(ensemble, backend_named(backend, project.root).inlines)
