# SPDX-License-Identifier: Apache-2.0
"""Prompts that an engine's prefix cache must not begin together.

OpenVINO GenAI 2026.4 keeps the last KV block of a sequence that has ended, full or not, and gives
it to every prompt that goes on from that end. One prompt at a time is right. Several at once write
into the same block, and all of them are answered wrongly: after a request for one token, the next
prompts with the same beginning got each other's texts.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence


class PartialBlocks:
    """The known ends, and which stream continues from one and has no output yet."""

    def __init__(self, block_size: int, most: int) -> None:
        """`most`: blocks of the cache, so ends that it can keep."""
        self._block_size = block_size
        self._most = most
        self._ends: OrderedDict[int, None] = OrderedDict()
        self._claims: dict[int, list[int]] = {}  # by stream

    def ended(self, ids: Sequence[int]) -> None:
        """A sequence of these ids may stay in the cache; the latest ends count."""
        if not ids or len(ids) % self._block_size == 0:
            return
        *_, end = _hashes(ids)
        self._ends[end] = None
        self._ends.move_to_end(end)
        if len(self._ends) > self._most:
            self._ends.popitem(last=False)

    def may_begin(self, stream_id: int, prompt: Iterable[int]) -> bool:
        """Whether no other stream is about to continue from the same end; then this one is."""
        wanted = [end for end in _hashes(prompt) if end in self._ends]
        if any(end in claimed for claimed in self._claims.values() for end in wanted):
            return False
        if wanted:
            self._claims[stream_id] = wanted
        return True

    def begun(self, stream_id: int) -> None:
        """Its prompt now has its own blocks, or it has ended."""
        self._claims.pop(stream_id, None)


def _hashes(ids: Iterable[int]) -> Iterator[int]:
    """Of each beginning, shortest first."""
    value = 0
    for token in ids:
        value = hash((value, token))
        yield value
