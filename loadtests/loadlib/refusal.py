# SPDX-License-Identifier: Apache-2.0
"""The load generators' error: a problem and its remedy."""

from __future__ import annotations

PLAN_REFUSED, ENDPOINT_REFUSED = 2, 3


class RunRefusedError(Exception):
    """The plan cannot run. `exit_code` is 2 for an invalid plan, 3 for its endpoint."""

    def __init__(self, problem: str, *, remedy: str, exit_code: int = PLAN_REFUSED) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy
        self.exit_code = exit_code

    def to_record(self) -> dict[str, str]:
        """Return the record for standard error."""
        return {"problem": self.problem, "remedy": self.remedy}
