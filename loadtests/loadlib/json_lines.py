# SPDX-License-Identifier: Apache-2.0
"""The lines that a generator prints: JSON, one object each."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any


def encoded(record: dict[str, Any]) -> str:
    """One line."""
    return json.dumps(record, separators=(",", ":")) + "\n"


def complain(record: dict[str, Any]) -> None:
    """Print to standard error. It may be a file on a full disk: then the line is lost."""
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), encoded(record).encode())
