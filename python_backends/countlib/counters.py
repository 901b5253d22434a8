# SPDX-License-Identifier: Apache-2.0
"""Count the tokens of a request with the code of the tokenizer step."""

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tasklib.task_file import read_task
from tasklib.text_requests import TOKENS, TextRequests
from textlib.errors import ModelConfigurationError, PromptTooLongError, RequestError, TextPathError
from textlib.triton.parameters import ModelParameters
from textlib.triton.prompts import RequestEncoder

Tensors = Mapping[str, Sequence[Any]]
Answer = dict[str, Any]

# Prompts are counted up to this multiple of the model's limit, so that an error gives the length.
COUNTED_MULTIPLE = 8


class TokenCounter(Protocol):
    """Counts many requests at once. Safe to share between threads."""

    def count(self, requests: Sequence[Tensors]) -> list[Answer]:
        """Return {"tokens": [...]}, {"more_than": n} or {"error": …} for each request."""

    def close(self) -> None:
        """Stop the counter's processes."""


class GenerationCounter:
    """Counts prompts and conversations of text generation.

    max_input_len, add_special_tokens: parameters of the step, in tokens and `true` or `false`.
    Raises ModelConfigurationError.
    """

    def __init__(self, folder: Path, max_input_len: int, add_special_tokens: str) -> None:
        self._max_counted_tokens = COUNTED_MULTIPLE * max_input_len
        values = {
            "max_input_len": str(self._max_counted_tokens),
            "add_special_tokens": add_special_tokens,
        }
        self._prompts = RequestEncoder(folder / "tokenizer", ModelParameters("count", values))

    def count(self, requests: Sequence[Tensors]) -> list[Answer]:
        """Count as TokenCounter.count."""
        rows = self._prompts.encode([_arrays(tensors) for tensors in requests])
        return [self._answer(row) for row in rows]

    def close(self) -> None:
        """Stop the chat template's process."""
        self._prompts.close()

    def _answer(self, row: Sequence[NDArray[np.int32] | TextPathError]) -> Answer:
        tokens = []
        for ids in row:
            if isinstance(ids, PromptTooLongError):
                return {"more_than": self._max_counted_tokens}
            if isinstance(ids, TextPathError):
                return {"error": str(ids)}
            tokens.append(len(ids))
        return {"tokens": tokens}


class ItemCounter:
    """Counts the tokens that a model of a text task reads of each item."""

    def __init__(self, folder: Path) -> None:
        self._texts = TextRequests(folder / "tokenizer", read_task(folder / "task"))
        self._lock = threading.Lock()  # counting a long text changes the tokenizer's truncation

    def count(self, requests: Sequence[Tensors]) -> list[Answer]:
        """Count as TokenCounter.count."""
        with self._lock:
            encoded = self._texts.encode([_arrays(tensors) for tensors in requests])
        return [
            {"error": str(each)}
            if isinstance(each, RequestError)
            else {"tokens": each[TOKENS].reshape(-1).tolist()}
            for each in encoded
        ]

    def close(self) -> None:
        """Do nothing: the counter has no processes."""


def open_counter(folder: Path, max_input_len: int, add_special_tokens: str) -> TokenCounter:
    """Open the counter for the step in a version folder. Raises ModelConfigurationError."""
    if not (folder / "tokenizer" / "tokenizer.json").is_file():
        raise ModelConfigurationError(f"{folder} has no tokenizer/tokenizer.json")
    # One Rust thread for short prompts: waking another costs more than it saves.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if (folder / "task").is_dir():
        return ItemCounter(folder)
    return GenerationCounter(folder, max_input_len, add_special_tokens)


def _arrays(tensors: Tensors) -> dict[str, NDArray[Any]]:
    """Convert tensors into Triton's form, where texts are bytes."""
    return {
        name: np.array([_bytes(value) for value in values], dtype=object)
        for name, values in tensors.items()
    }


def _bytes(value: Any) -> Any:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
