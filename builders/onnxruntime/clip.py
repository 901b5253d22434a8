# SPDX-License-Identifier: Apache-2.0
"""Builds an engine of CLIP's text tower. Standard library only until a build starts."""

import dataclasses
import shutil
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
from support import ONNX_RUNTIME
from taskcompile.clip_text import ARCHITECTURE, compile_clip_text
from taskcompile.task import TextTask, write_task

_ENGINE = Path("engine")
_WORK = Path(".work")
_FOLDERS = (_ENGINE, artefact.TOKENIZER, artefact.TASK, artefact.PROOF)
_LIBRARIES = (
    *("numpy", "onnx", "onnxruntime", "onnxscript", "tokenizers", "torch", "transformers"),
)


@dataclass(frozen=True)
class ClipBuild:
    """A checked request."""

    request: BuilderRequest
    options: OnnxRuntimeOptions
    task: TextTask


def check_clip_request(request: BuilderRequest, options: OnnxRuntimeOptions) -> ClipBuild:
    """Compile the task and check the rest of the request. Raises BuildError."""
    if options.calibration == "static" or request.evaluation is not None:
        static = "precision int8 of a plan" if options.is_for_tensorrt else "calibration: static"
        setting = "evaluation" if request.evaluation is not None else static
        raise BuildError(
            f"{setting} is set, and CLIP's text tower does not support it",
            remedy="Remove it; the proof compares with transformers without it.",
        )
    pooling = None if options.pooling == "none" else options.pooling
    task = compile_clip_text(request, pooling=pooling, normalize=options.normalize)
    return ClipBuild(request, options, task)


def build_clip(job: ClipBuild, stages: Stages) -> dict[str, Any]:
    """Build the engine in the working directory and return the result. Raises BuildError."""
    request, task = job.request, job.task
    artefact.create_folders((*_FOLDERS, _WORK))
    with stages.stage("load"):
        from vision import export_text_tower, load_text_tower, transformers_version

        module = load_text_tower(task, request)
    with stages.stage("export"):
        from onnxlib.reader import describe_graph, read_model, write_model

        model = export_text_tower(module, job.options, task.text.max_seq_len)
        check_graph(describe_graph(model), request.checkpoint, ONNX_RUNTIME)
        write_model(model, _WORK / MODEL, external=True)
    with stages.stage("convert"):
        from convert import convert

        convert(
            _WORK / MODEL,
            _WORK,
            _ENGINE / MODEL,
            precision=request.precision,
            options=job.options,
            feeds=[],
        )
        artefact.copy_tokenizer(request.checkpoint)
    with stages.stage("evaluate"):
        write_task(task, artefact.TASK, version=transformers_version())
        proof = _prove(job, module.model)
    shutil.rmtree(_WORK)
    length = task.text.max_seq_len
    return {
        "files": artefact.list_files(_FOLDERS),
        "tensors": tensor_specs(describe_graph(read_model(_ENGINE / MODEL))),
        "limits": dataclasses.asdict(request.limits)
        | {"max_seq_len": length, "max_input_len": length},
        "model": None,
        "runtime": {
            "model_file": (_ENGINE / MODEL).as_posix(),
            "architecture": ARCHITECTURE,
            "max_seq_len": length,
        },
        "versions": installed_versions(_LIBRARIES),
        "hardware": {"cpu": cpu_name(), "gpu": None, "compute_capability": None},
        "durations_seconds": stages.durations,
        "parity": None,
        "proof": proof,
    }


def _prove(job: ClipBuild, model: Any) -> dict[str, Any]:
    from convert import create_session, run_session
    from taskproof.clip_proof import ClipSubject, prove_clip

    fp32_session, engine = create_session(_WORK / MODEL), create_session(_ENGINE / MODEL)
    subject = ClipSubject(
        folder=job.request.checkpoint,
        task=job.task,
        precision=precision_column(job.request.precision, job.options),
        fp32_graph=lambda feed: run_session(fp32_session, feed)[0],
        engine=lambda feed: run_session(engine, feed)[0],
        model=model,
        bound_overrides=job.options.bounds,
    )
    remedy = remedy_for(job.request.precision, job.options)
    return prove_clip(
        subject, artefact.PROOF, remedy=remedy, store_answers_too=job.options.is_for_tensorrt
    )
