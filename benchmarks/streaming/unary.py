# SPDX-License-Identifier: Apache-2.0
"""Compares whole answers of a model that answers once with the same answers streamed, in pairs.

Usage: python benchmarks/streaming/unary.py [--seconds 5] [--repetitions 3]
       [--concurrency 1 8 32] [--tokens 64]
The shipped checkpoint in int8, `serving.unary: true`; as many clients at once, each asking again
when it has its answer. The clients' own work is part of both.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from bench import MODEL, heading, running, say, speller, write_project  # noqa: E402
from tritonctl import SamplingParameters, TritonClient  # noqa: E402

Ask = Callable[[TritonClient, str, int], object]


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one measurement")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=64)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        project = write_project(Path(name), speller(serving={"unary": True}))
        with running(project) as state:
            columns = ("clients", "streamed ms", "once ms", "once to streamed, time")
            heading(f"{arguments.tokens} tokens, streamed and in one answer", columns)
            for clients in arguments.concurrency:
                pairs = [
                    tuple(
                        answer_ms(state.grpc_url, ask, clients, arguments)
                        for ask in (streamed, once)
                    )
                    for _ in range(arguments.repetitions)
                ]
                report(clients, pairs)


def report(clients: int, pairs: list[tuple[float, ...]]) -> None:
    """A row: medians, and the paired ratios as median [lowest to highest]."""
    ratios = [one / stream for stream, one in pairs]
    medians = [f"{statistics.median(column):.1f}" for column in zip(*pairs, strict=True)]
    spread = f"[{min(ratios):.2f} to {max(ratios):.2f}]"
    say(clients, *medians, f"{statistics.median(ratios):.2f} {spread}")


def answer_ms(url: str, ask: Ask, clients: int, arguments: argparse.Namespace) -> float:
    """The median time of a whole answer."""
    end = time.monotonic() + arguments.seconds

    def asking(number: int) -> list[float]:
        times = []
        with TritonClient(url) as client:
            while time.monotonic() < end:
                begun = time.monotonic()
                ask(client, f"{1000 * number + len(times)} in English:", arguments.tokens)
                times.append((time.monotonic() - begun) * 1000)
        return times[1:]  # the first one opens the connection

    with ThreadPoolExecutor(clients) as pool:
        return statistics.median(ms for times in pool.map(asking, range(clients)) for ms in times)


def streamed(client: TritonClient, prompt: str, tokens: int) -> object:
    """As every client of ours does."""
    return client.generate(MODEL, prompt, SamplingParameters(max_tokens=tokens, end_id=-1))


def once(client: TritonClient, prompt: str, tokens: int) -> object:
    """ModelInfer."""
    inputs = {
        "text_input": np.array([[prompt.encode()]], dtype=object),
        "max_tokens": np.array([[tokens]], dtype=np.int32),
        "end_id": np.array([[-1]], dtype=np.int32),
    }
    return client.infer(f"{MODEL}_unary", inputs)


if __name__ == "__main__":
    main()
