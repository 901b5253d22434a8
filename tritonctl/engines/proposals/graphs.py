# SPDX-License-Identifier: Apache-2.0
"""The proposed engine of an encoder, vision model or ONNX graph: builder, precision, shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tritonctl.engines.builds.catalog import builder_named
from tritonctl.engines.estimates.table import estimate_table
from tritonctl.engines.proposals.load import INPUTS, PROMPTS, likely_size
from tritonctl.engines.proposals.recognition import RecognisedCheckpoint
from tritonctl.errors import ConfigurationError, UsageError
from tritonctl.project.compatibility.rules import (
    refuse_tensorrt_on_gpu,
    resolve_tensorrt_target,
)
from tritonctl.project.compatibility.table import GpuModel, table
from tritonctl.project.tasks import task_for_builder

_ONNXRUNTIME, _TENSORRT = "onnxruntime", "tensorrt"


def graph_engine(
    checkpoint: RecognisedCheckpoint, precision: str | None, gpu: GpuModel | None
) -> dict[str, Any]:
    """Return `engine` and `serving`; without a precision, the device's. Raises UsageError."""
    if gpu is None:
        chosen = precision or "fp32"
        return {
            "engine": {"builder": _cpu_builder(checkpoint, chosen), "precision": chosen}
            | _options(checkpoint)
        }
    serving: dict[str, Any] = {"instance_group": [{"kind": "KIND_GPU"}]}
    chosen = precision or "fp16"
    if not _is_compiled(checkpoint, gpu, chosen):
        engine = {"builder": _ONNXRUNTIME, "precision": chosen} | _options(checkpoint)
        return {"engine": engine, "serving": serving | {"backend": _ONNXRUNTIME}}
    engine = {
        "builder": _TENSORRT,
        "precision": chosen,
        "target": {"release": table().default_release, "gpu": gpu.name},
    }
    return {"engine": engine | _calibration(checkpoint, chosen), "serving": serving}


def _options(checkpoint: RecognisedCheckpoint) -> dict[str, Any]:
    """Return the image sizes with which ONNX Runtime verifies the engine."""
    sizes = image_sizes(checkpoint)
    return {"options": {"dimensions": sizes}} if sizes else {}


def _is_compiled(checkpoint: RecognisedCheckpoint, gpu: GpuModel, precision: str) -> bool:
    """Whether TensorRT compiles it: any ONNX file, or a supported task on a supported GPU."""
    if checkpoint.kind == "graph":
        return True
    if (
        task_for_builder(checkpoint.task) is None
        or checkpoint.task not in builder_named(_TENSORRT).tasks
    ):
        return False
    compatibility = table()
    try:
        target = resolve_tensorrt_target(compatibility, gpu=gpu.name)
        refuse_tensorrt_on_gpu(target, precision, compatibility)
    except ConfigurationError:
        return False
    return True


def compilation_notes(model: Mapping[str, Any]) -> Iterator[str]:
    """Yield a note on the machine that a TensorRT plan needs, and the alternative."""
    if model["engine"]["builder"] == _TENSORRT and task_for_builder(model["task"]):
        yield (
            "a plan is compiled on its target GPU; to build on any machine set "
            f"`engine.builder: {_ONNXRUNTIME}` and `serving.backend: {_ONNXRUNTIME}`"
        )


def _calibration(checkpoint: RecognisedCheckpoint, precision: str) -> dict[str, Any]:
    """Return the calibration of a task's plan: the load test's texts as a start."""
    if checkpoint.kind == "graph" or precision not in builder_named(_TENSORRT).calibrated:
        return {}
    if checkpoint.kind == "vision":
        raise UsageError(
            f"a TensorRT plan in {precision} needs calibration images, which a new project lacks",
            remedy=f"omit --precision; then set `precision: {precision}` and `calibration: {{data: "
            "FOLDER}` with a few hundred representative images",
        )
    return {"calibration": {"data": INPUTS if checkpoint.task == "rerank" else PROMPTS}}


def _cpu_builder(checkpoint: RecognisedCheckpoint, precision: str) -> str:
    """Return the CPU builder: ONNX Runtime, unless OpenVINO has the precision alone or better."""
    task = task_for_builder(checkpoint.task)
    better = estimate_table().builders[_ONNXRUNTIME].better.get(precision) if task else None
    preferred = [better.builder] if better else []
    builders = {name: builder_named(name) for name in (*preferred, _ONNXRUNTIME, "openvino")}
    candidates = (
        name
        for name, builder in builders.items()
        if checkpoint.task in builder.tasks and precision in builder.precisions_for(task)
    )
    return next(candidates, _ONNXRUNTIME)


def variable_dimensions(checkpoint: RecognisedCheckpoint) -> set[str]:
    """Return the names of the variable dimensions, without the batch."""
    first = int(checkpoint.batched)
    return {
        size
        for tensor in checkpoint.inputs
        for size in (tensor.shape or ())[first:]
        if isinstance(size, str)
    }


def image_sizes(checkpoint: RecognisedCheckpoint) -> dict[str, int]:
    """Return the sizes of an image's variable dimensions, by name."""
    likely = {name: likely_size(name, 1) for name in sorted(variable_dimensions(checkpoint))}
    return {name: size for name, size in likely.items() if size > 1}


def add_shapes(
    model: dict[str, Any], checkpoint: RecognisedCheckpoint, batch: int, length: int | None
) -> None:
    """Add TensorRT's profile of a graph: shapes of each input from one request to a full batch.

    The profiles of a task follow from its limits.
    """
    is_compiled = model["engine"]["builder"] == _TENSORRT
    if not is_compiled or checkpoint.kind != "graph" or not variable_dimensions(checkpoint):
        return
    images, tokens = image_sizes(checkpoint), length or 1
    typical = (max(1, batch // 2), max(1, tokens // 2))
    parts = {"min": (1, 1), "opt": typical, "max": (batch, tokens)}
    profile = {
        tensor.name: {
            part: [
                *([rows] * checkpoint.batched),
                *(
                    s if isinstance(s, int) else images.get(s, size)
                    for s in (tensor.shape or ())[int(checkpoint.batched) :]
                ),
            ]
            for part, (rows, size) in parts.items()
        }
        for tensor in checkpoint.inputs
    }
    model["engine"]["options"] = {"profiles": profile}
