# SPDX-License-Identifier: Apache-2.0
"""Measures the gateway's cost: one real Triton asked directly and through Envoy, in turns.

Usage: python benchmarks/gateway/run.py [--containers] [--as-it-is] [--rounds 12] [--seconds 4]
           [--concurrency 1 8] [--tokens 0 128]

--containers: Triton and Envoy run as Docker Compose runs them, reached by published ports. Triton
has one core, client and Envoy have the other, and idle cores do not sleep; with --as-it-is all
share the machine. --tokens: lengths of the answers, 0 for their own.

Exit code 1 if, in the median over the rounds, tokens/s is below 0.95 of the direct rate or the
median TTFT is more than 1 ms above. See ../README.md.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path += [str(BENCHMARKS), str(BENCHMARKS / "docker"), str(BENCHMARKS.parent)]

from bench import (  # noqa: E402
    MODEL,
    PROMPTS,
    Bench,
    awake,
    heading,
    on_cores,
    running,
    say,
    speller,
)
from bench import write_project as write_plain_project  # noqa: E402
from deployed import deploy, engine, override, published, up, write_project  # noqa: E402
from tests.envoy_process import Envoy, upstream_of  # noqa: E402
from tritonctl.runtimes.ports import reserved_ports  # noqa: E402
from tritonctl.runtimes.server_state import EmbeddedServer  # noqa: E402

LEAST_RATIO, MOST_MS = 0.95, 1.0
RESAMPLINGS = 1000
COLUMNS = ("tokens of an answer", "streams", "direct tokens/s", "gateway", "ratio",
           "direct TTFT P50 ms", "gateway", "difference ms", "goals")  # fmt: skip


@dataclass(frozen=True)
class Cores:
    """The cores of the server, and those of client and Envoy."""

    server: set[int]
    others: set[int]


@dataclass(frozen=True)
class Load:
    """A closed loop of `streams`; `tokens` of an answer, 0 for its own length."""

    streams: int
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Measured:
    """One run."""

    tokens: float
    ttft: float


@dataclass(frozen=True)
class Round:
    """One run of each, one right after the other, so that drift is nearly the same for both."""

    direct: Measured
    gateway: Measured

    @property
    def ratio(self) -> float:
        """The gateway's share of the direct tokens per second."""
        return self.gateway.tokens / self.direct.tokens

    @property
    def later(self) -> float:
        """Milliseconds by which the first token is later."""
        return self.gateway.ttft - self.direct.ttft


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12, help="of two runs each")
    parser.add_argument("--seconds", type=float, default=4.0, help="of one run")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, nargs="+", default=[0, 128], help="of an answer")
    parser.add_argument("--containers", action="store_true", help="Triton and Envoy in Docker")
    parser.add_argument("--as-it-is", action="store_true", help="shared cores, which may sleep")
    arguments = parser.parse_args()
    loads = [
        Load(streams, tokens, arguments.seconds)
        for tokens in arguments.tokens
        for streams in arguments.concurrency
    ]
    serving = in_containers if arguments.containers else on_this_host
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        bench = Bench(Path(name))
        places = stack.enter_context(conditions(arguments.as_it_is))
        urls = stack.enter_context(serving(bench, places))
        with on_cores(places.others):
            return 0 if table(bench, urls, loads, arguments.rounds) else 1


@contextmanager
def conditions(as_it_is: bool) -> Iterator[Cores]:
    """The server gets the first core, the others get the rest, and none sleeps; or share all."""
    every = os.sched_getaffinity(0)
    if as_it_is:
        yield Cores(every, every)
        return
    first = min(every)
    places = Cores({first}, every - {first} or every)
    with awake() as granted:
        print(f"the server on cores {sorted(places.server)}, the others on {sorted(places.others)}")
        print(f"idle cores {'do not' if granted else 'may'} sleep")
        yield places


@contextmanager
def on_this_host(bench: Bench, places: Cores) -> Iterator[dict[str, str]]:
    """The server, with an Envoy in front."""
    with (
        served(bench, places) as state,
        on_cores(places.others),
        Envoy(bench.folder, [upstream_of(state)]) as envoy,
    ):
        yield {"direct": state.grpc_url, "gateway": envoy.url}


@contextmanager
def served(bench: Bench, places: Cores) -> Iterator[EmbeddedServer]:
    """The shipped speller on a real Triton."""
    root = bench.folder / "project"
    root.mkdir()
    with running(write_plain_project(root, speller()), places.server) as state:
        yield state


@contextmanager
def in_containers(bench: Bench, places: Cores) -> Iterator[dict[str, str]]:
    """The same, as `docker compose --profile cpu --profile gateway up` starts them."""
    root = bench.folder / f"tritonctl-gateway-{os.getpid()}"
    # Docker's proxies of published ports run on the cores of its engine.
    with (
        reserved_ports("127.0.0.1", {"port": 0, "admin_port": 0}) as (port, admin_port),
        on_cores(places.others),
        engine(),
    ):
        write_project(root, speller(), gateway={"port": port, "admin_port": admin_port})
        compose = deploy(root, "cpu", "gateway")
        override(compose, {"triton": cpuset(places.server), "envoy": cpuset(places.others)})
        with up(compose):
            services = {"direct": ("triton", 8001), "gateway": ("envoy", port)}
            yield {way: published(compose, *inside) for way, inside in services.items()}


def cpuset(cores: set[int]) -> dict[str, str]:
    """Cores in Compose's notation."""
    return {"cpuset": ",".join(map(str, sorted(cores)))}


def table(bench: Bench, urls: dict[str, str], loads: list[Load], rounds: int) -> bool:
    """Print a row for each load; return whether all keep the goals."""
    print(f"load average before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    heading("One server, directly and through the gateway", COLUMNS)
    good = True
    for place, load in enumerate(loads):
        measured(bench, urls["direct"], load, f"{place}-warm-up")
        pairs = [one_round(bench, urls, load, f"{place}-{n}", n % 2) for n in range(rounds)]
        good &= table_row(load, pairs)
    print(f"\nload average after: {os.getloadavg()[0]:.1f}")
    return good


def one_round(
    bench: Bench, urls: dict[str, str], load: Load, name: str, gateway_first: int
) -> Round:
    """One run of each way; the first way alternates."""
    ways = sorted(urls, reverse=bool(gateway_first))
    return Round(**{way: measured(bench, urls[way], load, f"{name}-{way}") for way in ways})


def measured(bench: Bench, url: str, load: Load, name: str) -> Measured:
    """A closed loop by the project's load generator."""
    arrivals = {"process": "closed", "concurrency": load.streams}
    plan = bench.plan(url, "text", arrivals, load.seconds)
    # A longer answer goes on past its end.
    parameters = {"max_tokens": load.tokens, "end_id": -1} if load.tokens else {}
    one = {"name": "text", "prompts": str(PROMPTS), "parameters": parameters}
    summary = bench.run(name, plan | {"model": MODEL, "classes": [one]}, "asyncio").summary
    if summary.counts.ok != summary.counts.sent:
        raise SystemExit(f"{url}: requests failed: {summary.errors}")
    ttft = summary.metrics["ttft"].percentile(0.5)
    if ttft is None:
        raise SystemExit(f"{url}: too few requests in {load.seconds} s for a median")
    return Measured(summary.rates.tokens_per_s, ttft.ms)


def table_row(load: Load, rounds: list[Round]) -> bool:
    """Print medians over the rounds, and intervals by resampling for the ratios."""
    ratios, laters = [r.ratio for r in rounds], [r.later for r in rounds]
    ratio, later = statistics.median(ratios), statistics.median(laters)
    good = ratio >= LEAST_RATIO and later <= MOST_MS
    direct, gateway = [r.direct for r in rounds], [r.gateway for r in rounds]
    say(
        load.tokens or "its own",
        load.streams,
        *(f"{statistics.median(run.tokens for run in side):.0f}" for side in (direct, gateway)),
        "{:.3f} [{:.3f} to {:.3f}]".format(ratio, *interval(ratios)),
        *(f"{statistics.median(run.ttft for run in side):.2f}" for side in (direct, gateway)),
        "{:+.2f} [{:+.2f} to {:+.2f}]".format(later, *interval(laters)),
        "kept" if good else "MISSED",
    )
    return good


def interval(values: list[float]) -> tuple[float, float]:
    """The median's 95 % interval, by resampling."""
    medians = sorted(
        statistics.median(random.choices(values, k=len(values))) for _ in range(RESAMPLINGS)
    )
    return medians[RESAMPLINGS // 40], medians[-RESAMPLINGS // 40]


if __name__ == "__main__":
    sys.exit(main())
