# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: the mock decoder where an engine would be."""

from collections.abc import Mapping

from mockdecoder.decoder import MockDecoder
from textlib.engine.service import EngineModel, EngineService
from textlib.triton.edge import reporting_load_errors
from textlib.triton.request_tensors import SequenceLimits


class TritonPythonModel(EngineModel):
    """The tensors of every text-generation engine."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Start the loop."""
        with reporting_load_errors(args) as parameters:
            longest = parameters.integer("max_seq_len")
            limits = SequenceLimits(
                max_input_len=parameters.integer("max_input_len"),
                max_seq_len=longest,
                kv_tokens=longest,
                vocab_size=parameters.integer("vocab_size"),
                eos_token_ids=(),
            )
            capacity = parameters.integer("max_num_seqs")
            # No metrics: the other variants have none.
            service = EngineService(
                MockDecoder(limits.vocab_size), limits, capacity, publishes_metrics=False
            )
            self.serve(args, parameters, service)
