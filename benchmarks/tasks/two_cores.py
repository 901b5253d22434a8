# SPDX-License-Identifier: Apache-2.0
"""The highest rate at which texts are in time on two cores, by who goes next: no clock, no engine.

    python benchmarks/tasks/two_cores.py [--short 6.0] [--long 19.5] [--threads 1.9] [--path 2.5]

A text of 64 tokens takes `short` ms, one of 256 `long` ms, with both cores; one core takes
`threads` times as long. Two runs at a time have all of both cores. `path`: ms of a text's way to
the engine and back, here and with a peer. The packing is the served code, python_backends/.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "python_backends"))

from tensorlib.packing import default_tokens, first_of, packed  # noqa: E402

SHORTEST, LONGEST, READ = 8, 512, 256  # tokens; longer texts are cut
MOST_ROWS, RUN_TOKENS = 32, 7.0
WITHIN, LATE = 50.0, 0.01  # ms, and how many may be later
TEXTS, SEED, HALVINGS, HIGHEST = 8000, 23, 8, 200.0
NOISE = 0.15  # of a run's time, as a logarithm
FEW = 64  # tokens: a short text


@dataclass(eq=False)
class Text:
    """One that waits: when it came, ms, and its tokens."""

    arrived: float
    length: int


@dataclass(frozen=True)
class Machine:
    """What runs take."""

    short: float
    long: float
    threads: float

    def work(self, tokens: int) -> float:
        """Milliseconds of both cores."""
        each = (self.long - self.short) / (READ - FEW)
        return max(0.2, self.short + each * (tokens - FEW))


@dataclass(eq=False)
class Run:
    """Texts under way, and what of their work is left."""

    texts: Sequence[Text]
    tokens: int
    left: float


BOUND = "two, each on one core alone, too"
Beside = Callable[[Sequence[Text], Run], bool]  # those that wait, the run under way
BESIDE: dict[str, Beside] = {
    "one run at a time": lambda _waiting, _run: False,
    "two (served)": lambda _waiting, _run: True,
    BOUND: lambda _waiting, _run: True,
    "a second for short ones, or with three waiting": lambda waiting, run: (
        len(waiting) > 2 or run.tokens <= FEW or waiting[0].length <= FEW
    ),
}


def play(machine: Machine, way: str, path: float, rate: float) -> float:
    """The share of texts that are late."""
    beside = BESIDE[way]
    draw, now, last, late = random.Random(SEED), 0.0, 0.0, 0
    waiting: list[Text] = []
    running: list[Run] = []
    coming = [last := last + draw.expovariate(rate / 1000) for _ in range(TEXTS)]
    coming.reverse()
    while coming or waiting or running:
        # Of two runs each has a core, and with it what threads of one run lose to each other.
        both = len(running) == 1 and way != BOUND
        speed = 1.0 if both else 1.0 / machine.threads
        ends = min((run.left / speed for run in running), default=float("inf"))
        step = min(ends, coming[-1] - now if coming else float("inf"))
        now += step
        for run in running:
            run.left -= step * speed
        if step < ends:
            tokens = round(SHORTEST * (LONGEST / SHORTEST) ** draw.random())
            waiting.append(Text(coming.pop(), min(tokens, READ)))
        for run in [run for run in running if run.left <= 1e-9]:
            running.remove(run)
            late += sum(now + path - text.arrived > WITHIN for text in run.texts)
        while waiting and (not running or (len(running) == 1 and beside(waiting, running[0]))):
            texts = packed(
                waiting, first_of(waiting, now / 1000), MOST_ROWS, default_tokens(RUN_TOKENS),
                RUN_TOKENS,
            )  # fmt: skip
            tokens = max(text.length for text in texts) * len(texts)
            running.append(Run(texts, tokens, machine.work(tokens) * draw.lognormvariate(0, NOISE)))
            waiting = [text for text in waiting if text not in texts]
    return late / TEXTS


def highest(machine: Machine, way: str, path: float) -> float:
    """Texts a second of which so few are late."""
    low, high = 0.0, HIGHEST
    for _ in range(HALVINGS):
        rate = (low + high) / 2
        low, high = (rate, high) if play(machine, way, path, rate) <= LATE else (low, rate)
    return low


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", type=float, default=6.0, help="ms of 64 tokens, both cores")
    parser.add_argument("--long", type=float, default=19.5, help="ms of 256 tokens, both cores")
    parser.add_argument("--threads", type=float, default=1.9, help="what one core takes, times")
    parser.add_argument("--path", type=float, nargs="+", default=[2.5, 4.5], help="ms")
    asked = parser.parse_args()
    ways = [(path, runs) for path in asked.path for runs in (1.0, 0.9)]
    heads = (f"path {path:g} ms{', runs 0.9' if runs < 1 else ''}" for path, runs in ways)
    print(f"| texts/s within {WITHIN:g} ms for {1 - LATE:.0%} | {' | '.join(heads)} |")
    print(f"|---{'|---' * len(ways)}|")
    for way in BESIDE:
        found = [
            highest(Machine(runs * asked.short, runs * asked.long, asked.threads), way, path)
            for path, runs in ways
        ]
        print(f"| {way} | {' | '.join(f'{rate:.0f}' for rate in found)} |", flush=True)


if __name__ == "__main__":
    main()
