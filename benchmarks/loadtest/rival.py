# SPDX-License-Identifier: Apache-2.0
"""The same closed loop by NVIDIA's perf_analyzer and by our engines, on the shipped model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from tritonctl import bundled
from tritonctl.console import Console
from tritonctl.engines.building import build_engine
from tritonctl.loadtest.jobs import target_of
from tritonctl.project import Project
from tritonctl.project_file import load_project

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

    def samples(self, name: str, model: str, url: str, repetition: int) -> Samples:
        """One closed loop by perf_analyzer or by one of our engines."""
        if name == RIVAL:
            return self._by_perf_analyzer(model, url)
        return self._by_engine(name, model, url, repetition)

    def _by_perf_analyzer(self, model: str, url: str) -> Samples:
        """Its export has the time of each response."""
        texts = [line["text_input"] for line in read_lines(self.prompts)]
        data = self.folder / "input.json"
        rows = [{"text_input": [text], "stream": [True]} for text in texts]
        data.write_text(json.dumps({"data": rows}), encoding="utf-8")
        load = Load(model, data, CONCURRENCY, tokens=1, requests=self.requests)
        self.analyzer.at(url).run(load, self.folder)
        [experiment] = json.loads((self.folder / "profile.json").read_text())["experiments"]
        found = [(r["timestamp"], r["response_timestamps"]) for r in experiment["requests"]]
        return samples((sent / 1000, [at / 1000 for at in times]) for sent, times in found if times)

    def _by_engine(self, engine: str, model: str, url: str, repetition: int) -> Samples:
        """The same from our records: from the moment of sending, as perf_analyzer counts."""
        arrivals = {"process": "closed", "concurrency": CONCURRENCY}
        plan = self.bench.plan(url, "text", arrivals, 1)
        del plan["duration_seconds"]
        one = {"name": model, "prompts": str(self.prompts), "order": "sequential"}
        plan |= {"model": model, "classes": [one], "count": self.requests}
        run = self.bench.run(f"rival-{engine}-{model}-{repetition}", plan, engine)
        records = read_lines(run.folder / "records.jsonl")
        shutil.rmtree(run.folder)
        return samples((r["sent"], r["at"]) for r in records if r["outcome"] == "ok")


def against_perf_analyzer(bench: Bench, requests: int, repetitions: int) -> None:
    """Three tables: two mocks, whose answers are the same for all, and the shipped speller.

    The last one is no pure comparison of clocks: who takes more of the machine slows the server.
    """
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
                return rival.samples(name, TEXT, url, repetition)

        for subject, options in MOCKS.items():
            told(subject, pooled(partial(mocked, options), repetitions))
        url = target_of(project, "grpc").url
        told("shipped speller", pooled(lambda n, r: rival.samples(n, MODEL, url, r), repetitions))


def pooled(measure: Callable[[str, int], Samples], repetitions: int) -> dict[str, Samples]:
    """Runs in turn, the order reversed every second time; the samples of each are pooled."""
    found: dict[str, Samples] = {name: {m: [] for m in METRICS} for name in (RIVAL, *ENGINES)}
    for repetition in range(repetitions):
        for name in sorted(found, reverse=bool(repetition % 2)):
            for metric, values in measure(name, repetition).items():
                found[name][metric] += values
    return found


def told(subject: str, found: dict[str, Samples]) -> None:
    """The table."""
    columns = ("figure", "by", "n", "P50 ms", "P99 ms", "P50 to perf_analyzer", "P99")
    heading(f"Against perf_analyzer: closed loop of {CONCURRENCY}, {subject}", columns)
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


def samples(requests: Iterable[tuple[float, list[float]]]) -> Samples:
    """Milliseconds, of microseconds of sending and of each response."""
    found: Samples = {metric: [] for metric in METRICS}
    for sent, at in requests:
        found["ttft"].append((at[0] - sent) / 1000)
        found["e2e"].append((at[-1] - sent) / 1000)
        found["gap"] += [(b - a) / 1000 for a, b in pairwise(at)]
    return found
