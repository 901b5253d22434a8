# SPDX-License-Identifier: Apache-2.0
"""The outcomes of a smoke test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

OutcomeStatus = Literal["pass", "fail", "skipped"]


@dataclass(frozen=True)
class SmokeOutcome:
    """The outcome of one check of one model."""

    model: str
    check: str
    status: OutcomeStatus
    detail: str  # the observation, or why the check was skipped
    request: Mapping[str, Any] | None = None  # of a failure, in the protocol's JSON form
    repeat: str = ""  # the command that repeats a failed check


@dataclass(frozen=True)
class SmokeReport:
    """All outcomes, in the order of the checks."""

    url: str
    outcomes: tuple[SmokeOutcome, ...]

    @property
    def failures(self) -> list[SmokeOutcome]:
        """The checks that failed."""
        return [outcome for outcome in self.outcomes if outcome.status == "fail"]

    def count(self, status: OutcomeStatus) -> int:
        """Count the checks with this status."""
        return sum(outcome.status == status for outcome in self.outcomes)

    def summary(self) -> str:
        """Return one sentence with the counts."""
        models = len({outcome.model for outcome in self.outcomes})
        counts = [f"{self.count('pass')} passed", f"{self.count('fail')} failed"]
        counts += [f"{self.count('skipped')} skipped"]
        return f"{models} model{'s' if models != 1 else ''} tested: {', '.join(counts)}"

    def as_record(self) -> dict[str, Any]:
        """Convert to plain data."""
        return {
            "url": self.url,
            "passed": self.count("pass"),
            "failed": self.count("fail"),
            "skipped": self.count("skipped"),
            "checks": [asdict(outcome) for outcome in self.outcomes],
        }
