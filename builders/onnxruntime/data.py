# SPDX-License-Identifier: Apache-2.0
"""Makes the feeds for calibration and comparison of an engine. Needs numpy."""

from dataclasses import dataclass
from typing import Any

from buildlib.problems import BuildError
from buildlib.prompts import load_tokenizer
from buildlib.request_types import BuilderRequest
from onnxlib.graph import OnnxGraph
from options import OnnxRuntimeOptions
from samples import encode_texts, random_feeds, random_rows, read_texts, sample_feeds, takes_text
from source import HuggingFaceEncoder, Source
from taskproof.feeds import Feed, text_feeds

_SEED = 1234
# With longer texts a comparison would take minutes.
_MAX_TEXT_TOKENS = 512


@dataclass(frozen=True)
class FeedSource:
    """Makes feeds for one graph."""

    request: BuilderRequest
    options: OnnxRuntimeOptions
    source: Source
    graph: OnnxGraph
    max_seq_len: int | None

    def calibration(self) -> list[Feed]:
        """Return the data of static calibration: one feed per sample, all of one shape.

        Raises:
            BuildError: there is too little data, or it does not fit the graph.
        """
        calibration, evaluation = self.request.calibration, self.request.evaluation
        if self.options.calibration != "static":
            return []
        if calibration is not None and calibration.data.is_dir():
            return sample_feeds(calibration, self.graph)
        if calibration is not None:
            texts = read_texts(calibration.data, calibration.samples)
            max_tokens = min(calibration.max_seq_len, self.max_text_tokens)
        else:  # then options.py requires prompts
            texts = read_texts(evaluation.prompts, evaluation.max_prompts) if evaluation else []
            max_tokens = self.max_text_tokens
        rows = self._rows(texts, max_tokens)
        # Entropy and percentiles need one array per tensor, so every feed has one shape.
        (batch,) = text_feeds(rows, self.graph.inputs, pad_id=self.pad_id, batch=len(rows))
        return [
            {name: array[at : at + 1] for name, array in batch.items()} for at in range(len(rows))
        ]

    def evaluation(self) -> list[Feed]:
        """Return the feeds of the comparison: the evaluation's texts or the calibration data.

        Without both, return random feeds.
        """
        request, calibration = self.request, self.request.calibration
        if calibration is not None and calibration.data.is_dir():
            return sample_feeds(calibration, self.graph)
        if request.evaluation is not None:
            texts = read_texts(request.evaluation.prompts, request.evaluation.max_prompts)
        elif calibration is not None:
            texts = read_texts(calibration.data, calibration.samples)
        else:
            return self._random()
        rows = self._rows(texts, self.max_text_tokens)
        one_by_one = {} if request.limits.max_batch_size else {"batch": 1}
        return text_feeds(rows, self.graph.inputs, pad_id=self.pad_id, **one_by_one)

    def _rows(self, texts: list[str], max_tokens: int) -> list[list[int]]:
        if not takes_text(self.graph):
            names = ", ".join(tensor.name for tensor in self.graph.inputs)
            raise BuildError(
                f"the graph takes {names}, and texts become input_ids, attention_mask and "
                "token_type_ids",
                remedy="Give samples instead: engine.calibration.data, a folder of .npz files.",
            )
        return encode_texts(self._tokenizer(), texts, max_tokens=max_tokens)

    def _tokenizer(self) -> Any:
        folder = self.source.folder
        if folder is None or not (folder / "tokenizer.json").is_file():
            raise BuildError(
                f"{folder or 'the file'} has no tokenizer.json next to it, so texts cannot be fed "
                "to the model",
                remedy="Give a folder with the model and its tokenizer.json, or remove evaluation "
                "and calibration: the comparison then uses random numbers.",
            )
        return load_tokenizer(folder)

    def _random(self) -> list[Feed]:
        if isinstance(self.source, HuggingFaceEncoder):
            rows = random_rows(
                seed=_SEED, vocab_size=self.source.vocab_size, max_tokens=self.max_text_tokens
            )
            return text_feeds(rows, self.graph.inputs, pad_id=self.pad_id, batch=3)
        batched = self.request.limits.max_batch_size > 0
        return random_feeds(self.graph, seed=_SEED, sizes=self.options.dimensions, batched=batched)

    @property
    def max_text_tokens(self) -> int:
        """The maximum tokens of a text."""
        return min(self.max_seq_len or _MAX_TEXT_TOKENS, _MAX_TEXT_TOKENS)

    @property
    def pad_id(self) -> int:
        """The token that pads the shorter texts of a batch."""
        return self.source.pad_token_id if isinstance(self.source, HuggingFaceEncoder) else 0
