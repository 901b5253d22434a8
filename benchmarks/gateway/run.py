# SPDX-License-Identifier: Apache-2.0
"""What the gateway costs: one real Triton reached directly and through Envoy, in turns, A B B A.

Usage: python benchmarks/gateway/run.py [--containers] [--rounds 5] [--seconds 8]
           [--concurrency 1 8]

With --containers Triton and Envoy run as Docker Compose runs them, reached by published ports.

Exit code 1 if, in the median over the rounds, tokens/s is below 0.95 of the direct rate or the
median TTFT is more than 1 ms above. See ../README.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent / name) for name in ("docker", "loadtest")] + [str(HERE.parents[1])]

from bench import Bench, heading, say  # noqa: E402
from deployed import deploy, engine, published, up, write_project  # noqa: E402
from tests.envoy_process import Envoy, upstream_of  # noqa: E402
from tritonctl import bundled  # noqa: E402
from tritonctl.console import Console  # noqa: E402
from tritonctl.engines.building import build_engine  # noqa: E402
from tritonctl.project_file import load_project  # noqa: E402
from tritonctl.triton.ports import choose_ports  # noqa: E402
from tritonctl.triton.repository import render  # noqa: E402
from tritonctl.triton.server import start, stop  # noqa: E402

MODEL = "speller"
LEAST_RATIO, MOST_MS = 0.95, 1.0
BUILD = {"builder": "openvino", "precision": "int8", "max_batch_size": 32, "max_seq_len": 512}
SERVER = {"grpc_port": 0, "http_port": 0, "metrics_port": 0}
COLUMNS = ("streams", "direct tokens/s", "gateway", "ratio", "direct TTFT P50 ms", "gateway",
           "difference ms", "goals")  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """One run."""

    tokens: float
    ttft: float


@dataclass(frozen=True)
class Round:
    """Direct, gateway, gateway, direct: what drifts slowly is the same for both."""

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
    parser.add_argument("--rounds", type=int, default=5, help="of four runs each")
    parser.add_argument("--seconds", type=float, default=8.0, help="of one run")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--containers", action="store_true", help="Triton and Envoy in Docker")
    arguments = parser.parse_args()
    good = True
    serving = in_containers if arguments.containers else on_this_host
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name), Console(quiet=True))
        with serving(bench) as urls:
            print(f"load average before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
            heading("One server, directly and through the gateway", COLUMNS)
            for streams in arguments.concurrency:
                measured(bench, urls["direct"], streams, 3.0, f"warm-up-{streams}")
                rounds = [
                    one_round(bench, urls, streams, arguments.seconds, f"{streams}-{number}")
                    for number in range(arguments.rounds)
                ]
                good &= table_row(streams, rounds)
            print(f"\nload average after: {os.getloadavg()[0]:.1f}")
    return 0 if good else 1


@contextmanager
def on_this_host(bench: Bench) -> Iterator[dict[str, str]]:
    """The shipped speller in a real Triton, and an Envoy before it."""
    root = bench.folder / "project"
    write_project(root, speller(), server=SERVER)
    project = load_project(root)
    build_engine(project, MODEL, bench.console)
    state, _ = start(project, render(project, bench.console), bench.console)
    try:
        with Envoy(bench.folder, [upstream_of(state)]) as envoy:
            yield {"direct": state.grpc_url, "gateway": envoy.url}
    finally:
        stop(project, bench.console)


@contextmanager
def in_containers(bench: Bench) -> Iterator[dict[str, str]]:
    """The same as `docker compose --profile cpu --profile gateway up` starts them."""
    port, admin_port = choose_ports("127.0.0.1", {"port": 0, "admin_port": 0})
    root = bench.folder / f"tritonctl-gateway-{os.getpid()}"
    gateway = {"port": port, "admin_port": admin_port}
    write_project(root, speller(), server=SERVER, gateway=gateway)
    with engine():
        compose = deploy(root, "cpu", "gateway")
        with up(compose):
            services = {"direct": ("triton", 8001), "gateway": ("envoy", port)}
            yield {way: published(compose, *inside) for way, inside in services.items()}


def speller() -> dict[str, Any]:
    """The shipped checkpoint in int8."""
    checkpoint = bundled.find("examples/number-speller") / "checkpoint"
    return {MODEL: {"checkpoint": str(checkpoint), "engine": BUILD}}


def one_round(bench: Bench, urls: dict[str, str], streams: int, seconds: float, name: str) -> Round:
    """A B B A."""
    runs: dict[str, list[Measured]] = {"direct": [], "gateway": []}
    for place, way in enumerate(("direct", "gateway", "gateway", "direct")):
        runs[way].append(measured(bench, urls[way], streams, seconds, f"{name}-{place}"))
    means = {
        way: Measured(
            statistics.fmean(run.tokens for run in each), statistics.fmean(run.ttft for run in each)
        )
        for way, each in runs.items()
    }
    return Round(**means)


def measured(bench: Bench, url: str, streams: int, seconds: float, name: str) -> Measured:
    """A closed loop of so many streams by the project's load generator."""
    plan = bench.plan(url, "text", {"process": "closed", "concurrency": streams}, seconds)
    prompts = bundled.find("examples/number-speller") / "prompts.jsonl"
    plan |= {"model": MODEL, "classes": [{"name": "text", "prompts": str(prompts)}]}
    summary = bench.run(name, plan, "asyncio").summary
    if summary.counts.ok != summary.counts.sent:
        raise SystemExit(f"{url}: requests failed: {summary.errors}")
    ttft = summary.metrics["ttft"].percentile(0.5)
    if ttft is None:
        raise SystemExit(f"{url}: too few requests in {seconds} s for a median")
    return Measured(summary.rates.tokens_per_s, ttft.ms)


def table_row(streams: int, rounds: list[Round]) -> bool:
    """Medians over the rounds, with the lowest and the highest of what is compared."""
    ratio, later = spread([r.ratio for r in rounds]), spread([r.later for r in rounds])
    good = ratio[1] >= LEAST_RATIO and later[1] <= MOST_MS
    say(
        streams,
        *(f"{statistics.median(r.tokens for r in side):.0f}" for side in sides(rounds)),
        f"{ratio[1]:.3f} [{ratio[0]:.3f} to {ratio[2]:.3f}]",
        *(f"{statistics.median(r.ttft for r in side):.2f}" for side in sides(rounds)),
        f"{later[1]:+.2f} [{later[0]:+.2f} to {later[2]:+.2f}]",
        "kept" if good else "MISSED",
    )
    return good


def sides(rounds: list[Round]) -> tuple[list[Measured], list[Measured]]:
    """All direct runs, all through the gateway."""
    return [r.direct for r in rounds], [r.gateway for r in rounds]


def spread(values: list[float]) -> tuple[float, float, float]:
    """Lowest, median, highest."""
    return min(values), statistics.median(values), max(values)


if __name__ == "__main__":
    sys.exit(main())
