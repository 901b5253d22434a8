# SPDX-License-Identifier: Apache-2.0
"""The served steps: the code of python_backends/tasklib around a graph. Needs numpy, tokenizers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tasklib import task_file
from tasklib.entities import entities
from tasklib.text_encoding import EncodedText, TextEncoder, TextItem, padded

from taskcompile.task import RERANK, TAGGING, Task
from taskproof.answers import Answer
from taskproof.cases import Case

Feed = dict[str, Any]
Run = Callable[[Feed], Any]  # the graph: its inputs by name to its only output

# Tokens of a row that are run at most; whether a longer one is read right, its ids say.
MOST_TOKENS = 1024
_BATCH = 8


@dataclass(frozen=True)
class Served:
    """The steps of one task: its texts to rows, rows to answers."""

    task: Task
    settings: task_file.TextSettings
    encoder: TextEncoder

    def rows(self, cases: Sequence[Case]) -> list[EncodedText | None]:
        """Each case's row; None where the tokenizer makes no token of it."""
        items = [TextItem(case.text, case.pair, case.prompt) for case in cases]
        made = self.encoder.encode(items)
        return [row if isinstance(row, EncodedText) else None for row in made]

    def answers(
        self,
        rows: Sequence[EncodedText],
        cases: Sequence[Case],
        run: Run,
        *,
        most: int = MOST_TOKENS,
    ) -> list[Answer]:
        """Each row's answer, run alone; without values where it has more tokens than `most`."""
        return [self._answer(row, case, run, most) for row, case in zip(rows, cases, strict=True)]

    def _answer(self, row: EncodedText, case: Case, run: Run, most: int) -> Answer:
        values = None
        found: tuple[tuple[str, int, int], ...] = ()
        if row.num_input_tokens <= most:
            [values] = run(padded([row], self.settings))
        if values is not None and row.offsets is not None:
            made = entities(values, row.offsets, case.text, self.task.labels)
            found = tuple((one.label, one.start, one.end) for one in made)
        types = None if row.type_ids is None else tuple(row.type_ids.tolist())
        return Answer(tuple(row.ids.tolist()), types, values, found)

    def together(self, rows: Sequence[EncodedText], run: Run, *, left: bool = False) -> list[Any]:
        """Each row's values in batches of mixed lengths; `left`: with the padding in front."""
        made: list[Any] = []
        for at in range(0, len(rows), _BATCH):
            batch = rows[at : at + _BATCH]
            feed = padded(batch, self.settings)
            if left:
                feed = {name: _to_the_right(array, batch) for name, array in feed.items()}
            made += [
                self._own(values, row, left=left)
                for values, row in zip(run(feed), batch, strict=True)
            ]
        return made

    def _own(self, values: Any, row: EncodedText, *, left: bool) -> Any:
        """A row's own values: those of its padding mean nothing."""
        if self.task.name != TAGGING:
            return values
        length = row.num_input_tokens
        return values[-length:] if left else values[:length]


def _to_the_right(array: Any, rows: Sequence[EncodedText]) -> Any:
    """Rows padded on the right, with their padding moved in front of them."""
    width = array.shape[1]
    moved = [
        np.roll(one, width - row.num_input_tokens) for one, row in zip(array, rows, strict=True)
    ]
    return np.stack(moved)


def served(task: Task, folder: Path, **changes: Any) -> Served:
    """The steps of `task`, its tokenizer in `folder`; `changes`: of its text settings."""
    text = task.text
    values = {name: getattr(text, name) for name in text.__dataclass_fields__} | changes
    settings = task_file.TextSettings(**values)
    names = ("query", "text_input") if task.name == RERANK else ("text_input", "text_pair")
    offsets = task.name == TAGGING
    encoder = TextEncoder(folder, settings, names=names, offsets=offsets)
    return Served(task, settings, encoder)
