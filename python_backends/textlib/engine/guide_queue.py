# SPDX-License-Identifier: Apache-2.0
"""The guides that wait for their test, in fair shares of the tester's time.

Start-time fair queueing over tenants: the next guide is that of the tenant whose tests took the
least time. A tenant that joins starts at the time of those that wait, so it neither repays nor
saves anything. A tenant with many guides, or slow ones, waits behind itself.
"""

from collections import OrderedDict

from textlib.errors import QueueFullError
from textlib.triton.request_tensors import GuideSpec

MAX_WAITING = 64  # each may take CPU_SECONDS and a new process


class GuideQueue:
    """Waiting guides by tenant; "" is every client without one. Use it from one thread."""

    def __init__(self, max_waiting: int = MAX_WAITING) -> None:
        self._max_waiting = max_waiting
        self._guides: dict[str, OrderedDict[GuideSpec, None]] = {}
        self._spent: dict[str, float] = {}  # seconds, of the tenants that wait
        self._start = 0.0  # `spent` of the tenant that was served last

    def __contains__(self, guide: GuideSpec) -> bool:
        return any(guide in guides for guides in self._guides.values())

    def __bool__(self) -> bool:
        return bool(self._guides)

    def add(self, guide: GuideSpec, tenant: str) -> GuideSpec | None:
        """Add a guide of a tenant, once.

        In a full queue it takes the place of the last guide of the tenant that has most, if its own
        tenant has fewer than its share. Returns the displaced guide.

        Raises:
            QueueFullError: the queue is full, and the tenant has its share of it.
        """
        if guide in self._guides.get(tenant, ()):
            return None
        displaced = self._displaced_for(tenant) if len(self) >= self._max_waiting else None
        if tenant not in self._guides:
            self._guides[tenant] = OrderedDict()
            self._spent[tenant] = min(self._spent.values(), default=self._start)
        self._guides[tenant][guide] = None
        return displaced

    def __len__(self) -> int:
        return sum(len(guides) for guides in self._guides.values())

    def _displaced_for(self, tenant: str) -> GuideSpec:
        own = len(self._guides.get(tenant, ()))
        largest = max(self._guides, key=lambda name: len(self._guides[name]))
        if own + 1 >= len(self._guides[largest]):
            raise QueueFullError(
                f"{self._max_waiting} guides wait to be tested. Send the request again later."
            )
        displaced = next(reversed(self._guides[largest]))
        self._remove(displaced, largest)
        return displaced

    def take(self) -> tuple[GuideSpec, str]:
        """Remove and return the next guide and its tenant. Another tenant's copy goes too."""
        tenant = min(self._guides, key=lambda name: self._spent[name])
        guide = next(iter(self._guides[tenant]))
        self._start = self._spent[tenant]
        self.remove(guide)
        return guide, tenant

    def charge(self, tenant: str, seconds: float) -> None:
        """Count the seconds of a test to the tenant whose turn it was."""
        if tenant in self._spent:
            self._spent[tenant] += seconds

    def remove(self, guide: GuideSpec) -> None:
        """Remove a guide; without effect if it does not wait."""
        for tenant in list(self._guides):
            self._remove(guide, tenant)

    def clear(self) -> list[GuideSpec]:
        """Remove and return all guides."""
        guides = list(dict.fromkeys(guide for each in self._guides.values() for guide in each))
        self._guides.clear()
        self._spent.clear()
        return guides

    def _remove(self, guide: GuideSpec, tenant: str) -> None:
        self._guides[tenant].pop(guide, None)
        if not self._guides[tenant]:
            del self._guides[tenant], self._spent[tenant]
