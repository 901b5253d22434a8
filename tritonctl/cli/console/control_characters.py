# SPDX-License-Identifier: Apache-2.0
"""Make text from files and servers harmless on a terminal and in a log.

A name or a value in a file may hold terminal commands, or lines that look like ours.
"""

from __future__ import annotations

import re

# Control characters without tab and newline; marks that reorder or hide text; line separators.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_CONTINUATION = "\n  │ "


def visible(text: str) -> str:
    r"""Return the text with control characters written as in Python, such as \x1b."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def as_one_message(text: str) -> str:
    """Return visible text whose further lines are marked, so that none looks like a new message."""
    return visible(text).rstrip("\n").replace("\n", _CONTINUATION)
