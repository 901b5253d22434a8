# SPDX-License-Identifier: Apache-2.0
"""How many tokens the tokenizer step makes of a request, by that step's own code."""

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tasklib.task_file import read_task
from tasklib.text_requests import TOKENS, TextRequests
from textlib.errors import ConfigurationError, PromptTooLongError, RequestError, TextPathError
from textlib.parameters import ModelParameters
from textlib.prompts import Prompts

Tensors = Mapping[str, Sequence[Any]]
Answer = dict[str, Any]

# A prompt that is too long is counted to its end, for an error that says how long it is, up to so
# many times of what the model takes.
COUNTED_TIMES = 8


class Counter(Protocol):
    """Counts many requests at once. Safe to share between threads."""

    def count(self, requests: Sequence[Tensors]) -> list[Answer]:
        """For each request's public tensors {"tokens": [...]}, {"more_than": n} or {"error": …}."""

    def close(self) -> None:
        """End what was started."""


class GenerationCounter:
    """Prompts and conversations of text generation.

    max_input_len: of the step, in tokens. add_special_tokens: of the step, `true` or `false`.
    Raises ConfigurationError.
    """

    def __init__(self, folder: Path, max_input_len: int, add_special_tokens: str) -> None:
        self._most = COUNTED_TIMES * max_input_len
        values = {"max_input_len": str(self._most), "add_special_tokens": add_special_tokens}
        self._prompts = Prompts(folder / "tokenizer", ModelParameters("count", values))

    def count(self, requests: Sequence[Tensors]) -> list[Answer]:
        """As Counter."""
        rows = self._prompts.encode([_arrays(tensors) for tensors in requests])
        return [self._answer(row) for row in rows]

    def close(self) -> None:
        """End the chat template's process."""
        self._prompts.close()

    def _answer(self, row: Sequence[NDArray[np.int32] | TextPathError]) -> Answer:
        tokens = []
        for ids in row:
            if isinstance(ids, PromptTooLongError):
                return {"more_than": self._most}
            if isinstance(ids, TextPathError):
                return {"error": str(ids)}
            tokens.append(len(ids))
        return {"tokens": tokens}


class ItemCounter:
    """Items of an embedding and the other tasks that read texts: what the model reads of each."""

    def __init__(self, folder: Path) -> None:
        self._texts = TextRequests(folder / "tokenizer", read_task(folder / "task"))
        self._lock = threading.Lock()  # measuring a long text sets the tokenizer's truncation

    def count(self, requests: Sequence[Tensors]) -> list[Answer]:
        """As Counter."""
        with self._lock:
            encoded = self._texts.encode([_arrays(tensors) for tensors in requests])
        return [
            {"error": str(each)}
            if isinstance(each, RequestError)
            else {"tokens": each[TOKENS].reshape(-1).tolist()}
            for each in encoded
        ]

    def close(self) -> None:
        """Nothing was started."""


def counter_of(folder: Path, max_input_len: int, add_special_tokens: str) -> Counter:
    """The counter for the step in this version folder. Raises ConfigurationError."""
    if not (folder / "tokenizer" / "tokenizer.json").is_file():
        raise ConfigurationError(f"{folder} has no tokenizer/tokenizer.json")
    # One thread of Rust's for short prompts: waking another costs more than it saves.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if (folder / "task").is_dir():
        return ItemCounter(folder)
    return GenerationCounter(folder, max_input_len, add_special_tokens)


def _arrays(tensors: Tensors) -> dict[str, NDArray[Any]]:
    """As Triton hands them to a step: texts are bytes."""
    return {
        name: np.array([_bytes(value) for value in values], dtype=object)
        for name, values in tensors.items()
    }


def _bytes(value: Any) -> Any:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
