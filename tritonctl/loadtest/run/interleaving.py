# SPDX-License-Identifier: Apache-2.0
"""Interleave the runs of two endpoints, A B B A, so that drift affects both sides alike."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tritonctl.loadtest.run.execution import LoadJob, run_load
from tritonctl.loadtest.run.live import LoadBoard

_ENDPOINT = re.compile(r"[\w.-]+:\d{1,5}|\[[\da-fA-F:]+\]:\d{1,5}")

Sides = tuple[list[Path], list[Path]]


def is_endpoint(name: str) -> bool:
    """Whether a side of a comparison is HOST:PORT and not a folder."""
    return _ENDPOINT.fullmatch(name) is not None and not Path(name).exists()


def run_interleaved(
    create_job: Callable[[int, int], LoadJob], rounds: int, board: LoadBoard
) -> tuple[Sides, bool]:
    """Run each side once a round; every second round reverses the order.

    `create_job(side, round)` returns the job of side 0 or 1. Returns the folders of both sides,
    complete rounds only, and whether the user stopped early.
    """
    sides: Sides = ([], [])
    for number in range(rounds):
        completed: dict[int, Path] = {}
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            run = run_load(create_job(side, number), board)
            if run.interrupted:
                return sides, True
            completed[side] = run.folder
        for side, folder in completed.items():
            sides[side].append(folder)
    return sides, False
