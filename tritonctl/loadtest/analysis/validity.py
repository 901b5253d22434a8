# SPDX-License-Identifier: Apache-2.0
"""Check that the load generator kept up; otherwise its measurements are invalid.

The 99th percentile of few requests is the largest: one late send of 58 says little about the
generator. So it counts as late when Clopper and Pearson's 95 % interval (binomial.py) of the late
share lies above 1 %. Late sends come in bursts; the check ignores that, because a burst spoils as
many figures. From DECISIVE_REQUESTS on the share itself decides: a decisive run must be clean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tritonctl.loadtest.analysis.binomial import share_bounds
from tritonctl.loadtest.analysis.columns import Floats
from tritonctl.loadtest.analysis.percentiles import (
    count_over,
    histogram_percentiles,
    merge_histograms,
)
from tritonctl.loadtest.analysis.slo import latency_limits
from tritonctl.loadtest.analysis.summary import DECISIVE_REQUESTS

COMPLETE, INTERRUPTED, LOST = "complete", "interrupted", "worker lost"
# Reasons why a run ended, the worst first: workers may differ.
_REASONS = ("server gone", "disk full", INTERRUPTED, COMPLETE)
_CPU_LIMIT, _CPU_SECONDS = 0.8, 0.05
_SENT_SHARE = 0.9
_LAG_MS, _LAG_SHARE, _LAG_WITHOUT_SLO_MS = 1.0, 0.01, 10.0
_LATE_SHARE = 0.01  # allowed: the limit applies to P99


@dataclass(frozen=True)
class Lateness:
    """The lateness of sends or wake-ups."""

    late: int  # of `n`, above the limit
    n: int
    limit_ms: float
    p99_ms: float

    @property
    def exceeds_limit(self) -> bool:
        """Whether P99 is above the limit."""
        return self.late > _LATE_SHARE * self.n

    @property
    def is_certain(self) -> bool:
        """Whether the excess is significant for the sample size."""
        low, _ = share_bounds(self.late, self.n)
        return self.exceeds_limit and (self.n >= DECISIVE_REQUESTS or low > _LATE_SHARE)

    def __str__(self) -> str:
        """Describe P99, the late share with its interval, and the allowed share."""
        low, high = (100 * bound for bound in share_bounds(self.late, self.n))
        return (
            f"P99 {self.p99_ms:.3g} ms, more than {self.limit_ms:.3g} ms; {self.late} of {self.n} "
            f"were later, {100 * self.late / self.n:.3g} % [{low:.3g}, {high:.3g}], "
            f"{100 * _LATE_SHARE:.0f} % allowed"
        )


@dataclass(frozen=True)
class GeneratorProgress:
    """The workers' lines in `progress.jsonl`."""

    seconds: tuple[Mapping[str, Any], ...]
    final_lines: Mapping[int, Mapping[str, Any]]
    workers: frozenset[int]

    @classmethod
    def from_lines(cls, lines: Iterable[Mapping[str, Any]], expected: int = 1) -> GeneratorProgress:
        """Parse lines; workers 0 to `expected` - 1 should have written some."""
        all_lines = list(lines)
        final_lines = {
            int(line.get("worker", 0)): line for line in all_lines if line.get("finished")
        }
        seconds = tuple(line for line in all_lines if not line.get("finished"))
        seen_workers = {int(line.get("worker", 0)) for line in all_lines}
        return cls(seconds, final_lines, frozenset(seen_workers | set(range(expected))))

    @property
    def lost_workers(self) -> list[int]:
        """Workers without a final line."""
        return sorted(self.workers - set(self.final_lines))

    @property
    def reason(self) -> str:
        """The worst reason why a worker ended."""
        if self.lost_workers:
            return LOST
        reasons = [str(line.get("reason", COMPLETE)) for line in self.final_lines.values()]
        reported = [reason for reason in _REASONS if reason in reasons]
        return reported[0] if reported else reasons[0]

    @property
    def unsent(self) -> int:
        """The number of planned requests that were never sent."""
        return sum(int(line.get("unsent") or 0) for line in self.final_lines.values())

    @property
    def cpu(self) -> list[float]:
        """CPU shares of a core, by second and worker."""
        return [float(line["cpu"]) for line in self.seconds if line.get("cpu") is not None]

    @cached_property
    def _wake_histogram(self) -> Any:
        return merge_histograms(str(line["woke"]) for line in self.seconds if line.get("woke"))

    @property
    def woke_p99_ms(self) -> float | None:
        """P99 of the generator loops' wake-up lateness; None if unreported."""
        return histogram_percentiles(self._wake_histogram, [0.99]).get(0.99)

    def wake_lateness(self, limit_ms: float) -> Lateness | None:
        """Return the wake-up lateness against a limit; None if unreported."""
        p99_ms = self.woke_p99_ms
        if p99_ms is None:
            return None
        count = self._wake_histogram.get_total_count()
        return Lateness(count_over(self._wake_histogram, limit_ms), count, limit_ms, p99_ms)

    def due_and_sent(self) -> tuple[int, int]:
        """Return the requests due and sent, as last reported by each worker.

        For a run that ended early, as reported while the worker still sent.
        """
        last: dict[int, tuple[int, int]] = {}
        for line in self.seconds:
            worker = int(line.get("worker", 0))
            counts = int(line.get("planned") or 0), int(line.get("sent") or 0)
            if self.reason == COMPLETE or counts[1] > last.get(worker, (0, 0))[1]:
                last[worker] = counts
        return sum(planned for planned, _ in last.values()), sum(sent for _, sent in last.values())


def max_lag_ms(slo: Mapping[str, float | None]) -> float:
    """Return the maximum P99 of the send lag, in milliseconds."""
    smallest = [limit.ms for limit in latency_limits(slo) if limit.metric in ("ttft", "e2e")]
    return max(_LAG_MS, _LAG_SHARE * min(smallest)) if smallest else _LAG_WITHOUT_SLO_MS


def send_lateness(lags_ms: Floats, limit_ms: float) -> Lateness | None:
    """Return the send lateness against a limit; None without requests."""
    if not len(lags_ms):
        return None
    p99_ms = float(np.quantile(lags_ms, 0.99, method="inverted_cdf"))
    return Lateness(int((lags_ms > limit_ms).sum()), len(lags_ms), limit_ms, p99_ms)


def validity_problems(
    progress: GeneratorProgress, wake_lateness: Lateness | None, send_lateness: Lateness | None
) -> list[str]:
    """Return why the run is invalid; empty if it is valid."""
    reasons = [
        f"worker {worker} was lost: it never reported its end (see generator-{worker}.log)"
        for worker in progress.lost_workers
    ]
    if wake_lateness is not None and wake_lateness.is_certain:
        reasons.append(
            f"the generator woke late, so it read late: {wake_lateness} (give it a separate core, "
            "or use another machine)"
        )
    if send_lateness is not None and send_lateness.is_certain:
        reasons.append(
            f"the generator sent late: {send_lateness} (use more workers, or another machine)"
        )
    return reasons + _cpu_problems(progress.cpu) + _unsent_problems(*progress.due_and_sent())


def lateness_doubts(wake_lateness: Lateness | None, send_lateness: Lateness | None) -> list[str]:
    """Return suspected lateness that the sample is too small to prove."""
    return [
        f"the generator may have {verb} late: {late}: too few to decide, run longer"
        for verb, late in (("woken", wake_lateness), ("sent", send_lateness))
        if late is not None and late.exceeds_limit and not late.is_certain
    ]


def _cpu_problems(cpu: Sequence[float]) -> list[str]:
    busy = sum(share > _CPU_LIMIT for share in cpu)
    if not cpu or busy <= _CPU_SECONDS * len(cpu):
        return []
    usage = f"the generator used more than {100 * _CPU_LIMIT:.0f} % of a core"
    return [f"{usage} in {busy} of {len(cpu)} seconds: use more workers"]


def _unsent_problems(planned: int, sent: int) -> list[str]:
    if not planned or sent >= _SENT_SHARE * planned:
        return []
    return [f"only {sent} of {planned} requests that were due were sent"]
