# SPDX-License-Identifier: Apache-2.0
"""Make an OpenVINO engine of an exported task: `python build_task.py --request R --result S`.

The graph is what the builder onnxruntime exports in fp32, proven there against the reference
library with every mistake on purpose. Here it gets its precision, and the same inputs go through
the served steps and OpenVINO, against the answers that the export kept. The working directory is
a fresh staging folder. The contract is in builders/README.md.
"""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))
# Serving's own code is what a proof runs.
sys.path.append(str(Path(__file__).resolve().parents[2] / "python_backends"))

from buildlib import artefact
from buildlib.program import Stages, run_program
from buildlib.request import Request, read_request
from buildlib.versions import cpu_name, versions
from folders import ENGINE
from task_options import (
    ONE_THREAD,
    PLAIN,
    STATIC,
    Precision,
    TaskOptions,
    precision_of,
    read_task_options,
)
from taskproof.parts import TaskParts, copy_parts, read_parts

_MODEL = "model.onnx"
_PACKAGES = ("numpy", "openvino", "tokenizers")
_LIBRARIES = (
    "Build with runner venv, or `pip install -r builders/openvino/requirements.txt` beside it."
)
# Tokens of a text at most, where padding is measured.
_LONGEST = 512


@dataclass(frozen=True)
class Checked:
    """What a request means."""

    request: Request
    options: TaskOptions

    @property
    def precision(self) -> Precision:
        """How the engine is run."""
        return precision_of(self.request, self.options)


def build(file: Path, stages: Stages) -> dict[str, Any]:
    """Build the engine in the working directory.

    Returns:
        The build result.

    Raises:
        BuildError: the build cannot be done; anything else raised is a bug or the machine's.
    """
    asked = checked(file)
    request = asked.request
    with stages.stage("load"):
        parts = read_parts(request, remedy=_LIBRARIES)
        from task_graph import read_graph, save, tensors

        model = read_graph(parts.source / ENGINE / _MODEL)
        specs = tensors(model)
    folders = (ENGINE, *parts.folders)
    artefact.prepare(folders)
    copy_parts(parts)
    with stages.stage("convert"):
        if request.precision == "int8":
            model = _quantised(asked, parts, model)
        saved = save(model, ENGINE, fp16=request.precision == "fp16")
        del model
    with stages.stage("evaluate"):
        proof, padding = _prove(asked, parts, saved)
    return {
        "files": artefact.files(folders),
        "tensors": specs,
        "limits": dataclasses.asdict(request.limits) | parts.lengths,
        "model": None,
        "runtime": {
            "model_file": saved.as_posix(),
            "properties": asked.precision.properties,
            **({"padding": padding} if padding else {}),
            **parts.facts,
        },
        "versions": versions((*_PACKAGES, *(("nncf",) if request.precision == "int8" else ()))),
        "hardware": {"cpu": cpu_name(), "gpu": None, "compute_capability": None},
        "durations_seconds": stages.durations,
        "parity": None,
        "proof": proof,
    }


def _quantised(asked: Checked, parts: TaskParts, model: Any) -> Any:
    from tasklib import task_file
    from tasklib.image_settings import ImageSettings

    from task_graph import quantised, with_small_weights
    from taskproof.calibration import image_feeds, text_calibration
    from taskproof.compiled import task_of

    if asked.options.calibration != STATIC:
        return with_small_weights(model)
    record = task_file.read_task(parts.source / artefact.TASK)
    if record.image is not None:
        feeds = image_feeds(asked.request, ImageSettings(**record.image))
    else:
        tokenizer = parts.source / artefact.TOKENIZER
        feeds = text_calibration(asked.request, task_of(record), tokenizer)
    return quantised(model, feeds)


def _prove(
    asked: Checked, parts: TaskParts, saved: Path
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The proof, and how texts of different lengths share a run."""
    from task_graph import Running
    from taskproof.compiled import Compiled, prove_compiled

    request, precision = asked.request, asked.precision
    engine = Running(saved, precision.properties)
    subject = Compiled(
        request=request,
        source=parts.source,
        precision=precision.column,
        engine=engine,
        bounds=asked.options.bounds,
    )
    remedy = f"{precision.better} Or move a bound with engine.options.bounds."
    proof = prove_compiled(subject, artefact.PROOF, remedy=remedy)
    return proof, _padding(asked, parts, saved)


def _padding(asked: Checked, parts: TaskParts, saved: Path) -> dict[str, Any] | None:
    if parts.text is None or not asked.options.padding:
        return None
    from task_graph import Running, onnx_tensors, read_graph
    from taskproof.padding import measured_padding

    plain = read_graph(parts.source / ENGINE / _MODEL)
    return measured_padding(
        onnx_tensors(plain.inputs),
        onnx_tensors(plain.outputs),
        source=Running(plain, PLAIN.properties).outputs,
        engine=Running(saved, asked.precision.properties | ONE_THREAD).outputs,
        pad_id=parts.text["pad_id"],
        longest=min(parts.text["max_seq_len"], _LONGEST),
    )


def checked(file: Path) -> Checked:
    """Return what the request means, read by the standard library alone. Raises BuildError."""
    request = read_request(file)
    return Checked(request, read_task_options(request))


if __name__ == "__main__":
    sys.exit(
        run_program(
            build,
            description="Make an OpenVINO engine of an exported task.",
            stages=("load", "convert", "evaluate"),
            check=checked,
        )
    )
