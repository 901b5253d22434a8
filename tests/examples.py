# SPDX-License-Identifier: Apache-2.0
"""How many examples hypothesis draws: always the same few, all of them where everything is tested.

    pytest --hypothesis-profile=full

No example has a deadline, and none is remembered from another run.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

FEW, FULL = "few", "full"
_PART = 10
_LEAST = 5


def register_profiles() -> None:
    """Before tests are imported; pytest's own option chooses another one later."""
    unhurried = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile(FULL, unhurried, max_examples=100)
    settings.register_profile(FEW, unhurried, max_examples=100 // _PART, derandomize=True)
    settings.load_profile(FEW)


def at_full_size() -> bool:
    """Whether all examples are drawn."""
    return settings.get_current_profile_name() == FULL


def examples(full: int, *suppressed: HealthCheck) -> settings:
    """So many, or a tenth of them. suppressed: health checks that the test fails on purpose."""
    return settings(
        max_examples=full if at_full_size() else min(full, max(_LEAST, full // _PART)),
        suppress_health_check=[HealthCheck.too_slow, *suppressed],
    )
