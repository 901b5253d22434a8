# SPDX-License-Identifier: Apache-2.0
"""The inputs of a proof: short, long, empty, many scripts, mixed lengths. Standard library only."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from taskcompile.task import CLASSIFICATION, RERANK, Task

_TEXTS = (
    "a",
    "Berlin",
    "What is the capital of France?",
    "Paris is the capital and the largest city of France.",
    "",
    "   ",
    "Angela Merkel met Emmanuel Macron in New York on 3 May 2019, says Reuters.",
    "I LOVED this film: great acting, a clever plot, and a ending nobody saw coming!",
    "i did not like it at all",
    "👩‍👩‍👧‍👦 had 🎂 with Zoë in São Paulo 🇧🇷 👍🏽",
    "東京は日本の首都です。人口は約1400万人。",
    "北京是中国的首都",
    "서울은 대한민국의 수도이다",
    "القاهرة هي عاصمة مصر وأكبر مدنها",
    "Кошка сидит на окне и смотрит на дождь.",
    "cafe\u0301 nai\u0308ve fiance\u0301 and café naïve fiancé",
    "x = [i**2 for i in range(10)]\n\tif x[3] != 9: raise ValueError('no')",
    "https://example.com/a/b?c=1&d=%20 costs $1,234.56 (−5 %)",
    "\u00a0\u200bzero\u200bwidth\u00ad and soft\u00adhyphens\ufeff",
    "Supercalifragilisticexpialidocious antidisestablishmentarianism",
)
_SENTENCE = "The quick brown fox number {} jumps over a lazy dog near the river bank. "
_WORDS_A_SENTENCE = 15
# Tokens: long enough for windows of local attention, short enough for a CPU.
_LONG = 700
# A text of so many sentences has more tokens than any: a word is at least one.
_MEDIUM_SENTENCES = 4
_QUERY = "What is the capital of France?"


@dataclass(frozen=True)
class Case:
    """One input. `pair`: the second text; of rerank `text` is the query.

    `prompt`: its name, None for the default.
    """

    text: str
    pair: str | None = None
    prompt: str | None = None


def cases_of(task: Task) -> list[Case]:
    """The inputs that prove a task."""
    texts = [*_TEXTS, *_lengths(task.text.max_seq_len)]
    if task.name == RERANK:
        return list(_pairs(texts))
    cases = [Case(text) for text in texts]
    if task.name == CLASSIFICATION:  # pairs are optional; transformers takes an empty one for none
        cases += list(_pairs([text for text in texts[::3] if text]))
    for name in task.text.prompts:
        cases += [Case(text, prompt=name) for text in texts[2:4]]
    return cases


def _lengths(longest: int) -> Iterator[str]:
    """Texts of some length: a few sentences, about 700 tokens, more than the model reads."""
    sentences = {_MEDIUM_SENTENCES, min(_LONG, longest) // _WORDS_A_SENTENCE + 1}
    for count in sorted({*sentences, longest // _WORDS_A_SENTENCE + 2}):
        yield "".join(_SENTENCE.format(number) for number in range(count)).strip()


def _pairs(texts: Iterable[str]) -> Iterator[Case]:
    """Each text as the answer, and the two longest as the question, too."""
    kept = list(texts)
    for text in kept:
        yield Case(_QUERY, text)
    longest = sorted(kept, key=len)[-2:]
    yield from (Case(text, "Paris.") for text in longest)
    yield Case(longest[1], longest[0])
