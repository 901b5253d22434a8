# SPDX-License-Identifier: Apache-2.0
"""The candidate's half minutes beside stable's earlier ones of as many requests."""

from __future__ import annotations

import pytest

from tritonctl.rollout.baseline_history import BaselineHistory

MARGIN = 0.1


def known(blocks: int = 3, rate: int = 19) -> BaselineHistory:
    """So many half minutes of stable, a bit longer each time."""
    past = BaselineHistory()
    for block in range(blocks):
        for _ in range(30):
            past.update((9.0, 1), (0.05 * block, rate), MARGIN)
    past.start_step()
    return past


@pytest.mark.parametrize(
    ("past", "mean", "rate", "beyond"),
    [
        (known(), 0.21, 20, True),
        (known(), 0.19, 20, False),
        (known(2), 9.0, 20, False),  # too few to compare with
        (known(), 9.0, 10, False),  # as many requests were never seen
        (known(rate=1), 9.0, 0, False),
    ],
)
def test_beyond_all_that_stable_was(
    past: BaselineHistory, mean: float, rate: int, beyond: bool
) -> None:
    """By the margin, of three at least with about as many requests."""
    for _ in range(29):
        past.update((mean, rate), None, MARGIN)
    assert not past.is_slower
    past.update((mean, rate), None, MARGIN)
    assert past.is_slower is beyond
    past.start_step()
    assert not past.is_slower


def test_a_block_that_is_as_usual() -> None:
    """It is over."""
    past = known()
    for mean, beyond in ((1.0, True), (0.1, False)):
        for _ in range(30):
            past.update((mean, 20), None, MARGIN)
        assert past.is_slower is beyond
