# SPDX-License-Identifier: Apache-2.0
"""What Triton's Python stubs take of shared memory, from the tensors of their models.

A region for each instance, of `shm-default-byte-size`, which grows in steps of
`shm-growth-byte-size`. Source:
https://github.com/triton-inference-server/python_backend#managing-shared-memory
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tritonctl.checks.analysis.declared import element_count
from tritonctl.protocol.datatypes import BY_CONFIG_NAME

MIB = 1 << 20
# Both of the backend's settings, by default.
REGION_BYTES = MIB
# A request's tensors in shared memory: headers and names of about 20 tensors come on top.
REQUEST_OVERHEAD = 4096
STRING_BYTES = 4096
# Of a list of texts, which is not as long as a text is in tokens.
_TEXTS = 4
_WIDEST = 8


def tensor_bytes(
    data_type: str, dims: Iterable[int], longest: int, string_bytes: int = STRING_BYTES
) -> int:
    """A tensor of one request. longest: what a dimension that varies is taken for."""
    text = data_type == "TYPE_STRING"
    free = min(_TEXTS, longest) if text else longest
    known = BY_CONFIG_NAME.get(data_type)
    item = string_bytes if text else (known and known.size) or _WIDEST
    return element_count(free if size < 0 else size for size in dims) * item


def region_bytes(tensors: Sequence[int], places: int, region: int = REGION_BYTES) -> int:
    """A stub's region: what a batch of requests and answers holds, in steps of the growth.

    tensors: bytes of each input and output of one request; places: requests in a batch.
    """
    return region + _in_steps(tensors, places)


def least_region_bytes(tensors: Sequence[int], places: int) -> int:
    """The same at the very least: what a batch holds fits into the region as it begins, or not."""
    return max(REGION_BYTES, _in_steps(tensors, places))


def _in_steps(tensors: Sequence[int], places: int) -> int:
    request = REQUEST_OVERHEAD + sum(tensors)
    return -(-places * request // REGION_BYTES) * REGION_BYTES
