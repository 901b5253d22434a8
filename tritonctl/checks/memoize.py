# SPDX-License-Identifier: Apache-2.0
"""Compute values that several rules need once per model or repository."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def memoized(owner: object, name: str, compute: Callable[[], T]) -> T:
    """Return the first result of the computation, cached in the owner as cached properties are."""
    cache, key = vars(owner), f"memoized {name}"  # not a valid attribute name
    if key not in cache:
        cache[key] = compute()
    value: T = cache[key]
    return value
