# SPDX-License-Identifier: Apache-2.0
"""The data split, the pairs held out for scoring, and the sampler of training numbers.

The split does not depend on the training seed: ``pairs.jsonl`` is the same in every run.

1,000 of the numbers from 1,000 upwards, chosen by a hash, are unseen in every writing: one in nine,
so most of them are scored against others that differ in one digit. Below 1,000 nothing is held out,
because no longer number shows those names.
"""

import hashlib
import json
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from writings import LIMIT, WRITINGS, write

SMALL_LIMIT = 1000
HELD_OUT = 1000
# Share of training numbers by length, 1 to 4 digits.
LENGTH_WEIGHTS = (2, 5, 18, 75)
# Share of training numbers whose digits are thinned out to zeros: uniform sampling rarely shows
# the rules about zeros, which Chinese has most of.
ZEROED_SHARE = 0.25


@dataclass(frozen=True)
class Pair:
    """One number in two writings: the query finds the document."""

    number: int
    query_writing: str
    document_writing: str

    @property
    def query(self) -> str:
        """The number as it is asked for."""
        return write(self.number, self.query_writing)

    @property
    def document(self) -> str:
        """The number as it is to be found."""
        return write(self.number, self.document_writing)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


@cache
def held_out_numbers() -> tuple[int, ...]:
    """Numbers that training never sees, in the order of a hash."""
    numbers = sorted(range(SMALL_LIMIT, LIMIT), key=lambda n: _hash(str(n)))
    return tuple(numbers[:HELD_OUT])


@cache
def _held_out() -> frozenset[int]:
    return frozenset(held_out_numbers())


def is_held_out(number: int) -> bool:
    """Tell whether training must not see ``number``."""
    return number in _held_out()


@cache
def held_out_pairs() -> tuple[Pair, ...]:
    """List a pair for each held-out number; every two writings are asked about equally often."""
    ways = [(q, d) for q in WRITINGS for d in WRITINGS if q != d]
    return tuple(Pair(n, *ways[i % len(ways)]) for i, n in enumerate(held_out_numbers()))


def write_pairs(path: Path) -> None:
    """Write the held-out pairs as JSON lines of ``query`` and ``text``."""
    rows = ({"query": pair.query, "text": pair.document} for pair in held_out_pairs())
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


def write_texts(path: Path) -> None:
    """Write the documents of the held-out pairs, one on each line."""
    text = "".join(f"{pair.document}\n" for pair in held_out_pairs())
    path.write_text(text, encoding="utf-8")


class Sampler:
    """Draws training numbers, never a held-out one."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def _number(self) -> int:
        length = self._random.choices(range(1, 5), LENGTH_WEIGHTS)[0]
        number = self._random.randrange(10 ** (length - 1) if length > 1 else 0, 10**length)
        if self._random.random() >= ZEROED_SHARE:
            return number
        digits = str(number)
        rest = (digit if self._random.random() < 0.5 else "0" for digit in digits[1:])
        return int(digits[0] + "".join(rest))

    def _neighbour(self, number: int) -> int:
        """Change one digit, swap two, or drop or add one: what is easily taken for ``number``."""
        digits = list(str(number))
        place = self._random.randrange(len(digits))
        kind = self._random.random()
        if kind < 0.6:
            digits[place] = self._random.choice("0123456789")
        elif kind < 0.8:
            other = self._random.randrange(len(digits))
            digits[place], digits[other] = digits[other], digits[place]
        elif kind < 0.9 and len(digits) > 1:
            del digits[place]
        elif len(digits) < 4:
            digits.insert(place, self._random.choice("0123456789"))
        return int("".join(digits))

    def draw(self, count: int, neighbours: int) -> list[int]:
        """Draw ``count`` different numbers: after each its ``neighbours``, then the next."""
        chosen: dict[int, None] = {}
        while len(chosen) < count:
            number = self._number()
            family = [number, *(self._neighbour(number) for _ in range(neighbours))]
            chosen |= {n: None for n in family if not is_held_out(n)}
        return list(chosen)[:count]
