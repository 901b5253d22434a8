# SPDX-License-Identifier: Apache-2.0
"""The data split, the prompts held out for scoring, and the sampler of training examples.

The split does not depend on the training seed: ``prompts.jsonl`` is the same in every run.

* From 1,000 upwards whole numbers are held out, in every script and in both prompt forms: those
  whose hash is a multiple of 50 (2 % of all numbers).
* Below 1,000 (number, script) pairs are held out, because a number such as 7 has to be seen in the
  other scripts for its digit to mean anything. 0 is never held out: no longer number shows its
  name.
"""

import hashlib
import json
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from spelling import LIMIT, SCRIPTS, spell

HELD_OUT_ONE_IN = 50
SMALL_LIMIT = 1000
# Held-out prompts a script for numbers of 1, 2, ... 6 digits: few where there are few numbers.
PROMPTS_BY_LENGTH = (2, 10, 38, 38, 39, 39)
PROMPT_COUNT = 1000
CHAT_PROMPT_COUNT = 300
# Share of training examples by number length, 1 to 6 digits.
LENGTH_WEIGHTS = (3, 6, 14, 19, 25, 33)
# Share of training numbers whose digits are thinned out to zeros: uniform sampling rarely shows
# the rules about zeros, which Chinese has most of.
ZEROED_SHARE = 0.25
CHAT_SHARE = 0.3


@dataclass(frozen=True)
class Example:
    """One number to be spelled in one script, as a raw prompt or as a chat turn."""

    number: int
    script: str
    chat: bool = False
    colon: bool = True

    @property
    def prompt(self) -> str:
        """The raw prompt, or the content of the user's message."""
        return f"{self.number} in {self.script}{':' if self.colon else ''}"

    @property
    def answer(self) -> str:
        """The completion without the end token; a raw one begins with one space."""
        return ("" if self.chat else " ") + spell(self.number, self.script)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


@cache
def held_out_numbers() -> frozenset[int]:
    """Numbers from 1,000 upwards that training never sees in any script."""
    numbers = range(SMALL_LIMIT, LIMIT)
    return frozenset(n for n in numbers if _hash(str(n)) % HELD_OUT_ONE_IN == 0)


@cache
def held_out_small(script: str) -> frozenset[int]:
    """Numbers below 1,000 that training never sees in ``script``."""
    chosen: list[int] = []
    for length, count in enumerate(PROMPTS_BY_LENGTH[:3], start=1):
        numbers = range(10 ** (length - 1), 10**length)
        chosen += sorted(numbers, key=lambda n: _hash(f"{script}:{n}"))[:count]
    return frozenset(chosen)


def is_held_out(number: int, script: str) -> bool:
    """Tell whether training must not see ``number`` in ``script``."""
    return number in (held_out_numbers() if number >= SMALL_LIMIT else held_out_small(script))


def _held_out_of_length(script: str, length: int, count: int) -> list[int]:
    """Choose ``count`` held-out numbers of ``length`` digits, up to a quarter rich in zeros."""
    pool = held_out_small(script) if length <= 3 else held_out_numbers()
    numbers = [n for n in pool if len(str(n)) == length]
    numbers.sort(key=lambda n: _hash(f"{script}:{n}"))
    zeroed = [n for n in numbers if str(n).count("0") >= 2][: count // 4]
    return (zeroed + [n for n in numbers if n not in zeroed])[:count]


def held_out_prompts() -> list[Example]:
    """List the 1,000 raw prompts kept for scoring, mixed over scripts and lengths."""
    scripts = list(SCRIPTS)
    extra = PROMPT_COUNT - len(scripts) * sum(PROMPTS_BY_LENGTH)
    chosen: list[Example] = []
    for index, script in enumerate(scripts):
        for length, count in enumerate(PROMPTS_BY_LENGTH, start=1):
            # What does not divide by the number of scripts goes to the longest numbers.
            more = length == len(PROMPTS_BY_LENGTH) and index < extra
            numbers = _held_out_of_length(script, length, count + more)
            chosen += [Example(n, script) for n in numbers]
    return sorted(chosen, key=lambda e: _hash(f"order:{e.prompt}"))


def held_out_chats() -> list[Example]:
    """List 300 of the held-out prompts in chat form, every other one with a trailing colon."""
    each = CHAT_PROMPT_COUNT // len(SCRIPTS)
    prompts = held_out_prompts()
    chosen = [e for s in SCRIPTS for e in [p for p in prompts if p.script == s][:each]]
    return [Example(e.number, e.script, True, bool(i % 2)) for i, e in enumerate(chosen)]


def write_prompts(path: Path) -> None:
    """Write the held-out prompts as JSON lines of ``text_input`` and ``text_output``."""
    rows = ({"text_input": e.prompt, "text_output": e.answer} for e in held_out_prompts())
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


class Sampler:
    """Draws training examples, never a held-out one."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def _number(self) -> int:
        length = self._random.choices(range(1, 7), LENGTH_WEIGHTS)[0]
        number = self._random.randrange(10 ** (length - 1) if length > 1 else 0, 10**length)
        if self._random.random() >= ZEROED_SHARE:
            return number
        digits = str(number)
        rest = (digit if self._random.random() < 0.5 else "0" for digit in digits[1:])
        return int(digits[0] + "".join(rest))

    def draw(self) -> Example:
        """Draw one example."""
        number, script = self._number(), self._random.choice(list(SCRIPTS))
        if is_held_out(number, script):
            return self.draw()
        chat = self._random.random() < CHAT_SHARE
        return Example(number, script, chat, not chat or self._random.random() < 0.5)
