# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: the mock decoder where an engine would be."""

from collections.abc import Mapping
from typing import Any

from mockdecoder.decoder import MockDecoder
from textlib.answers import Answers
from textlib.decoder_loop import DecoderLoop
from textlib.errors import TextPathError
from textlib.request_tensors import SequenceLimits, read_generation_request
from textlib.token_bytes import load_token_bytes
from textlib.triton_edge import loading, read_arrays, version_folder


class TritonPythonModel:
    """The tensors of every text-generation engine."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Start the loop."""
        with loading(args) as parameters:
            longest = parameters.integer("max_seq_len")
            vocab_size = parameters.integer("vocab_size")
            self._limits = SequenceLimits(
                max_input_len=parameters.integer("max_input_len"),
                max_seq_len=longest,
                kv_tokens=longest,
                vocab_size=vocab_size,
                eos_token_ids=(),
            )
            capacity = parameters.integer("max_num_seqs")
            file = version_folder(args) / "tokenizer" / "tokenizer.json"
            self._answers = Answers.of(parameters, load_token_bytes(file, skip_special_tokens=True))
        self._loop = DecoderLoop(
            MockDecoder(vocab_size), capacity=capacity, receipts=self._answers.watch()
        )
        self._loop.start()

    def execute(self, requests: list[Any]) -> None:
        """Hand the requests to the loop."""
        for request in requests:
            sink = self._answers.sink(request)
            try:
                generation = read_generation_request(read_arrays(request).get, self._limits)
                self._loop.submit(generation, sink)
            except TextPathError as error:
                sink.fail(error)
        self._loop.await_room()

    def finalize(self) -> None:
        """Stop the loop."""
        self._loop.close()
