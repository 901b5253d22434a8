# SPDX-License-Identifier: Apache-2.0
"""Faults of an ensemble's wiring as hits in its config.pbtxt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tritonctl.checks.analysis.wiring import Fault
from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.findings import Hit


def hits(config: ConfigMessage, faults: Iterable[Fault]) -> Iterator[Hit]:
    """Each at what its path leads to."""
    for message, fix, path, of_name in faults:
        yield Hit(message, fix, config.name_span(*path) if of_name else config.span(*path))
