# SPDX-License-Identifier: Apache-2.0
"""Detect guides that stall an engine's step, although they passed their test."""

import time
from collections.abc import Callable, Collection

from textlib.errors import RequestError
from textlib.triton.request_tensors import GuideSpec

MAX_STEP_SECONDS = 2.0


class GuidedStep:
    """Measures one step of an engine, from its creation on.

    guides: those of the step's streams; empty if the step may also compute a prompt. A step counts
    as slow only if this process computed for half of it: on a stopped or busy machine no guide is
    to blame.
    """

    def __init__(
        self,
        guides: Collection[GuideSpec],
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._guides, self._clock, self._cpu_clock = guides, clock, cpu_clock
        self._started_at, self._cpu_at_start = clock(), cpu_clock()

    def slowness_error(self) -> RequestError | None:
        """Return the error for the guided streams after a slow step."""
        seconds = self._clock() - self._started_at
        cpu_seconds = self._cpu_clock() - self._cpu_at_start
        if not self._guides or seconds <= MAX_STEP_SECONDS or cpu_seconds < seconds / 2:
            return None
        return RequestError(
            f"guided_decoding_guide: the next token took {seconds:.1f} s, in which all streams "
            "waited. Send a simpler guide: without nested repetitions and ambiguous rules."
        )
