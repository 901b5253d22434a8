# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: token chunks to text. It keeps nothing of a stream between two requests."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from textlib.detokenize import decode_chunk
from textlib.errors import RequestError
from textlib.receipts import ReceiptWriter, server_prefix
from textlib.token_bytes import TokenBytes, load_token_bytes
from textlib.token_chunk import TokenChunk, unpack
from textlib.triton_edge import (
    answer_each,
    existing,
    loading,
    queue_delay_ms,
    read_array,
    version_folder,
)

_COUNTS: dict[str, Callable[[TokenChunk], int]] = {
    "num_input_tokens": lambda chunk: chunk.num_input_tokens,
    "num_output_tokens": lambda chunk: chunk.num_output_tokens,
}


class TritonPythonModel:
    """token_chunk INT32[n, 35 or more] to the requested ones of six outputs, [n, 1] or [n, k]."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read 1/tokenizer/tokenizer.json; a decoder that cannot be streamed exactly is refused."""
        with loading(args) as parameters:
            self._table = load_token_bytes(
                existing(version_folder(args) / "tokenizer" / "tokenizer.json"),
                skip_special_tokens=parameters.boolean("skip_special_tokens"),
            )
        self._receipts = ReceiptWriter(server_prefix(), queue_delay_ms=queue_delay_ms(args))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Decode each request on its own."""
        with self._receipts.batch():
            return answer_each(requests, self._answer)

    def finalize(self) -> None:
        """Let go of the shared memory."""
        self._receipts.close()

    def _answer(self, request: Any) -> dict[str, NDArray[Any]]:
        array = read_array(request, "token_chunk")
        if array is None:
            raise RequestError("token_chunk is missing.")
        chunks = [unpack(row) for row in np.atleast_2d(array)]
        for chunk in chunks:
            self._receipts.acknowledge(chunk.receipt_page, chunk.stream_id, chunk.index)
        return {
            name: _output(name, chunks, self._table) for name in request.requested_output_names()
        }


def _output(name: str, chunks: list[TokenChunk], table: TokenBytes) -> NDArray[Any]:
    if name in _COUNTS:
        return np.array([[_COUNTS[name](chunk)] for chunk in chunks], dtype=np.int32)
    if name == "cum_log_probs":
        return np.array([[chunk.cum_log_prob] for chunk in chunks], dtype=np.float32)
    if name == "output_log_probs":
        return _padded([chunk.log_probs for chunk in chunks])
    if name == "text_output":
        texts = [decode_chunk(table, chunk) for chunk in chunks]
    else:
        texts = [chunk.finish_reason.text for chunk in chunks]
    return np.array([[text.encode()] for text in texts], dtype=np.object_)


def _padded(rows: Sequence[Sequence[float]]) -> NDArray[np.float32]:
    """[n, longest], shorter rows filled with 0 on the right; a response of an engine is one row."""
    table = np.zeros((len(rows), max(map(len, rows))), dtype=np.float32)
    for target, row in zip(table, rows, strict=True):
        target[: len(row)] = row
    return table
