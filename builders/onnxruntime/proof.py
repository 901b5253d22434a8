# SPDX-License-Identifier: Apache-2.0
"""Runs the proof of a text task (shared/taskproof) with ONNX Runtime.

Importing this module imports torch, onnxruntime, transformers and sentence-transformers.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from buildlib.request_types import BuilderRequest
from convert import create_session, run_session
from export import TaskModel
from options import OnnxRuntimeOptions
from precisions import precision_column, remedy_for
from source import HuggingFaceEncoder
from taskcompile.task import EMBEDDING, TAGGING, TextTask
from taskproof.feeds import Feed
from taskproof.text_pipeline import TextGraph
from taskproof.text_proof import TextSubject, prove_text


def prove_task(
    request: BuilderRequest,
    options: OnnxRuntimeOptions,
    source: HuggingFaceEncoder,
    task: TextTask,
    *,
    module: TaskModel,
    plain: Path,
    engine: Path,
    folder: Path,
) -> dict[str, Any]:
    """Return the `proof` of the result. `plain`: the exported fp32 graph. `engine`: its engine.

    Raises:
        BuildError: the engine does not answer like the reference library.
    """
    engine_graph = _onnx_graph(engine)
    subject = TextSubject(
        request=request,
        task=task,
        precision=precision_column(request.precision, options),
        fp32_graph=engine_graph if request.precision == "fp32" else _onnx_graph(plain),
        engine=engine_graph,
        graph_for_task=_task_graphs(module),
        # The heads of classifiers take the first token of a row, padding or not.
        allows_left_padding=source.allows_left_padding and task.name in (EMBEDDING, TAGGING),
        bound_overrides=options.bounds,
    )
    remedy = remedy_for(request.precision, options)
    return prove_text(subject, folder, remedy=remedy, store_answers_too=options.is_for_tensorrt)


def _onnx_graph(file: Path) -> TextGraph:
    engine = create_session(file)

    def first(feed: Feed) -> Any:
        return run_session(engine, feed)[0]

    return first


def _task_graphs(module: TaskModel) -> Callable[[TextTask], TextGraph]:
    """Return a function that makes the graph of another task on the same encoder, in torch."""

    def graph_for_task(task: TextTask) -> TextGraph:
        model = TaskModel(module.model, task).eval()

        def answer(feed: Feed) -> Any:
            with torch.inference_mode():
                output, *_ = model(*(torch.from_numpy(feed[name]) for name in model.names))
            return output.numpy()

        return answer

    return graph_for_task
