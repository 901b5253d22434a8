# SPDX-License-Identifier: Apache-2.0
"""An engine's responses: token chunks for a detokenizer step, or the text itself.

The parameters `inline_detokenizer` and `fused` decide. An engine that decodes is the last step of
its ensemble or stands alone: no step acknowledges its responses, so it watches no receipts.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from textlib.scheduling.acknowledgements import ReceiptWatch, open_watch
from textlib.scheduling.decoder_stream import ResponseSink
from textlib.tokens.token_bytes import TokenTable
from textlib.tokens.token_chunk import TokenChunk, pack
from textlib.triton.edge import TritonSink, tensor
from textlib.triton.parameters import ModelParameters
from textlib.triton.text_outputs import text_outputs

_MAKES_TEXT = ("inline_detokenizer", "fused")


@dataclass(frozen=True, slots=True)
class EngineResponses:
    """How an engine responds."""

    table: TokenTable | None = None  # decodes ids, if the engine is also the detokenizer

    @classmethod
    def from_parameters(cls, parameters: ModelParameters, table: TokenTable) -> "EngineResponses":
        """Read the parameters of config.pbtxt; raises ModelConfigurationError."""
        makes_text = any(parameters.boolean(name, default=False) for name in _MAKES_TEXT)
        return cls(table if makes_text else None)

    def open_receipt_watch(self) -> ReceiptWatch | None:
        """Open the watch for departed clients of an ensemble; None if the engine decodes."""
        return open_watch() if self.table is None else None

    def response_sink(self, request: Any) -> ResponseSink:
        """Return the sink for the responses of a request of execute()."""
        sender, table = request.get_response_sender(), self.table
        if table is None:
            return TritonSink(sender, chunk_tensors)
        names = request.requested_output_names()
        return TritonSink(sender, lambda chunk: text_outputs(names, [chunk], table))


def chunk_tensors(chunk: TokenChunk) -> list[Any]:
    """Return the tensor token_chunk [1, n]."""
    return [tensor("token_chunk", pack(chunk)[np.newaxis])]
