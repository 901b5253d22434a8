# SPDX-License-Identifier: Apache-2.0
"""Keep prompts that share a partial KV block from starting together.

OpenVINO GenAI 2026.4 keeps the last KV block of a finished sequence, full or not, and reuses it for
every prompt that continues from that end. With one prompt at a time the answer is right. Several
prompts at once write into the same block, and all get wrong answers: after a request for one token,
the next prompts with the same prefix got each other's texts.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence


class PartialBlocks:
    """Tracks partial blocks and the streams that continue from one and have no output yet."""

    def __init__(self, block_size: int, max_ends: int) -> None:
        """`max_ends`: number of blocks in the cache, and so of ends that it can keep."""
        self._block_size = block_size
        self._max_ends = max_ends
        self._ends: OrderedDict[int, None] = OrderedDict()
        self._claims: dict[int, list[int]] = {}  # by stream

    def record_end(self, ids: Sequence[int]) -> None:
        """Record the end of a sequence that may stay in the cache; keeps the latest ends."""
        if not ids or len(ids) % self._block_size == 0:
            return
        *_, end = _prefix_hashes(ids)
        self._ends[end] = None
        self._ends.move_to_end(end)
        if len(self._ends) > self._max_ends:
            self._ends.popitem(last=False)

    def try_claim(self, stream_id: int, prompt: Iterable[int]) -> bool:
        """Claim the ends that a prompt continues from; False if another stream has one."""
        continued_ends = [end for end in _prefix_hashes(prompt) if end in self._ends]
        if any(end in claimed for claimed in self._claims.values() for end in continued_ends):
            return False
        if continued_ends:
            self._claims[stream_id] = continued_ends
        return True

    def release_claim(self, stream_id: int) -> None:
        """Release a stream's ends once its prompt has its own blocks, or it has ended."""
        self._claims.pop(stream_id, None)


def _prefix_hashes(ids: Iterable[int]) -> Iterator[int]:
    """Yield the hash of each prefix, shortest first."""
    value = 0
    for token in ids:
        value = hash((value, token))
        yield value
