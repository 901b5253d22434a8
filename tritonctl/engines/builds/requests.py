# SPDX-License-Identifier: Apache-2.0
"""Makes the build request of a model from the project."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tritonctl.engines.builds.contract import (
    BuildRequest,
    CalibrationRequest,
    EngineLimits,
    EvaluationRequest,
)
from tritonctl.engines.sources.checkpoint import checkpoint_path
from tritonctl.errors import ConfigurationError, UsageError, choices
from tritonctl.project.compatibility import trtllm_arguments
from tritonctl.project.compatibility.rules import (
    check_formats,
    refuse_tensorrt_without_package,
    resolve_target,
    resolve_tensorrt_target,
)
from tritonctl.project.compatibility.table import table
from tritonctl.project.engine import Calibration as ProjectCalibration
from tritonctl.project.engine import Engine
from tritonctl.project.schema import Evaluation, Model, Project
from tritonctl.project.tasks import engine_task, task_for_builder


def model_named(project: Project, name: str) -> Model:
    """Return a model of the project. Raises UsageError for an unknown name or an ensemble."""
    if name in project.ensembles:
        raise UsageError(
            f"{name} is listed under `ensembles:` and has no engine",
            remedy=choices("", sorted(project.models), "with an engine:"),
        )
    if name not in project.models:
        raise UsageError(
            f"the project has no model `{name}`",
            remedy=choices(name, sorted(project.models), "its models:"),
        )
    return project.models[name]


def build_request(project: Project, name: str) -> BuildRequest:
    """Return the build request of a model's engine. Raises ConfigurationError."""
    model = project.models[name]
    engine = model.engine
    if not engine.max_batch_size and engine_task(model.task, project.root) != "tensors":
        raise ConfigurationError(
            f"models.{name}.engine.max_batch_size is 0, and engines of the task {model.task} "
            "run batches",
            remedy="set it to 1 or more; 0 is for graphs without a batch (`task: tensors`)",
        )
    return BuildRequest(
        schema="tritonctl.build/1",
        model=name,
        checkpoint=str(checkpoint_path(project, model)),
        precision=engine.precision,
        limits=EngineLimits(
            **{field: getattr(engine, field) for field in EngineLimits.model_fields}
        ),
        kv_cache_dtype=engine.kv_cache_dtype,
        trust_remote_code=engine.trust_remote_code,
        allow_pickle=engine.allow_pickle,
        options=engine.options,
        evaluation=_evaluation_request(project, model.evaluation),
        calibration=_calibration(project, engine.calibration),
        task=task_for_builder(model.task, project.root),
    )


def with_target(
    request: BuildRequest, engine: Engine, kind: str, root: Path
) -> tuple[BuildRequest, tuple[str, ...]]:
    """Return the request with the resolved `engine.target`, and warnings.

    `kind` is a builder's `targets`. Raises ConfigurationError, naming the nearest supported value,
    for an engine that cannot be built or run.
    """
    compatibility = table(root)
    requested = engine.target.model_dump(exclude={"image"})
    warnings: list[str] = []
    if kind == "tensorrt":
        del requested["world"]
        target = resolve_tensorrt_target(compatibility, **requested)
        if engine.runner == "venv":
            refuse_tensorrt_without_package(target, compatibility)
    else:
        if requested.pop("tensorrt"):
            raise ConfigurationError(
                "engine.target.tensorrt applies to the builder tensorrt; a release with "
                "TensorRT-LLM "
                "has a fixed version",
                remedy="remove it, and choose engine.target.release",
            )
        target = resolve_target(compatibility, **requested)
        cache = request.kv_cache_dtype
        warnings = check_formats(target, request.precision, compatibility, kv_cache_dtype=cache)
        warnings += _unchecked_arguments(target.tensorrt_llm or "", engine.options)
    if engine.target.image:
        target = target.model_copy(update={"image": engine.target.image})
    return request.model_copy(update={"target": target}), tuple(warnings)


def _unchecked_arguments(version: str, options: Mapping[str, Any]) -> list[str]:
    """Return the warning that a release's arguments of tensorrt_llm.LLM were not read."""
    if trtllm_arguments.is_read(version) or not options.get("package"):
        return []
    subject = f"the arguments of TensorRT-LLM {version} were not read"
    return [f"engine.options.package is passed through: {subject}"]


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


def _calibration(
    project: Project, calibration: ProjectCalibration | None
) -> CalibrationRequest | None:
    if calibration is None:
        return None
    data = project.path(calibration.data)
    if not data.exists():
        raise ConfigurationError(
            f"calibration data {data} does not exist",
            remedy="correct `engine.calibration.data` in tritonctl.yaml, or remove `calibration`: "
            "the build then uses the evaluation's prompts",
        )
    return CalibrationRequest(**calibration.model_dump(exclude={"data"}), data=str(data))
