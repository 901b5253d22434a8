# SPDX-License-Identifier: Apache-2.0
"""The texts of a proof: short, long, empty, many scripts, mixed lengths. Standard library only."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from taskcompile.task import CLASSIFICATION, RERANK, TextTask

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
# Sentences of a medium text.
_MEDIUM_SENTENCES = 4
_QUERY = "What is the capital of France?"


@dataclass(frozen=True)
class TextCase:
    """One input."""

    text: str  # for rerank the query
    pair: str | None = None  # the second text
    prompt: str | None = None  # a prompt's name; None: the default


def text_cases(task: TextTask) -> list[TextCase]:
    """Return the inputs that prove a task."""
    texts = [*_TEXTS, *_texts_by_length(task.text.max_seq_len)]
    if task.name == RERANK:
        return list(_pairs(texts))
    cases = [TextCase(text) for text in texts]
    if task.name == CLASSIFICATION:  # pairs are optional; transformers ignores an empty text
        cases += list(_pairs([text for text in texts[::3] if text]))
    for name in task.text.prompts:
        cases += [TextCase(text, prompt=name) for text in texts[2:4]]
    return cases


def _texts_by_length(max_seq_len: int) -> Iterator[str]:
    """Yield a few sentences, a text of about 700 tokens and one longer than the model reads."""
    sentences = {_MEDIUM_SENTENCES, min(_LONG, max_seq_len) // _WORDS_A_SENTENCE + 1}
    for count in sorted({*sentences, max_seq_len // _WORDS_A_SENTENCE + 2}):
        yield "".join(_SENTENCE.format(number) for number in range(count)).strip()


def _pairs(texts: Iterable[str]) -> Iterator[TextCase]:
    """Yield each text as the answer, and the two longest also as the question."""
    all_texts = list(texts)
    for text in all_texts:
        yield TextCase(_QUERY, text)
    long_texts = sorted(all_texts, key=len)[-2:]
    yield from (TextCase(text, "Paris.") for text in long_texts)
    yield TextCase(long_texts[1], long_texts[0])
