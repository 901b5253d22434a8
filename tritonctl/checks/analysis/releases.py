# SPDX-License-Identifier: Apache-2.0
"""The table of releases, imported only for the rules that need it.

Importing it (pydantic) takes longer than checking a model.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tritonctl.project.compatibility.table import Compatibility


def releases() -> Compatibility:
    """Everything in builders/compatibility.toml."""
    from tritonctl.project.compatibility.table import table

    return table(None)


def reaches(version: str | None, least: str) -> bool:
    """Whether a version is known and not older than another."""
    from tritonctl.project.compatibility import table

    return table.reaches(version, least)


@lru_cache(maxsize=8)
def newer_fields(version: str) -> dict[str, str]:
    """The config.pbtxt fields (dotted) newer than a version, with their first version."""
    from tritonctl.project.compatibility.rules import fields_unknown_to

    return fields_unknown_to(version, releases())
