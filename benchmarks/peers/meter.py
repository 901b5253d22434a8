# SPDX-License-Identifier: Apache-2.0
"""What one measurement counts, whoever makes the load: answers, latencies, processor time."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

MARKER = "PEERS_SERVER"  # in the environment of a server's processes


class Meter:
    """Counts the requests that end between `warm_up` and `warm_up + seconds` from now."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._marker = job["marker"]
        self.starts = time.perf_counter() + job["warm_up"]
        self.ends = self.starts + job["seconds"]
        self._cpu: list[tuple[float, float, float]] = []
        self._first: list[float] = []
        self._whole: list[float] = []
        self.each: list[tuple[int, float]] = []  # tokens, milliseconds to the end
        self._tokens = self._wrong = self._failed = 0

    def tick(self) -> None:
        """Read the processor time at the first call within the window and the first behind it."""
        edge = self.ends if self._cpu else self.starts
        if len(self._cpu) < 2 and time.perf_counter() >= edge:
            now, client, server = (
                time.perf_counter(),
                time.process_time(),
                cpu_seconds(self._marker),
            )
            # To look through all processes is not the client's work.
            self._cpu.append((now, server, client if len(self._cpu) else time.process_time()))

    def count(self, began: float, first: float, tokens: int, *, right: bool) -> None:
        """A request that ends now. One without any answer is a failure, not a wrong answer."""
        now = time.perf_counter()
        if not self.starts <= now < self.ends:
            return
        self._tokens += tokens
        self._wrong += not right
        self._first.append(1000 * (first - began))
        self._whole.append(1000 * (now - began))
        self.each.append((tokens, self._whole[-1]))

    def fail(self) -> None:
        """A request that got an error, at any time."""
        self._failed += 1

    def result(self) -> dict[str, float]:
        """Rates per second, milliseconds, CPU in microseconds per token."""
        (begin, server, client), (end, server_end, client_end) = self._cpu
        tokens, seconds = max(1, self._tokens), end - begin
        return {
            "requests": len(self._whole),
            "rate": len(self._whole) / seconds,
            "tokens": self._tokens / seconds,
            "ttft_p50": percentile(self._first, 0.5),
            "ttft_p99": percentile(self._first, 0.99),
            "whole_p50": percentile(self._whole, 0.5),
            "whole_p99": percentile(self._whole, 0.99),
            "cpu": 1e6 * (server_end - server) / tokens,
            "client_cpu": 1e6 * (client_end - client) / tokens,
            "wrong": self._wrong,
            "failed": self._failed,
        }


def percentile(values: list[float], share: float) -> float:
    """The nearest rank; infinite when nothing was answered."""
    if not values:
        return math.inf
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def processes(marker: str) -> list[int]:
    """The processes that were started with this marker in their environment."""
    wanted, found = f"{MARKER}={marker}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # it ended while we looked, or is another user's
            continue
    return found


def cpu_seconds(marker: str) -> float:
    """User and system time so far of all processes of a server."""
    ticks = 0
    for pid in processes(marker):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        except OSError:
            continue
        fields = stat.rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_megabytes(marker: str) -> float:
    """What all processes of a server hold, pages that they share counted once (PSS)."""
    kilobytes = 0
    for pid in processes(marker):
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
        except OSError:
            continue
        kilobytes += sum(int(line.split()[1]) for line in text.splitlines() if line[:4] == "Pss:")
    return kilobytes / 1024
