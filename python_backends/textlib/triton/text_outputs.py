# SPDX-License-Identifier: Apache-2.0
"""Turn token chunks into the public outputs: text, counts, finish reason, log probabilities, ids.

Used by the detokenizer step, and by an engine that does its work (`inline_detokenizer`).
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from textlib.tokens.detokenize import decode_chunk
from textlib.tokens.token_bytes import TokenTable
from textlib.tokens.token_chunk import PADDING, TokenChunk
from textlib.triton.edge import tensor

# Creating a tensor costs more than decoding its text, and most responses differ only in the text.
_MAX_CACHED_TENSORS = 512
_VALUES: dict[str, Callable[[TokenChunk], Any]] = {
    "num_input_tokens": lambda chunk: chunk.num_input_tokens,
    "num_output_tokens": lambda chunk: chunk.num_output_tokens,
    "finish_reason": lambda chunk: chunk.finish_reason.text.encode(),
    "cum_log_probs": lambda chunk: chunk.cum_log_prob,
    "output_log_probs": lambda chunk: tuple(chunk.log_probs),
}
OUTPUTS = ("text_output", *_VALUES)  # and output_ids on request
_DTYPES = {"finish_reason": np.object_, "cum_log_probs": np.float32}


def text_outputs(
    names: Iterable[str], chunks: Sequence[TokenChunk], table: TokenTable
) -> list[Any]:
    """Return the named ones of seven Tensors: text_output [n], lists [n, longest], else [n, 1]."""
    return [_output(name, chunks, table) for name in names]


def _output(name: str, chunks: Sequence[TokenChunk], table: TokenTable) -> Any:
    if name in _VALUES:
        return _cached_tensor(name, tuple(map(_VALUES[name], chunks)))
    if name == "output_ids":
        return tensor(name, _padded([chunk.output_ids for chunk in chunks], PADDING, np.int32))
    # One text per row, without the batch dimension: NVIDIA's clients rely on this shape.
    texts = [decode_chunk(table, chunk).encode() for chunk in chunks]
    return tensor(name, np.array(texts, dtype=np.object_))


@lru_cache(_MAX_CACHED_TENSORS)
def _cached_tensor(name: str, values: tuple[Any, ...]) -> Any:
    if name == "output_log_probs":
        return tensor(name, _padded(values, 0.0, np.float32))
    return tensor(name, np.array(values, dtype=_DTYPES.get(name, np.int32)).reshape(-1, 1))


def _padded(rows: Sequence[Sequence[float]], filler: float, dtype: Any) -> NDArray[Any]:
    """Return [n, longest], padded on the right; a response of an engine has one row."""
    if len(rows) == 1:
        return np.array(rows, dtype=dtype)
    table = np.full((len(rows), max(map(len, rows))), filler, dtype=dtype)
    for target, row in zip(table, rows, strict=True):
        target[: len(row)] = row
    return table
