# SPDX-License-Identifier: Apache-2.0
"""Remember which replica recently read a prompt's prefix: its KV cache may still contain it.

A prompt is split into blocks. A block's hash covers everything before it, so equal hashes mean
equal prefixes. The memory is bounded: it forgets the least recently used blocks.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

BLOCK_BYTES = 256
_MAX_PROMPT_BLOCKS = 64  # 16 KiB of a prompt
_DIGEST_BYTES = 8


def block_hashes(prompt: bytes, model: str) -> tuple[bytes, ...]:
    """Return a hash for each complete block of a prompt's prefix; () for a short prompt."""
    digest = hashlib.blake2b(model.encode(), digest_size=_DIGEST_BYTES)
    hashes = []
    end = min(len(prompt) // BLOCK_BYTES, _MAX_PROMPT_BLOCKS) * BLOCK_BYTES
    for start in range(0, end, BLOCK_BYTES):
        digest.update(prompt[start : start + BLOCK_BYTES])
        hashes.append(digest.copy().digest())
    return tuple(hashes)


class PrefixMemory:
    """The replica that last read each block, for at most `max_blocks` blocks."""

    def __init__(self, max_blocks: int = 65_536) -> None:
        self._max_blocks = max_blocks
        self._replicas: OrderedDict[bytes, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._replicas)

    def best_match(self, hashes: Sequence[bytes]) -> str | None:
        """Return the replica that read the longest prefix of this prompt; None if unknown."""
        return next(
            (self._replicas[block] for block in reversed(hashes) if block in self._replicas), None
        )

    def read(self, hashes: Sequence[bytes], replica: str) -> None:
        """Record that a replica reads this prompt."""
        for block in hashes:
            self._replicas[block] = replica
            self._replicas.move_to_end(block)
        while len(self._replicas) > self._max_blocks:
            self._replicas.popitem(last=False)

    def forget(self, replica: str) -> None:
        """Forget a replica that was removed, with its cache."""
        forgotten = [block for block, holder in self._replicas.items() if holder == replica]
        for block in forgotten:
            del self._replicas[block]
