# SPDX-License-Identifier: Apache-2.0
"""What the key of Triton's response cache leaves out: shapes, outputs, parameters.

The key is a 64-bit hash over the model's name, its version, and of each input the name and the
bytes (`TritonCache::Hash` of triton-inference-server/core). So two requests with the same bytes in
another shape are one to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class CachedInput(NamedTuple):
    """An input of a cached model. dims: without the batch dimension, -1 where it varies."""

    name: str
    dims: Sequence[int]
    optional: bool = False


def shapeless(inputs: Iterable[CachedInput], max_batch_size: int) -> list[str]:
    """The inputs whose shape does not follow from their bytes, by name: the key confuses them.

    The length of a tensor tells one unknown of its shape. The size of the batch is none where it
    is at most 1, or where a required input has no other unknown; all inputs share it.
    """
    known = list(inputs)
    told = any(not each.optional and _unknowns(each) == 0 for each in known)
    batch = 0 if max_batch_size <= 1 or told else 1
    return [each.name for each in known if _unknowns(each) and _unknowns(each) + batch > 1]


def _unknowns(each: CachedInput) -> int:
    return sum(dim < 0 for dim in each.dims)
