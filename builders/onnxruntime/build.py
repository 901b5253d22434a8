# SPDX-License-Identifier: Apache-2.0
"""Build an ONNX Runtime engine: `python build.py --request R.json --result S.json`.

The working directory is a fresh staging folder. Only the result is written outside it.
builders/README.md has the contract (request, result, progress lines, exit codes).
"""

import dataclasses
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))
# A proof runs the code used in serving.
sys.path.append(str(Path(__file__).resolve().parents[2] / "python_backends"))

from buildlib import artefact
from buildlib.problems import BuildError
from buildlib.program import Stages, print_line, run_program
from buildlib.request import read_request
from buildlib.request_types import BuilderRequest
from buildlib.versions import cpu_name, installed_versions
from clip import ClipBuild, build_clip, check_clip_request
from images import ImageBuild, build_images, check_image_request
from onnxlib.graph import (
    OnnxGraph,
    check_external_data,
    check_graph,
    check_not_quantised,
    tensor_specs,
)
from options import OnnxRuntimeOptions, read_options
from precisions import check_error
from source import (
    MODEL,
    HuggingFaceEncoder,
    OnnxFile,
    Source,
    inspect_source,
    refuse_external_files,
    resolve_max_seq_len,
)
from support import ONNX_RUNTIME
from taskcompile.clip_text import is_clip
from taskcompile.compile import EncoderFacts as CompiledEncoder
from taskcompile.compile import compile_task
from taskcompile.image_task import IMAGE_TASKS
from taskcompile.pooling_check import refuse_other_pooling
from taskcompile.task import EMBEDDING, TextTask, write_task
from taskproof.evaluation_set import read_evaluation_set

if TYPE_CHECKING:
    from data import FeedSource

_ENGINE = Path("engine")
_FOLDERS = (_ENGINE, artefact.TOKENIZER)
_TASK_FOLDERS = (artefact.TASK, artefact.PROOF)
_WORK = Path(".work")
_LIBRARIES = ("numpy", "onnx", "onnxruntime")
_EXPORTERS = ("onnxscript", "torch", "transformers")
_REFERENCES = ("sentence-transformers", "tokenizers")

Outputs = Callable[[dict[str, Any]], list[Any]]


@dataclass(frozen=True)
class _Fp32Graph:
    """The source as a graph in fp32."""

    file: Path
    graph: OnnxGraph
    outputs: Outputs
    module: Any = None


@dataclass(frozen=True)
class OnnxRuntimeBuild:
    """A checked request."""

    request: BuilderRequest
    options: OnnxRuntimeOptions
    source: Source
    max_seq_len: int | None  # tokens of a text; None: the graph has no sequence
    task: TextTask | None

    @property
    def is_batched(self) -> bool:
        """Whether requests share runs; otherwise tensors have the graph's own shapes."""
        return self.request.limits.max_batch_size > 0

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders of the artefact."""
        return (*_FOLDERS, *(_TASK_FOLDERS if self.task else ()))


def build(file: Path, stages: Stages) -> dict[str, Any]:
    """Build the engine in the working directory.

    Returns:
        The build result.

    Raises:
        BuildError: the build is not possible. Other exceptions are bugs or machine failures.
    """
    job = check_request(file)
    if isinstance(job, ImageBuild):
        return build_images(job, stages)
    if isinstance(job, ClipBuild):
        return build_clip(job, stages)
    request, source = job.request, job.source
    artefact.create_folders((*job.folders, _WORK))
    plain = _fp32_graph(job, stages)
    with stages.stage("convert"):
        from convert import convert
        from data import FeedSource

        data = FeedSource(request, job.options, source, plain.graph, job.max_seq_len)
        feeds = [] if job.task else data.evaluation()
        convert(
            plain.file,
            _WORK,
            _ENGINE / MODEL,
            precision=request.precision,
            options=job.options,
            feeds=_calibration_feeds(job, data),
        )
        if source.folder is not None:
            artefact.copy_tokenizer(source.folder)
    with stages.stage("evaluate"):
        if job.task and isinstance(source, HuggingFaceEncoder):
            evaluation = _prove(job, job.task, source, plain)
        else:
            evaluation = _compare(job, plain, feeds)
        padding = _padding(job.options, plain, data) if job.is_batched else None
    shutil.rmtree(_WORK)
    return {
        "files": artefact.list_files(job.folders),
        "tensors": _engine_tensors(batched=job.is_batched),
        "limits": _limits(request, job.max_seq_len),
        "model": None,
        "runtime": _runtime(job) | ({"padding": padding} if padding else {}),
        "versions": installed_versions((*_LIBRARIES, *_extra_libraries(job))),
        "hardware": {"cpu": cpu_name(), "gpu": None, "compute_capability": None},
        "durations_seconds": stages.durations,
        **evaluation,
    }


def _calibration_feeds(job: OnnxRuntimeBuild, data: "FeedSource") -> list[dict[str, Any]]:
    if job.task is None:
        return data.calibration()
    if job.options.calibration != "static":
        return []
    from taskproof.calibration import text_calibration_feeds

    return text_calibration_feeds(job.request, job.task, job.request.checkpoint)


def _prove(
    job: OnnxRuntimeBuild, task: TextTask, source: HuggingFaceEncoder, plain: _Fp32Graph
) -> dict[str, Any]:
    from proof import prove_task
    from taskproof.text_reference import reference_version

    write_task(task, artefact.TASK, version=reference_version(task))
    proof = prove_task(
        job.request,
        job.options,
        source,
        task,
        module=plain.module,
        plain=plain.file,
        engine=_ENGINE / MODEL,
        folder=artefact.PROOF,
    )
    return {"parity": None, "proof": proof}


def _extra_libraries(job: OnnxRuntimeBuild) -> tuple[str, ...]:
    """Return the libraries that made this engine in addition to ONNX Runtime."""
    exporters = _EXPORTERS if isinstance(job.source, HuggingFaceEncoder) else ()
    return (*exporters, *(_REFERENCES if job.task else ()))


def _fp32_graph(job: OnnxRuntimeBuild, stages: Stages) -> _Fp32Graph:
    source, options = job.source, job.options
    if isinstance(source, OnnxFile):
        return _load_onnx_file(job, source, stages)
    # Imported here and below, because a checkpoint with a problem must not cost seconds.
    with stages.stage("load"):
        import export

        module = export.load_encoder(source, options, job.request, job.task)
    with stages.stage("export"):
        from onnxlib.reader import describe_graph, write_model

        max_seq_len = job.max_seq_len or source.max_seq_len
        model = export.export_encoder(module, source, options, max_seq_len)
        graph, file = describe_graph(model), _WORK / MODEL
        check_graph(graph, source.folder, ONNX_RUNTIME)
        write_model(model, file, external=True)
    return _Fp32Graph(file, graph, lambda feed: export.reference_outputs(module, feed), module)


def _load_onnx_file(job: OnnxRuntimeBuild, source: OnnxFile, stages: Stages) -> _Fp32Graph:
    with stages.stage("load"):
        from onnxlib.reader import describe_graph, external_data, read_model

        model = read_model(source.file)
        graph = describe_graph(model)
        check_graph(graph, source.file, ONNX_RUNTIME, batched=job.is_batched)
        if job.request.precision == "int8":
            check_not_quantised(graph, source.file)
        external_files = check_external_data(external_data(model), source.file)
        if external_files:
            refuse_external_files(source, external_files)

    def outputs(feed: dict[str, Any]) -> list[Any]:
        from convert import create_session, run_session

        return run_session(create_session(source.file, optimise=False), feed)

    return _Fp32Graph(source.file, graph, outputs)


def _compare(
    job: OnnxRuntimeBuild, plain: _Fp32Graph, feeds: list[dict[str, Any]]
) -> dict[str, Any]:
    from convert import create_session, run_session
    from parity import (
        ParityComparison,
        check_batching,
        check_rows,
        max_error,
        parity_result,
    )

    expected = [_source_outputs(job, plain, feed) for feed in feeds]
    engine = create_session(_ENGINE / MODEL)
    actual = [run_session(engine, feed) for feed in feeds]
    names = [tensor.name for tensor in plain.graph.outputs]
    comparison = ParityComparison(names, feeds, expected, actual, batched=job.is_batched)
    if job.is_batched:
        check_batching(comparison)
        check_rows(comparison, plain.outputs)
    error, peak = max_error(comparison)
    print_line(f"largest difference to the source: {error:.6g} (its largest output: {peak:.6g})")
    check_error(job.request.precision, job.options, error=error, peak=peak)
    return {"parity": dataclasses.asdict(parity_result(comparison, error))}


def _source_outputs(job: OnnxRuntimeBuild, plain: _Fp32Graph, feed: dict[str, Any]) -> list[Any]:
    try:
        return plain.outputs(feed)
    except Exception as error:
        if isinstance(job.source, HuggingFaceEncoder):
            raise
        raise BuildError(
            f"{job.source.file}: does not take the inputs of the comparison: {error}",
            remedy="Random inputs do not fit every graph: set engine.calibration.data to a folder "
            "of .npz samples (numpy.savez(FILE, **arrays), arrays named as the inputs), or the "
            "sizes of named dimensions in engine.options.dimensions.",
        ) from error


def _padding(
    options: OnnxRuntimeOptions, plain: _Fp32Graph, data: "FeedSource"
) -> dict[str, Any] | None:
    from convert import create_session, run_session
    from samples import takes_text
    from taskproof.padding import measure_padding

    if not (options.padding and takes_text(plain.graph)):
        return None
    engine = create_session(_ENGINE / MODEL, threads=1)
    return measure_padding(
        plain.graph.inputs,
        plain.graph.outputs,
        source=plain.outputs,
        engine=lambda feed: run_session(engine, feed),
        pad_id=data.pad_id,
        max_length=data.max_text_tokens,
    )


def _engine_tensors(*, batched: bool) -> dict[str, Any]:
    from onnxlib.reader import describe_graph, read_model

    return tensor_specs(describe_graph(read_model(_ENGINE / MODEL)), batched=batched)


def _limits(request: BuilderRequest, max_seq_len: int | None) -> dict[str, Any]:
    lengths = {"max_seq_len": max_seq_len, "max_input_len": max_seq_len}
    return dataclasses.asdict(request.limits) | lengths


def _runtime(job: OnnxRuntimeBuild) -> dict[str, Any]:
    """Return the `runtime` object of the result without `padding`."""
    facts: dict[str, Any] = {"model_file": (_ENGINE / MODEL).as_posix()}
    source = job.source
    if isinstance(source, HuggingFaceEncoder):
        facts |= {"architecture": source.architecture, "max_seq_len": job.max_seq_len}
        if source.is_classifier:
            facts["labels"] = list(job.task.labels if job.task else source.labels)
    return facts


def check_request(file: Path) -> OnnxRuntimeBuild | ImageBuild | ClipBuild:
    """Read and check a request with the standard library only. Raises BuildError."""
    request = read_request(file)
    options = read_options(request)
    if request.task in IMAGE_TASKS:
        return check_image_request(request, options)
    if request.task == EMBEDDING and is_clip(request.checkpoint):
        return check_clip_request(request, options)
    source = inspect_source(
        request.checkpoint, allow_pickle=request.allow_pickle, task=request.task
    )
    if request.task is None or isinstance(source, OnnxFile):  # files have no task
        _check_pooling(request, options, source)
        max_seq_len = resolve_max_seq_len(request.limits.max_seq_len, source)
        return OnnxRuntimeBuild(request, options, source, max_seq_len, None)
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
        read_evaluation_set(request.evaluation, task)
    return OnnxRuntimeBuild(request, options, source, task.text.max_seq_len, task)


def _check_pooling(request: BuilderRequest, options: OnnxRuntimeOptions, source: Source) -> None:
    if (
        options.pooling != "none"
        and isinstance(source, HuggingFaceEncoder)
        and not source.is_classifier
    ):
        refuse_other_pooling(
            source.folder, options.pooling, source.hidden_size, allow_pickle=request.allow_pickle
        )


if __name__ == "__main__":
    sys.exit(
        run_program(
            build,
            description="Build an ONNX Runtime engine from an encoder or an ONNX file.",
            stages=("load", "export", "convert", "evaluate"),
            check=check_request,
        )
    )
