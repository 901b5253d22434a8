# SPDX-License-Identifier: Apache-2.0
"""The same closed loop by NVIDIA's perf_analyzer and by our engines.

In turn on mocks, whose answers are the same for all. Side by side on the shipped model: a real
server's load depends on the client, so both must ask it at the same time.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from bench import (
    ENGINES,
    MODEL,
    PROMPTS,
    TEXT,
    Bench,
    heading,
    mock,
    on_cores,
    read_lines,
    say,
    speller,
    write_project,
)
from measure import Load, PerfAnalyzer
from server import started
from tritonctl.loadtest.analysis.records import FACTS

CONCURRENCY = 4
RIVAL = "perf_analyzer"
METRICS = ("ttft", "gap", "e2e")
# Like a large model and like the speller; a fresh one for each run gives the same answers to all.
MOCKS = {
    "mock of a large model": ("--ttft", "lognormal:100:0.3", "--itl", "lognormal:10:0.4"),
    "mock of the speller": ("--ttft", "lognormal:15:0.3", "--itl", "lognormal:5:0.4"),
}
Samples = dict[str, list[float]]
Asked = tuple[float, list[float]]  # when a request was sent and each response came, us of the epoch


@dataclass(frozen=True)
class Rival:
    """perf_analyzer and our engines, with the same prompts in the same order."""

    analyzer: PerfAnalyzer
    bench: Bench
    folder: Path
    requests: int

    def by(self, name: str, model: str, url: str, repetition: int) -> list[Asked]:
        """One closed loop by perf_analyzer or by one of our engines."""
        if name == RIVAL:
            return self.by_perf_analyzer(model, url)
        return self.by_engine(name, model, url, repetition)

    def by_perf_analyzer(self, model: str, url: str) -> list[Asked]:
        """A closed loop by perf_analyzer; its export has the time of each response."""
        texts = [line["text_input"] for line in read_lines(PROMPTS)]
        data = self.folder / "input.json"
        rows = [{"text_input": [text], "stream": [True]} for text in texts]
        data.write_text(json.dumps({"data": rows}), encoding="utf-8")
        load = Load(model, data, CONCURRENCY, tokens=1, requests=self.requests)
        self.analyzer.at(url).run(load, self.folder)
        [experiment] = json.loads((self.folder / "profile.json").read_text())["experiments"]
        stamps = [(r["timestamp"], r["response_timestamps"]) for r in experiment["requests"]]
        return [(sent / 1000, [at / 1000 for at in times]) for sent, times in stamps if times]

    def by_engine(self, engine: str, model: str, url: str, repetition: int) -> list[Asked]:
        """The same by one of our engines, counted from sending as perf_analyzer does."""
        arrivals = {"process": "closed", "concurrency": CONCURRENCY}
        plan = self.bench.plan(url, "text", arrivals, 1)
        del plan["duration_seconds"]
        one = {"name": model, "prompts": str(PROMPTS), "order": "sequential"}
        plan |= {"model": model, "classes": [one], "count": self.requests}
        run = self.bench.run(f"rival-{engine}-{model}-{repetition}", plan, engine)
        facts = json.loads((run.folder / FACTS).read_text(encoding="utf-8"))
        zero = datetime.fromisoformat(facts["started_at"]).timestamp() * 1e6
        records = read_lines(run.folder / "records.jsonl")
        shutil.rmtree(run.folder)
        answered = [r for r in records if r["outcome"] == "ok"]
        return [(zero + r["sent"], [zero + at for at in r["at"]]) for r in answered]


def against_perf_analyzer(bench: Bench, requests: int, repetitions: int) -> None:
    """A table for each mock, and for each engine side by side on the shipped speller."""
    folder = bench.folder / "speller"
    folder.mkdir()
    project = write_project(folder, speller())
    # The client must not take the server's time: Python takes more of it than C++.
    with started(project, folder, {0}) as analyzer, on_cores({1}):
        rival = Rival(analyzer, bench, folder, requests)

        def mocked(options: Sequence[str], name: str, repetition: int) -> Samples:
            with mock(*options, "--tokens", "16", cores={0}) as url:
                return samples(rival.by(name, TEXT, url, repetition))

        for subject, options in MOCKS.items():
            print_table(f"in turn, {subject}", pooled(partial(mocked, options), repetitions))
        for engine in ENGINES:
            pair = side_by_side(rival, engine, analyzer.url, repetitions)
            print_table("side by side, shipped speller", pair)


def pooled(measure: Callable[[str, int], Samples], repetitions: int) -> dict[str, Samples]:
    """Runs in turn, in reverse order every second time; pools the samples of each."""
    pool = {name: no_samples() for name in (RIVAL, *ENGINES)}
    for repetition in range(repetitions):
        for name in sorted(pool, reverse=bool(repetition % 2)):
            add(pool[name], measure(name, repetition))
    return pool


def side_by_side(rival: Rival, engine: str, url: str, repetitions: int) -> dict[str, Samples]:
    """Both at once, each with its own closed loop; keeps the requests sent while both sent."""
    pool = {name: no_samples() for name in (RIVAL, engine)}
    for repetition in range(repetitions):
        with ThreadPoolExecutor(1) as threads:
            theirs = threads.submit(rival.by_perf_analyzer, MODEL, url)
            ours = rival.by(engine, MODEL, url, repetition)
            runs = {RIVAL: theirs.result(), engine: ours}
        first = max(min(sent for sent, _ in run) for run in runs.values())
        last = min(max(at[-1] for _, at in run) for run in runs.values())
        if last <= first:
            raise SystemExit("one ended before the other began: give more --requests")
        for name, run in runs.items():
            both = [(sent, at) for sent, at in run if first <= sent and at[-1] <= last]
            add(pool[name], samples(both))
    return pool


def no_samples() -> Samples:
    """An empty list for each metric."""
    return {metric: [] for metric in METRICS}


def add(to: Samples, more: Samples) -> None:
    """Append samples."""
    for metric, values in more.items():
        to[metric] += values


def print_table(subject: str, pool: dict[str, Samples]) -> None:
    """Print each side's percentiles and their ratios to perf_analyzer's."""
    columns = ("figure", "by", "n", "P50 ms", "P99 ms", "P50 to perf_analyzer", "P99")
    heading(f"Against perf_analyzer: closed loops of {CONCURRENCY}, {subject}", columns)
    for metric in METRICS:
        base = np.percentile(pool[RIVAL][metric], [50, 99])
        for name, own in pool.items():
            figures = np.percentile(own[metric], [50, 99])
            ratios = [f"{100 * (x / y - 1):+.1f} %" for x, y in zip(figures, base, strict=True)]
            say(metric, name, len(own[metric]), *(f"{x:.3f}" for x in figures), *ratios)


def samples(requests: Iterable[Asked]) -> Samples:
    """The durations of requests in milliseconds."""
    durations = no_samples()
    for sent, at in requests:
        durations["ttft"].append((at[0] - sent) / 1000)
        durations["e2e"].append((at[-1] - sent) / 1000)
        durations["gap"] += [(b - a) / 1000 for a, b in pairwise(at)]
    return durations
