# SPDX-License-Identifier: Apache-2.0
"""By how much the first token of one stream comes later through the gateway, and why.

And what that leaves of its tokens per second, next to the other requests of the same round.

Usage: python benchmarks/gateway/delay.py [--requests 200] [--tokens 128]

Every way is asked in turn with the same prompt, in an order drawn anew each round, so that what the
machine does meanwhile is the same for all. Exit code 1 if ours is more than 1 ms later than the
direct way, by the median of the paired differences. See ../README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent / name) for name in ("docker", "loadtest")] + [str(HERE.parents[1])]

import yaml  # noqa: E402

from bench import heading, say  # noqa: E402
from deployed import write_project  # noqa: E402
from run import MODEL, MOST_MS, SERVER, speller  # noqa: E402
from tests.envoy_process import Envoy, upstream_of  # noqa: E402
from tritonctl.console import Console  # noqa: E402
from tritonctl.engines.building import build_engine  # noqa: E402
from tritonctl.project_file import load_project  # noqa: E402
from tritonctl.triton.client import AsyncTritonClient  # noqa: E402
from tritonctl.triton.generation import SamplingParameters  # noqa: E402
from tritonctl.triton.repository import render  # noqa: E402
from tritonctl.triton.server import start, stop  # noqa: E402
from tritonctl.triton.server_state import ServerState  # noqa: E402
from variants import VARIANTS  # noqa: E402

DIRECT, AGAIN, OURS = "directly", "directly, a second time", "ours"
WARM_UP = 10
RESAMPLINGS = 1000
COLUMNS = (
    "way",
    "first token P50 ms",
    "later by, ms [95 % of resamplings]",
    "whole stream P50 ms",
    "tokens/s to directly",
    "Envoy's CPU ms",
)


class Took(NamedTuple):
    """One stream, in milliseconds: to its first text, and to its end."""

    first: float
    whole: float


Waits = dict[str, list[Took]]


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=200, help="of each way")
    parser.add_argument("--tokens", type=int, help="of each answer; as many as it has when absent")
    arguments = parser.parse_args()
    random.seed(1)
    with tempfile.TemporaryDirectory() as name, served(Path(name)) as state, ExitStack() as stack:
        envoys = {
            way: stack.enter_context(changed(Path(name) / str(number), state, way))
            for number, way in enumerate(VARIANTS)
        }
        print(f"load average before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        began = {way: processor_ms(envoy) for way, envoy in envoys.items()}
        urls = {DIRECT: state.grpc_url, AGAIN: state.grpc_url}
        urls |= {way: envoy.url for way, envoy in envoys.items()}
        waits = asyncio.run(asked(urls, arguments.requests, sampling(arguments.tokens)))
        count = arguments.requests + WARM_UP
        used = {way: (processor_ms(e) - began[way]) / count for way, e in envoys.items()}
        print(f"load average after: {os.getloadavg()[0]:.1f}")
    return 0 if told(waits, used) <= MOST_MS else 1


@contextmanager
def served(folder: Path) -> Iterator[ServerState]:
    """The shipped speller on a real Triton."""
    console = Console(quiet=True)
    root = folder / "project"
    write_project(root, speller(), server=SERVER)
    project = load_project(root)
    build_engine(project, MODEL, console)
    try:
        yield start(project, render(project, console), console)[0]
    finally:
        stop(project, console)


@contextmanager
def changed(folder: Path, state: ServerState, way: str) -> Iterator[Envoy]:
    """An Envoy with the rendered configuration, which a variant has changed."""
    folder.mkdir()
    envoy = Envoy(folder, [upstream_of(state)])
    configuration = yaml.safe_load(envoy.file.read_text(encoding="utf-8"))
    VARIANTS[way](configuration)
    envoy.file.write_text(yaml.safe_dump(configuration), encoding="utf-8")
    with envoy:
        yield envoy


def sampling(tokens: int | None) -> SamplingParameters:
    """Greedy; past the answer's end where it shall be longer."""
    if tokens is None:
        return SamplingParameters()
    return SamplingParameters(max_tokens=tokens, end_id=-1)


async def asked(urls: Mapping[str, str], requests: int, how: SamplingParameters) -> Waits:
    """How long it took, of every way in every round."""
    waits: Waits = {way: [] for way in urls}
    async with AsyncExitStack() as stack:
        clients = {
            way: await stack.enter_async_context(AsyncTritonClient(url))
            for way, url in urls.items()
        }
        for number in range(requests + WARM_UP):
            prompt = f"{random.randrange(1000, 999_999)} in English:"
            for way in random.sample([*clients], len(clients)):
                took = await streamed(clients[way], prompt, how)
                if number >= WARM_UP:
                    waits[way].append(took)
    return waits


async def streamed(client: AsyncTritonClient, prompt: str, how: SamplingParameters) -> Took:
    """One stream, read to its end."""
    began, first = time.perf_counter(), None
    async for chunk in client.stream(MODEL, prompt, how):
        if first is None and chunk.text:
            first = time.perf_counter() - began
    if first is None:
        raise SystemExit(f"no text came for {prompt!r}")
    return Took(1000 * first, 1000 * (time.perf_counter() - began))


def processor_ms(envoy: Envoy) -> float:
    """Milliseconds that Envoy has had a processor."""
    tasks = Path(f"/proc/{envoy.process.pid}/task") if envoy.process else Path("/nowhere")
    return sum(int(file.read_text().split()[0]) for file in tasks.glob("*/schedstat")) / 1e6


def told(waits: Waits, used: Mapping[str, float]) -> float:
    """The table; by how much ours is later."""
    heading("One stream at a time, directly and through Envoy", COLUMNS)
    for way, found in waits.items():
        later = paired(found, waits[DIRECT])
        low, high = interval(later)
        cells = f"{statistics.median(later):+.2f} [{low:+.2f} to {high:+.2f}]"
        first, whole = (statistics.median(each) for each in zip(*found, strict=True))
        ratio = "" if way == DIRECT else f"{share(found, waits[DIRECT]):.3f}"
        cpu = f"{used[way]:.2f}" if way in used else ""
        say(way, f"{first:.2f}", "" if way == DIRECT else cells, f"{whole:.2f}", ratio, cpu)
    return statistics.median(paired(waits[OURS], waits[DIRECT]))


def paired(found: list[Took], direct: list[Took]) -> list[float]:
    """By how much the first text was later in the same round, which had the same prompt."""
    return [one.first - other.first for one, other in zip(found, direct, strict=True)]


def share(found: list[Took], direct: list[Took]) -> float:
    """Of the tokens per second of one stream after the other: the texts are the same."""
    return sum(each.whole for each in direct) / sum(each.whole for each in found)


def interval(values: list[float]) -> tuple[float, float]:
    """Of the median, by resampling."""
    medians = sorted(
        statistics.median(random.choices(values, k=len(values))) for _ in range(RESAMPLINGS)
    )
    return medians[RESAMPLINGS // 40], medians[-RESAMPLINGS // 40]


if __name__ == "__main__":
    sys.exit(main())
