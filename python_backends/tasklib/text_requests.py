# SPDX-License-Identifier: Apache-2.0
"""Encode the public tensors of many requests at once; an invalid request fails only itself."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasklib.entities import SPECIAL
from tasklib.item_errors import ItemError
from tasklib.task_file import TaskDefinition, text_settings
from tasklib.text_encoding import EncodedText, TextEncoder, TextItem, pad_rows
from textlib.errors import RequestError

Arrays = Mapping[str, NDArray[Any]]

TEXT, PAIR, QUERY = "text_input", "text_pair", "query"
PROMPT_NAME, TRUNCATE = "prompt_name", "truncate"
INPUTS = (TEXT, PAIR, QUERY, PROMPT_NAME, TRUNCATE)
OFFSETS, TOKENS, TRUNCATED = "offsets", "num_input_tokens", "truncated"
RERANK, TOKEN_CLASSIFICATION = "rerank", "token_classification"


class TextRequests:
    """The tokenizer step of one model."""

    def __init__(self, tokenizer_folder: Path, task: TaskDefinition, *, multiple: int = 1) -> None:
        """Raises ModelConfigurationError.

        multiple: pad rows to a multiple of it, up to max_seq_len, so that requests of similar
        length have the same shape.
        """
        self._settings = text_settings(task)
        self._multiple = multiple
        self._encoder = TextEncoder(
            tokenizer_folder,
            self._settings,
            names=(QUERY, TEXT) if task.task == RERANK else (TEXT, PAIR),
            offsets=task.task == TOKEN_CLASSIFICATION,
        )

    def encode(self, requests: Sequence[Arrays]) -> list[dict[str, NDArray[Any]] | RequestError]:
        """Return the tokenizer step's tensors by name, or the error, of each request.

        Rows are [n, longest of the request]; offsets INT32[n, longest, 2] for token_classification,
        num_input_tokens INT32[n, 1], truncated BOOL[n, 1].
        """
        items = [_text_items(request) for request in requests]
        valid = [
            request_items for request_items in items if not isinstance(request_items, RequestError)
        ]
        rows = iter(
            self._encoder.encode([item for request_items in valid for item in request_items])
        )
        return [
            request_items
            if isinstance(request_items, RequestError)
            else self._tensors([next(rows) for _ in request_items])
            for request_items in items
        ]

    def _tensors(
        self, encoded: Sequence[EncodedText | ItemError]
    ) -> dict[str, NDArray[Any]] | RequestError:
        rows = []
        for index, row in enumerate(encoded):
            if isinstance(row, ItemError):
                return row.with_index(index)
            rows.append(row)
        max_length = max(row.num_input_tokens for row in rows)
        length = min(-(-max_length // self._multiple) * self._multiple, self._settings.max_seq_len)
        tensors: dict[str, NDArray[Any]] = {
            **pad_rows(rows, self._settings, max(length, max_length))
        }
        if rows[0].offsets is not None:
            tensors[OFFSETS] = _padded_offsets(rows, max(length, max_length))
        tensors[TOKENS] = np.array([[row.num_input_tokens] for row in rows], dtype=np.int32)
        tensors[TRUNCATED] = np.array([[row.truncated] for row in rows], dtype=np.bool_)
        return tensors


def _text_items(request: Arrays) -> list[TextItem] | RequestError:
    texts = request.get(TEXT)
    if texts is None or not texts.size:
        return RequestError(f"{TEXT} has no items, expected one text or more.")
    first, second = (QUERY, TEXT) if QUERY in request else (TEXT, PAIR)
    pairs = _column(request, second)
    names = _column(request, PROMPT_NAME)
    truncate = _column(request, TRUNCATE)
    try:
        return [
            TextItem(text, pair, _decode_name(name), True if cut is None else bool(cut))
            for text, pair, name, cut in zip(
                _column(request, first), pairs, names, truncate, strict=True
            )
        ]
    except ValueError:
        return RequestError(
            f"{TEXT} has {texts.size} items, another tensor has a different number."
        )


def _column(request: Arrays, name: str) -> list[Any]:
    """Return a value for each item of the request; None for each without the tensor."""
    array = request.get(name)
    return [None] * request[TEXT].size if array is None else array.reshape(-1).tolist()


def _decode_name(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", errors="replace")


def _padded_offsets(rows: Sequence[EncodedText], length: int) -> NDArray[np.int32]:
    offsets = np.full((len(rows), length, 2), SPECIAL, dtype=np.int32)
    for target, row in zip(offsets, rows, strict=True):
        if row.offsets is not None:
            target[: row.num_input_tokens] = row.offsets
    return offsets
