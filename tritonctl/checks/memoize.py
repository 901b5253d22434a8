# SPDX-License-Identifier: Apache-2.0
"""Facts about a model or a repository that several rules need, computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def memoized(thing: object, name: str, make: Callable[[], T]) -> T:
    """What `make` gave the first time: it is kept with the thing, as its cached properties are."""
    kept, key = vars(thing), f"memoized {name}"  # no attribute is called so
    if key not in kept:
        kept[key] = make()
    value: T = kept[key]
    return value
