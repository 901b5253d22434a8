# SPDX-License-Identifier: Apache-2.0
"""The error of the load generators: what is wrong, and what to do about it."""

from __future__ import annotations

PLAN_REFUSED, ENDPOINT_REFUSED = 2, 3


class Refusal(Exception):  # noqa: N818 - nothing was sent
    """The plan cannot be carried out. `exit_code`: 2, the plan itself; 3, its endpoint."""

    def __init__(self, problem: str, *, remedy: str, exit_code: int = PLAN_REFUSED) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy
        self.exit_code = exit_code

    def to_record(self) -> dict[str, str]:
        """The line on standard error."""
        return {"problem": self.problem, "remedy": self.remedy}
