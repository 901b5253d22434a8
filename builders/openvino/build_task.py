# SPDX-License-Identifier: Apache-2.0
"""Make an OpenVINO engine of an exported task: `python build_task.py --request R --result S`.

The builder onnxruntime exports the graph in fp32 and proves it against the reference library, with
every deliberate mistake. This program converts the graph to its precision. Then it runs the same
inputs through the steps used in serving and compares with the stored answers. The working
directory is a fresh staging folder. builders/README.md has the contract.
"""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))
# A proof runs the code used in serving.
sys.path.append(str(Path(__file__).resolve().parents[2] / "python_backends"))

from buildlib import artefact
from buildlib.program import Stages, run_program
from buildlib.request import read_request
from buildlib.request_types import BuilderRequest
from buildlib.versions import cpu_name, installed_versions
from folders import ENGINE
from task_options import (
    FP32_PRECISION,
    ONE_THREAD,
    STATIC,
    TaskOptions,
    TaskPrecision,
    read_task_options,
    task_precision,
)
from taskproof.exported_task import ExportedTask, copy_task_folders, read_exported_task

_MODEL = "model.onnx"
_PACKAGES = ("numpy", "openvino", "tokenizers")
_LIBRARIES = "Build with runner venv, or `pip install -r builders/openvino/requirements.txt` here."
# The maximum tokens of a text in the padding measurement.
_MAX_TEXT_TOKENS = 512


@dataclass(frozen=True)
class OpenvinoTaskBuild:
    """A checked request."""

    request: BuilderRequest
    options: TaskOptions

    @property
    def precision(self) -> TaskPrecision:
        """The properties of the precision."""
        return task_precision(self.request, self.options)


def build(file: Path, stages: Stages) -> dict[str, Any]:
    """Build the engine in the working directory.

    Returns:
        The build result.

    Raises:
        BuildError: the build is not possible. Other exceptions are bugs or machine failures.
    """
    job = check_request(file)
    request = job.request
    with stages.stage("load"):
        exported = read_exported_task(request, remedy=_LIBRARIES)
        from task_graph import read_graph, save_graph, tensor_specs

        model = read_graph(exported.source / ENGINE / _MODEL)
        specs = tensor_specs(model)
    folders = (ENGINE, *exported.folders)
    artefact.create_folders(folders)
    copy_task_folders(exported)
    with stages.stage("convert"):
        if request.precision == "int8":
            model = _quantise(job, exported, model)
        engine_file = save_graph(model, ENGINE, fp16=request.precision == "fp16")
        del model
    with stages.stage("evaluate"):
        proof, padding = _prove(job, exported, engine_file)
    return {
        "files": artefact.list_files(folders),
        "tensors": specs,
        "limits": dataclasses.asdict(request.limits) | exported.lengths,
        "model": None,
        "runtime": {
            "model_file": engine_file.as_posix(),
            "properties": job.precision.properties,
            **({"padding": padding} if padding else {}),
            **exported.facts,
        },
        "versions": installed_versions(
            (*_PACKAGES, *(("nncf",) if request.precision == "int8" else ()))
        ),
        "hardware": {"cpu": cpu_name(), "gpu": None, "compute_capability": None},
        "durations_seconds": stages.durations,
        "parity": None,
        "proof": proof,
    }


def _quantise(job: OpenvinoTaskBuild, exported: ExportedTask, model: Any) -> Any:
    from tasklib import task_file
    from tasklib.image_settings import ImageSettings

    from task_graph import compress_weights, quantise
    from taskproof.calibration import image_calibration_feeds, text_calibration_feeds
    from taskproof.compiled_proof import to_text_task

    if job.options.calibration != STATIC:
        return compress_weights(model)
    record = task_file.read_task(exported.source / artefact.TASK)
    if record.image is not None:
        feeds = image_calibration_feeds(job.request, ImageSettings(**record.image))
    else:
        tokenizer = exported.source / artefact.TOKENIZER
        feeds = text_calibration_feeds(job.request, to_text_task(record), tokenizer)
    return quantise(model, feeds)


def _prove(
    job: OpenvinoTaskBuild, exported: ExportedTask, engine_file: Path
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the proof, and the `padding` of the result's `runtime`."""
    from task_graph import GraphRunner
    from taskproof.compiled_proof import CompiledSubject, prove_compiled

    request, precision = job.request, job.precision
    engine = GraphRunner(engine_file, precision.properties)
    subject = CompiledSubject(
        request=request,
        source=exported.source,
        precision=precision.column,
        engine=engine,
        bound_overrides=job.options.bounds,
    )
    remedy = f"{precision.remedy} Or move a bound with engine.options.bounds."
    proof = prove_compiled(subject, artefact.PROOF, remedy=remedy)
    return proof, _padding(job, exported, engine_file)


def _padding(
    job: OpenvinoTaskBuild, exported: ExportedTask, engine_file: Path
) -> dict[str, Any] | None:
    if exported.text is None or not job.options.padding:
        return None
    from task_graph import GraphRunner, onnx_tensors, read_graph
    from taskproof.padding import measure_padding

    source_graph = read_graph(exported.source / ENGINE / _MODEL)
    return measure_padding(
        onnx_tensors(source_graph.inputs),
        onnx_tensors(source_graph.outputs),
        source=GraphRunner(source_graph, FP32_PRECISION.properties).outputs,
        engine=GraphRunner(engine_file, job.precision.properties | ONE_THREAD).outputs,
        pad_id=exported.text["pad_id"],
        max_length=min(exported.text["max_seq_len"], _MAX_TEXT_TOKENS),
    )


def check_request(file: Path) -> OpenvinoTaskBuild:
    """Read and check a request with the standard library only. Raises BuildError."""
    request = read_request(file)
    return OpenvinoTaskBuild(request, read_task_options(request))


if __name__ == "__main__":
    sys.exit(
        run_program(
            build,
            description="Make an OpenVINO engine of an exported task.",
            stages=("load", "convert", "evaluate"),
            check=check_request,
        )
    )
