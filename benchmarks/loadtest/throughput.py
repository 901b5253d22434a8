# SPDX-License-Identifier: Apache-2.0
"""How much one worker can send before it is the bottleneck, and how much two can."""

from __future__ import annotations

from typing import Any

from bench import ENGINES, Bench, heading, mock, on_cores, read_lines, say
from tritonctl.loadtest.run.execution import LoadRun

_QUICK = ("--ttft", "0", "--itl", "0", "--tokens", "64", "--latency", "0")
_BUSY = 0.8  # of a core: the share at which a run declares itself invalid
_TARGETS = {"tensors": ("requests", 1000.0), "text": ("tokens", 3000.0)}
_TOKENS = 64
COLUMNS = ("engine", "load", "workers", "per second", "CPU of the workers", "per CPU second",
           "at 80 % of a core")  # fmt: skip


def saturate(bench: Bench, seconds: float) -> None:
    """Measure the highest rate: 16 users without pauses."""
    heading("The highest rate: closed loop of 16, the mock on the other core", COLUMNS)
    for engine in ENGINES:
        for kind, (unit, _) in _TARGETS.items():
            for workers in (1, 2):
                closed = {"process": "closed", "concurrency": 16}
                run = loaded(bench, engine, kind, closed, seconds, workers)
                rate, cpu = rate_of(run, kind), used_cores(run)
                say(engine, f"{unit}/s", workers, f"{rate:.0f}", f"{cpu:.2f}", f"{rate / cpu:.0f}",
                    f"{rate / cpu * _BUSY:.0f}")  # fmt: skip


def keep_up(bench: Bench, seconds: float) -> None:
    """Measure the open-loop rates that one worker must reach, and twice those with two."""
    columns = ("engine", "load", "workers", "asked", "sent", "CPU", "send lag P99 ms", "valid")
    heading("Poisson arrivals at the rate that each worker must reach", columns)
    for engine in ENGINES:
        for kind, (unit, target) in _TARGETS.items():
            for workers in (1, 2):
                asked = target * workers
                rate = asked if kind == "tensors" else asked / _TOKENS
                arrivals = {"process": "poisson", "rate": rate}
                run = loaded(bench, engine, kind, arrivals, seconds, workers)
                summary = run.summary
                valid = "yes" if summary.valid else "; ".join(summary.invalid_because)
                lag = summary.generator.send_lag_p99_ms
                say(engine, f"{unit}/s", workers, f"{asked:.0f}", f"{rate_of(run, kind):.0f}",
                    f"{used_cores(run):.2f}", f"{lag or 0:.2f}", valid)  # fmt: skip


def loaded(
    bench: Bench, engine: str, kind: str, arrivals: dict[str, Any], seconds: float, workers: int
) -> LoadRun:
    """One run; a single worker gets a core to itself where the machine has two."""
    with mock(*_QUICK, cores={1} if workers == 1 else None) as url:
        plan = bench.plan(url, kind, arrivals, seconds)
        name = f"{engine}-{kind}-{arrivals['process']}-{workers}"
        with on_cores({0} if workers == 1 else {0, 1}):
            return bench.run(name, plan, engine, workers)


def rate_of(run: LoadRun, kind: str) -> float:
    """Requests or tokens per second."""
    rates = run.summary.rates
    return rates.achieved_rps if kind == "tensors" else rates.tokens_per_s


def used_cores(run: LoadRun) -> float:
    """The mean number of cores that all workers used while they sent."""
    lines = [line for line in read_lines(run.folder / "progress.jsonl") if "t" in line]
    workers = {line["worker"] for line in lines}
    shares = [[x["cpu"] for x in lines if x["worker"] == worker][1:] for worker in workers]
    return sum(sum(share) / max(1, len(share)) for share in shares)
