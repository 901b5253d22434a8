# SPDX-License-Identifier: Apache-2.0
"""What the gateway costs: one real Triton reached directly and through Envoy, in turns.

Usage: python benchmarks/gateway/run.py [--containers] [--as-it-is] [--rounds 12] [--seconds 4]
           [--concurrency 1 8] [--tokens 0 128]

With --containers Triton and Envoy run as Docker Compose runs them, reached by published ports.
Triton has one core, client and Envoy have the other, and idle cores do not sleep; with --as-it-is
all share what there is. --tokens are the lengths of the answers, 0 is their own.

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
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent / name) for name in ("docker", "loadtest")] + [str(HERE.parents[1])]

from bench import Bench, awake, cores, heading, say  # noqa: E402
from deployed import deploy, engine, override, published, up, write_project  # noqa: E402
from tests.envoy_process import Envoy, upstream_of  # noqa: E402
from tritonctl.console.voice import Console  # noqa: E402
from tritonctl.engines.build.engine import build_engine  # noqa: E402
from tritonctl.host import bundled  # noqa: E402
from tritonctl.project.file import load_project  # noqa: E402
from tritonctl.repository.publish import render  # noqa: E402
from tritonctl.server.lifecycle import start, stop  # noqa: E402
from tritonctl.server.ports import choose_ports  # noqa: E402
from tritonctl.server.state import Server  # noqa: E402

MODEL = "speller"
LEAST_RATIO, MOST_MS = 0.95, 1.0
BUILD = {"builder": "openvino", "precision": "int8", "max_batch_size": 32, "max_seq_len": 512}
SERVER = {"grpc_port": 0, "http_port": 0, "metrics_port": 0}
RESAMPLINGS = 1000
COLUMNS = ("tokens of an answer", "streams", "direct tokens/s", "gateway", "ratio",
           "direct TTFT P50 ms", "gateway", "difference ms", "goals")  # fmt: skip


@dataclass(frozen=True)
class Cores:
    """Who runs where: the server, and who sends and passes on."""

    server: set[int]
    others: set[int]


@dataclass(frozen=True)
class Load:
    """A closed loop of so many streams; `tokens` of an answer, 0 for its own length."""

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
    """One run of each, one right after the other: what drifts is nearly the same for both."""

    direct: Measured
    gateway: Measured

    @property
    def ratio(self) -> float:
        """Of tokens per second."""
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
        bench = Bench(Path(name), Console(quiet=True))
        places = stack.enter_context(conditions(arguments.as_it_is))
        urls = stack.enter_context(serving(bench, places))
        with cores(places.others):
            return 0 if table(bench, urls, loads, arguments.rounds) else 1


@contextmanager
def conditions(as_it_is: bool) -> Iterator[Cores]:
    """The server has the first core and the others have the rest, none of which sleeps.

    As it is: all for all.
    """
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
    """The server, and an Envoy before it."""
    with (
        served(bench, places) as state,
        cores(places.others),
        Envoy(bench.folder, [upstream_of(state)]) as envoy,
    ):
        yield {"direct": state.grpc_url, "gateway": envoy.url}


@contextmanager
def served(bench: Bench, places: Cores) -> Iterator[Server]:
    """The shipped speller on a real Triton."""
    root = bench.folder / "project"
    write_project(root, speller(), server=SERVER)
    project = load_project(root)
    build_engine(project, MODEL, bench.console)
    try:
        with cores(places.server):
            state, _ = start(project, render(project, bench.console), bench.console)
        yield state
    finally:
        stop(project, bench.console)


@contextmanager
def in_containers(bench: Bench, places: Cores) -> Iterator[dict[str, str]]:
    """The same as `docker compose --profile cpu --profile gateway up` starts them."""
    port, admin_port = choose_ports("127.0.0.1", {"port": 0, "admin_port": 0})
    root = bench.folder / f"tritonctl-gateway-{os.getpid()}"
    gateway = {"port": port, "admin_port": admin_port}
    write_project(root, speller(), server=SERVER, gateway=gateway)
    # Docker's proxies of published ports run where its engine runs.
    with cores(places.others), engine():
        compose = deploy(root, "cpu", "gateway")
        override(compose, {"triton": cpuset(places.server), "envoy": cpuset(places.others)})
        with up(compose):
            services = {"direct": ("triton", 8001), "gateway": ("envoy", port)}
            yield {way: published(compose, *inside) for way, inside in services.items()}


def cpuset(wanted: set[int]) -> dict[str, str]:
    """As Compose spells it."""
    return {"cpuset": ",".join(map(str, sorted(wanted)))}


def speller() -> dict[str, Any]:
    """The shipped checkpoint in int8."""
    checkpoint = bundled.find("examples/number-speller") / "checkpoint"
    return {MODEL: {"checkpoint": str(checkpoint), "engine": BUILD}}


def table(bench: Bench, urls: dict[str, str], loads: list[Load], rounds: int) -> bool:
    """A row for each load; whether all of them keep the goals."""
    print(f"load average before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    heading("One server, directly and through the gateway", COLUMNS)
    good = True
    for place, load in enumerate(loads):
        measured(bench, urls["direct"], load, f"{place}-warm-up")
        those = [one_round(bench, urls, load, f"{place}-{n}", n % 2) for n in range(rounds)]
        good &= table_row(load, those)
    print(f"\nload average after: {os.getloadavg()[0]:.1f}")
    return good


def one_round(
    bench: Bench, urls: dict[str, str], load: Load, name: str, gateway_first: int
) -> Round:
    """Who comes first changes from round to round."""
    ways = sorted(urls, reverse=bool(gateway_first))
    return Round(**{way: measured(bench, urls[way], load, f"{name}-{way}") for way in ways})


def measured(bench: Bench, url: str, load: Load, name: str) -> Measured:
    """A closed loop by the project's load generator."""
    arrivals = {"process": "closed", "concurrency": load.streams}
    plan = bench.plan(url, "text", arrivals, load.seconds)
    prompts = bundled.find("examples/number-speller") / "prompts.jsonl"
    # Past the end of the answer, where it shall be longer.
    parameters = {"max_tokens": load.tokens, "end_id": -1} if load.tokens else {}
    one = {"name": "text", "prompts": str(prompts), "parameters": parameters}
    summary = bench.run(name, plan | {"model": MODEL, "classes": [one]}, "asyncio").summary
    if summary.counts.ok != summary.counts.sent:
        raise SystemExit(f"{url}: requests failed: {summary.errors}")
    ttft = summary.metrics["ttft"].percentile(0.5)
    if ttft is None:
        raise SystemExit(f"{url}: too few requests in {load.seconds} s for a median")
    return Measured(summary.rates.tokens_per_s, ttft.ms)


def table_row(load: Load, rounds: list[Round]) -> bool:
    """Medians over the rounds; of what is compared, with what they may be by resampling."""
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
    """Of the median, by resampling: 95 %."""
    medians = sorted(
        statistics.median(random.choices(values, k=len(values))) for _ in range(RESAMPLINGS)
    )
    return medians[RESAMPLINGS // 40], medians[-RESAMPLINGS // 40]


if __name__ == "__main__":
    sys.exit(main())
