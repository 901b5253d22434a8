# SPDX-License-Identifier: Apache-2.0
"""Batches by tokens against Triton's own batcher, with the costs of a real engine.

    python benchmarks/tasks/batching.py ENGINE.onnx [--write]

Measures what a run of so many texts of such a length takes on this machine (ONNX Runtime in this
process), then plays the same arrivals to each way of batching, with these costs, on a clock of its
own: other work on the machine does not change who waits for whom. Run it where onnxruntime and
numpy are, such as the server's environment. The packing is the served code, python_backends/.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "python_backends"))

from tensorlib.packing import default_tokens, first_of, packed  # noqa: E402

RESULTS = HERE.parent / "results" / "tasks.md"
MOST_ROWS = 32
# Triton joins equal shapes only; our tokenizer rounds lengths up for it.
MULTIPLE = 32
# What --write replaces: everything below.
MARK = "<!-- benchmarks/tasks/batching.py --write -->"
# The objective for P99, in runs of one text of the greatest length of the mixture.
OBJECTIVE, SHORTEST, LONGEST = 3.0, 8, 512
GRID_ROWS, GRID_LENGTHS = (1, 4, 16), (8, 32, 128, 512)
MOST_MEASURED, REPEATS = 2048, 5  # tokens of a measured run
LONG = 8192
SEED, TEXTS = 19, 4000

Cost = Callable[[int, int], float]  # rows, longest: seconds
Lengths = Callable[[random.Random], int]


@dataclass(eq=False)
class Text:
    """One that waits, and when it was answered."""

    arrived: float
    length: int
    answered: float = 0.0

    @property
    def seconds(self) -> float:
        """From coming to its answer."""
        return self.answered - self.arrived


@dataclass
class Machine:
    """What runs cost: seconds = run + token * tokens + square * tokens * longest, at least."""

    run: float
    token: float
    square: float
    measured: dict[tuple[int, int], float] = field(default_factory=dict)

    def cost(self, rows: int, longest: int) -> float:
        """Of a run of padded rows."""
        tokens = rows * longest
        return self.run + self.token * tokens + self.square * tokens * longest

    @property
    def run_tokens(self) -> float:
        """A run's fixed cost in tokens of padding, as a build measures it."""
        return self.run / self.token


def measured(engine: Path) -> Machine:
    """The fastest of several runs at each size, and the plane through them.

    Of one thread, in seconds of its processor: whatever else the machine does is not in them.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(engine, options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    found: dict[tuple[int, int], float] = {}
    for rows in GRID_ROWS:
        for length in GRID_LENGTHS:
            if rows * length <= MOST_MEASURED:
                feed = _feed(names, rows, length)
                found[rows, length] = min(_timed(session, feed) for _ in range(REPEATS))
    sizes = np.array([[1, r * n, r * n * n] for r, n in found], dtype=np.float64)
    times = np.array(list(found.values()))
    weight = 1 / times  # relative errors count, not those of the largest run
    solved = _not_negative(sizes * weight[:, None], times * weight)
    return Machine(*solved, measured=found)


def _feed(names: Sequence[str], rows: int, length: int) -> dict[str, Any]:
    ids = np.random.default_rng(SEED).integers(100, 1000, (rows, length))
    every = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    return {name: every.get(name, np.zeros_like(ids)) for name in names}


def _timed(session: Any, feed: dict[str, Any]) -> float:
    begin = time.process_time()
    session.run(None, feed)
    return time.process_time() - begin


def _not_negative(matrix: Any, target: Any) -> list[float]:
    """Least squares with no negative part: drop what would be."""
    kept = list(range(matrix.shape[1]))
    while True:
        solved, *_ = np.linalg.lstsq(matrix[:, kept], target, rcond=None)
        if (solved > 0).all():
            return [float(solved[kept.index(i)]) if i in kept else 0.0 for i in range(3)]
        kept.pop(int(np.argmin(solved)))


Batcher = Callable[[list[Text], float], tuple[list[Text], int]]


def by_tokens(machine: Machine, most_tokens: int) -> Batcher:
    """The served engine's."""

    def batch(waiting: list[Text], now: float) -> tuple[list[Text], int]:
        first = first_of(waiting, now)
        run = packed(waiting, first, MOST_ROWS, most_tokens, machine.run_tokens)
        return run, max(text.length for text in run)

    return batch


def padded_to_the_longest(waiting: list[Text], _: float) -> tuple[list[Text], int]:
    """First come, first served, whatever their lengths (a ragged batch, padded in the backend)."""
    run = waiting[:MOST_ROWS]
    return run, max(text.length for text in run)


def equal_lengths(waiting: list[Text], _: float) -> tuple[list[Text], int]:
    """Triton's default: it stops at the first request of another shape."""

    def shape(text: Text) -> int:
        return -(-text.length // MULTIPLE) * MULTIPLE

    run = []
    for text in waiting[:MOST_ROWS]:
        if shape(text) != shape(waiting[0]):
            break
        run.append(text)
    return run, shape(waiting[0])


def play(
    arrivals: Sequence[Text], batcher: Batcher, cost: Cost, late: int | None = None
) -> tuple[float, int]:
    """Answer all arrivals, one run at a time; the end, and the number of runs.

    late: give up when more texts than these are answered later than the objective.
    """
    now, runs, position = 0.0, 0, 0
    waiting: list[Text] = []
    while position < len(arrivals) or waiting:
        if not waiting:
            now = max(now, arrivals[position].arrived)
        while position < len(arrivals) and arrivals[position].arrived <= now:
            waiting.append(arrivals[position])
            position += 1
        run, longest = batcher(waiting, now)
        now += cost(len(run), longest)
        runs += 1
        chosen = {id(text) for text in run}
        waiting = [text for text in waiting if id(text) not in chosen]
        for text in run:
            text.answered = now
        if late is not None:
            late -= sum(text.seconds > OBJECTIVE * cost(1, LONGEST) for text in run)
            if late < 0:
                break
    return now, runs


def arrivals(rate: float, count: int, lengths: Lengths) -> list[Text]:
    """A Poisson stream."""
    source, now = random.Random(SEED), 0.0
    made = []
    for _ in range(count):
        now += source.expovariate(rate)
        made.append(Text(now, lengths(source)))
    return made


def capacity(batcher: Batcher, cost: Cost, lengths: Lengths, clients: int) -> float:
    """Texts a second with so many clients that ask again as soon as they are answered."""
    source, now, done = random.Random(SEED), 0.0, 0
    waiting = [Text(0.0, lengths(source)) for _ in range(clients)]
    while done < TEXTS:
        run, longest = batcher(waiting, now)
        now += cost(len(run), longest)
        done += len(run)
        chosen = {id(text) for text in run}
        waiting = [text for text in waiting if id(text) not in chosen]
        waiting += [Text(now, lengths(source)) for _ in run]
    return done / now


def highest_rate(batcher: Batcher, cost: Cost, lengths: Lengths) -> float:
    """Texts a second with a P99 within the objective; 0: not even alone."""
    low, high = 0.0, 2 * capacity(batcher, cost, lengths, 64)
    for _ in range(9):
        rate = (low + high) / 2
        stream = arrivals(rate, TEXTS, lengths)
        play(stream, batcher, cost, late=TEXTS // 100)
        if all(text.answered for text in stream):
            low = rate
        else:
            high = rate
    return low


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def log_uniform(low: int, high: int) -> Lengths:
    """As often from 8 to 16 as from 256 to 512."""
    return lambda source: round(low * (high / low) ** source.random())


def with_long_ones(machine: Machine, batcher: Batcher) -> tuple[float, float, float]:
    """Short texts at half of what the engine can, and three of LONG tokens at once, twice.

    P99 and longest of the short ones, longest of the long ones; seconds.
    """
    short = log_uniform(8, 64)
    rate = 0.5 * capacity(by_tokens(machine, 512), machine.cost, short, 64)
    one = machine.cost(1, LONG)
    stream = arrivals(rate, int(rate * 20 * one), short)
    long = [Text(at * one, LONG) for at in (4.0, 4.0, 4.0, 12.0, 12.0, 12.0)]
    play(sorted([*stream, *long], key=lambda text: text.arrived), batcher, machine.cost)
    waited = [text.seconds for text in stream]
    return percentile(waited, 0.99), max(waited), max(text.seconds for text in long)


def report(engine: Path) -> Iterator[str]:
    """The page's table rows."""
    machine = measured(engine)
    tokens = default_tokens(machine.run_tokens)
    mixed = log_uniform(SHORTEST, LONGEST)
    batchers: dict[str, Batcher] = {
        f"by tokens, at most {tokens} a run (served)": by_tokens(machine, tokens),
        f"by tokens, at most {4 * tokens}": by_tokens(machine, 4 * tokens),
        "padded to the longest, first come": padded_to_the_longest,
        f"Triton's default: equal lengths, rounded to {MULTIPLE}": equal_lengths,
    }
    errors = [abs(machine.cost(r, n) / s - 1) for (r, n), s in machine.measured.items()]
    yield (
        f"{engine.name}, one thread: a run costs {1000 * machine.run:.2f} ms and "
        f"{1e6 * machine.token:.1f} µs a token (a run is worth {machine.run_tokens:.1f} tokens); "
        f"the plane is off by {100 * float(np.median(errors)):.0f} % at the median. Texts of "
        f"{SHORTEST} to {LONGEST} tokens, as many of each magnitude; the objective is a P99 of "
        f"{1000 * OBJECTIVE * machine.cost(1, LONGEST):.0f} ms, {OBJECTIVE:.0f} runs of one text "
        f"of {LONGEST}.\n"
    )
    yield "| batches | texts/s, 64 clients | highest within objective | runs for 4,000 at 70 % |"
    yield "|---|---|---|---|"
    for name, batcher in batchers.items():
        most = capacity(batcher, machine.cost, mixed, 64)
        rate = highest_rate(batcher, machine.cost, mixed)
        _, runs = play(arrivals(0.7 * most, TEXTS, mixed), batcher, machine.cost)
        yield f"| {name} | {most:.1f} | {rate:.1f} | {runs} |"
    yield (
        f"\nShort texts (8 to 64 tokens) at half of the engine's rate, and three texts of {LONG} "
        f"tokens at once, twice; times in runs of one of them ({machine.cost(1, LONG):.1f} s):\n"
    )
    yield "| batches | short, P99 | short, longest | long, longest |"
    yield "|---|---|---|---|"
    for name, batcher in batchers.items():
        found = with_long_ones(machine, batcher)
        cells = (f"{value / machine.cost(1, LONG):.2f}" for value in found)
        yield f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Print the tables, or write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("engine", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    lines = "\n".join(report(options.engine))
    print(lines)
    if options.write:
        text = RESULTS.read_text(encoding="utf-8")
        RESULTS.write_text(f"{text.split(MARK)[0]}{MARK}\n\n{lines}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
