# SPDX-License-Identifier: Apache-2.0
"""Whole run folders of load tests, as the generator and the host write them: from a seeded queue.

Requests arrive by a Poisson process and wait for one of `servers` (M/G/c, first come first served);
service is a prefill and a gap per token, both exponential around their means. What the server and
the generator report is derived from the same times.
"""

from __future__ import annotations

import heapq
import json
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any

from hdrh.histogram import HdrHistogram

SECOND = 1_000_000
STEPS = ("speller_tokenizer", "speller_engine", "speller_detokenizer")
Lines = list[dict[str, Any]]


@dataclass(frozen=True)
class Request:
    """Its record, and what the generator cannot know: microseconds in the server's queue."""

    record: dict[str, Any]
    queued: int


@dataclass(frozen=True)
class SyntheticRun:
    """A load test that was never run. Shares are of requests, `stall` is (at, for) in seconds.

    warm_up: (seconds, factor): service is slower by up to the factor at the beginning.
    finished: whether the workers reported their end. coalesce: tokens to a response.
    """

    seed: int = 1
    rate: float = 40.0
    seconds: float = 30.0
    servers: int = 4
    prefill_ms: float = 8.0
    token_ms: float = 2.0
    tokens: tuple[int, int] = (8, 24)
    coalesce: int = 1
    kind: str = "text"
    classes: dict[str, float] = field(default_factory=lambda: {"short": 3.0, "long": 1.0})
    slo: dict[str, float | None] = field(default_factory=lambda: {"ttft_p99_ms": 200.0})
    workers: int = 1
    error_share: float = 0.0
    cancel_share: float = 0.0
    timeout_seconds: float = 60.0
    cool_down_seconds: float = 30.0
    stall: tuple[float, float] | None = None
    warm_up: tuple[float, float] | None = None
    lag_us: float = 60.0
    cpu: float = 0.3
    scenario: str = "speller"
    reason: str = "complete"
    unsent: int = 0
    finished: bool = True
    merged: bool = True
    settings: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """The run's folder: plan, records, progress, server and facts."""
        folder.mkdir(parents=True, exist_ok=True)
        requests = self.requests()
        records = [request.record for request in requests]
        _write_json(folder / "plan.json", self.plan())
        _write_json(folder / "facts.json", self.facts())
        _write_lines(folder / "progress.jsonl", self.progress(records))
        _write_lines(folder / "server.jsonl", self.server(requests))
        if self.merged:
            _write_lines(folder / "records.jsonl", records)
            return folder
        for worker in range(self.workers):
            mine = [record for record in records if record["worker"] == worker]
            # As they ended, not as they were planned.
            mine.sort(key=lambda record: int(record["end"]))
            _write_lines(folder / f"records-{worker}.jsonl", mine)
        return folder

    def plan(self) -> dict[str, Any]:
        """The load plan."""
        return {
            "schema": "tritonctl/loadplan/v1",
            "endpoint": {"protocol": "grpc", "url": "127.0.0.1:8001"},
            "model": "speller",
            "kind": self.kind,
            "classes": [
                {"name": name, "weight": weight, "prompts": "prompts.jsonl", "max_tokens": 64}
                for name, weight in self.classes.items()
            ],
            "arrivals": {"process": "poisson", "rate": self.rate},
            "duration_seconds": self.seconds,
            "seed": self.seed,
            "timeout_seconds": self.timeout_seconds,
            "cool_down_seconds": self.cool_down_seconds,
            "started_at": 1_800_000_000.0,
        }

    def facts(self) -> dict[str, Any]:
        """The circumstances."""
        engine = {"name": STEPS[1], "max_batch_size": self.servers} | self.settings
        engine["model_transaction_policy"] = {"decoupled": self.kind == "text"}
        models: dict[str, Any] = {name: {"name": name, "max_batch_size": 64} for name in STEPS}
        models[STEPS[1]] = engine | {"instance_group": [{"count": 1, "kind": "KIND_CPU"}]}
        models["speller"] = {"name": "speller", "platform": "ensemble", "max_batch_size": 64}
        return {
            "tritonctl": "0.1.0",
            "project": "project",
            "profile": None,
            "scenario": self.scenario,
            "server": {"name": "triton", "version": "2.51.0", "extensions": []},
            "models": models,
            "ensemble": list(STEPS),
            "host": {"cpus": 4, "memory_bytes": 8 << 30, "kernel": "6.1", "python": "3.11.2"},
            "engine": {
                "builder": "openvino",
                "precision": "int8",
                "checkpoint": "checkpoint",
                "architecture": "LlamaForCausalLM",
                "limits": {"max_batch_size": self.servers, "max_seq_len": 512},
                "versions": {"openvino": "2026.4.1", "openvino-genai": "2026.4.1.0"},
                "fingerprint": "cb9b34f995e69fef83501fe8ff88152a",
            },
            "cpu": "A Processor",
            "gpus": [],
            "generator": {"engine": "asyncio", "version": "0.1.0"},
            "started_at": "2027-01-15T08:00:00+00:00",
            "slo": self.slo,
        }

    def requests(self) -> list[Request]:
        """The requests in the order of the plan."""
        chance = random.Random(self.seed)  # noqa: S311 - a simulation
        free = [0.0] * self.servers
        return [self._request(i, at, free, chance) for i, at in enumerate(self._arrivals(chance))]

    def _arrivals(self, chance: random.Random) -> Iterator[float]:
        at = chance.expovariate(self.rate)
        while at < self.seconds:
            yield at
            at += chance.expovariate(self.rate)

    def _request(
        self, index: int, planned: float, free: list[float], chance: random.Random
    ) -> Request:
        """One request, in seconds until the last moment; `free`: when each server is next."""
        names = list(self.classes)
        name = chance.choices(names, list(self.classes.values()))[0]
        sent = planned + chance.expovariate(1e6 / self.lag_us) if self.lag_us else planned
        begin = max(sent, heapq.heappop(free))
        slow = self._slowness(begin)
        count = chance.randint(*self.tokens) * (2 if name == "long" else 1)
        at = [self._paused(begin + slow * chance.expovariate(1e3 / self.prefill_ms))]
        while self.kind == "text" and len(at) < count:
            at.append(self._paused(at[-1] + slow * chance.expovariate(1e3 / self.token_ms)))
        heapq.heappush(free, at[-1])
        record: dict[str, Any] = {
            "i": index,
            "class": name,
            "planned": round(planned * SECOND),
            "sent": round(sent * SECOND),
            **self._responses(at),
            "end": round((at[-1] + 0.0003) * SECOND),
            "outcome": "ok",
            "in": 8 + index % 9 if self.kind == "text" else None,
            "worker": index % self.workers,
            "session": None,
            "turn": None,
        }
        return Request(self._ended(record, chance), round((begin - sent) * SECOND))

    def _slowness(self, at: float) -> float:
        if self.warm_up is None or at >= self.warm_up[0]:
            return 1.0
        return 1 + (self.warm_up[1] - 1) * (1 - at / self.warm_up[0])

    def _paused(self, at: float) -> float:
        """Nothing happens during the stall."""
        if self.stall is None or not self.stall[0] <= at < sum(self.stall):
            return at
        return sum(self.stall)

    def _responses(self, at: list[float]) -> dict[str, Any]:
        if self.kind != "text":
            return {"at": [], "out": None}
        chunks = [at[i : i + self.coalesce] for i in range(0, len(at), self.coalesce)]
        told = {"at": [round(chunk[-1] * SECOND) for chunk in chunks], "out": len(at)}
        return told if self.coalesce == 1 else told | {"n": [len(chunk) for chunk in chunks]}

    def _ended(self, record: dict[str, Any], chance: random.Random) -> dict[str, Any]:
        """The record with another end than a good one, by chance or because it took too long."""
        draw, deadline = chance.random(), record["sent"] + round(self.timeout_seconds * SECOND)
        if draw < self.error_share:
            error = {"kind": "UNAVAILABLE", "message": "Exceeds maximum queue size"}
            return _cut(record, record["sent"] + 900, "error") | {"error": error}
        if draw < self.error_share + self.cancel_share and len(record["at"]) > 4:
            return _cut(record, record["at"][3], "cancelled")
        if record["end"] > deadline:
            error = {"kind": "timeout", "message": f"no end after {self.timeout_seconds:g} s"}
            return _cut(record, deadline, "timeout") | {"error": error}
        if record["end"] > (self.seconds + self.cool_down_seconds) * SECOND:
            last = round((self.seconds + self.cool_down_seconds) * SECOND)
            return _cut(record, max(last, record["sent"]), "abandoned")
        return record

    def progress(self, records: Lines) -> Lines:
        """What the workers printed each second, and at the end."""
        last = max((record["end"] for record in records), default=0) / SECOND
        workers = [_Worker.of(worker, records) for worker in range(self.workers)]
        seconds = range(1, int(max(last, self.seconds)) + 1)
        lines = [worker.second(t, self.cpu) for t in seconds for worker in workers]
        ends = [self._finished(worker, records) for worker in range(self.workers)]
        return lines + (ends if self.finished else [])

    def _finished(self, worker: int, records: Lines) -> dict[str, Any]:
        mine = [record for record in records if record["worker"] == worker]
        return {
            "finished": True,
            "worker": worker,
            "reason": self.reason,
            "unsent": self.unsent if worker == 0 else 0,
            "totals": {"sent": len(mine)},
            "histograms": _histograms(mine),
        }

    def server(self, requests: list[Request]) -> Lines:
        """A scrape per second: what was served until then."""
        served = [request for request in requests if request.record["outcome"] == "ok"]
        return [self._scrape(t, served) for t in range(int(self.seconds) + 2)]

    def _scrape(self, t: int, served: list[Request]) -> dict[str, Any]:
        now = t * SECOND
        done = [request for request in served if request.record["end"] <= now]
        queued = sum(request.queued for request in done)
        whole = sum(request.record["end"] - request.record["sent"] for request in done)
        inside = sum(request.record["sent"] <= now < request.record["end"] for request in served)
        models = {
            STEPS[0]: _counters(len(done), 0.02 * whole, 0.001 * whole, 1.5),
            STEPS[1]: _counters(len(done), whole, queued, self.servers),
            STEPS[2]: _counters(len(done), 0.02 * whole, 0.001 * whole, 2.0),
            "speller": _counters(len(done), whole, 0.0, 1.0),
        }
        models[STEPS[1]]["pending"] = max(inside - self.servers, 0)
        if self.kind == "text":
            models[STEPS[1]] |= _engine_counters(done)
        return {
            "t": float(t),
            "models": models,
            "engine": {"tritonctl_active_streams": min(inside, self.servers)},
            "cpu": (whole - queued) / SECOND / self.servers,
            "rss_bytes": 500_000_000 + 1000 * len(done),
            "host_cpu": 0.4,
        }


@dataclass(frozen=True)
class _Worker:
    """One worker's requests by when they ended, and the sorted times of what it counts."""

    number: int
    ended: Lines
    times: dict[str, list[int]]

    @classmethod
    def of(cls, number: int, records: Lines) -> _Worker:
        mine = [record for record in records if record["worker"] == number]
        failed = [r["end"] for r in mine if r["outcome"] in ("error", "timeout", "abandoned")]
        tokens = [
            at
            for record in mine
            for at, count in zip(record["at"], record.get("n", repeat(1)), strict=False)
            for _ in range(count)
        ]
        times = {name: [record[name] for record in mine] for name in ("planned", "sent")}
        times |= {"done": [record["end"] for record in mine], "failed": failed, "tokens": tokens}
        by_end = sorted(mine, key=lambda record: int(record["end"]))
        return cls(number, by_end, {name: sorted(found) for name, found in times.items()})

    def second(self, t: int, cpu: float) -> dict[str, Any]:
        """The line at `t`: counts so far, times of the last second."""
        now = t * SECOND
        counts = {name: bisect_right(found, now) for name, found in self.times.items()}
        begin, end = (bisect_right(self.times["done"], at) for at in (now - SECOND, now))
        ended = self.ended[begin:end]
        return {
            "t": float(t),
            "worker": self.number,
            **counts,
            "in_flight": counts["sent"] - counts["done"],
            "cpu": cpu,
            "lag_p99_us": max((r["sent"] - r["planned"] for r in ended), default=None),
            **_histograms(ended),
        }


def _engine_counters(done: list[Request]) -> dict[str, float]:
    """A text engine's own: it begins 1 ms after Triton's queue has let a request go."""
    begun = [request.record["sent"] + request.queued for request in done]
    times = [request.record["at"] for request in done]
    return {
        "queued_s": 0.001 * len(done),
        "ttft_s": sum(at[0] - begin for at, begin in zip(times, begun, strict=True)) / SECOND,
        "ttft_n": len(done),
        "e2e_s": sum(at[-1] - begin for at, begin in zip(times, begun, strict=True)) / SECOND,
        "e2e_n": len(done),
    }


def _counters(count: int, request_us: float, queue_us: float, batch: float) -> dict[str, Any]:
    return {
        "success": count,
        "failure": 0,
        "count": count,
        "exec": round(count / batch),
        "queue_us": round(queue_us),
        "input_us": 20 * count,
        "infer_us": round(max(request_us - queue_us - 50 * count, 0)),
        "output_us": 30 * count,
        "request_us": round(request_us),
        "pending": 0,
    }


def _cut(record: dict[str, Any], end: int, outcome: str) -> dict[str, Any]:
    """The record as it is when it ends early."""
    at = [time for time in record["at"] if time <= end]
    counts = record.get("n", [1] * len(record["at"]))[: len(at)]
    told = record | {"at": at, "end": end, "outcome": outcome}
    if "n" in record:
        told["n"] = counts
    return told | {"out": sum(counts) if record["out"] is not None else None}


def _histograms(records: Lines) -> dict[str, str]:
    made = {name: HdrHistogram(1, 3_600_000_000, 3) for name in ("ttft", "e2e", "itl")}
    for record in records:
        if record["at"]:
            made["ttft"].record_value(max(record["at"][0] - record["planned"], 1))
        if record["outcome"] == "ok":
            made["e2e"].record_value(max(record["end"] - record["planned"], 1))
    gaps = Counter(max(b - a, 1) for record in records for a, b in pairwise(record["at"]))
    for gap, count in gaps.items():
        made["itl"].record_value(gap, count)
    return {name: histogram.encode().decode("ascii") for name, histogram in made.items()}


def _write_json(path: Path, record: dict[str, Any]) -> None:
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")


def _write_lines(path: Path, lines: Lines) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
