# SPDX-License-Identifier: Apache-2.0
"""Prepares the data of static calibration with the steps used in serving.

Needs numpy, and tokenizers or Pillow.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasklib.image_settings import ImageSettings
from tasklib.item_errors import ItemError
from tasklib.text_encoding import pad_rows

from buildlib.problems import BuildError
from buildlib.request_types import BuilderRequest
from taskcompile.image_task import INPUT
from taskcompile.task import CLASSIFICATION, RERANK, TextTask
from taskproof.feeds import Feed
from taskproof.image_files import calibration_images
from taskproof.image_proof_data import preprocess_images
from taskproof.text_cases import TextCase
from taskproof.text_pipeline import text_pipeline

_PAIR = '{"query": "...", "text": "..."}'
_TEXT = '{"text_input": "..."}'


def text_calibration_feeds(request: BuilderRequest, task: TextTask, tokenizer: Path) -> list[Feed]:
    """Return one feed per text of the calibration data, else of the evaluation set.

    All feeds have one shape.

    Raises:
        BuildError: the request has neither, or a line is unreadable or not an input of the task.
    """
    calibration, evaluation = request.calibration, request.evaluation
    max_seq_len = task.text.max_seq_len
    if calibration is not None:
        file, max_texts = calibration.data, calibration.samples
        max_seq_len = min(max_seq_len, calibration.max_seq_len)
    elif evaluation is not None:
        file, max_texts = evaluation.prompts, evaluation.max_prompts or sys.maxsize
    else:
        raise BuildError(
            "static calibration needs texts, and the project has no calibration data",
            remedy="Set engine.calibration.data to a file with texts like those to come.",
        )
    pipeline = text_pipeline(task, tokenizer, max_seq_len=max_seq_len)
    cases = list(_read_cases(file, task))[:max_texts]
    rows = [row for row in pipeline.encode(cases) if row is not None]
    if not rows:
        raise BuildError(f"{file}: holds no texts", remedy="Write one text a line.")
    # Entropy and percentiles need one array per tensor, so every feed has one shape.
    batch = pad_rows(rows, pipeline.settings)
    return [{name: array[at : at + 1] for name, array in batch.items()} for at in range(len(rows))]


def _read_cases(file: Path, task: TextTask) -> Iterator[TextCase]:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BuildError(
            f"{file}: the texts cannot be read: {error}",
            remedy="Give a UTF-8 file: a text a line, or JSON lines.",
        ) from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield from _parse_line(f"{file}:{number}", line.strip(), file.suffix == ".jsonl", task)


def _parse_line(location: str, line: str, as_json: bool, task: TextTask) -> Iterator[TextCase]:
    entry: Any = {"text_input": line}
    if as_json:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            entry = None
    entry = entry if isinstance(entry, dict) else {}
    query, text = entry.get("query"), entry.get("text") or entry.get("text_input")
    texts = (query, text) if task.name == RERANK else (text,)
    if not all(isinstance(value, str) and value for value in texts):
        example = _PAIR if task.name == RERANK else _TEXT
        raise BuildError(
            f"{location}: is not an input of the task {task.name}",
            remedy=f"Use a .jsonl file, and write the line as {example}.",
        )
    if task.name == RERANK:
        yield TextCase(str(query), str(text))
        return
    pair = entry.get("text_pair") if task.name == CLASSIFICATION else None
    yield TextCase(str(text), str(pair) if pair else None)
    if query:  # of an evaluation set for embeddings
        yield TextCase(str(query))


def image_calibration_feeds(
    request: BuilderRequest, settings: ImageSettings
) -> list[dict[str, Any]]:
    """Return one feed per image.

    Raises:
        BuildError: there are no images, or one is unreadable.
    """
    feeds = []
    for file in calibration_images(request):
        try:
            feeds.append({INPUT: preprocess_images(settings, [file.read_bytes()])})
        except ItemError as error:
            raise BuildError(f"{file}: {error}", remedy="Replace or remove it.") from error
    return feeds
