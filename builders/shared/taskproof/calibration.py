# SPDX-License-Identifier: Apache-2.0
"""What static calibration measures ranges on, as the served steps read it.

Needs numpy, and tokenizers or Pillow.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasklib.image_settings import ImageSettings
from tasklib.item_errors import ItemError
from tasklib.text_encoding import padded

from buildlib.problems import BuildError
from buildlib.request import Request
from taskcompile.image_task import INPUT
from taskcompile.task import CLASSIFICATION, RERANK, Task
from taskproof.cases import Case
from taskproof.feeds import Feed
from taskproof.image_files import require_images
from taskproof.image_scene import served_pixels
from taskproof.served import served

_PAIR = '{"query": "...", "text": "..."}'
_TEXT = '{"text_input": "..."}'


def text_calibration(request: Request, task: Task, tokenizer: Path) -> list[Feed]:
    """One feed for each text of the calibration, or of the evaluation; all of one shape.

    Raises:
        BuildError: there is neither, a line cannot be read, or has nothing that the task takes.
    """
    calibration, evaluation = request.calibration, request.evaluation
    longest = task.text.max_seq_len
    if calibration is not None:
        file, most = calibration.data, calibration.samples
        longest = min(longest, calibration.max_seq_len)
    elif evaluation is not None:
        file, most = evaluation.prompts, evaluation.max_prompts or sys.maxsize
    else:
        raise BuildError(
            "static calibration needs texts, and the project has no calibration data",
            remedy="Set engine.calibration.data to a file with texts like those to come.",
        )
    steps = served(task, tokenizer, max_seq_len=longest)
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


def image_feeds(request: Request, settings: ImageSettings) -> list[dict[str, Any]]:
    """One feed an image.

    Raises:
        BuildError: there are none, or one cannot be read.
    """
    feeds = []
    for file in require_images(request):
        try:
            feeds.append({INPUT: served_pixels(settings, [file.read_bytes()])})
        except ItemError as error:
            raise BuildError(f"{file}: {error}", remedy="Replace or remove it.") from error
    return feeds
