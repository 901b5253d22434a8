# SPDX-License-Identifier: Apache-2.0
"""An engine's answers: token chunks for a detokenizer step, or the text itself.

The parameters `inline_detokenizer` and `fused` decide. An engine that makes the text is the last
step of its ensemble, or has none: no step acknowledges its responses, so it watches no receipts.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from textlib.decoder_stream import ResponseSink
from textlib.parameters import ModelParameters
from textlib.receipts import ReceiptWatch, open_watch
from textlib.text_outputs import text_outputs
from textlib.token_bytes import TokenTable
from textlib.token_chunk import TokenChunk, pack
from textlib.triton_edge import TritonSink, tensor

_MAKES_TEXT = ("inline_detokenizer", "fused")


@dataclass(frozen=True, slots=True)
class Answers:
    """`table`: what ids decode to, if the engine is its own detokenizer."""

    table: TokenTable | None = None

    @classmethod
    def of(cls, parameters: ModelParameters, table: TokenTable) -> "Answers":
        """What config.pbtxt asks for; raises ConfigurationError."""
        makes_text = any(parameters.boolean(name, default=False) for name in _MAKES_TEXT)
        return cls(table if makes_text else None)

    def watch(self) -> ReceiptWatch | None:
        """How the loop notices clients that left inside an ensemble; None: it does not."""
        return open_watch() if self.table is None else None

    def sink(self, request: Any) -> ResponseSink:
        """Where the loop sends the responses of a request of execute()."""
        sender, table = request.get_response_sender(), self.table
        if table is None:
            return TritonSink(sender, packed)
        names = request.requested_output_names()
        return TritonSink(sender, lambda chunk: text_outputs(names, [chunk], table))


def packed(chunk: TokenChunk) -> list[Any]:
    """token_chunk [1, n]."""
    return [tensor("token_chunk", pack(chunk)[np.newaxis])]
