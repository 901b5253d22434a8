# SPDX-License-Identifier: Apache-2.0
"""Declares an engine dead after `MAX_FAILED_STEPS` failed steps in a row."""

from textlib.engine.contract import MAX_FAILED_STEPS


class EngineHealth:
    """Counts failed steps in a row. `dead_reason`: why a dead engine rejects requests."""

    def __init__(self) -> None:
        self._failed_steps = 0
        self.dead_reason: str | None = None

    def record_success(self) -> None:
        """Start counting again after a step that succeeded."""
        self._failed_steps = 0

    def record_failure(self, error: Exception) -> bool:
        """Count a failed step; return whether the engine is dead now."""
        self._failed_steps += 1
        if self._failed_steps < MAX_FAILED_STEPS:
            return False
        self.dead_reason = (
            f"the engine failed {self._failed_steps} steps in a row and takes no more requests; "
            f"the last error was: {error}. Reload the model or restart the server."
        )
        return True
