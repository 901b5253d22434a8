# SPDX-License-Identifier: Apache-2.0
"""A task's proof with ONNX Runtime: what shared/taskproof needs of this builder.

Importing this imports torch, onnxruntime, transformers and sentence-transformers.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from buildlib.request import Request
from convert import run, session
from export import TaskModel
from options import Options
from precisions import column, remedy_for
from source import Encoder
from taskcompile.task import EMBEDDING, TAGGING, Task
from taskproof.feeds import Feed
from taskproof.prove import Subject, prove
from taskproof.served import Run


def prove_task(
    request: Request,
    options: Options,
    source: Encoder,
    task: Task,
    *,
    module: TaskModel,
    plain: Path,
    engine: Path,
    folder: Path,
) -> dict[str, Any]:
    """The `proof` of the result. `plain`: the graph as exported, in fp32; `engine`: as served.

    Raises:
        BuildError: the engine does not answer as the reference library does.
    """
    served_run = _onnx_run(engine)
    subject = Subject(
        request=request,
        task=task,
        precision=column(request.precision, options),
        plain=served_run if request.precision == "fp32" else _onnx_run(plain),
        engine=served_run,
        changed=_changed(module),
        # The heads of classifiers take the first token, wherever the text begins.
        either_side=source.either_side and task.name in (EMBEDDING, TAGGING),
        bounds=options.bounds,
    )
    remedy = remedy_for(request.precision, options)
    return prove(subject, folder, remedy=remedy, keep=options.compiled)


def _onnx_run(file: Path) -> Run:
    engine = session(file)

    def first(feed: Feed) -> Any:
        return run(engine, feed)[0]

    return first


def _changed(module: TaskModel) -> Callable[[Task], Run]:
    """The graph of another task on the same encoder, in torch."""

    def changed(task: Task) -> Run:
        other = TaskModel(module.model, task).eval()

        def answer(feed: Feed) -> Any:
            with torch.inference_mode():
                [made] = other(*(torch.from_numpy(feed[name]) for name in other.names))
            return made.numpy()

        return answer

    return changed
