# SPDX-License-Identifier: Apache-2.0
"""Which steps a guide is blamed for."""

import pytest
from textlib.engine.guided_step import MAX_STEP_SECONDS, GuidedStep
from textlib.triton.request_tensors import GuideSpec

GUIDES = {GuideSpec("regex", "(a*)*b")}
SLOW = 2 * MAX_STEP_SECONDS


@pytest.mark.parametrize(
    ("guides", "seconds", "cpu_seconds", "is_slow"),
    [
        (GUIDES, SLOW, SLOW, True),
        (GUIDES, SLOW, 8 * SLOW, True),  # several cores
        (GUIDES, SLOW, SLOW / 4, False),  # a stopped process, or a machine without a free core
        (GUIDES, MAX_STEP_SECONDS, SLOW, False),
        (set(), SLOW, SLOW, False),
    ],
)
def test_a_slow_step(
    guides: set[GuideSpec], seconds: float, cpu_seconds: float, is_slow: bool
) -> None:
    """Only if the engine computed for long, with a guide and without a prompt."""
    clock, cpu_clock = iter([10.0, 10.0 + seconds]), iter([3.0, 3.0 + cpu_seconds])
    step = GuidedStep(guides, clock.__next__, cpu_clock.__next__)
    problem = step.slowness_error()
    assert (problem is not None) == is_slow
    if problem is not None:
        assert f"took {seconds:.1f} s" in str(problem)
