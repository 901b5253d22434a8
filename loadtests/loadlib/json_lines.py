# SPDX-License-Identifier: Apache-2.0
"""A generator's output lines: one JSON object each."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any


def encode_line(record: dict[str, Any]) -> str:
    """Return the record as a JSON line."""
    return json.dumps(record, separators=(",", ":")) + "\n"


def print_error(record: dict[str, Any]) -> None:
    """Print to standard error; the line is lost if that is a file on a full disk."""
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), encode_line(record).encode())
