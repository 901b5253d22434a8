# SPDX-License-Identifier: Apache-2.0
"""Whether the load generator itself kept up: what it measured means nothing otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tritonctl.loadtest.analysis.percentiles import histogram_percentiles, merge
from tritonctl.loadtest.analysis.slo import limits

COMPLETE, INTERRUPTED, LOST = "complete", "interrupted", "worker lost"
# What ended a run, the worst first: with several workers they may differ.
_REASONS = ("server gone", "disk full", INTERRUPTED, COMPLETE)
_CPU_LIMIT, _CPU_SECONDS = 0.8, 0.05
_SENT_SHARE = 0.9
_LAG_MS, _LAG_SHARE, _LAG_WITHOUT_SLO_MS = 1.0, 0.01, 10.0


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

    @property
    def woke_p99_ms(self) -> float | None:
        """How late the loops of the generators woke, 99 % of the time; None: they did not say."""
        delays = merge(str(line["woke"]) for line in self.seconds if line.get("woke"))
        return histogram_percentiles(delays, [0.99]).get(0.99)

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


def problems(
    progress: Progress, slo: Mapping[str, float | None], lag_p99_ms: float | None
) -> list[str]:
    """Why the run is not a valid measurement; empty when it is."""
    reasons = [
        f"worker {worker} was lost: it never reported its end (see generator-{worker}.log)"
        for worker in progress.lost
    ]
    limit = lag_limit_ms(slo)
    woke = progress.woke_p99_ms
    if woke is not None and woke > limit:
        reasons.append(
            f"the generator woke late, so it read late: P99 {woke:.3g} ms, more than "
            f"{limit:.3g} ms (give it its own core, or use another machine)"
        )
    if lag_p99_ms is not None and lag_p99_ms > limit:
        reasons.append(
            f"the generator sent late: P99 of the send lag is {lag_p99_ms:.3g} ms, more than "
            f"{limit:.3g} ms (use more workers, or another machine)"
        )
    return reasons + _cpu(progress.cpu) + _sent(*progress.due())


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
