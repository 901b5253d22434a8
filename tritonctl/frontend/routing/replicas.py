# SPDX-License-Identifier: Apache-2.0
"""One replica as the frontend knows it: what it has under way, how fast it is, whether it lives.

Pure bookkeeping: times come in, nothing waits and nothing is asked here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tritonctl.frontend.routing.choice import View
from tritonctl.frontend.routing.reports import Report
from tritonctl.protocol.model_config import Config, instances_of

# Of a replica's pace; the last ten answers or so count.
_PACE_WEIGHT = 0.1
# Without an answer for so long its pace is forgotten: it is asked again.
_PACE_SECONDS = 30.0
_FULL_KV = 0.95
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 10.0
# The parameter of our engines that says how many streams they advance at once.
_SLOTS = "max_num_seqs"


def slots_of(configs: Iterable[Config]) -> int | None:
    """How many requests a model answers at once, by its and its steps' configurations."""
    slots = []
    for config in configs:
        parameters = config.get("parameters") or {}
        text = str(parameters.get(_SLOTS, {}).get("string_value", ""))
        if text.isdecimal() and int(text):
            slots.append(int(text) * max(1, instances_of(config)))
    return min(slots, default=None)


@dataclass
class Replica:
    """Counts of what this frontend has sent there and not got back.

    upstream: what it is an address of. fallback: it serves another release. requests: by model.
    work: their tokens, prompt and expected answer. elsewhere: requests of others, by its own
    reports. slots: of each model. pace: seconds between tokens of late. heard: when a part of
    any answer last came from there.
    """

    url: str
    upstream: str = ""
    fallback: bool = False
    requests: Counter[str] = field(default_factory=Counter)
    work: float = 0.0
    elsewhere: float = 0.0
    report: Report | None = None
    slots: dict[str, int | None] = field(default_factory=dict)
    pace: float | None = None
    ready: bool = True
    failures: int = 0
    heard: float = float("-inf")
    _not_before: float = field(default=float("-inf"), repr=False)
    _paced: float = field(default=float("-inf"), repr=False)
    _elsewhere_before: float = field(default=0.0, repr=False)

    @property
    def in_flight(self) -> int:
        """Requests of ours, of all models."""
        return self.requests.total()

    def enter(self, model: str, work: float) -> None:
        """A request goes there."""
        self.requests[model] += 1
        self.work += work

    def leave(self, model: str, work: float) -> None:
        """A request has ended there."""
        self.requests[model] -= 1
        if not self.requests[model]:
            del self.requests[model]
        self.work = self.work - work if self.requests else 0.0

    def answered(self, seconds_a_token: float, now: float) -> None:
        """An answer came to its end there."""
        self.failures = 0
        if self.pace is None or now - self._paced > _PACE_SECONDS:
            self.pace = seconds_a_token
        else:
            self.pace += (seconds_a_token - self.pace) * _PACE_WEIGHT
        self._paced = now

    def broke(self, now: float, least: float = 0.0) -> None:
        """A connection to it failed: leave it out, longer each time, until it says it is ready.

        least: seconds; for a replica that may say so and answer nothing.
        """
        pause = min(_FIRST_PAUSE_SECONDS * 2.0 ** min(self.failures, 8), _LONGEST_PAUSE_SECONDS)
        pause = max(pause, least)
        self.failures += 1
        self.ready = False
        self._not_before = max(self._not_before, now + pause)

    def said(self, ready: bool, now: float) -> None:
        """It was asked whether it is ready; no answer is a no."""
        self.ready = ready and now >= self._not_before

    def reported(self, report: Report) -> None:
        """What it says of itself; requests beyond our own are others'.

        Its figures and our count are of slightly different moments: others are believed when two
        reports in a row have them.
        """
        self.report = report
        others = max(0.0, report.active + report.waiting - self.in_flight)
        self.elsewhere, self._elsewhere_before = min(others, self._elsewhere_before), others

    def view(self, model: str, now: float, stale_seconds: float) -> View:
        """For a choice at this moment; a stale report counts for nothing."""
        report = self.report
        fresh = report is not None and report.is_fresh(now, stale_seconds)
        return View(
            self.url,
            healthy=self.ready,
            load=self.requests[model] + (self.elsewhere if fresh else 0.0),
            slots=self.slots.get(model),
            pace=self.pace if now - self._paced <= _PACE_SECONDS else None,
            full=report is not None and fresh and report.kv_used >= _FULL_KV and report.waiting > 0,
            fallback=self.fallback,
        )
