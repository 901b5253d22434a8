# SPDX-License-Identifier: Apache-2.0
"""Which replica has lately read how much of a prompt's beginning: its KV cache may still have it.

A prompt is cut into blocks; the hash of each covers all that stands before it, so equal hashes mean
equal beginnings. What is remembered is bounded: the blocks used longest ago are forgotten.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

BLOCK_BYTES = 256
_MOST_BLOCKS = 64  # of a prompt: 16 KiB are a beginning
_DIGEST_BYTES = 8


def block_hashes(prompt: bytes, model: str) -> tuple[bytes, ...]:
    """A hash for each whole block of a prompt's beginning; none of a short prompt."""
    digest = hashlib.blake2b(model.encode(), digest_size=_DIGEST_BYTES)
    hashes = []
    end = min(len(prompt) // BLOCK_BYTES, _MOST_BLOCKS) * BLOCK_BYTES
    for begin in range(0, end, BLOCK_BYTES):
        digest.update(prompt[begin : begin + BLOCK_BYTES])
        hashes.append(digest.copy().digest())
    return tuple(hashes)


class PrefixMemory:
    """Blocks by the replica that read them last, at most `most_blocks` of them all."""

    def __init__(self, most_blocks: int = 65_536) -> None:
        self._most_blocks = most_blocks
        self._replicas: OrderedDict[bytes, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._replicas)

    def longest(self, hashes: Sequence[bytes]) -> str | None:
        """The replica that read the most of this prompt's beginning; None if none did."""
        return next(
            (self._replicas[one] for one in reversed(hashes) if one in self._replicas), None
        )

    def read(self, hashes: Sequence[bytes], replica: str) -> None:
        """A replica reads this prompt."""
        for one in hashes:
            self._replicas[one] = replica
            self._replicas.move_to_end(one)
        while len(self._replicas) > self._most_blocks:
            self._replicas.popitem(last=False)

    def forget(self, replica: str) -> None:
        """A replica has gone, and its cache with it."""
        gone = [one for one, where in self._replicas.items() if where == replica]
        for one in gone:
            del self._replicas[one]
