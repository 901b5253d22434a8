# SPDX-License-Identifier: Apache-2.0
"""What a smoke test found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["pass", "fail", "skipped"]


@dataclass(frozen=True)
class Outcome:
    """One check of one model. `detail`: what was seen, or why it was not looked at.

    Of a failure: the request that failed, in the protocol's JSON form, and how to repeat it.
    """

    model: str
    check: str
    status: Status
    detail: str
    request: Mapping[str, Any] | None = None
    repeat: str = ""


@dataclass(frozen=True)
class SmokeReport:
    """All of them, in the order in which they were made."""

    url: str
    outcomes: tuple[Outcome, ...]

    @property
    def failures(self) -> list[Outcome]:
        """The checks that failed."""
        return [one for one in self.outcomes if one.status == "fail"]

    def count(self, status: Status) -> int:
        """How many ended so."""
        return sum(one.status == status for one in self.outcomes)

    def summary(self) -> str:
        """One sentence."""
        models = len({one.model for one in self.outcomes})
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
            "checks": [asdict(one) for one in self.outcomes],
        }
