# SPDX-License-Identifier: Apache-2.0
"""Measures how much later the first token comes through the gateway, and why.

Also the share of the tokens per second, next to the other requests of the same round.

Usage: python benchmarks/gateway/delay.py [--requests 200] [--streams 1 8] [--tokens 0 128]
           [--containers] [--as-it-is]

Every way gets the same prompt in turn, in a new random order each round, so that other work of
machine and server is the same for all; --streams of these run at once. --tokens: lengths of the
answers, 0 for their own. --containers: Triton and Envoy run as Docker Compose runs them. Cores: see
run.py.

Exit code 1 if ours is more than 1 ms later than the direct way, by the median of the paired
differences, or has less than 0.95 of its tokens per second. See ../README.md.
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

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path += [str(BENCHMARKS), str(BENCHMARKS / "docker"), str(BENCHMARKS.parent)]

import yaml  # noqa: E402

from bench import MODEL, Bench, heading, on_cores, say  # noqa: E402
from run import (  # noqa: E402
    LEAST_RATIO,
    MOST_MS,
    Cores,
    conditions,
    in_containers,
    interval,
    served,
)
from tests.envoy_process import Envoy, upstream_of  # noqa: E402
from tritonctl import AsyncTritonClient, SamplingParameters  # noqa: E402
from tritonctl.runtimes.server_state import EmbeddedServer  # noqa: E402
from variants import VARIANTS  # noqa: E402

DIRECT, AGAIN, OURS = "directly", "directly, a second time", "ours"
WARM_UP = 10
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
Ways = Mapping[str, str]  # address of each
Envoys = Mapping[str, Envoy]
Clients = Mapping[str, AsyncTritonClient]


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=200, help="of each way, of each stream")
    parser.add_argument("--streams", type=int, nargs="+", default=[1], help="at once")
    parser.add_argument("--tokens", type=int, nargs="+", default=[0], help="of each answer")
    parser.add_argument("--containers", action="store_true", help="Triton and Envoy in Docker")
    parser.add_argument("--as-it-is", action="store_true", help="shared cores, which may sleep")
    arguments = parser.parse_args()
    random.seed(1)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        bench = Bench(Path(name))
        places = stack.enter_context(conditions(arguments.as_it_is))
        serving = composed if arguments.containers else varied
        ways, envoys = stack.enter_context(serving(bench, places))
        print(f"load average before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        with on_cores(places.others):
            kept = [
                one_table(ways, envoys, arguments.requests, streams, tokens)
                for tokens in arguments.tokens
                for streams in arguments.streams
            ]
        print(f"\nload average after: {os.getloadavg()[0]:.1f}")
    return 0 if all(kept) else 1


def one_table(ways: Ways, envoys: Envoys, requests: int, streams: int, tokens: int) -> bool:
    """Measure one load and print its table; return whether ours keeps the goals."""
    began = {way: processor_ms(envoy) for way, envoy in envoys.items()}
    waits = asyncio.run(asked(ways, requests, streams, sampling(tokens)))
    count = (requests + WARM_UP) * streams
    used = {way: (processor_ms(envoy) - began[way]) / count for way, envoy in envoys.items()}
    length = f"{tokens} tokens" if tokens else "the answers' own length"
    print_table(f"Streams at a time: {streams}, {length}", waits, used)
    ours, direct = waits[OURS], waits[DIRECT]
    late = statistics.median(paired(ours, direct)) > MOST_MS
    return not late and share(ours, direct) >= LEAST_RATIO


@contextmanager
def composed(bench: Bench, places: Cores) -> Iterator[tuple[Ways, Envoys]]:
    """Ours alone, in containers, without their processor time."""
    with in_containers(bench, places) as urls:
        yield {DIRECT: urls["direct"], AGAIN: urls["direct"], OURS: urls["gateway"]}, {}


@contextmanager
def varied(bench: Bench, places: Cores) -> Iterator[tuple[Ways, Envoys]]:
    """All variants, each an Envoy in front of the same server."""
    with served(bench, places) as state, on_cores(places.others), ExitStack() as stack:
        envoys = {
            way: stack.enter_context(changed(bench.folder / str(number), state, way))
            for number, way in enumerate(VARIANTS)
        }
        ways = {DIRECT: state.grpc_url, AGAIN: state.grpc_url}
        yield ways | {way: envoy.url for way, envoy in envoys.items()}, envoys


@contextmanager
def changed(folder: Path, state: EmbeddedServer, way: str) -> Iterator[Envoy]:
    """An Envoy with a variant of the rendered configuration."""
    folder.mkdir()
    envoy = Envoy(folder, [upstream_of(state)])
    configuration = yaml.safe_load(envoy.file.read_text(encoding="utf-8"))
    VARIANTS[way](configuration)
    envoy.file.write_text(yaml.safe_dump(configuration), encoding="utf-8")
    with envoy:
        yield envoy


def sampling(tokens: int) -> SamplingParameters:
    """Greedy; a longer answer goes on past its end."""
    if not tokens:
        return SamplingParameters()
    return SamplingParameters(max_tokens=tokens, end_id=-1)


async def asked(ways: Ways, requests: int, streams: int, how: SamplingParameters) -> Waits:
    """The times of every way in every round."""
    waits: Waits = {way: [] for way in ways}
    async with AsyncExitStack() as stack:
        clients = {
            way: await stack.enter_async_context(AsyncTritonClient(url))
            for way, url in ways.items()
        }
        await asyncio.gather(*(rounds(clients, requests, how, waits) for _ in range(streams)))
    return waits


async def rounds(clients: Clients, requests: int, how: SamplingParameters, waits: Waits) -> None:
    """Ask one stream after the other."""
    for number in range(requests + WARM_UP):
        prompt = f"{random.randrange(1000, 999_999)} in English:"
        ways = random.sample([*clients], len(clients))
        took = {way: await streamed(clients[way], prompt, how) for way in ways}
        if number >= WARM_UP:
            for way, each in took.items():
                waits[way].append(each)


async def streamed(client: AsyncTritonClient, prompt: str, how: SamplingParameters) -> Took:
    """Read one stream to its end."""
    began, first = time.perf_counter(), None
    async for chunk in client.stream(MODEL, prompt, how):
        if first is None and chunk.text:
            first = time.perf_counter() - began
    if first is None:
        raise SystemExit(f"no text came for {prompt!r}")
    return Took(1000 * first, 1000 * (time.perf_counter() - began))


def processor_ms(envoy: Envoy) -> float:
    """Milliseconds of processor time that Envoy has used."""
    tasks = Path(f"/proc/{envoy.process.pid}/task") if envoy.process else Path("/nowhere")
    return sum(int(file.read_text().split()[0]) for file in tasks.glob("*/schedstat")) / 1e6


def print_table(title: str, waits: Waits, used: Mapping[str, float]) -> None:
    """Print a row for each way."""
    heading(title, COLUMNS)
    for way, times in waits.items():
        first, whole = (statistics.median(each) for each in zip(*times, strict=True))
        later, ratio = compared(times, waits[DIRECT]) if way != DIRECT else ("", "")
        cpu = f"{used[way]:.2f}" if way in used else ""
        say(way, f"{first:.2f}", later, f"{whole:.2f}", ratio, cpu)


def compared(times: list[Took], direct: list[Took]) -> tuple[str, str]:
    """The delay and the share of the tokens per second, as text."""
    delays = paired(times, direct)
    low, high = interval(delays)
    later = f"{statistics.median(delays):+.2f} [{low:+.2f} to {high:+.2f}]"
    return later, f"{share(times, direct):.3f}"


def paired(times: list[Took], direct: list[Took]) -> list[float]:
    """The delay of the first text in each round, which had the same prompt."""
    return [one.first - other.first for one, other in zip(times, direct, strict=True)]


def share(times: list[Took], direct: list[Took]) -> float:
    """The share of the direct tokens per second; the texts are the same."""
    return sum(each.whole for each in direct) / sum(each.whole for each in times)


if __name__ == "__main__":
    sys.exit(main())
