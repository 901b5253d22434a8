# SPDX-License-Identifier: Apache-2.0
"""Import the table of releases only for rules that need it.

The import (pydantic) takes longer than checking a model.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tritonctl.project.compatibility.table import Compatibility


def releases() -> Compatibility:
    """Return the content of builders/compatibility.toml."""
    from tritonctl.project.compatibility.table import table

    return table(None)


def meets_minimum(version: str | None, minimum: str) -> bool:
    """Whether a version is known and at least `minimum`."""
    from tritonctl.project.compatibility import table

    return table.is_at_least(version, minimum)


@lru_cache(maxsize=8)
def newer_fields(version: str) -> dict[str, str]:
    """Map each config.pbtxt field (dotted) that is newer than a version to its first version."""
    from tritonctl.project.compatibility.rules import fields_unknown_to

    return fields_unknown_to(version, releases())
