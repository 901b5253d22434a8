# SPDX-License-Identifier: Apache-2.0
"""One measurement: NVIDIA's perf_analyzer as the load, /proc as the meter of CPU time."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tritonctl.supervision.supervisor import process_fields, server_processes

_NS_PER_MS = 1e6
_ATTEMPTS = 5


@dataclass(frozen=True)
class Load:
    """A closed loop of `concurrency` streams with `tokens` for each request.

    seconds: how long, if a token takes 10 ms; or, instead, `requests`.
    """

    model: str
    input_data: Path
    concurrency: int
    tokens: int
    seconds: float = 0.0
    requests: int = 0
    streaming: bool = True


@dataclass(frozen=True)
class Measured:
    """Rates per second, latencies in ms, CPU of server and stubs in microseconds per token."""

    requests: float
    tokens: float
    cpu_us: float
    ttft_p50: float
    gap_p50: float
    gap_p99: float


class PerfAnalyzer:
    """perf_analyzer, with its libraries, for one server."""

    def __init__(self, binary: Path, libraries: Path, url: str, shm_prefix: str) -> None:
        self._binary = binary
        self._libraries = libraries
        self.url = url
        self._prefix = shm_prefix

    def at(self, url: str) -> PerfAnalyzer:
        """The same for another server."""
        return PerfAnalyzer(self._binary, self._libraries, url, self._prefix)

    def run(self, load: Load, folder: Path) -> Measured:
        """Run one load; ends the benchmark with perf_analyzer's output when it fails.

        Runs again when the export's end is missing, as happens with perf_analyzer 2.51.
        """
        for _ in range(_ATTEMPTS - 1):
            with suppress(json.JSONDecodeError):
                return self._run(load, folder)
        return self._run(load, folder)

    def _run(self, load: Load, folder: Path) -> Measured:
        profile = folder / "profile.json"
        profile.unlink(missing_ok=True)
        before = cpu_seconds(self._prefix)
        done = subprocess.run(
            self._arguments(load, profile),
            env=os.environ | {"LD_LIBRARY_PATH": str(self._libraries)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"perf_analyzer failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        cpu = cpu_seconds(self._prefix) - before
        return summarise(json.loads(profile.read_text(encoding="utf-8")), load, cpu)

    def _arguments(self, load: Load, profile: Path) -> list[str]:
        # Counted requests, not windows: every variant does the same work.
        rounds = max(2, round(load.seconds / max(load.tokens * 0.010, 0.02)))
        arguments = [str(self._binary), "-m", load.model, "-u", self.url, "-i", "grpc"]
        arguments += ["--async", "--input-data", str(load.input_data)]
        arguments += ["--concurrency-range", str(load.concurrency)]
        count = load.requests or load.concurrency * rounds
        arguments += ["--request-count", str(count)]
        arguments += ["--profile-export-file", str(profile)]
        return arguments + (["--streaming"] if load.streaming else [])


def summarise(profile: dict[str, object], load: Load, cpu: float) -> Measured:
    """Figures of a profile export; timestamps in it are nanoseconds."""
    [experiment] = profile["experiments"]  # type: ignore[misc]
    requests = [r for r in experiment["requests"] if r["response_timestamps"]]  # type: ignore[has-type]
    starts = [r["timestamp"] for r in requests]
    ends = [r["response_timestamps"][-1] for r in requests]
    wall = (max(ends) - min(starts)) / 1e9
    gaps = [
        (later - earlier) / _NS_PER_MS
        for r in requests
        for earlier, later in zip(
            r["response_timestamps"], r["response_timestamps"][1:], strict=False
        )
    ]
    ttft = [(r["response_timestamps"][0] - r["timestamp"]) / _NS_PER_MS for r in requests]
    tokens = len(requests) * load.tokens
    return Measured(
        requests=len(requests) / wall,
        tokens=tokens / wall,
        cpu_us=cpu / tokens * 1e6,
        ttft_p50=statistics.median(ttft),
        gap_p50=statistics.median(gaps) if gaps else 0.0,
        gap_p99=statistics.quantiles(gaps, n=100)[98] if len(gaps) > 1 else 0.0,
    )


def cpu_seconds(prefix: str) -> float:
    """User and system time of a tritonserver and all below it, found by their common prefix."""
    found = filter(None, map(process_fields, server_processes(prefix)))
    return sum(int(fields[11]) + int(fields[12]) for fields in found) / os.sysconf("SC_CLK_TCK")
