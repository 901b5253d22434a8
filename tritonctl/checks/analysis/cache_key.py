# SPDX-License-Identifier: Apache-2.0
"""Find inputs that the key of Triton's response cache cannot tell apart.

The key is a 64-bit hash of the model's name and version and of each input's name and bytes
(`TritonCache::Hash` of triton-inference-server/core). It omits shapes, outputs and parameters: two
requests with the same bytes in different shapes share a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class CachedInput(NamedTuple):
    """An input of a cached model."""

    name: str
    dims: Sequence[int]  # without the batch dimension; -1 for a variable dimension
    optional: bool = False


def inputs_with_ambiguous_shape(inputs: Iterable[CachedInput], max_batch_size: int) -> list[str]:
    """Return the names of the inputs whose shape does not follow from their bytes.

    The length of a tensor determines one variable dimension. The batch size is known if it is at
    most 1, or if a required input has no variable dimension; all inputs share the batch size.
    """
    cached_inputs = list(inputs)
    batch_is_derivable = any(
        not cached_input.optional and _variable_dims(cached_input) == 0
        for cached_input in cached_inputs
    )
    batch_unknowns = 0 if max_batch_size <= 1 or batch_is_derivable else 1
    return [
        cached_input.name
        for cached_input in cached_inputs
        if _variable_dims(cached_input) and _variable_dims(cached_input) + batch_unknowns > 1
    ]


def _variable_dims(cached_input: CachedInput) -> int:
    return sum(dim < 0 for dim in cached_input.dims)
