# SPDX-License-Identifier: Apache-2.0
"""Builds an engine of a task of images. Standard library only, until the build itself begins."""

import dataclasses
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildlib import artefact
from buildlib.problems import BuildError
from buildlib.program import Stages
from buildlib.request import Request
from buildlib.versions import cpu_name, versions
from onnxlib.graph import check_graph, tensor_specs
from options import Options
from precisions import column, remedy_for
from source import MODEL
from support import IMAGE_ARCHITECTURES, ONNX_RUNTIME
from taskcompile.image_task import INPUT, ImageTask, compile_image_task
from taskproof.image_files import require_images

_ENGINE = Path("engine")
_WORK = Path(".work")
_FOLDERS = (_ENGINE, artefact.TASK, artefact.PROOF)
_LIBRARIES = ("numpy", "onnx", "onnxruntime", "onnxscript", "pillow", "torch", "transformers")
# Nearly all their weights are those of convolutions, which dynamic int8 leaves as they are.
_CONVOLUTIONS = ("ResNet",)


@dataclass(frozen=True)
class ImageBuild:
    """What a request means."""

    request: Request
    options: Options
    task: ImageTask


def checked_images(request: Request, options: Options) -> ImageBuild:
    """Compile the task and check what the request asks besides. Raises BuildError."""
    for name in ("max_seq_len", "max_input_len", "max_num_tokens"):
        if (value := getattr(request.limits, name)) is not None:
            raise BuildError(
                f"engine.{name} is {value}, and images have no tokens", remedy=f"Remove {name}."
            )
    if not options.keep_io_types:
        raise BuildError(
            "engine.options.keep_io_types is false, and the image step makes FP32",
            remedy="Remove keep_io_types: inside, the graph is fp16 all the same.",
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
        require_images(request)
    return ImageBuild(request, options, task)


def build_images(asked: ImageBuild, stages: Stages) -> dict[str, Any]:
    """Build the engine in the working directory.

    Returns:
        The build result.

    Raises:
        BuildError: the build cannot be done; anything else raised is a bug or the machine's.
    """
    request, task = asked.request, asked.task
    artefact.prepare((*_FOLDERS, _WORK))
    with stages.stage("load"):
        from vision import export_vision, load_vision

        module = load_vision(task, request)
    with stages.stage("export"):
        from onnxlib.reader import graph_of, read_model, write_model

        model = export_vision(module, asked.options)
        check_graph(graph_of(model), task.folder, ONNX_RUNTIME)
        write_model(model, _WORK / MODEL, external=True)
    with stages.stage("convert"):
        from convert import convert

        convert(
            _WORK / MODEL,
            _WORK,
            _ENGINE / MODEL,
            precision=request.precision,
            options=asked.options,
            feeds=_calibration(asked),
        )
    with stages.stage("evaluate"):
        tensors = tensor_specs(graph_of(read_model(_ENGINE / MODEL)))
        proof = _prove(asked, module.model, tensors)
    shutil.rmtree(_WORK)
    lengths = {"max_seq_len": None, "max_input_len": None}
    return {
        "files": artefact.files(_FOLDERS),
        "tensors": tensors,
        "limits": dataclasses.asdict(request.limits) | lengths,
        "model": None,
        "runtime": {
            "model_file": (_ENGINE / MODEL).as_posix(),
            "architecture": task.architecture,
            **({"labels": list(task.labels)} if task.labels else {}),
        },
        "versions": versions(_LIBRARIES),
        "hardware": {"cpu": cpu_name(), "gpu": None, "compute_capability": None},
        "durations_seconds": stages.durations,
        "parity": None,
        "proof": proof,
    }


def _calibration(asked: ImageBuild) -> list[dict[str, Any]]:
    if asked.options.calibration != "static":
        return []
    from tasklib.image_settings import ImageSettings

    from taskproof.calibration import image_feeds

    return image_feeds(asked.request, ImageSettings(**asked.task.image))


def _prove(asked: ImageBuild, model: Any, tensors: dict[str, Any]) -> dict[str, Any]:
    from convert import session
    from taskproof.image_proof import ImageSubject, prove_images
    from vision import version

    def graph(file: Path) -> Callable[[Any], Any]:
        engine = session(file)
        return lambda pixels: engine.run(None, {INPUT: pixels})[0]

    [output] = tensors["outputs"]
    asked.task.write(artefact.TASK, version=version(), dimension=output["dims"][0])
    subject = ImageSubject(
        request=asked.request,
        task=asked.task,
        precision=column(asked.request.precision, asked.options),
        plain=graph(_WORK / MODEL),
        engine=graph(_ENGINE / MODEL),
        model=model,
        bounds=asked.options.bounds,
    )
    remedy = remedy_for(asked.request.precision, asked.options)
    return prove_images(subject, artefact.PROOF, remedy=remedy, keep=asked.options.compiled)
