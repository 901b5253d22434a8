# SPDX-License-Identifier: Apache-2.0
"""The same closed loop by NVIDIA's perf_analyzer and by our engines.

In turn on mocks, whose answers are the same for all. Side by side on the shipped model: what a real
server has to do hangs on who asks, so both have to ask it at the same time.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from tritonctl.console.voice import Console
from tritonctl.engines.build.engine import build_engine
from tritonctl.host import bundled
from tritonctl.loadtest.run.execution import FACTS
from tritonctl.loadtest.run.jobs import target_of
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project

from bench import ENGINES, TEXT, Bench, cores, heading, mock, read_lines, say
from measure import Load, PerfAnalyzer
from server import started

CONCURRENCY = 4
MODEL = "speller"
RIVAL = "perf_analyzer"
METRICS = ("ttft", "gap", "e2e")
# As a large model answers, and as the speller; one for each run, so that all get the same answers.
MOCKS = {
    "mock of a large model": ("--ttft", "lognormal:100:0.3", "--itl", "lognormal:10:0.4"),
    "mock of the speller": ("--ttft", "lognormal:15:0.3", "--itl", "lognormal:5:0.4"),
}
Samples = dict[str, list[float]]
Asked = tuple[float, list[float]]  # when a request was sent and each response came, us of the epoch
PROJECT = """
schema: tritonctl/v1
models:
  speller:
    checkpoint: {checkpoint}
    engine: {{builder: openvino, precision: int8, max_batch_size: 32, max_seq_len: 512}}
server: {{grpc_port: 0, http_port: 0, metrics_port: 0}}
"""


@dataclass(frozen=True)
class Rival:
    """perf_analyzer and what both sides ask of a model: the prompts of a file, in order."""

    analyzer: PerfAnalyzer
    bench: Bench
    folder: Path
    prompts: Path
    requests: int

    def by(self, name: str, model: str, url: str, repetition: int) -> list[Asked]:
        """One closed loop by perf_analyzer or by one of our engines."""
        if name == RIVAL:
            return self.by_perf_analyzer(model, url)
        return self.by_engine(name, model, url, repetition)

    def by_perf_analyzer(self, model: str, url: str) -> list[Asked]:
        """Its export has the time of each response."""
        texts = [line["text_input"] for line in read_lines(self.prompts)]
        data = self.folder / "input.json"
        rows = [{"text_input": [text], "stream": [True]} for text in texts]
        data.write_text(json.dumps({"data": rows}), encoding="utf-8")
        load = Load(model, data, CONCURRENCY, tokens=1, requests=self.requests)
        self.analyzer.at(url).run(load, self.folder)
        [experiment] = json.loads((self.folder / "profile.json").read_text())["experiments"]
        found = [(r["timestamp"], r["response_timestamps"]) for r in experiment["requests"]]
        return [(sent / 1000, [at / 1000 for at in times]) for sent, times in found if times]

    def by_engine(self, engine: str, model: str, url: str, repetition: int) -> list[Asked]:
        """The same from our records: from the moment of sending, as perf_analyzer counts."""
        arrivals = {"process": "closed", "concurrency": CONCURRENCY}
        plan = self.bench.plan(url, "text", arrivals, 1)
        del plan["duration_seconds"]
        one = {"name": model, "prompts": str(self.prompts), "order": "sequential"}
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
    example = bundled.find("examples/number-speller")
    folder = bench.folder / "speller"
    folder.mkdir()
    text = PROJECT.format(checkpoint=(example / "checkpoint").resolve())
    (folder / "tritonctl.yaml").write_text(text, encoding="utf-8")
    project = load_project(folder)
    build_engine(project, MODEL, bench.console)
    # Whoever sends must not take the server's time: Python takes more of it than C++.
    with served(project, folder, bench.console) as analyzer, cores({1}):
        rival = Rival(analyzer, bench, folder, example / "prompts.jsonl", requests)

        def mocked(options: Sequence[str], name: str, repetition: int) -> Samples:
            with mock(bench.console, *options, "--tokens", "16", cores={0}) as url:
                return samples(rival.by(name, TEXT, url, repetition))

        for subject, options in MOCKS.items():
            told(f"in turn, {subject}", pooled(partial(mocked, options), repetitions))
        url = target_of(project, "grpc").url
        for engine in ENGINES:
            told("side by side, shipped speller", side_by_side(rival, engine, url, repetitions))


def pooled(measure: Callable[[str, int], Samples], repetitions: int) -> dict[str, Samples]:
    """Runs in turn, the order reversed every second time; the samples of each are pooled."""
    found = {name: nothing() for name in (RIVAL, *ENGINES)}
    for repetition in range(repetitions):
        for name in sorted(found, reverse=bool(repetition % 2)):
            add(found[name], measure(name, repetition))
    return found


def side_by_side(rival: Rival, engine: str, url: str, repetitions: int) -> dict[str, Samples]:
    """Both at once, each with its own closed loop; of both what was asked while both asked."""
    found = {name: nothing() for name in (RIVAL, engine)}
    for repetition in range(repetitions):
        with ThreadPoolExecutor(1) as pool:
            theirs = pool.submit(rival.by_perf_analyzer, MODEL, url)
            ours = rival.by(engine, MODEL, url, repetition)
            runs = {RIVAL: theirs.result(), engine: ours}
        first = max(min(sent for sent, _ in run) for run in runs.values())
        last = min(max(at[-1] for _, at in run) for run in runs.values())
        if last <= first:
            raise SystemExit("one had ended before the other began: ask for more --requests")
        for name, run in runs.items():
            both = [(sent, at) for sent, at in run if first <= sent and at[-1] <= last]
            add(found[name], samples(both))
    return found


def nothing() -> Samples:
    """Before the first."""
    return {metric: [] for metric in METRICS}


def add(found: Samples, more: Samples) -> None:
    """One behind the other."""
    for metric, values in more.items():
        found[metric] += values


def told(subject: str, found: dict[str, Samples]) -> None:
    """The table."""
    columns = ("figure", "by", "n", "P50 ms", "P99 ms", "P50 to perf_analyzer", "P99")
    heading(f"Against perf_analyzer: closed loops of {CONCURRENCY}, {subject}", columns)
    for metric in METRICS:
        base = np.percentile(found[RIVAL][metric], [50, 99])
        for name, those in found.items():
            figures = np.percentile(those[metric], [50, 99])
            ratios = [f"{100 * (x / y - 1):+.1f} %" for x, y in zip(figures, base, strict=True)]
            say(metric, name, len(those[metric]), *(f"{x:.3f}" for x in figures), *ratios)


@contextmanager
def served(project: Project, folder: Path, console: Console) -> Iterator[PerfAnalyzer]:
    """The server, on a core of its own."""
    with ExitStack() as stack:
        with cores({0}):
            analyzer = stack.enter_context(started(project, folder, console))
        yield analyzer


def samples(requests: Iterable[Asked]) -> Samples:
    """Milliseconds."""
    found = nothing()
    for sent, at in requests:
        found["ttft"].append((at[0] - sent) / 1000)
        found["e2e"].append((at[-1] - sent) / 1000)
        found["gap"] += [(b - a) / 1000 for a, b in pairwise(at)]
    return found
