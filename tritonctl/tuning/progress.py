# SPDX-License-Identifier: Apache-2.0
"""Log a session's progress without a terminal: one line per trial."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from tritonctl.loadtest.run.live import LoadBoard, SilentBoard
from tritonctl.tuning.outcome import SearchStep
from tritonctl.tuning.space import SearchSpace
from tritonctl.tuning.step_explanation import explain_step
from tritonctl.tuning.trials import TrialRequest, TuningTrial
from tritonctl.tuning.tuner import TuningWatcher


class BoardWatcher(TuningWatcher, Protocol):
    """Watches a session and its load tests."""

    trials: int
    board: LoadBoard  # for the load tests


class TuningLog:
    """Writes the tuner's progress as log lines, with the best rate so far."""

    def __init__(
        self, note: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._note = note
        self._clock = clock
        self._started_at = clock()
        self._best = 0.0
        self.trials = 0
        self.board: LoadBoard = _NotesBoard(self._say)

    def stage(self, text: str) -> None:
        """Log a new stage."""
        self._say(text)

    def measuring(self, request: TrialRequest, space: SearchSpace) -> None:
        """Do nothing: the log shows trials when they end."""

    def trial(self, trial: TuningTrial, stored: bool) -> None:
        """Log a new trial; the best rate covers all settings."""
        self.trials += 1
        if trial.leans_met:
            self._best = max(self._best, trial.request.rate)
        if stored:
            return
        words = ", ".join(f"{name} {ms:.3g} ms" for name, ms in trial.p99_ms.items())
        tail = f", P99 {words}" if words else ""
        self._say(
            f"{trial.request.rate:>8.4g}/s {trial.verdict:<9} {trial.share_over:6.2%} over{tail} "
            f"(best met so far {self._best:.4g}/s)"
        )

    def step(self, step: SearchStep, space: SearchSpace) -> None:
        """Log the changed settings and the result."""
        changed = [
            f"{name}={value}" for name, value in space.changed_settings(step.settings).items()
        ]
        word = "better" if step.won else "no better"
        self._say(f"{word}: {', '.join(changed) or 'unchanged'}: {explain_step(step, space)}")

    def _say(self, text: str) -> None:
        minutes, seconds = divmod(int(self._clock() - self._started_at), 60)
        self._note(f"[{minutes}:{seconds:02}] {text}")


class _NotesBoard(SilentBoard):
    """A board that logs notes only, neither steps nor load tests."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def note(self, text: str) -> None:
        """Log a note."""
        self._say(text)
