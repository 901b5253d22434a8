# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: token chunks to text, without state between two requests."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from textlib.errors import RequestError
from textlib.scheduling.acknowledgements import ReceiptWriter, server_prefix
from textlib.tokens.token_bytes import load_token_bytes
from textlib.tokens.token_chunk import unpack
from textlib.triton.edge import (
    queue_delay_ms,
    read_array,
    reporting_load_errors,
    require_path,
    respond_to_each,
    version_folder,
)
from textlib.triton.step_metrics import StepMetrics
from textlib.triton.text_outputs import text_outputs


class TritonPythonModel:
    """token_chunk INT32[n, 36 or more] to the requested ones of seven outputs."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read 1/tokenizer/tokenizer.json; raises a load error for an unknown decoder."""
        with reporting_load_errors(args) as parameters:
            self._table = load_token_bytes(
                require_path(version_folder(args) / "tokenizer" / "tokenizer.json"),
                skip_special_tokens=parameters.boolean("skip_special_tokens"),
            )
        self._receipts = ReceiptWriter(server_prefix(), queue_delay_ms=queue_delay_ms(args))
        self._metrics = StepMetrics(args)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Decode each request separately."""
        with self._receipts.batch():
            return respond_to_each(requests, self._answer, self._metrics.count_error)

    def finalize(self) -> None:
        """Remove the metrics and close the shared memory."""
        self._metrics.close()
        self._receipts.close()

    def _answer(self, request: Any) -> list[Any]:
        array = read_array(request, "token_chunk")
        if array is None:
            raise RequestError("token_chunk is missing.")
        chunks = [unpack(row) for row in np.atleast_2d(array)]
        for chunk in chunks:
            self._receipts.acknowledge(chunk.receipt_page, chunk.stream_id, chunk.index)
        return text_outputs(request.requested_output_names(), chunks, self._table)
