# SPDX-License-Identifier: Apache-2.0
"""A trial: settings under a load, and the result. Trials are stored, so that none runs twice."""

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

# The share of requests that may be over a P99 limit.
TOLERATED_SHARE = 0.01


def key_of(settings: Settings) -> str:
    """Equal for equal settings, whatever their order."""
    return repr(sorted(settings.items()))


@dataclass(frozen=True)
class Asked:
    """What a trial measures: settings (knob: value) at a rate (requests per second) for a time.

    repeat: each has its own arrivals; 0 is the first.
    """

    settings: Settings
    rate: float
    seconds: float
    repeat: int = 0

    def digest(self, context: str) -> str:
        """The trial's name. `context`: of engine, server version and load, which it depends on."""
        record = {**asdict(self), "settings": dict(self.settings), "context": context}
        return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:20]


@dataclass(frozen=True)
class Trial:
    """The result of a trial.

    share_over, low, high: the share of requests over the limit that most requests miss, and its
    confidence interval; tolerated: the share that the limit allows. figures: the server's, by
    model.
    """

    asked: Asked
    verdict: Verdict
    share_over: float
    low: float
    high: float
    requests: int
    took_seconds: float
    tolerated: float = TOLERATED_SHARE
    p99_ms: Mapping[str, float] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)
    folder: str | None = None

    @property
    def leans_met(self) -> bool:
        """Whether the verdict is "met"; undecided, whether the measured share is tolerated."""
        if self.verdict != "undecided":
            return self.verdict == "met"
        return self.share_over <= self.tolerated

    def to_record(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(replace(self, asked=replace(self.asked, settings=dict(self.asked.settings))))

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Trial:
        """From plain data. Raises TypeError or KeyError for anything else."""
        return cls(**{**record, "asked": Asked(**record["asked"])})


def pooled(trials: Sequence[Trial]) -> tuple[float, float]:
    """The share over the limit in repeats of a trial, and the tolerated share."""
    requests = sum(trial.requests for trial in trials)
    over = sum(trial.share_over * trial.requests for trial in trials)
    return (over / requests if requests else 1.0), trials[0].tolerated


class TrialStore:
    """Trials in a folder, one file each, by what they measure."""

    def __init__(self, folder: Path, context: str) -> None:
        self._folder = folder
        self._context = context

    def folder_of(self, asked: Asked) -> Path:
        """Where a trial's own files go."""
        return self._folder / asked.digest(self._context)

    def find(self, asked: Asked) -> Trial | None:
        """The stored trial; None when it was never measured, or its file is damaged."""
        try:
            text = self._file(asked).read_text(encoding="utf-8")
            return Trial.from_record(json.loads(text))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def keep(self, trial: Trial) -> None:
        """Store a trial, whole or not at all."""
        record = json.dumps(trial.to_record(), indent=2, ensure_ascii=False)
        write_atomically(self._file(trial.asked), record + "\n")

    def seconds_spent(self) -> float:
        """How long all stored trials took together."""
        spent = 0.0
        for file in sorted(self._folder.glob("*/trial.json")):
            with suppress(OSError, ValueError, TypeError, KeyError):
                record = json.loads(file.read_text(encoding="utf-8"))
                spent += Trial.from_record(record).took_seconds
        return spent

    def _file(self, asked: Asked) -> Path:
        return self.folder_of(asked) / "trial.json"
