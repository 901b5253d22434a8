# SPDX-License-Identifier: Apache-2.0
"""One worker's part of a workload, and the reasons for which a run ends."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from loadlib.arrivals import Closed
from loadlib.workload import PlannedRequest, Upcoming, Workload

COMPLETE, INTERRUPTED, GONE, FULL = "complete", "interrupted", "server gone", "disk full"


@dataclass(frozen=True)
class Share:
    """One worker's part of the workload: a schedule, or the users of a closed loop.

    `total`: how many arrivals that is, where it is known beforehand.
    """

    planned: Upcoming = field(default_factory=Upcoming)
    users: int = 0
    endless: Iterator[PlannedRequest] | None = None
    total: int = 0

    @classmethod
    def of(cls, workload: Workload, worker: int, workers: int) -> Share:
        """The part of one of `workers`."""
        arrivals = workload.plan.arrivals
        if isinstance(arrivals, Closed):
            users = arrivals.share(worker, workers)
            total = len(range(worker, workload.plan.count or 0, workers))
            return cls(users=users, endless=workload.endless(worker, workers), total=total)
        planned = workload.planned(worker, workers)
        return cls(planned=planned, total=len(planned))

    def due(self, now_us: int) -> int:
        """How many of the schedule were due until then."""
        return bisect_right(self.planned.due, now_us)
