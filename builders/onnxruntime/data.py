# SPDX-License-Identifier: Apache-2.0
"""Which feeds an engine is calibrated and compared on. Needs numpy."""

from dataclasses import dataclass
from typing import Any

from buildlib.problems import BuildError
from buildlib.prompts import load_tokenizer
from buildlib.request import Request
from onnxlib.graph import OnnxGraph
from options import Options
from samples import encode, random_feeds, random_rows, read_texts, sample_feeds, takes_text
from source import Encoder, Source
from taskproof.feeds import Feed, text_feeds

_SEED = 1234
# Longer texts would make a comparison of minutes.
_LONGEST = 512


@dataclass(frozen=True)
class Data:
    """Makes feeds for one graph."""

    request: Request
    options: Options
    source: Source
    graph: OnnxGraph
    max_seq_len: int | None

    def calibration(self) -> list[Feed]:
        """What static calibration measures ranges on: one feed per sample, all of one shape.

        Raises:
            BuildError: there is too little, or it does not fit the graph.
        """
        calibration, evaluation = self.request.calibration, self.request.evaluation
        if self.options.calibration != "static":
            return []
        if calibration is not None and calibration.data.is_dir():
            return sample_feeds(calibration, self.graph)
        if calibration is not None:
            texts = read_texts(calibration.data, calibration.samples)
            longest = min(calibration.max_seq_len, self.longest)
        else:  # then options.py requires prompts
            texts = read_texts(evaluation.prompts, evaluation.max_prompts) if evaluation else []
            longest = self.longest
        rows = self._rows(texts, longest)
        # Entropy and percentiles are taken over one array per tensor: every feed has one shape.
        (whole,) = text_feeds(rows, self.graph.inputs, pad_id=self.pad_id, batch=len(rows))
        return [{name: a[at : at + 1] for name, a in whole.items()} for at in range(len(rows))]

    def evaluation(self) -> list[Feed]:
        """What source and engine are compared on: the evaluation's texts or calibration's data.

        Random feeds without either.
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
        rows = self._rows(texts, self.longest)
        return text_feeds(rows, self.graph.inputs, pad_id=self.pad_id)

    def _rows(self, texts: list[str], longest: int) -> list[list[int]]:
        if not takes_text(self.graph):
            names = ", ".join(tensor.name for tensor in self.graph.inputs)
            raise BuildError(
                f"the graph takes {names}, and texts become input_ids, attention_mask and "
                "token_type_ids",
                remedy="Give samples instead: engine.calibration.data, a folder of .npz files.",
            )
        return encode(self._tokenizer(), texts, longest=longest)

    def _tokenizer(self) -> Any:
        folder = self.source.folder
        if folder is None or not (folder / "tokenizer.json").is_file():
            raise BuildError(
                f"{folder or 'the file'} has no tokenizer.json beside it, so texts cannot be fed "
                "to the model",
                remedy="Give a folder with the model and its tokenizer.json, or remove evaluation "
                "and calibration: the comparison then uses random numbers.",
            )
        return load_tokenizer(folder)

    def _random(self) -> list[Feed]:
        if isinstance(self.source, Encoder):
            rows = random_rows(seed=_SEED, vocab_size=self.source.vocab_size, longest=self.longest)
            return text_feeds(rows, self.graph.inputs, pad_id=self.pad_id, batch=3)
        return random_feeds(self.graph, seed=_SEED, sizes=self.options.dimensions)

    @property
    def longest(self) -> int:
        """Tokens of a text at most."""
        return min(self.max_seq_len or _LONGEST, _LONGEST)

    @property
    def pad_id(self) -> int:
        """The token that fills up the shorter texts of a batch."""
        return self.source.pad_token_id if isinstance(self.source, Encoder) else 0
