# SPDX-License-Identifier: Apache-2.0
"""The access log: one JSON line per request, without prompts and answers.

`frontend.log_prompts` adds the prompts and the answers' texts: for debugging sessions, not for a
service.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TextIO

_MAX_VALUE_LENGTH = 256  # of text from the client: an unknown model, a path


class AccessLog:
    """Writes whole lines to a text stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, record: Mapping[str, Any], *, text: Mapping[str, Any] | None = None) -> None:
        """Write one line without values that are None. text: fields that are not shortened."""
        line = {key: _short(value) for key, value in record.items() if value is not None}
        # ASCII only: some terminals and readers treat other Unicode characters as line ends.
        self._stream.write(json.dumps(line | dict(text or {}), default=str) + "\n")
        self._stream.flush()


def _short(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _MAX_VALUE_LENGTH:
        return value[:_MAX_VALUE_LENGTH] + "…"
    return value
