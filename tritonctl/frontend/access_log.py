# SPDX-License-Identifier: Apache-2.0
"""The access log: a line of JSON per request, without what was asked or answered.

With `frontend.log_prompts` it has the request's body and the answer's text, too: for a debugging
session, not for a service.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TextIO

_LONGEST = 256  # of a client's own words: a model that nobody serves, a user agent


class AccessLog:
    """Writes to a text stream, whole lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, record: Mapping[str, Any], *, text: Mapping[str, Any] | None = None) -> None:
        """One line. Values that are None are left out. text: what is written at full length."""
        line = {key: _short(value) for key, value in record.items() if value is not None}
        # ASCII: a line stays a line, whatever characters a terminal or a reader takes for an end.
        self._stream.write(json.dumps(line | dict(text or {}), default=str) + "\n")
        self._stream.flush()


def _short(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _LONGEST:
        return value[:_LONGEST] + "…"
    return value
