# SPDX-License-Identifier: Apache-2.0
"""Check the structure of a JSON body before its fields: its number of values, duplicate keys.

Parsers and validators hold Python's lock while they run, so a thread of their own would not keep
them from delaying other streams. Instead the work is bounded: marks of values are counted piece by
piece, and a body with too many of them reaches no parser.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tritonctl.frontend.errors import ApiError

# Of commas, opening brackets and texts: about twice the number of values and keys.
MAX_MARKS = 131_072
_PIECE_BYTES = 65_536
_MAX_KEY_LENGTH = 60


def count_marks_in_steps(body: bytes) -> Iterator[None]:
    """Count marks while it is iterated, a piece at a time. Raises ApiError beyond MAX_MARKS.

    The body need not be valid JSON: each value that a parser could find has a mark.
    """
    if len(body) <= MAX_MARKS:  # a mark has at least one byte
        return
    count, position, in_text = 0, 0, False
    while position < len(body):
        piece = _piece_at(body, position)
        position += len(piece)
        quoted = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        structure = b" ".join(quoted[in_text::2])
        in_text ^= len(quoted) % 2 == 0
        count += len(quoted) // 2 + sum(structure.count(mark) for mark in (b",", b"[", b"{"))
        if count > MAX_MARKS:
            raise ApiError(
                400,
                f"the body has more than {MAX_MARKS} commas, brackets and texts: split it into "
                "several requests",
                code="invalid_value",
            )
        yield


def _piece_at(body: bytes, start: int) -> bytes:
    """Return the piece that starts there; it does not end between a backslash and its escape."""
    piece = body[start : start + _PIECE_BYTES]
    backslashes = len(piece) - len(piece.rstrip(b"\\"))
    return body[start : start + len(piece) + 1] if backslashes % 2 else piece


def load_unambiguous(body: bytes) -> Any:
    """Parse a body. Returns {} if it is not JSON. Raises ApiError for duplicate keys."""
    try:
        return json.loads(body.decode("utf-8"), object_pairs_hook=_object)
    except (ValueError, RecursionError):
        return {}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Create an object. Parsers disagree about which of two equal keys is valid."""
    values = dict(pairs)
    if len(values) != len(pairs):
        seen: set[str] = set()
        key = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        name = key if len(key) <= _MAX_KEY_LENGTH else f"{key[:_MAX_KEY_LENGTH]}…"
        raise ApiError(
            400, f"an object has the key `{name}` twice", code="invalid_value", param=name
        )
    return values
