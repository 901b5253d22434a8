# SPDX-License-Identifier: Apache-2.0
"""The engine of an encoder, of a model of images, of an ONNX graph: builder, precision, shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tritonctl.engines.build.catalog import builder_named
from tritonctl.engines.estimates.table import estimate_table
from tritonctl.engines.proposals.load import INPUTS, PROMPTS, size_of
from tritonctl.engines.proposals.recognition import Recognised
from tritonctl.errors import ConfigurationError, UsageError
from tritonctl.project.compatibility.rules import (
    refuse_tensorrt_on_gpu,
    resolve_tensorrt_target,
)
from tritonctl.project.compatibility.table import Gpu, table
from tritonctl.project.tasks import asked_task

_ONNXRUNTIME, _TENSORRT = "onnxruntime", "tensorrt"


def graph_engine(found: Recognised, precision: str | None, gpu: Gpu | None) -> dict[str, Any]:
    """`engine` and `serving`; precision None: what suits the device. Raises UsageError."""
    if gpu is None:
        chosen = precision or "fp32"
        return {
            "engine": {"builder": _on_cpu(found, chosen), "precision": chosen} | _options(found)
        }
    serving: dict[str, Any] = {"instance_group": [{"kind": "KIND_GPU"}]}
    chosen = precision or "fp16"
    if not _is_compiled(found, gpu, chosen):
        engine = {"builder": _ONNXRUNTIME, "precision": chosen} | _options(found)
        return {"engine": engine, "serving": serving | {"backend": _ONNXRUNTIME}}
    engine = {
        "builder": _TENSORRT,
        "precision": chosen,
        "target": {"release": table().default_release, "gpu": gpu.name},
    }
    return {"engine": engine | _calibration(found, chosen), "serving": serving}


def _options(found: Recognised) -> dict[str, Any]:
    """Sizes of the images that ONNX Runtime compares the engine with."""
    sizes = image_sizes(found)
    return {"options": {"dimensions": sizes}} if sizes else {}


def _is_compiled(found: Recognised, gpu: Gpu, precision: str) -> bool:
    """Whether TensorRT makes it: of ONNX files all, of checkpoints the tasks, for GPUs of today."""
    if found.kind == "graph":
        return True
    if asked_task(found.task) is None or found.task not in builder_named(_TENSORRT).tasks:
        return False
    compatibility = table()
    try:
        target = resolve_tensorrt_target(compatibility, gpu=gpu.name)
        refuse_tensorrt_on_gpu(target, precision, compatibility)
    except ConfigurationError:
        return False
    return True


def about_plan(model: Mapping[str, Any]) -> Iterator[str]:
    """What a task's plan asks of the machine that builds it, and what would not."""
    if model["engine"]["builder"] == _TENSORRT and asked_task(model["task"]):
        yield (
            "a plan is compiled on the GPU that it is for; to build on any machine set "
            f"`engine.builder: {_ONNXRUNTIME}` and `serving.backend: {_ONNXRUNTIME}`"
        )


def _calibration(found: Recognised, precision: str) -> dict[str, Any]:
    """What ranges of a task's plan are measured on: the texts of the load test, to begin with."""
    if precision != "int8" or found.kind == "graph":
        return {}
    if found.kind == "vision":
        raise UsageError(
            "int8 of a TensorRT plan is calibrated on images, and there are none yet",
            remedy="leave --precision out; then set `precision: int8` and `calibration: {data: "
            "FOLDER}` with a few hundred images like those to come",
        )
    return {"calibration": {"data": INPUTS if found.task == "rerank" else PROMPTS}}


def _on_cpu(found: Recognised, precision: str) -> str:
    """ONNX Runtime, or OpenVINO where that alone has the precision, or has it better for a task."""
    asked = asked_task(found.task)
    better = estimate_table().builders[_ONNXRUNTIME].better.get(precision) if asked else None
    first = [better.builder] if better else []
    builders = {name: builder_named(name) for name in (*first, _ONNXRUNTIME, "openvino")}
    able = (
        name
        for name, one in builders.items()
        if found.task in one.tasks and precision in one.precisions_of(asked)
    )
    return next(able, _ONNXRUNTIME)


def open_sizes(found: Recognised) -> set[str]:
    """Names of the dimensions that vary, the batch aside."""
    return {s for one in found.inputs for s in (one.shape or ())[1:] if isinstance(s, str)}


def image_sizes(found: Recognised) -> dict[str, int]:
    """Sizes of an image's variable dimensions, by name."""
    likely = {name: size_of(name, 1) for name in sorted(open_sizes(found))}
    return {name: size for name, size in likely.items() if size > 1}


def add_shapes(model: dict[str, Any], found: Recognised, batch: int, length: int | None) -> None:
    """TensorRT's profile of a graph: what each input may be like, from one request to the largest
    batch. Those of a task follow from its limits.
    """
    compiled = model["engine"]["builder"] == _TENSORRT
    if not compiled or found.kind != "graph" or not open_sizes(found):
        return
    images, tokens = image_sizes(found), length or 1
    usual = (max(1, batch // 2), max(1, tokens // 2))
    parts = {"min": (1, 1), "opt": usual, "max": (batch, tokens)}
    profile = {
        one.name: {
            part: [
                rows,
                *(s if isinstance(s, int) else images.get(s, size) for s in (one.shape or ())[1:]),
            ]
            for part, (rows, size) in parts.items()
        }
        for one in found.inputs
    }
    model["engine"]["options"] = {"profiles": profile}
