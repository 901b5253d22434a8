# SPDX-License-Identifier: Apache-2.0
"""Shows a session's progress without a terminal: one line for each trial."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from tritonctl.loadtest.run.live import LoadBoard, SilentBoard
from tritonctl.tuning.explaining import explained
from tritonctl.tuning.outcome import Step
from tritonctl.tuning.space import Space
from tritonctl.tuning.trials import Asked, Trial
from tritonctl.tuning.tuner import Watcher


class TuningWatch(Watcher, Protocol):
    """Watches a session. `board`: for its load tests."""

    trials: int
    board: LoadBoard


class TuningLines:
    """Writes what the tuner does as lines of a log, with the best rate so far."""

    def __init__(
        self, note: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._note = note
        self._clock = clock
        self._began = clock()
        self._best = 0.0
        self.trials = 0
        self.board: LoadBoard = _Notes(self._say)

    def stage(self, text: str) -> None:
        """A new stage begins."""
        self._say(text)

    def measuring(self, asked: Asked, space: Space) -> None:
        """A log shows trials when they end."""

    def trial(self, trial: Trial, stored: bool) -> None:
        """One line for each new trial; the best rate is that of any settings."""
        self.trials += 1
        if trial.leans_met:
            self._best = max(self._best, trial.asked.rate)
        if stored:
            return
        words = ", ".join(f"{name} {ms:.3g} ms" for name, ms in trial.p99_ms.items())
        tail = f", P99 {words}" if words else ""
        self._say(
            f"{trial.asked.rate:>8.4g}/s {trial.verdict:<9} {trial.share_over:6.2%} over{tail} "
            f"(best met so far {self._best:.4g}/s)"
        )

    def step(self, step: Step, space: Space) -> None:
        """One line: what was turned, and the result."""
        changed = [f"{name}={value}" for name, value in space.changed(step.settings).items()]
        word = "better" if step.won else "no better"
        self._say(f"{word}: {', '.join(changed) or 'as it is'}: {explained(step, space)}")

    def _say(self, text: str) -> None:
        minutes, seconds = divmod(int(self._clock() - self._began), 60)
        self._note(f"[{minutes}:{seconds:02}] {text}")


class _Notes(SilentBoard):
    """Shows no step and no load test, only what goes wrong between them."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def note(self, text: str) -> None:
        """A line of its own."""
        self._say(text)
