# SPDX-License-Identifier: Apache-2.0
"""Builds an engine of an image task. Standard library only until a build starts."""

import dataclasses
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildlib import artefact
from buildlib.problems import BuildError
from buildlib.program import Stages
from buildlib.request_types import BuilderRequest
from buildlib.versions import cpu_name, installed_versions
from onnxlib.graph import check_graph, tensor_specs
from options import OnnxRuntimeOptions
from precisions import precision_column, remedy_for
from source import MODEL
from support import IMAGE_ARCHITECTURES, ONNX_RUNTIME
from taskcompile.image_task import INPUT, ImageTask, compile_image_task
from taskproof.image_files import calibration_images

_ENGINE = Path("engine")
_WORK = Path(".work")
_FOLDERS = (_ENGINE, artefact.TASK, artefact.PROOF)
_LIBRARIES = ("numpy", "onnx", "onnxruntime", "onnxscript", "pillow", "torch", "transformers")
# Nearly all their weights belong to convolutions, which dynamic int8 does not quantise.
_CONVOLUTIONS = ("ResNet",)


@dataclass(frozen=True)
class ImageBuild:
    """A checked request."""

    request: BuilderRequest
    options: OnnxRuntimeOptions
    task: ImageTask


def check_image_request(request: BuilderRequest, options: OnnxRuntimeOptions) -> ImageBuild:
    """Compile the task and check the rest of the request. Raises BuildError."""
    for name in ("max_seq_len", "max_input_len", "max_num_tokens"):
        if (value := getattr(request.limits, name)) is not None:
            raise BuildError(
                f"engine.{name} is {value}, and images have no tokens", remedy=f"Remove {name}."
            )
    if not options.keep_io_types:
        raise BuildError(
            "engine.options.keep_io_types is false, and the image step makes FP32",
            remedy="Remove keep_io_types: the inner graph is fp16 without it.",
        )
    pooling = None if options.pooling == "none" else options.pooling
    task = compile_image_task(
        request, IMAGE_ARCHITECTURES, pooling=pooling, normalize=options.normalize
    )
    dynamic = (request.precision, options.calibration) == ("int8", "dynamic")
    if dynamic and task.architecture.startswith(_CONVOLUTIONS):
        raise BuildError(
            f"{task.architecture} consists of convolutions, which dynamic int8 does not quantise",
            remedy="Set engine.options.calibration to static and engine.calibration.data to a "
            "folder of images; or use fp16.",
        )
    if options.calibration == "static":
        calibration_images(request)
    return ImageBuild(request, options, task)


def build_images(job: ImageBuild, stages: Stages) -> dict[str, Any]:
    """Build the engine in the working directory.

    Returns:
        The build result.

    Raises:
        BuildError: the build is not possible. Other exceptions are bugs or machine failures.
    """
    request, task = job.request, job.task
    artefact.create_folders((*_FOLDERS, _WORK))
    with stages.stage("load"):
        from vision import export_vision, load_vision

        module = load_vision(task, request)
    with stages.stage("export"):
        from onnxlib.reader import describe_graph, read_model, write_model

        model = export_vision(module, job.options)
        check_graph(describe_graph(model), task.folder, ONNX_RUNTIME)
        write_model(model, _WORK / MODEL, external=True)
    with stages.stage("convert"):
        from convert import convert

        convert(
            _WORK / MODEL,
            _WORK,
            _ENGINE / MODEL,
            precision=request.precision,
            options=job.options,
            feeds=_calibration_feeds(job),
        )
    with stages.stage("evaluate"):
        tensors = tensor_specs(describe_graph(read_model(_ENGINE / MODEL)))
        proof = _prove(job, module.model, tensors)
    shutil.rmtree(_WORK)
    lengths = {"max_seq_len": None, "max_input_len": None}
    return {
        "files": artefact.list_files(_FOLDERS),
        "tensors": tensors,
        "limits": dataclasses.asdict(request.limits) | lengths,
        "model": None,
        "runtime": {
            "model_file": (_ENGINE / MODEL).as_posix(),
            "architecture": task.architecture,
            **({"labels": list(task.labels)} if task.labels else {}),
        },
        "versions": installed_versions(_LIBRARIES),
        "hardware": {"cpu": cpu_name(), "gpu": None, "compute_capability": None},
        "durations_seconds": stages.durations,
        "parity": None,
        "proof": proof,
    }


def _calibration_feeds(job: ImageBuild) -> list[dict[str, Any]]:
    if job.options.calibration != "static":
        return []
    from tasklib.image_settings import ImageSettings

    from taskproof.calibration import image_calibration_feeds

    return image_calibration_feeds(job.request, ImageSettings(**job.task.image))


def _prove(job: ImageBuild, model: Any, tensors: dict[str, Any]) -> dict[str, Any]:
    from convert import create_session
    from taskproof.image_proof import ImageSubject, prove_images
    from vision import transformers_version

    def graph(file: Path) -> Callable[[Any], Any]:
        engine = create_session(file)
        return lambda pixels: engine.run(None, {INPUT: pixels})[0]

    [output] = tensors["outputs"]
    job.task.write(artefact.TASK, version=transformers_version(), dimension=output["dims"][0])
    subject = ImageSubject(
        request=job.request,
        task=job.task,
        precision=precision_column(job.request.precision, job.options),
        fp32_graph=graph(_WORK / MODEL),
        engine=graph(_ENGINE / MODEL),
        model=model,
        bound_overrides=job.options.bounds,
    )
    remedy = remedy_for(job.request.precision, job.options)
    return prove_images(
        subject, artefact.PROOF, remedy=remedy, store_answers_too=job.options.is_for_tensorrt
    )
