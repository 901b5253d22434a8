# SPDX-License-Identifier: Apache-2.0
"""Makes the build request of a model from the project."""

from __future__ import annotations

from pathlib import Path

from tritonctl.engines.build.contract import BuildRequest, Calibration, EvaluationRequest, Limits
from tritonctl.engines.hub.checkpoint import checkpoint_of
from tritonctl.errors import ConfigurationError, UsageError, choices
from tritonctl.project.compatibility.rules import (
    check,
    refuse_tensorrt_without_package,
    resolve_target,
    resolve_tensorrt_target,
)
from tritonctl.project.compatibility.table import table
from tritonctl.project.engine import Calibration as ProjectCalibration
from tritonctl.project.engine import Engine
from tritonctl.project.schema import Evaluation, Model, Project
from tritonctl.project.tasks import asked_task


def model_named(project: Project, name: str) -> Model:
    """A model of the project. Raises UsageError for an unknown name, or one without an engine."""
    if name in project.ensembles:
        raise UsageError(
            f"{name} stands under `ensembles:` and has no engine of its own",
            remedy=choices("", sorted(project.models), "with an engine:"),
        )
    if name not in project.models:
        raise UsageError(
            f"the project has no model `{name}`",
            remedy=choices(name, sorted(project.models), "its models:"),
        )
    return project.models[name]


def build_request(project: Project, name: str) -> BuildRequest:
    """The request to build a model's engine."""
    model = project.models[name]
    engine = model.engine
    return BuildRequest(
        schema="tritonctl.build/1",
        model=name,
        checkpoint=str(checkpoint_of(project, model)),
        precision=engine.precision,
        limits=Limits(**{field: getattr(engine, field) for field in Limits.model_fields}),
        kv_cache_dtype=engine.kv_cache_dtype,
        trust_remote_code=engine.trust_remote_code,
        allow_pickle=engine.allow_pickle,
        options=engine.options,
        evaluation=_evaluation_request(project, model.evaluation),
        calibration=_calibration(project, engine.calibration),
        task=asked_task(model.task, project.root),
    )


def with_target(
    request: BuildRequest, engine: Engine, kind: str, root: Path
) -> tuple[BuildRequest, tuple[str, ...]]:
    """The request with everything that `engine.target` implies, and warnings about it.

    `kind`: a builder's `targets`. Raises ConfigurationError, naming the nearest possible, for what
    cannot be built or run.
    """
    compatibility = table(root)
    asked = engine.target.model_dump(exclude={"image"})
    warnings: list[str] = []
    if kind == "tensorrt":
        del asked["world"]
        target = resolve_tensorrt_target(compatibility, **asked)
        if engine.runner == "venv":
            refuse_tensorrt_without_package(target, compatibility)
    else:
        if asked.pop("tensorrt"):
            raise ConfigurationError(
                "engine.target.tensorrt is for the builder tensorrt: TensorRT-LLM's release has "
                "its own",
                remedy="remove it, and choose engine.target.release",
            )
        target = resolve_target(compatibility, **asked)
        cache = request.kv_cache_dtype
        warnings = check(target, request.precision, compatibility, kv_cache_dtype=cache)
    if engine.target.image:
        target = target.model_copy(update={"image": engine.target.image})
    return request.model_copy(update={"target": target}), tuple(warnings)


def _evaluation_request(
    project: Project, evaluation: Evaluation | None
) -> EvaluationRequest | None:
    if evaluation is None:
        return None
    prompts = project.path(evaluation.prompts)
    if not prompts.is_file():
        raise ConfigurationError(
            f"prompts file {prompts} does not exist",
            remedy="correct `evaluation.prompts` in tritonctl.yaml, or remove `evaluation`",
        )
    return EvaluationRequest(**evaluation.model_dump(exclude={"prompts"}), prompts=str(prompts))


def _calibration(project: Project, calibration: ProjectCalibration | None) -> Calibration | None:
    if calibration is None:
        return None
    data = project.path(calibration.data)
    if not data.exists():
        raise ConfigurationError(
            f"calibration data {data} does not exist",
            remedy="correct `engine.calibration.data` in tritonctl.yaml, or remove `calibration`: "
            "the build then uses the evaluation's prompts",
        )
    return Calibration(**calibration.model_dump(exclude={"data"}), data=str(data))
