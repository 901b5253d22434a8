# SPDX-License-Identifier: Apache-2.0
"""Build an ONNX Runtime engine: `python build.py --request R.json --result S.json`.

The working directory is a fresh staging folder, and nothing is written outside it but the result.
The contract (request, result, progress lines, exit codes) is in builders/README.md.
"""

import dataclasses
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))
# Serving's own code is what a proof runs.
sys.path.append(str(Path(__file__).resolve().parents[2] / "python_backends"))

from buildlib import artefact
from buildlib.program import Stages, run_program, say
from buildlib.request import Request, read_request
from buildlib.versions import cpu_name, versions
from clip import ClipBuild, build_clip, checked_clip
from images import ImageBuild, build_images, checked_images
from onnxlib.graph import (
    OnnxGraph,
    check_external_data,
    check_graph,
    check_not_quantised,
    tensor_specs,
)
from options import Options, read_options
from precisions import check_error
from source import (
    MODEL,
    Encoder,
    GivenGraph,
    Source,
    inspect_source,
    refuse_files_beside,
    resolve_max_seq_len,
)
from support import ONNX_RUNTIME
from taskcompile.clip_text import is_clip
from taskcompile.compile import Encoder as CompiledEncoder
from taskcompile.compile import compile_task
from taskcompile.image_task import IMAGE_TASKS
from taskcompile.own_pooling import refuse_other_pooling
from taskcompile.task import EMBEDDING, Task, write_task
from taskproof.own_set import read_set

if TYPE_CHECKING:
    from data import Data

_ENGINE = Path("engine")
_FOLDERS = (_ENGINE, artefact.TOKENIZER)
_TASK_FOLDERS = (artefact.TASK, artefact.PROOF)
_WORK = Path(".work")
_LIBRARIES = ("numpy", "onnx", "onnxruntime")
_EXPORTERS = ("onnxscript", "torch", "transformers")
_REFERENCES = ("sentence-transformers", "tokenizers")

Outputs = Callable[[dict[str, Any]], list[Any]]


@dataclass(frozen=True)
class _Plain:
    """The source as a graph in fp32, and its own answers."""

    file: Path
    graph: OnnxGraph
    outputs: Outputs
    module: Any = None


@dataclass(frozen=True)
class Checked:
    """What a request means. `max_seq_len`: tokens of a text; None for a graph without that."""

    request: Request
    options: Options
    source: Source
    max_seq_len: int | None
    task: Task | None

    @property
    def folders(self) -> tuple[Path, ...]:
        """Those of the artefact."""
        return (*_FOLDERS, *(_TASK_FOLDERS if self.task else ()))


def build(file: Path, stages: Stages) -> dict[str, Any]:
    """Build the engine in the working directory.

    Returns:
        The build result.

    Raises:
        BuildError: the build cannot be done; anything else raised is a bug or the machine's.
    """
    asked = checked(file)
    if isinstance(asked, ImageBuild):
        return build_images(asked, stages)
    if isinstance(asked, ClipBuild):
        return build_clip(asked, stages)
    request, source = asked.request, asked.source
    artefact.prepare((*asked.folders, _WORK))
    plain = _plain_graph(asked, stages)
    with stages.stage("convert"):
        from convert import convert
        from data import Data

        data = Data(request, asked.options, source, plain.graph, asked.max_seq_len)
        feeds = [] if asked.task else data.evaluation()
        convert(
            plain.file,
            _WORK,
            _ENGINE / MODEL,
            precision=request.precision,
            options=asked.options,
            feeds=_calibration(asked, data),
        )
        if source.folder is not None:
            artefact.copy_tokenizer(source.folder)
    with stages.stage("evaluate"):
        if asked.task and isinstance(source, Encoder):
            judged = _prove(asked, asked.task, source, plain)
        else:
            judged = _compare(asked, plain, feeds)
        padding = _padding(asked.options, plain, data)
    shutil.rmtree(_WORK)
    return {
        "files": artefact.files(asked.folders),
        "tensors": _served_tensors(),
        "limits": _limits(request, asked.max_seq_len),
        "model": None,
        "runtime": _runtime(asked) | ({"padding": padding} if padding else {}),
        "versions": versions((*_LIBRARIES, *_others(asked))),
        "hardware": {"cpu": cpu_name(), "gpu": None, "compute_capability": None},
        "durations_seconds": stages.durations,
        **judged,
    }


def _calibration(asked: Checked, data: "Data") -> list[dict[str, Any]]:
    if asked.task is None:
        return data.calibration()
    if asked.options.calibration != "static":
        return []
    from taskproof.calibration import text_calibration

    return text_calibration(asked.request, asked.task, asked.request.checkpoint)


def _prove(asked: Checked, task: Task, source: Encoder, plain: _Plain) -> dict[str, Any]:
    from proof import prove_task
    from taskproof.reference import version_of

    write_task(task, artefact.TASK, version=version_of(task))
    proof = prove_task(
        asked.request,
        asked.options,
        source,
        task,
        module=plain.module,
        plain=plain.file,
        engine=_ENGINE / MODEL,
        folder=artefact.PROOF,
    )
    return {"parity": None, "proof": proof}


def _others(asked: Checked) -> tuple[str, ...]:
    """Libraries that shaped this engine besides ONNX Runtime."""
    exporters = _EXPORTERS if isinstance(asked.source, Encoder) else ()
    return (*exporters, *(_REFERENCES if asked.task else ()))


def _plain_graph(asked: Checked, stages: Stages) -> _Plain:
    source, options = asked.source, asked.options
    if isinstance(source, GivenGraph):
        return _given(asked.request, source, stages)
    # Here and below: seconds that a checkpoint with a problem must not cost.
    with stages.stage("load"):
        import export

        module = export.load_encoder(source, options, asked.request, asked.task)
    with stages.stage("export"):
        from onnxlib.reader import graph_of, write_model

        longest = asked.max_seq_len or source.max_seq_len
        model = export.export_encoder(module, source, options, longest)
        graph, file = graph_of(model), _WORK / MODEL
        check_graph(graph, source.folder, ONNX_RUNTIME)
        write_model(model, file, external=True)
    return _Plain(file, graph, lambda feed: export.reference_outputs(module, feed), module)


def _given(request: Request, source: GivenGraph, stages: Stages) -> _Plain:
    with stages.stage("load"):
        from onnxlib.reader import external_data, graph_of, read_model

        model = read_model(source.file)
        graph = graph_of(model)
        check_graph(graph, source.file, ONNX_RUNTIME)
        if request.precision == "int8":
            check_not_quantised(graph, source.file)
        outside = check_external_data(external_data(model), source.file)
        if outside:
            refuse_files_beside(source, outside)

    def outputs(feed: dict[str, Any]) -> list[Any]:
        from convert import run, session

        return run(session(source.file, optimise=False), feed)

    return _Plain(source.file, graph, outputs)


def _compare(asked: Checked, plain: _Plain, feeds: list[dict[str, Any]]) -> dict[str, Any]:
    from convert import run, session
    from parity import Comparison, check_batching, largest_error, outcome

    engine = session(_ENGINE / MODEL)
    got = [run(engine, feed) for feed in feeds]
    expected = [plain.outputs(feed) for feed in feeds]
    names = [tensor.name for tensor in plain.graph.outputs]
    comparison = Comparison(names, feeds, expected, got)
    check_batching(comparison)
    error, peak = largest_error(comparison)
    say(f"largest difference to the source: {error:.6g} (its largest output: {peak:.6g})")
    check_error(asked.request.precision, asked.options, error=error, peak=peak)
    return {"parity": dataclasses.asdict(outcome(comparison, error))}


def _padding(options: Options, plain: _Plain, data: "Data") -> dict[str, Any] | None:
    from convert import run, session
    from samples import takes_text
    from taskproof.padding import measured_padding

    if not (options.padding and takes_text(plain.graph)):
        return None
    engine = session(_ENGINE / MODEL, threads=1)
    return measured_padding(
        plain.graph.inputs,
        plain.graph.outputs,
        source=plain.outputs,
        engine=lambda feed: run(engine, feed),
        pad_id=data.pad_id,
        longest=data.longest,
    )


def _served_tensors() -> dict[str, Any]:
    from onnxlib.reader import graph_of, read_model

    return tensor_specs(graph_of(read_model(_ENGINE / MODEL)))


def _limits(request: Request, max_seq_len: int | None) -> dict[str, Any]:
    lengths = {"max_seq_len": max_seq_len, "max_input_len": max_seq_len}
    return dataclasses.asdict(request.limits) | lengths


def _runtime(asked: Checked) -> dict[str, Any]:
    """What serving needs to know besides the tensors."""
    facts: dict[str, Any] = {"model_file": (_ENGINE / MODEL).as_posix()}
    source = asked.source
    if isinstance(source, Encoder):
        facts |= {"architecture": source.architecture, "max_seq_len": asked.max_seq_len}
        if source.classifies:
            facts["labels"] = list(asked.task.labels if asked.task else source.labels)
    return facts


def checked(file: Path) -> Checked | ImageBuild | ClipBuild:
    """Return what the request means, read by the standard library alone. Raises BuildError."""
    request = read_request(file)
    options = read_options(request)
    if request.task in IMAGE_TASKS:
        return checked_images(request, options)
    if request.task == EMBEDDING and is_clip(request.checkpoint):
        return checked_clip(request, options)
    source = inspect_source(
        request.checkpoint, allow_pickle=request.allow_pickle, task=request.task
    )
    if request.task is None or isinstance(source, GivenGraph):  # which has no task
        _check_pooling(request, options, source)
        longest = resolve_max_seq_len(request.limits.max_seq_len, source)
        return Checked(request, options, source, longest, None)
    task = compile_task(
        request,
        CompiledEncoder(
            architecture=source.architecture,
            vocab_size=source.vocab_size,
            hidden_size=source.hidden_size,
            positions=source.max_seq_len,
            pad_id=source.pad_token_id,
            inputs=source.inputs,
        ),
        pooling=None if options.pooling == "none" else options.pooling,
        normalize=options.normalize,
    )
    if request.evaluation is not None:
        read_set(request.evaluation, task)
    return Checked(request, options, source, task.text.max_seq_len, task)


def _check_pooling(request: Request, options: Options, source: Source) -> None:
    if options.pooling != "none" and isinstance(source, Encoder) and not source.classifies:
        refuse_other_pooling(
            source.folder, options.pooling, source.hidden_size, allow_pickle=request.allow_pickle
        )


if __name__ == "__main__":
    sys.exit(
        run_program(
            build,
            description="Build an ONNX Runtime engine from an encoder or an ONNX file.",
            stages=("load", "export", "convert", "evaluate"),
            check=checked,
        )
    )
