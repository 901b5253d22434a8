# SPDX-License-Identifier: Apache-2.0
"""The outcomes of a smoke test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["pass", "fail", "skipped"]


@dataclass(frozen=True)
class Outcome:
    """One check of one model. `detail`: what was seen, or why the check was skipped.

    request, repeat: of a failure, the request in the protocol's JSON form and the command that
    sends it again.
    """

    model: str
    check: str
    status: Status
    detail: str
    request: Mapping[str, Any] | None = None
    repeat: str = ""


@dataclass(frozen=True)
class SmokeReport:
    """All outcomes, in the order of the checks."""

    url: str
    outcomes: tuple[Outcome, ...]

    @property
    def failures(self) -> list[Outcome]:
        """The checks that failed."""
        return [outcome for outcome in self.outcomes if outcome.status == "fail"]

    def count(self, status: Status) -> int:
        """How many checks ended so."""
        return sum(outcome.status == status for outcome in self.outcomes)

    def summary(self) -> str:
        """One sentence."""
        models = len({outcome.model for outcome in self.outcomes})
        counts = [f"{self.count('pass')} passed", f"{self.count('fail')} failed"]
        counts += [f"{self.count('skipped')} skipped"]
        return f"{models} model{'s' if models != 1 else ''} asked: {', '.join(counts)}"

    def as_record(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "url": self.url,
            "passed": self.count("pass"),
            "failed": self.count("fail"),
            "skipped": self.count("skipped"),
            "checks": [asdict(outcome) for outcome in self.outcomes],
        }
