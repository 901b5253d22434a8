# SPDX-License-Identifier: Apache-2.0
"""The steps used in serving: the code of python_backends/tasklib around a graph.

Needs numpy and tokenizers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tasklib import task_file
from tasklib.entities import find_entities
from tasklib.text_encoding import EncodedText, TextEncoder, TextItem, pad_rows

from taskcompile.task import RERANK, TAGGING, TextTask
from taskproof.answers import CaseAnswer
from taskproof.feeds import Feed
from taskproof.text_cases import TextCase

TextGraph = Callable[[Feed], Any]  # maps a graph's inputs by name to its only output

# Longer rows are not run. Their token ids are compared.
MAX_COMPARED_TOKENS = 1024
_BATCH = 8


@dataclass(frozen=True)
class TextPipeline:
    """The steps of one task: encodes texts to rows, and turns rows into answers."""

    task: TextTask
    settings: task_file.TextSettings
    encoder: TextEncoder

    def encode(self, cases: Sequence[TextCase]) -> list[EncodedText | None]:
        """Return the row of each case, or None for a case without tokens."""
        items = [TextItem(case.text, case.pair, case.prompt) for case in cases]
        encoded = self.encoder.encode(items)
        return [row if isinstance(row, EncodedText) else None for row in encoded]

    def answers(
        self,
        rows: Sequence[EncodedText],
        cases: Sequence[TextCase],
        run: TextGraph,
        *,
        max_tokens: int = MAX_COMPARED_TOKENS,
    ) -> list[CaseAnswer]:
        """Run each row alone. A row with more than `max_tokens` tokens has no values."""
        return [
            self._answer(row, case, run, max_tokens) for row, case in zip(rows, cases, strict=True)
        ]

    def _answer(
        self, row: EncodedText, case: TextCase, run: TextGraph, max_tokens: int
    ) -> CaseAnswer:
        values = None
        spans: tuple[tuple[str, int, int], ...] = ()
        if row.num_input_tokens <= max_tokens:
            [values] = run(pad_rows([row], self.settings))
        if values is not None and row.offsets is not None:
            made = find_entities(values, row.offsets, case.text, self.task.labels)
            spans = tuple((entity.label, entity.start, entity.end) for entity in made)
        types = None if row.type_ids is None else tuple(row.type_ids.tolist())
        return CaseAnswer(tuple(row.ids.tolist()), types, values, spans)

    def batched_values(
        self, rows: Sequence[EncodedText], run: TextGraph, *, pad_left: bool = False
    ) -> list[Any]:
        """Return the values of each row in batches of mixed lengths."""
        results: list[Any] = []
        for at in range(0, len(rows), _BATCH):
            batch = rows[at : at + _BATCH]
            feed = pad_rows(batch, self.settings)
            if pad_left:
                feed = {name: _move_padding_left(array, batch) for name, array in feed.items()}
            results += [
                self._without_padding(values, row, pad_left=pad_left)
                for values, row in zip(run(feed), batch, strict=True)
            ]
        return results

    def _without_padding(self, values: Any, row: EncodedText, *, pad_left: bool) -> Any:
        """Return the values of a row without those of its padding."""
        if self.task.name != TAGGING:
            return values
        length = row.num_input_tokens
        return values[-length:] if pad_left else values[:length]


def _move_padding_left(array: Any, rows: Sequence[EncodedText]) -> Any:
    """Move the padding of rows from the right to the left."""
    width = array.shape[1]
    moved = [
        np.roll(values, width - row.num_input_tokens)
        for values, row in zip(array, rows, strict=True)
    ]
    return np.stack(moved)


def text_pipeline(task: TextTask, folder: Path, **overrides: Any) -> TextPipeline:
    """Return the steps of `task` with the tokenizer in `folder`.

    `overrides`: fields of the task's text settings.
    """
    settings = replace(task.text, **overrides)
    names = ("query", "text_input") if task.name == RERANK else ("text_input", "text_pair")
    offsets = task.name == TAGGING
    encoder = TextEncoder(folder, settings, names=names, offsets=offsets)
    return TextPipeline(task, settings, encoder)
