# SPDX-License-Identifier: Apache-2.0
"""What several rules want to know of a model or a repository, worked out once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def remembered(thing: object, name: str, make: Callable[[], T]) -> T:
    """What `make` gave the first time: it is kept with the thing, as its cached properties are."""
    kept, key = vars(thing), f"remembered {name}"  # no attribute is called so
    if key not in kept:
        kept[key] = make()
    found: T = kept[key]
    return found
