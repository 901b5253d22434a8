# SPDX-License-Identifier: Apache-2.0
"""Compute the shared memory of Triton's Python stubs from the tensors of their models.

Each instance has a region of `shm-default-byte-size` that grows in steps of
`shm-growth-byte-size`. Source:
https://github.com/triton-inference-server/python_backend#managing-shared-memory
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tritonctl.checks.analysis.declared import element_count
from tritonctl.protocol.datatypes import BY_CONFIG_NAME

MIB = 1 << 20
# Default of both backend settings.
REGION_BYTES = MIB
# Headers and names of about 20 tensors, added to the tensors of a request.
REQUEST_OVERHEAD = 4096
STRING_BYTES = 4096
# Strings assumed in a variable dimension: lists of texts are shorter than texts in tokens.
_STRINGS_PER_LIST = 4
_MAX_ELEMENT_BYTES = 8


def tensor_bytes(
    data_type: str, dims: Iterable[int], variable_size: int, string_bytes: int = STRING_BYTES
) -> int:
    """Return the bytes of a tensor of one request, with a size assumed for variable dimensions."""
    text = data_type == "TYPE_STRING"
    variable = min(_STRINGS_PER_LIST, variable_size) if text else variable_size
    datatype = BY_CONFIG_NAME.get(data_type)
    item = string_bytes if text else (datatype and datatype.size) or _MAX_ELEMENT_BYTES
    return element_count(variable if size < 0 else size for size in dims) * item


def region_bytes(tensors: Sequence[int], places: int, region: int = REGION_BYTES) -> int:
    """Return the bytes of a stub's region for a full batch, rounded up to growth steps.

    `tensors` holds the bytes of each input and output of one request.
    """
    return region + _batch_bytes_rounded(tensors, places)


def min_region_bytes(tensors: Sequence[int], places: int) -> int:
    """Return the minimum region for a full batch: the initial region if the batch fits into it."""
    return max(REGION_BYTES, _batch_bytes_rounded(tensors, places))


def _batch_bytes_rounded(tensors: Sequence[int], places: int) -> int:
    request = REQUEST_OVERHEAD + sum(tensors)
    return -(-places * request // REGION_BYTES) * REGION_BYTES
