# SPDX-License-Identifier: Apache-2.0
"""Reads, checks and tokenises the evaluation prompts before any heavy work starts."""

import itertools
import json
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buildlib.problems import BuildError
from buildlib.request_types import RequestedEvaluation

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_LINE = '{"text_input": "...", "text_output": "..."}'


@dataclass(frozen=True)
class EvaluationPrompt:
    """One tokenised prompt."""

    text: str
    ids: list[int]
    max_tokens: int  # of the answer
    answer: str | None  # the right answer, if the file has it


def load_tokenizer(folder: Path) -> "Tokenizer":
    """Return the tokenizer in `folder`, read by the library that serving uses.

    Raises:
        BuildError: the library cannot read tokenizer.json.
    """
    # Imported here, so that an environment without it still gets a result with a remedy.
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise BuildError(
            f"{path}: is not a tokenizer that the tokenizers library reads: {error}",
            remedy="Save it again: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER).",
        ) from error


def read_prompts(
    request: RequestedEvaluation | None, tokenizer: Any, max_seq_len: int
) -> list[EvaluationPrompt]:
    """Return the prompts of a JSONL file, one object per line. Without a request, return [].

    Raises:
        BuildError: the file cannot be read, is empty, or has a malformed or too long line.
    """
    if request is None:
        return []
    with closing(_numbered_lines(request.prompts)) as lines:
        prompts = [
            _parse_prompt(
                f"{request.prompts}:{number}", line, request.max_tokens, tokenizer, max_seq_len
            )
            for number, line in itertools.islice(lines, request.max_prompts)
        ]
    if not prompts:
        remedy = f"Write one JSON object per line: {_LINE}."
        raise BuildError(f"{request.prompts}: holds no prompts", remedy=remedy)
    return prompts


def _numbered_lines(path: Path) -> Generator[tuple[int, str], None, None]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise BuildError(
            f"{path}: the evaluation prompts cannot be read: {error.strerror}",
            remedy="Set evaluation.prompts to a file with one JSON object per line.",
        ) from error
    except UnicodeDecodeError as error:
        problem = f"{path}: is not UTF-8 text: {error.reason}"
        raise BuildError(problem, remedy="Save the file as UTF-8.") from error


def _parse_prompt(
    location: str, line: str, max_tokens: int, tokenizer: Any, max_seq_len: int
) -> EvaluationPrompt:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        problem = f"{location}: is not valid JSON: {error.msg} (column {error.colno})"
        raise BuildError(problem, remedy=f"Write the line as {_LINE}.") from error
    text = entry.get("text_input") if isinstance(entry, dict) else None
    answer = entry.get("text_output") if isinstance(entry, dict) else None
    if not isinstance(text, str) or not text or not isinstance(answer, str | None):
        problem = f"{location}: needs a text_input, and text_output must be text if given"
        raise BuildError(problem, remedy=f"Write the line as {_LINE}.")
    ids = tokenizer.encode(text, add_special_tokens=True).ids
    if not 0 < len(ids) < max_seq_len:
        raise BuildError(
            f"{location}: the prompt has {len(ids)} tokens, and max_seq_len is {max_seq_len}",
            remedy="Shorten the prompt, or raise engine.max_seq_len.",
        )
    return EvaluationPrompt(text, list(ids), min(max_tokens, max_seq_len - len(ids)), answer)
