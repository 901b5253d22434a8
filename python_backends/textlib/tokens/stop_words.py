# SPDX-License-Identifier: Apache-2.0
"""Find stop words in decoded text, also across token borders, and never emit part of one.

A stop word is well-formed UTF-8, which is self-synchronising: it occurs in the decoded text if and
only if its bytes occur in the bytes of the ids. So the watch compares bytes, and holds an id back
as long as its bytes can still start a stop word. A word that completes later starts inside the held
ids, never in released ones. Where a decoder itself holds back text (decoder_chain), the watch sees
the text when it is final.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from textlib.errors import RequestError
from textlib.tokens.token_bytes import TokenTable

MAX_WORDS = 64
MAX_WORD_BYTES = 256


@dataclass(frozen=True, slots=True)
class ReleasedIds:
    """The ids that a watch releases."""

    token_ids: Sequence[int]  # in front of any stop word
    tail: Sequence[int] = ()  # the held ids, at the end of the stream
    cut: int = 0  # bytes at the end of the tail's text that are not part of the answer
    matched: bool = False  # a stop word is complete: the stream ends


class StopWatch:
    """Watches one stream for stop words; releases ids that cannot be part of one."""

    def __init__(
        self,
        words: Sequence[bytes],
        table: TokenTable,
        *,
        include_stop_word: bool = False,
        preceding_ids: Sequence[int] = (),
    ) -> None:
        """Start a stream whose text begins with `preceding_ids`.

        include_stop_word: emit the stop word itself.
        """
        self._words = sorted(words)
        self._reader = table.reader()
        for token in preceding_ids:
            self._reader.feed(token)
        self._include_stop_word = include_stop_word
        self._held: deque[tuple[int, int]] = deque()  # id, number of its bytes
        self._held_text = b""  # of the held ids

    def feed(self, token_ids: Sequence[int]) -> ReleasedIds:
        """Add new ids; after a match, drop the following ones."""
        released: list[int] = []
        for token in token_ids:
            data = self._reader.feed(token)
            self._held.append((token, len(data)))
            self._held_text += data
            if (end := self._first_match()) is not None:
                return self._release_match(released, end)
            self._release(released)
        return ReleasedIds(released)

    def flush(self) -> ReleasedIds:
        """Release the held ids at the end of the stream; the last text may complete a word."""
        self._held_text += self._reader.finish()
        if (end := self._first_match()) is not None:
            return ReleasedIds([], self._pop_held_ids(), len(self._held_text) - end, matched=True)
        return ReleasedIds(self._pop_held_ids())

    def _release_match(self, released: Sequence[int], end: int) -> ReleasedIds:
        cut = len(self._held_text) + len(self._reader.finish()) - end
        return ReleasedIds(released, self._pop_held_ids(), cut, matched=True)

    def _first_match(self) -> int | None:
        """Return the offset where the text ends: at the first complete word, or the longest."""
        matches = [
            (start + len(word), start)
            for word in self._words
            if (start := self._held_text.find(word)) >= 0
        ]
        if not matches:
            return None
        end, start = min(matches)
        return end if self._include_stop_word else start

    def _release(self, released: list[int]) -> None:
        doubtful = self._doubtful_bytes()
        length = len(self._held_text)
        while self._held and length - self._held[0][1] >= doubtful:
            token, size = self._held.popleft()
            length -= size
            released.append(token)
        self._held_text = self._held_text[len(self._held_text) - length :]

    def _doubtful_bytes(self) -> int:
        """Length of the longest suffix of the text that is a prefix of a stop word."""
        text = self._held_text
        return next((n for n in range(len(text), 0, -1) if self._begins_word(text[-n:])), 0)

    def _begins_word(self, part: bytes) -> bool:
        position = bisect_left(self._words, part)
        return position < len(self._words) and self._words[position].startswith(part)

    def _pop_held_ids(self) -> list[int]:
        held = [token for token, _ in self._held]
        self._held.clear()
        return held


def check_stop_words(name: str, values: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return the distinct words of a tensor; raises RequestError with its name and the limit.

    A single empty word means no words: NVIDIA's examples send `"stop_words": ""`.
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
