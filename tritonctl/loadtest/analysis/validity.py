# SPDX-License-Identifier: Apache-2.0
"""Whether the load generator itself kept up: what it measured means nothing otherwise.

Of few requests the 99th percentile is the largest: one late send of 58 says little about the
generator. So it was late when more than 1 % certainly were: when Clopper and Pearson's 95 %
interval of that share (binomial.py) lies above 1 %. Late sends come in bursts; no allowance is
made for that, because a burst spoils as many figures. From DECISIVE_REQUESTS on the share itself
decides, as a run that may decide must be clean as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tritonctl.loadtest.analysis.binomial import share_bounds
from tritonctl.loadtest.analysis.columns import Floats
from tritonctl.loadtest.analysis.percentiles import count_over, histogram_percentiles, merge
from tritonctl.loadtest.analysis.slo import limits
from tritonctl.loadtest.analysis.summary import DECISIVE_REQUESTS

COMPLETE, INTERRUPTED, LOST = "complete", "interrupted", "worker lost"
# What ended a run, the worst first: with several workers they may differ.
_REASONS = ("server gone", "disk full", INTERRUPTED, COMPLETE)
_CPU_LIMIT, _CPU_SECONDS = 0.8, 0.05
_SENT_SHARE = 0.9
_LAG_MS, _LAG_SHARE, _LAG_WITHOUT_SLO_MS = 1.0, 0.01, 10.0
_LATE_SHARE = 0.01  # may be late: P99 is held to the limit


@dataclass(frozen=True)
class Lateness:
    """How many of `n` times were later than the limit, and the 99th percentile of all."""

    late: int
    n: int
    limit_ms: float
    p99_ms: float

    @property
    def exceeds(self) -> bool:
        """Whether more were late than may be: P99 is above the limit."""
        return self.late > _LATE_SHARE * self.n

    @property
    def certain(self) -> bool:
        """Whether that is no chance of a small sample."""
        low, _ = share_bounds(self.late, self.n)
        return self.exceeds and (self.n >= DECISIVE_REQUESTS or low > _LATE_SHARE)

    def __str__(self) -> str:
        """P99, the share that was late with its interval, and how much may be."""
        low, high = (100 * bound for bound in share_bounds(self.late, self.n))
        return (
            f"P99 {self.p99_ms:.3g} ms, more than {self.limit_ms:.3g} ms; {self.late} of {self.n} "
            f"were later, {100 * self.late / self.n:.3g} % [{low:.3g}, {high:.3g}], "
            f"{100 * _LATE_SHARE:.0f} % may"
        )


@dataclass(frozen=True)
class Progress:
    """What the workers said of themselves in `progress.jsonl`."""

    seconds: tuple[Mapping[str, Any], ...]
    ends: Mapping[int, Mapping[str, Any]]
    workers: frozenset[int]

    @classmethod
    def of(cls, lines: Iterable[Mapping[str, Any]], expected: int = 1) -> Progress:
        """From the lines as they are; workers 0 to `expected` - 1 should have written some."""
        everything = list(lines)
        ends = {int(line.get("worker", 0)): line for line in everything if line.get("finished")}
        seconds = tuple(line for line in everything if not line.get("finished"))
        named = {int(line.get("worker", 0)) for line in everything}
        return cls(seconds, ends, frozenset(named | set(range(expected))))

    @property
    def lost(self) -> list[int]:
        """Workers that never said that they had finished."""
        return sorted(self.workers - set(self.ends))

    @property
    def reason(self) -> str:
        """What ended the run."""
        if self.lost:
            return LOST
        reasons = [str(line.get("reason", COMPLETE)) for line in self.ends.values()]
        known = [reason for reason in _REASONS if reason in reasons]
        return known[0] if known else reasons[0]

    @property
    def unsent(self) -> int:
        """Requests of the plan that were never sent."""
        return sum(int(line.get("unsent") or 0) for line in self.ends.values())

    @property
    def cpu(self) -> list[float]:
        """Shares of a core, by second and worker."""
        return [float(line["cpu"]) for line in self.seconds if line.get("cpu") is not None]

    @cached_property
    def _woke(self) -> Any:
        return merge(str(line["woke"]) for line in self.seconds if line.get("woke"))

    @property
    def woke_p99_ms(self) -> float | None:
        """How late the loops of the generators woke, 99 % of the time; None: they did not say."""
        return histogram_percentiles(self._woke, [0.99]).get(0.99)

    def woke_late(self, limit_ms: float) -> Lateness | None:
        """How many times the loops woke later than that; None: they did not say."""
        p99_ms = self.woke_p99_ms
        if p99_ms is None:
            return None
        count = self._woke.get_total_count()
        return Lateness(count_over(self._woke, limit_ms), count, limit_ms, p99_ms)

    def due(self) -> tuple[int, int]:
        """Requests that were due so far and sent so far, as each worker last said it.

        When a run was ended early, as it said while it still sent.
        """
        last: dict[int, tuple[int, int]] = {}
        for line in self.seconds:
            worker = int(line.get("worker", 0))
            counts = int(line.get("planned") or 0), int(line.get("sent") or 0)
            if self.reason == COMPLETE or counts[1] > last.get(worker, (0, 0))[1]:
                last[worker] = counts
        return sum(planned for planned, _ in last.values()), sum(sent for _, sent in last.values())


def lag_limit_ms(slo: Mapping[str, float | None]) -> float:
    """How late the 99th percentile of requests may be sent."""
    smallest = [limit.ms for limit in limits(slo) if limit.metric in ("ttft", "e2e")]
    return max(_LAG_MS, _LAG_SHARE * min(smallest)) if smallest else _LAG_WITHOUT_SLO_MS


def sent_late(lags_ms: Floats, limit_ms: float) -> Lateness | None:
    """How many requests were sent later than that; None without any."""
    if not len(lags_ms):
        return None
    p99_ms = float(np.quantile(lags_ms, 0.99, method="inverted_cdf"))
    return Lateness(int((lags_ms > limit_ms).sum()), len(lags_ms), limit_ms, p99_ms)


def problems(progress: Progress, woke: Lateness | None, sent: Lateness | None) -> list[str]:
    """Why the run is not a valid measurement; empty when it is."""
    reasons = [
        f"worker {worker} was lost: it never reported its end (see generator-{worker}.log)"
        for worker in progress.lost
    ]
    if woke is not None and woke.certain:
        reasons.append(
            f"the generator woke late, so it read late: {woke} (give it its own core, or use "
            "another machine)"
        )
    if sent is not None and sent.certain:
        reasons.append(f"the generator sent late: {sent} (use more workers, or another machine)")
    return reasons + _cpu(progress.cpu) + _sent(*progress.due())


def doubts(woke: Lateness | None, sent: Lateness | None) -> list[str]:
    """Where so few times were seen that the generator may have been late or not."""
    return [
        f"the generator may have {verb} late: {late}: too few to tell, run longer"
        for verb, late in (("woken", woke), ("sent", sent))
        if late is not None and late.exceeds and not late.certain
    ]


def _cpu(cpu: Sequence[float]) -> list[str]:
    busy = sum(share > _CPU_LIMIT for share in cpu)
    if not cpu or busy <= _CPU_SECONDS * len(cpu):
        return []
    usage = f"the generator used more than {100 * _CPU_LIMIT:.0f} % of a core"
    return [f"{usage} in {busy} of {len(cpu)} seconds: use more workers"]


def _sent(planned: int, sent: int) -> list[str]:
    if not planned or sent >= _SENT_SHARE * planned:
        return []
    return [f"only {sent} of {planned} requests that were due were sent"]
