# SPDX-License-Identifier: Apache-2.0
"""Stop words on decoded text: found across token borders, never partly emitted.

A stop word is well-formed UTF-8, which is self-synchronising: it occurs in the decoded text if and
only if its bytes occur in the bytes of the ids. So the watch compares bytes, and an id is held
back for as long as its bytes can still be the beginning of a stop word. What it has let go can
not: a word that completes later begins inside the held ids. Where a decoder itself holds back text
(decoder_chain), the watch sees it when it is certain.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from textlib.errors import RequestError
from textlib.token_bytes import TokenTable

MAX_WORDS = 64
MAX_WORD_BYTES = 256


@dataclass(frozen=True, slots=True)
class Cleared:
    """What a watch lets go of.

    token_ids: certainly in front of any stop word. tail: at the end of the stream, the ids that
    were held; the last `cut` bytes of their text are not part of the answer. matched: a stop word
    is complete, the stream is over.
    """

    token_ids: Sequence[int]
    tail: Sequence[int] = ()
    cut: int = 0
    matched: bool = False


class StopWatch:
    """Watches one stream for stop words. Ids go in as they are made, come out when they may."""

    def __init__(
        self,
        words: Sequence[bytes],
        table: TokenTable,
        *,
        include: bool = False,
        earlier: Sequence[int] = (),
    ) -> None:
        """`include`: the stop word itself is emitted. `earlier`: ids that open the same text."""
        self._words = sorted(words)
        self._text_of = table.reader()
        for token in earlier:
            self._text_of.feed(token)
        self._include = include
        self._held: deque[tuple[int, int]] = deque()  # id, number of its bytes
        self._text = b""  # of the held ids

    def feed(self, token_ids: Sequence[int]) -> Cleared:
        """Take in new ids; after a match the following ids are dropped."""
        cleared: list[int] = []
        for token in token_ids:
            data = self._text_of.feed(token)
            self._held.append((token, len(data)))
            self._text += data
            if (end := self._first_match()) is not None:
                return self._matched(cleared, end)
            self._release(cleared)
        return Cleared(cleared)

    def flush(self) -> Cleared:
        """The held ids at the end of the stream; the rest of the text may be a stop word's."""
        self._text += self._text_of.finish()
        if (end := self._first_match()) is not None:
            return Cleared([], self._take_held(), len(self._text) - end, matched=True)
        return Cleared(self._take_held())

    def _matched(self, cleared: Sequence[int], end: int) -> Cleared:
        cut = len(self._text) + len(self._text_of.finish()) - end
        return Cleared(cleared, self._take_held(), cut, matched=True)

    def _first_match(self) -> int | None:
        """Where the text ends: at the word that is complete first, the longest of several."""
        ends = [
            (start + len(word), start)
            for word in self._words
            if (start := self._text.find(word)) >= 0
        ]
        if not ends:
            return None
        end, start = min(ends)
        return end if self._include else start

    def _release(self, cleared: list[int]) -> None:
        doubtful = self._doubtful_bytes()
        length = len(self._text)
        while self._held and length - self._held[0][1] >= doubtful:
            token, size = self._held.popleft()
            length -= size
            cleared.append(token)
        self._text = self._text[len(self._text) - length :]

    def _doubtful_bytes(self) -> int:
        """Length of the longest end of the text that begins a stop word."""
        text = self._text
        return next((n for n in range(len(text), 0, -1) if self._is_beginning(text[-n:])), 0)

    def _is_beginning(self, part: bytes) -> bool:
        position = bisect_left(self._words, part)
        return position < len(self._words) and self._words[position].startswith(part)

    def _take_held(self) -> list[int]:
        held = [token for token, _ in self._held]
        self._held.clear()
        return held


def check_words(name: str, values: Sequence[bytes]) -> tuple[bytes, ...]:
    """The words of a tensor; raises RequestError naming it, the element and the limit.

    One empty word means none: NVIDIA's examples send `"stop_words": ""`.
    """
    if list(values) == [b""]:
        return ()
    if len(values) > MAX_WORDS:
        raise RequestError(f"{name} has {len(values)} words, expected at most {MAX_WORDS}.")
    for position, word in enumerate(values):
        _check_word(f"{name}[{position}]", word)
    return tuple(dict.fromkeys(values))


def _check_word(name: str, word: bytes) -> None:
    if not word:
        raise RequestError(f"{name} is empty. Leave it out; an empty word would match everywhere.")
    if len(word) > MAX_WORD_BYTES:
        raise RequestError(f"{name} has {len(word)} bytes, expected at most {MAX_WORD_BYTES}.")
    try:
        word.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{name} is not UTF-8: {error.reason} at byte {error.start}.") from None
