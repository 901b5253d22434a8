# SPDX-License-Identifier: Apache-2.0
"""Measures `tritonctl embed FILE --output OUT` beside plain concurrent clients of the same server.

Usage: python benchmarks/tasks/embed_file.py CHECKPOINT [--lines 4000] [--rounds 5]
           [--precision fp32] [--engines FOLDER]

CHECKPOINT: a folder of sentence-transformers; --engines: where to keep what is built of it. Texts
have 8 to 256 words, most of them few. In each round all ways have their turn, in a random order, so
that other work of the machine is the same for all of them:

    in file order   a client of tritonclient's: full requests of texts as they come, the same number
                    in flight; vectors are read and dropped
    sorted          the same with all texts sorted by length first, as a library would that has the
                    whole file in memory
    embed           the command: it reads the file, sorts within its window, writes JSON lines, and
                    makes sure of them

Prints a table of lines per second, without the start of a process, and the ratios in each round.
Exit code 1 if `embed` has less than 0.95 of the rate of the client in file order.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path += [str(BENCHMARKS), str(BENCHMARKS.parent)]

from bench import heading, running, say, write_project  # noqa: E402

MODEL, ROWS, IN_FLIGHT = "encoder", 32, 4
LEAST_RATIO = 0.95
IN_ORDER, SORTED, EMBED, PACKED = "in file order", "sorted", "embed", "embed, base64"
WORDS = re.findall(r"\w+", __doc__ or "")


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--lines", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--engines", type=Path)
    asked = parser.parse_args()
    texts = sample(asked.lines)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "texts.txt"
        file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        engine = {"builder": "onnxruntime", "precision": asked.precision, "max_batch_size": ROWS}
        checkpoint = str(asked.checkpoint.resolve())
        models = {MODEL: {"task": "embedding", "checkpoint": checkpoint, "engine": engine}}
        kept = {"engines": str(asked.engines.resolve())} if asked.engines else {}
        with running(write_project(folder, models, **kept)) as server:
            rates = measured(server.grpc_url, texts, file, asked.rounds)
    return told(rates, asked)


def sample(count: int) -> list[str]:
    """Texts whose lengths are spread as those of documents are: by their logarithm."""
    source = random.Random(1)
    lengths = (int(2 ** source.uniform(3, 8)) for _ in range(count))
    return [" ".join(source.choices(WORDS, k=length)) for length in lengths]


def measured(url: str, texts: Sequence[str], file: Path, rounds: int) -> dict[str, list[float]]:
    """Lines per second of each way, by round; all have been tried once before."""
    by_length = sorted(texts, key=len, reverse=True)
    ways = {
        IN_ORDER: lambda: plain(url, texts),
        SORTED: lambda: plain(url, by_length),
        EMBED: lambda: command(url, file),
        PACKED: lambda: command(url, file, "--encoding", "base64"),
    }
    plain(url, texts[: ROWS * 8])
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in random.sample(list(ways), len(ways)):
            rates[way].append(len(texts) / ways[way]())
            print(f"  {way}: {rates[way][-1]:.1f}/s", file=sys.stderr, flush=True)
    return rates


def plain(url: str, texts: Sequence[str]) -> float:
    """Seconds that a client of tritonclient's takes."""
    groups = [texts[at : at + ROWS] for at in range(0, len(texts), ROWS)]
    with triton.InferenceServerClient(url) as client, ThreadPoolExecutor(IN_FLIGHT) as pool:
        began = time.monotonic()
        running: set[Future[None]] = set()
        for group in groups:
            if len(running) == IN_FLIGHT:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for one in done:
                    one.result()
            running.add(pool.submit(ask, client, group))
        for one in running:
            one.result()
        return time.monotonic() - began


def ask(client: triton.InferenceServerClient, texts: Sequence[str]) -> None:
    """One request; its vectors are read."""
    tensor = triton.InferInput("text_input", [len(texts), 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode()] for text in texts], dtype=object))
    answer = client.infer(MODEL, [tensor]).as_numpy("embedding")
    if answer is None or len(answer) != len(texts):
        raise SystemExit("the model does not answer each text")


def command(url: str, file: Path, *options: str) -> float:
    """Seconds that `tritonctl embed` says it took."""
    output = file.with_name("out.jsonl")
    words = ["embed", MODEL, str(file), "--output", str(output), "--force", "--json", "--quiet"]
    program = [sys.executable, "-m", "tritonctl", *words, "--url", url, *options]
    program += ["--in-flight", str(IN_FLIGHT)]
    done = subprocess.run(program, check=True, capture_output=True, env=os.environ)
    return float(json.loads(done.stdout)["seconds"])


def told(rates: dict[str, list[float]], asked: argparse.Namespace) -> int:
    """The table; whether the goal is met."""
    load = os.getloadavg()[0]
    title = f"{asked.lines} lines, {asked.precision}, {asked.rounds} rounds, load {load:.1f}"
    heading(title, ("way", "lines/s, median", "to in file order [least, most]", "to sorted"))
    ratios = {}
    for way, some in rates.items():
        to_plain = [mine / other for mine, other in zip(some, rates[IN_ORDER], strict=True)]
        to_sorted = [mine / other for mine, other in zip(some, rates[SORTED], strict=True)]
        ratios[way] = statistics.median(to_plain)
        spread = f"{ratios[way]:.2f} [{min(to_plain):.2f}, {max(to_plain):.2f}]"
        rate, best = statistics.median(some), statistics.median(to_sorted)
        say(way, f"{rate:.1f}", spread, f"{best:.2f}")
    return int(ratios[EMBED] < LEAST_RATIO)


if __name__ == "__main__":
    sys.exit(main())
