# SPDX-License-Identifier: Apache-2.0
"""Formats and parses bytes (binary units) and durations."""

from __future__ import annotations

import re

from tritonctl.errors import UsageError

_STEP = 1024
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_FACTORS = {unit.lower(): _STEP**power for power, unit in enumerate(_UNITS)}
_FACTORS |= {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
# As in Docker: --shm-size 64m.
_FACTORS |= {"k": _STEP, "m": _STEP**2, "g": _STEP**3, "t": _STEP**4}
_PERIODS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def human_bytes(count: float) -> str:
    """Format bytes in the largest unit of at least 1: 1.1 MiB, 512 B."""
    power = 0
    while abs(count) >= _STEP and power < len(_UNITS) - 1:
        count /= _STEP
        power += 1
    return f"{count:.{1 if power else 0}f} {_UNITS[power]}"


def human_seconds(seconds: float) -> str:
    """Format a duration in the largest unit of at least 1: 3 d, 2 h, 12 min, 0 s."""
    for length, unit in _PERIODS:
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return "0 s"


def parse_bytes(text: str) -> int:
    """Parse `80GiB`, `24 GB`, `64m` or `1073741824` to bytes. Raises UsageError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].lower() not in _FACTORS:
        raise UsageError(
            f"`{text}` is not an amount of memory", remedy="write for example 80GiB or 24GB"
        )
    return int(float(match[1]) * _FACTORS[match[2].lower()])
