# SPDX-License-Identifier: Apache-2.0
"""One worker's part of a workload, and the reasons why a run ends."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from loadlib.arrivals import ClosedLoop
from loadlib.workload import PlannedRequest, UpcomingRequests, Workload

COMPLETE, INTERRUPTED, SERVER_GONE, DISK_FULL = (
    "complete",
    "interrupted",
    "server gone",
    "disk full",
)


@dataclass(frozen=True)
class WorkerShare:
    """One worker's part of the workload: a schedule, or the users of a closed loop."""

    planned: UpcomingRequests = field(default_factory=UpcomingRequests)
    users: int = 0
    requests: Iterator[PlannedRequest] | None = None  # of a closed loop
    total: int = 0  # arrivals, if known in advance

    @classmethod
    def of_worker(cls, workload: Workload, worker: int, workers: int) -> WorkerShare:
        """Return the part of worker number `worker` out of `workers`."""
        arrivals = workload.plan.arrivals
        if isinstance(arrivals, ClosedLoop):
            users = arrivals.worker_users(worker, workers)
            total = len(range(worker, workload.plan.count or 0, workers))
            return cls(
                users=users, requests=workload.endless_requests(worker, workers), total=total
            )
        planned = workload.planned_requests(worker, workers)
        return cls(planned=planned, total=len(planned))

    def due_count(self, now_us: int) -> int:
        """Return the number of scheduled requests due by `now_us`."""
        return bisect_right(self.planned.due, now_us)
