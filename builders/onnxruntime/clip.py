# SPDX-License-Identifier: Apache-2.0
"""Builds an engine of CLIP's tower of texts. Standard library only, until a build begins."""

import dataclasses
import shutil
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
from support import ONNX_RUNTIME
from taskcompile.clip_text import ARCHITECTURE, compile_clip_text
from taskcompile.task import Task, write_task

_ENGINE = Path("engine")
_WORK = Path(".work")
_FOLDERS = (_ENGINE, artefact.TOKENIZER, artefact.TASK, artefact.PROOF)
_LIBRARIES = (
    *("numpy", "onnx", "onnxruntime", "onnxscript", "tokenizers", "torch", "transformers"),
)


@dataclass(frozen=True)
class ClipBuild:
    """What a request means."""

    request: Request
    options: Options
    task: Task


def checked_clip(request: Request, options: Options) -> ClipBuild:
    """Compile the task and check what the request asks besides. Raises BuildError."""
    if options.calibration == "static" or request.evaluation is not None:
        static = "precision int8 of a plan" if options.compiled else "calibration: static"
        asked = "evaluation" if request.evaluation is not None else static
        raise BuildError(
            f"{asked} is set, which CLIP's tower of texts does not have",
            remedy="Remove it; the proof compares with transformers all the same.",
        )
    pooling = None if options.pooling == "none" else options.pooling
    task = compile_clip_text(request, pooling=pooling, normalize=options.normalize)
    return ClipBuild(request, options, task)


def build_clip(asked: ClipBuild, stages: Stages) -> dict[str, Any]:
    """Build the engine in the working directory; returns the build result. Raises BuildError."""
    request, task = asked.request, asked.task
    artefact.prepare((*_FOLDERS, _WORK))
    with stages.stage("load"):
        from vision import export_text_tower, load_text_tower, version

        module = load_text_tower(task, request)
    with stages.stage("export"):
        from onnxlib.reader import graph_of, read_model, write_model

        model = export_text_tower(module, asked.options, task.text.max_seq_len)
        check_graph(graph_of(model), request.checkpoint, ONNX_RUNTIME)
        write_model(model, _WORK / MODEL, external=True)
    with stages.stage("convert"):
        from convert import convert

        convert(
            _WORK / MODEL,
            _WORK,
            _ENGINE / MODEL,
            precision=request.precision,
            options=asked.options,
            feeds=[],
        )
        artefact.copy_tokenizer(request.checkpoint)
    with stages.stage("evaluate"):
        write_task(task, artefact.TASK, version=version())
        proof = _prove(asked, module.model)
    shutil.rmtree(_WORK)
    length = task.text.max_seq_len
    return {
        "files": artefact.files(_FOLDERS),
        "tensors": tensor_specs(graph_of(read_model(_ENGINE / MODEL))),
        "limits": dataclasses.asdict(request.limits)
        | {"max_seq_len": length, "max_input_len": length},
        "model": None,
        "runtime": {
            "model_file": (_ENGINE / MODEL).as_posix(),
            "architecture": ARCHITECTURE,
            "max_seq_len": length,
        },
        "versions": versions(_LIBRARIES),
        "hardware": {"cpu": cpu_name(), "gpu": None, "compute_capability": None},
        "durations_seconds": stages.durations,
        "parity": None,
        "proof": proof,
    }


def _prove(asked: ClipBuild, model: Any) -> dict[str, Any]:
    from convert import run, session
    from taskproof.clip_proof import ClipSubject, prove_clip

    plain, engine = session(_WORK / MODEL), session(_ENGINE / MODEL)
    subject = ClipSubject(
        folder=asked.request.checkpoint,
        task=asked.task,
        precision=column(asked.request.precision, asked.options),
        plain=lambda feed: run(plain, feed)[0],
        engine=lambda feed: run(engine, feed)[0],
        model=model,
        bounds=asked.options.bounds,
    )
    remedy = remedy_for(asked.request.precision, asked.options)
    return prove_clip(subject, artefact.PROOF, remedy=remedy, keep=asked.options.compiled)
