# SPDX-License-Identifier: Apache-2.0
"""The steps of a project's model and their names in Triton."""

from __future__ import annotations

from tritonctl.engines.builds.catalog import builder_named
from tritonctl.project.schema import Project
from tritonctl.project.tasks import task_for_builder
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
    """Return the steps of a project's model with the Triton model of each.

    A model without an ensemble is its only step, or the only step behind a cache. Steps that are
    other models of the project are not included. Raises ConfigurationError.
    """
    ensemble, _ = ensemble_for(task_of(project, name), project.root)
    model = project.models.get(name)
    cached = model is not None and model.serving.cache
    if ensemble.kind == "model" or (model is not None and model.serving.fused):
        [single_step] = ensemble.steps if ensemble.kind == "model" else [ENGINE_STEP]
        return {single_step: step_model_name(name, single_step) if cached else name}
    folded = [key for key, step in ensemble.steps.items() if step.model]
    if model is not None:
        folded += _steps_in_engine(project, name, ensemble)
        if model.serving.inline_detokenizer:
            folded += [key for key, step in ensemble.steps.items() if step.backend == DETOKENIZER]
    steps = [key for key in ensemble.steps if key not in folded]
    return {key: step_model_name(name, key) for key in (*steps, *([CACHED] if cached else []))}


def cached_model(project: Project, name: str) -> str:
    """Return the Triton model that holds the response cache of a project's model."""
    steps = step_models(project, name)
    return steps.get(CACHED) or next(iter(steps.values()))


def _steps_in_engine(project: Project, name: str, ensemble: Ensemble) -> list[str]:
    """Return the steps that the engine performs itself because its backend can."""
    if not any(step.into_engine for step in ensemble.steps.values()):
        return []
    model = project.models[name]
    builder = builder_named(model.engine.builder, project.root)
    default_backend = builder.backend_for(task_for_builder(model.task, project.root))
    backend = (
        default_backend if model.serving.backend in (None, "python") else model.serving.backend
    )
    if backend in NATIVE:
        return []
    return steps_in_engine(ensemble, backend_named(backend, project.root).inlines)
