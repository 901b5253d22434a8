# SPDX-License-Identifier: Apache-2.0
"""Trials: settings under a load, and the results. A store prevents repeated runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tritonctl.host.files import write_atomically

Value = bool | int | str
Settings = Mapping[str, Value]
Verdict = Literal["met", "missed", "undecided"]

# The allowed share of requests over a P99 limit.
TOLERATED_SHARE = 0.01


def settings_key(settings: Settings) -> str:
    """Return a key that is equal for equal settings in any order."""
    return repr(sorted(settings.items()))


@dataclass(frozen=True)
class TrialRequest:
    """The input of a trial."""

    settings: Settings  # value by knob
    rate: float  # requests per second
    seconds: float
    repeat: int = 0  # each repeat has different arrivals; 0 is the first

    def digest(self, context: str) -> str:
        """Return the trial's name. `context` digests engine, server version and load."""
        record = {**asdict(self), "settings": dict(self.settings), "context": context}
        return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:20]


@dataclass(frozen=True)
class TuningTrial:
    """The result of a trial, judged by the SLO target nearest to a miss."""

    request: TrialRequest
    verdict: Verdict
    share_over: float  # of requests over the target's limit, with its confidence interval
    low: float
    high: float
    requests: int
    took_seconds: float
    tolerated: float = TOLERATED_SHARE  # share over the limit that the target allows
    p99_ms: Mapping[str, float] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)  # of the server, by model
    folder: str | None = None

    @property
    def leans_met(self) -> bool:
        """Whether the verdict is "met" or, if undecided, the measured share is tolerated."""
        if self.verdict != "undecided":
            return self.verdict == "met"
        return self.share_over <= self.tolerated

    def to_record(self) -> dict[str, Any]:
        """Return the trial as plain data."""
        plain = replace(self, request=replace(self.request, settings=dict(self.request.settings)))
        record = asdict(plain)
        return {"asked": record.pop("request"), **record}  # the file's name of the request

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> TuningTrial:
        """Read plain data. Raises TypeError or KeyError for invalid records."""
        fields = {**record}
        return cls(request=TrialRequest(**fields.pop("asked")), **fields)


def pool_shares(trials: Sequence[TuningTrial]) -> tuple[float, float]:
    """Return the pooled share over the limit in repeats of a trial, and the tolerated share."""
    requests = sum(trial.requests for trial in trials)
    over = sum(trial.share_over * trial.requests for trial in trials)
    return (over / requests if requests else 1.0), trials[0].tolerated


class TrialStore:
    """Stores trials in a folder, one file each, by their requests."""

    def __init__(self, folder: Path, context: str) -> None:
        self._folder = folder
        self._context = context

    def trial_folder(self, request: TrialRequest) -> Path:
        """Return the folder for a trial's files."""
        return self._folder / request.digest(self._context)

    def find(self, request: TrialRequest) -> TuningTrial | None:
        """Return the stored trial; None if it is missing or damaged."""
        try:
            text = self._file(request).read_text(encoding="utf-8")
            return TuningTrial.from_record(json.loads(text))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def save(self, trial: TuningTrial) -> None:
        """Store a trial atomically."""
        record = json.dumps(trial.to_record(), indent=2, ensure_ascii=False)
        write_atomically(self._file(trial.request), record + "\n")

    def seconds_spent(self) -> float:
        """Return the total duration of all stored trials."""
        spent = 0.0
        for file in sorted(self._folder.glob("*/trial.json")):
            with suppress(OSError, ValueError, TypeError, KeyError):
                record = json.loads(file.read_text(encoding="utf-8"))
                spent += TuningTrial.from_record(record).took_seconds
        return spent

    def _file(self, request: TrialRequest) -> Path:
        return self.trial_folder(request) / "trial.json"
