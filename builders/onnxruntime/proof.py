# SPDX-License-Identifier: Apache-2.0
"""A task's calibration and proof with ONNX Runtime: what shared/taskproof needs of this builder.

Importing this imports torch, onnxruntime, transformers and sentence-transformers.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tasklib.text_encoding import padded

from buildlib.problems import BuildError
from buildlib.request import Request
from convert import run, session
from export import TaskModel
from options import Options
from precisions import column, remedy_for
from samples import Feed
from source import Encoder
from taskcompile.task import CLASSIFICATION, EMBEDDING, RERANK, TAGGING, Task
from taskproof.cases import Case
from taskproof.prove import Subject, prove
from taskproof.served import Run, served

_PAIR = '{"query": "...", "text": "..."}'
_TEXT = '{"text_input": "..."}'


def calibration_feeds(request: Request, options: Options, task: Task) -> list[Feed]:
    """What static calibration measures ranges on: one feed for each text, all of one shape.

    Raises:
        BuildError: a line cannot be read, or has nothing that the task takes.
    """
    calibration, evaluation = request.calibration, request.evaluation
    longest = task.text.max_seq_len
    if options.calibration != "static":
        return []
    if calibration is not None:
        file, most = calibration.data, calibration.samples
        longest = min(longest, calibration.max_seq_len)
    elif evaluation is not None:
        file, most = evaluation.prompts, evaluation.max_prompts or sys.maxsize
    else:  # options.py has refused that
        return []
    steps = served(task, request.checkpoint, max_seq_len=longest)
    cases = list(_cases(file, task))[:most]
    rows = [row for row in steps.rows(cases) if row is not None]
    if not rows:
        raise BuildError(f"{file}: holds no texts", remedy="Write one text a line.")
    # Entropy and percentiles are taken over one array per tensor: every feed has one shape.
    whole = padded(rows, steps.settings)
    return [{name: a[at : at + 1] for name, a in whole.items()} for at in range(len(rows))]


def _cases(file: Path, task: Task) -> Iterator[Case]:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BuildError(
            f"{file}: the texts cannot be read: {error}",
            remedy="Give a UTF-8 file: a text a line, or JSON lines.",
        ) from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield from _case(f"{file}:{number}", line.strip(), file.suffix == ".jsonl", task)


def _case(where: str, line: str, as_json: bool, task: Task) -> Iterator[Case]:
    entry: Any = {"text_input": line}
    if as_json:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            entry = None
    entry = entry if isinstance(entry, dict) else {}
    query, text = entry.get("query"), entry.get("text") or entry.get("text_input")
    texts = (query, text) if task.name == RERANK else (text,)
    if not all(isinstance(one, str) and one for one in texts):
        example = _PAIR if task.name == RERANK else _TEXT
        raise BuildError(
            f"{where}: is no input of the task {task.name}",
            remedy=f"Use a .jsonl file, and write the line as {example}.",
        )
    if task.name == RERANK:
        yield Case(str(query), str(text))
        return
    pair = entry.get("text_pair") if task.name == CLASSIFICATION else None
    yield Case(str(text), str(pair) if pair else None)
    if query:  # of an embedding's own set
        yield Case(str(query))


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
