# SPDX-License-Identifier: Apache-2.0
"""TC201, TC203, TC245 and TC246: unreadable model files, and missing external weights.

Sources: https://github.com/onnx/onnx/blob/main/docs/ExternalData.md and
https://docs.openvino.ai/2025/documentation/openvino-ir-format.html
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from tritonctl.checks.analysis.small_files import MAX_SMALL_BYTES
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model
from tritonctl.checks.rule import advice, error
from tritonctl.checks.small_file import UnreadableError, read_small
from tritonctl.checks.source_span import SourceText, Span
from tritonctl.formats.graph_file import ExternalWeights, ModelGraph, is_lfs_pointer


@error(
    "TC201 broken-model-file",
    summary="a model file with an invalid format, or truncated",
    reason="The backend cannot parse it and refuses the model.",
    shows="elsewhere",
)
def broken_file(graph: ModelGraph, model: Model) -> Iterator[Hit]:
    if graph.read_error and not graph.is_pointer:
        yield Hit(
            f"{graph.path.name} is not a readable {graph.format} file: {graph.read_error}",
            "export or copy it again, and compare its size with the original",
            relative_path=_path_in_model(model, graph.path),
        )


@error(
    "TC203 weights-missing",
    summary="external weights of a model file that are missing or truncated",
    reason="The graph is in one file and its weights in another; it does not load without them.",
    shows="elsewhere",
)
def weights_missing(graph: ModelGraph, model: Model) -> Iterator[Hit]:
    for weights in graph.weights:
        if problem := _weights_problem(model, graph, weights):
            yield Hit(
                f"the weights of {graph.path.name} are in {weights.location[:80]!r}, {problem}",
                f"put that file next to {graph.path.name}, complete and under that name",
                relative_path=_path_in_model(model, graph.path),
            )


@advice(
    "TC245 unread-file",
    summary="a model file that `tritonctl check` cannot read, or leaves out for its size",
    reason="No rule about the content of this file has run: silence about it means nothing.",
    shows="elsewhere",
)
def unread_file(model: Model) -> Iterator[Hit]:
    if model.served_version is None:
        return
    for name, problem in _unread_files(model):
        yield Hit(
            f"{name} was not checked: {problem}",
            "make it a readable file, of the usual size if that is the reason; `ls -lL` shows it",
            relative_path=f"{model.served_version}/{name}",
        )


def _unread_files(model: Model) -> Iterator[tuple[str, str]]:
    code = model.code
    # An error with a place is a syntax error.
    if code is not None and code.read_error is not None and code.error_span is None:
        yield code.path.name, code.read_error
    if model.graph_problem is not None:
        yield model.file_names[0], model.graph_problem
    content = _engine_arguments(model)
    if isinstance(content, UnreadableError):
        yield "model.json", str(content)


@error(
    "TC246 invalid-model-json",
    summary="a model.json of vLLM that is not a JSON object",
    reason="The vLLM backend reads the engine's arguments from it when it loads the model, and "
    "refuses the model.",
    shows="elsewhere",
)
def invalid_model_json(model: Model) -> Iterator[Hit]:
    content = _engine_arguments(model)
    if not isinstance(content, bytes):
        return
    name = f"{model.served_version}/model.json"
    source = SourceText(f"{model.display_path}/{name}", content.decode("utf-8", "surrogateescape"))
    span = None
    try:
        arguments = json.loads(content)
    except json.JSONDecodeError as error:
        problem, span = error.msg, Span(error.pos, error.pos + 1)
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        problem = str(error)
    else:
        if isinstance(arguments, dict):
            return
        problem = "it is not an object in braces"
    yield Hit(
        f"model.json is not what vLLM reads: {problem}",
        'write an object of engine arguments: {"model": "…"}; JSON has no comments, no single '
        "quotes and no trailing commas",
        span,
        source=source if span else None,
        relative_path=name,
    )


def _engine_arguments(model: Model) -> bytes | UnreadableError | None:
    version = model.served_version
    if model.backend != "vllm" or version is None:
        return None
    if "model.json" not in model.version_files(version):
        return None
    try:
        return read_small(model.path / str(version) / "model.json", MAX_SMALL_BYTES)
    except UnreadableError as error:
        return error


def _weights_problem(model: Model, graph: ModelGraph, weights: ExternalWeights) -> str | None:
    parts = Path(weights.location).parts
    # The server may have the file at an absolute path, or outside the folder.
    if "\0" in weights.location or weights.location.startswith(("/", "*")) or ".." in parts:
        return None
    path = graph.path.parent / weights.location
    try:
        size = os.stat(path).st_size  # noqa: PTH116 - one call that also gives the reason
    except FileNotFoundError:
        return "which does not exist"
    except OSError:
        return None
    if is_lfs_pointer(path):
        # TC016 reports a pointer in the version folder itself.
        inside = path.parent == model.path / str(model.served_version)
        return None if inside else "which is a Git LFS pointer"
    if size < weights.size:
        return f"which has {size} bytes instead of at least {weights.size}"
    return None


def _path_in_model(model: Model, path: Path) -> str:
    return path.relative_to(model.path).as_posix()
