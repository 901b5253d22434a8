# SPDX-License-Identifier: Apache-2.0
"""Whether an engine runs: its model's uptime stands still while it is frozen or stuck.

Triton calls a model ready while its stub exists. An engine is *frozen* if a process of it is
stopped (SIGSTOP, a debugger, a cgroup freezer that stops it). It is *stuck* if no stream gets
tokens and its processes hardly use the CPU, as in a deadlock or a wait for a device that is gone. A
long step, such as a large prompt, uses the CPU: the engine is busy.
"""

import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from textlib.process_tree import ProcessTree
from textlib.triton.engine_metrics import Gauges

STUCK_SECONDS = 5.0
# Of one core. A stub whose engine is stuck uses 1 or 2 % for metrics and cancellation.
_BUSY_SHARE = 0.1
_CHECK_SECONDS = 1.0
_STOPPED = (b"T", b"t")  # proc_pid_stat(5)
_TICKS = os.sysconf("SC_CLK_TCK")


class EngineActivity:
    """Watches the process `root`, a model's stub, with its descendants. clock: monotonic s."""

    def __init__(
        self,
        root: int,
        *,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tree, self._clock = ProcessTree(root, proc=proc, clock=clock), clock
        self._samples = deque[tuple[float, float]]()  # time, CPU seconds of all processes
        self._idle_at = clock()
        self._next_check = float("-inf")
        self._is_running = True

    def is_running(self, gauges: Gauges | None) -> bool:
        """Whether the engine is neither frozen nor stuck, as of the last second."""
        now = self._clock()
        if gauges is None or not gauges.active:
            self._idle_at = now
        if now >= self._next_check:
            self._next_check = now + _CHECK_SECONDS
            self._is_running = self._check(now, gauges)
        return self._is_running

    def _check(self, now: float, gauges: Gauges | None) -> bool:
        stats = [stat for pid in self._tree.processes() if (stat := self._tree.stat(pid))]
        self._samples.append((now, sum(int(s[11]) + int(s[12]) for s in stats) / _TICKS))
        while len(self._samples) > 1 and now - self._samples[1][0] >= STUCK_SECONDS:
            self._samples.popleft()
        if any(stat[0] in _STOPPED for stat in stats):
            return False
        progress_at = max(self._idle_at, gauges.progress_at if gauges else now)
        return now - progress_at < STUCK_SECONDS or self._is_busy(now)

    def _is_busy(self, now: float) -> bool:
        start, used = self._samples[0]
        seconds = now - start
        return seconds < STUCK_SECONDS or self._samples[-1][1] - used >= _BUSY_SHARE * seconds
