# SPDX-License-Identifier: Apache-2.0
"""The frontend's record of one replica: its load, its pace and its health.

Pure bookkeeping without clock or I/O: callers pass the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tritonctl.frontend.routing.choice import ReplicaView
from tritonctl.frontend.routing.reports import ReplicaReport
from tritonctl.protocol.model_config import Config, instances_of
from tritonctl.supervision.progress import ModelProgress

# Weight of the latest pace; about the last ten answers count.
_PACE_WEIGHT = 0.1
# A pace expires after this time without an answer, so that the replica is tried again.
_PACE_SECONDS = 30.0
_FULL_KV = 0.95
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.5, 10.0
# The parameter of our engines for the number of concurrent streams.
_SLOTS = "max_num_seqs"


def slots_of(configs: Iterable[Config]) -> int | None:
    """Return how many requests a model answers concurrently, by the configs of its steps."""
    slots = []
    for config in configs:
        parameters = config.get("parameters") or {}
        text = str(parameters.get(_SLOTS, {}).get("string_value", ""))
        if text.isdecimal() and int(text):
            slots.append(int(text) * max(1, instances_of(config)))
    return min(slots, default=None)


@dataclass
class Replica:
    """A replica, with the requests that this frontend has sent to it."""

    url: str
    upstream: str = ""  # the upstream that this address belongs to
    fallback: bool = False  # it serves another release
    requests: Counter[str] = field(default_factory=Counter)  # by model
    work: float = 0.0  # their tokens: prompts and expected answers
    foreign_load: float = 0.0  # requests of other clients, by the replica's reports
    report: ReplicaReport | None = None
    slots: dict[str, int | None] = field(default_factory=dict)  # by model
    steps: dict[str, frozenset[str]] = field(default_factory=dict)  # models on the server, by model
    frozen: frozenset[str] = frozenset()  # models on the server that make no progress
    pace: float | None = None  # recent seconds per token
    ready: bool = True
    failures: int = 0
    last_chunk_at: float = float("-inf")  # time of the last chunk of any answer
    _progress: ModelProgress = field(default_factory=ModelProgress, repr=False)
    _not_before: float = field(default=float("-inf"), repr=False)
    _pace_updated_at: float = field(default=float("-inf"), repr=False)
    _previous_foreign_load: float = field(default=0.0, repr=False)

    @property
    def in_flight(self) -> int:
        """This frontend's requests to all models."""
        return self.requests.total()

    def enter(self, model: str, work: float) -> None:
        """Count a request that is sent to the replica."""
        self.requests[model] += 1
        self.work += work

    def leave(self, model: str, work: float) -> None:
        """Remove a request that has ended."""
        self.requests[model] -= 1
        if not self.requests[model]:
            del self.requests[model]
        self.work = self.work - work if self.requests else 0.0

    def record_pace(self, seconds_a_token: float, now: float) -> None:
        """Learn from a complete answer."""
        self.failures = 0
        if self.pace is None or now - self._pace_updated_at > _PACE_SECONDS:
            self.pace = seconds_a_token
        else:
            self.pace += (seconds_a_token - self.pace) * _PACE_WEIGHT
        self._pace_updated_at = now

    def mark_broken(self, now: float, min_pause: float = 0.0) -> None:
        """Exclude the replica after a failed connection, longer each time, until it is ready.

        min_pause: seconds; for a replica that may report ready without answering.
        """
        pause = min(_FIRST_PAUSE_SECONDS * 2.0 ** min(self.failures, 8), _MAX_PAUSE_SECONDS)
        pause = max(pause, min_pause)
        self.failures += 1
        self.ready = False
        self._not_before = max(self._not_before, now + pause)

    def set_ready(self, ready: bool, now: float) -> None:
        """Set the result of a readiness check; no answer means not ready."""
        self.ready = ready and now >= self._not_before and not self.frozen

    def update_progress(self, page: str, now: float) -> None:
        """Read from a page of metrics which models make no progress."""
        self._progress.update(page, now)
        deployed = frozenset[str]().union(*self.steps.values())
        self.frozen = frozenset(self._progress.frozen(now) & deployed)

    def is_frozen(self, model: str) -> bool:
        """Whether a step of the model makes no progress."""
        return not self.frozen.isdisjoint(self.steps.get(model, ()))

    def update_report(self, report: ReplicaReport) -> None:
        """Apply the replica's report; requests beyond ours belong to other clients.

        The report and our count differ slightly in time, so foreign requests count only if two
        consecutive reports contain them.
        """
        self.report = report
        foreign = max(0.0, report.active + report.waiting - self.in_flight)
        self.foreign_load, self._previous_foreign_load = (
            min(foreign, self._previous_foreign_load),
            foreign,
        )

    def view(self, model: str, now: float, stale_seconds: float) -> ReplicaView:
        """Return the state for a choice now; a stale report does not count."""
        report = self.report
        fresh = report is not None and report.is_fresh(now, stale_seconds)
        return ReplicaView(
            self.url,
            healthy=self.ready,
            load=self.requests[model] + (self.foreign_load if fresh else 0.0),
            slots=self.slots.get(model),
            pace=self.pace if now - self._pace_updated_at <= _PACE_SECONDS else None,
            full=report is not None and fresh and report.kv_used >= _FULL_KV and report.waiting > 0,
            fallback=self.fallback,
        )
