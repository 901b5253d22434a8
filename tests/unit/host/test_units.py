# SPDX-License-Identifier: Apache-2.0
"""Bytes and durations, read and written."""

from __future__ import annotations

import pytest

from tritonctl.errors import UsageError
from tritonctl.host.units import human_bytes, human_seconds, parse_bytes


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1.5 * 2**30, "1.5 GiB"),
        (2**60, "1024.0 PiB"),
    ],
)
def test_bytes(count: float, text: str) -> None:
    """The largest unit that they fill; the last one has no end."""
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59, "59 s"), (60, "1 min"), (7200, "2 h"), (864000, "10 d")],
)
def test_seconds(seconds: float, text: str) -> None:
    """One unit is enough to judge by."""
    assert human_seconds(seconds) == text


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("80GiB", 80 * 2**30),
        ("24 GB", 24 * 10**9),
        ("1.5gib", 3 * 2**29),
        ("4096", 4096),
        ("64m", 2**26),
    ],
)
def test_parsed_bytes(text: str, count: int) -> None:
    """Binary and decimal units, as data sheets have them."""
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "80 Gibbons", "-1GB", "1e9"])
def test_what_is_no_amount(text: str) -> None:
    """Refused with an example."""
    with pytest.raises(UsageError, match="is not an amount of memory") as caught:
        parse_bytes(text)
    assert "80GiB" in caught.value.remedy
