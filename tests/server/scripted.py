# SPDX-License-Identifier: Apache-2.0
"""What the replay engine says in tests of exact text: hard texts, long ones, faults."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tests import sample_tokenizers

STREAMS_PER_KIND = 100
LONG_STREAMS, LONG_IDS = 64, 800
SIZES = ([1], [16], [1, 2, 3], [7], [5, 1, 16])
PIECES = [*sample_tokenizers.TEXTS, *sample_tokenizers.ENGLISH, "🏳️‍🌈👍🏽🇩🇪🇫🇷", "e\u0301\u0323 ก็กำ"]


@dataclass(frozen=True)
class Kind:
    """A model of the test server and what it is scripted to say."""

    file: Path
    tokenizer: Tokenizer
    scripts: list[dict[str, Any]]

    @classmethod
    def made(cls, name: str, folder: Path) -> Kind:
        """With a tokenizer that is trained in the folder."""
        folder.mkdir()
        file = sample_tokenizers.KINDS[name](folder)
        tokenizer = Tokenizer.from_file(str(file))
        return cls(file, tokenizer, scripts_for(tokenizer, name))

    def expected(self, number: int) -> str:
        """The library's decode of a whole script."""
        text: str = self.tokenizer.decode(self.scripts[number]["ids"], skip_special_tokens=True)
        return text


# After the random scripts of every kind:
ZERO, ONE, FAILS, FAILS_LATE, LONG = range(STREAMS_PER_KIND, STREAMS_PER_KIND + 5)


def scripts_for(tokenizer: Tokenizer, name: str) -> list[dict[str, Any]]:
    """Hard texts with special tokens anywhere; the special cases; the long streams."""
    source = random.Random(f"tritonctl {name}")  # noqa: S311 - test data
    added = tokenizer.get_added_tokens_decoder()
    special = [number for number, token in added.items() if token.special]
    made: list[dict[str, Any]] = [
        {"ids": _ids(tokenizer, special, source), "sizes": SIZES[n % len(SIZES)]}
        for n in range(STREAMS_PER_KIND)
    ]
    word = tokenizer.encode("word", add_special_tokens=False).ids
    made += [
        {"ids": []},
        {"ids": word[:1]},
        {"ids": [], "error": "as scripted"},
        {"ids": word * 5, "error": "later, as scripted"},
    ]
    return made + [_long(tokenizer, special, source) for _ in range(LONG_STREAMS)]


def _ids(tokenizer: Tokenizer, special: Sequence[int], source: random.Random) -> list[int]:
    text = " ".join(source.choices(PIECES, k=source.randint(1, 3)))
    ids: list[int] = []
    for token in tokenizer.encode(text, add_special_tokens=False).ids:
        ids += source.choices(special, k=source.choice([0] * 9 + [1, 9]))
        ids.append(token)
    return ids


def _long(tokenizer: Tokenizer, special: Sequence[int], source: random.Random) -> dict[str, Any]:
    ids: list[int] = []
    while len(ids) < LONG_IDS:
        ids += _ids(tokenizer, special, source)
    # A character cut off at the end would be malformed text: the last piece stays whole.
    return {"ids": ids, "sizes": [1]}
